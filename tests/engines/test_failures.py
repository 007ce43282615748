"""Real engines that die, hang, break off and come back: health, breaker, routing, and answers that outlive their
engine."""

import concurrent.futures
import contextlib
import signal

import httpx
import pytest

from test_connect import Proxy
from test_upstreams import address, figures
from wire import Break, Wire

from .asks import CHAT_APIS, GREEDY, QUESTION, STORY, ask, chat, completion, messages, post, read, user
from .engines import CONTEXT, MODEL, SEQUENCES, wait_until

TOKENS = 200
#: Members by which an answer does not end before its limit; the other APIs have none.
LASTING = {chat: {"ignore_eos": True}, completion: {"ignore_eos": True}}
#: Streams of a kill under load; half of them over QUIC.
STREAMS = 32
#: What befalls an engine, or the wire in front of it.
FAULTS = [signal.SIGKILL, signal.SIGSTOP, Break.RESET, Break.CUT]
#: A long pause of a busy machine is no death.
SILENCE_S = "20"


@pytest.fixture
def fronts(two, start):
    """Loquent in front of two engines, and the engines; flags are further ones."""

    def begin(*flags, ways=two):
        urls = ",".join(one.url for one in ways)
        return start("--upstream", f"{MODEL}={urls}", "--upstream-timeout-s", SILENCE_S, *flags)

    return begin


@contextlib.contextmanager
def fault(engine, number):
    """Kills or stops an engine; one that was stopped goes on afterwards."""
    engine.signal(number)
    try:
        yield
    finally:
        if number == signal.SIGSTOP:
            engine.signal(signal.SIGCONT)
        else:
            engine.end()


class Strike:
    """A fault that befalls the engine with most to do, when it is called; `with` ends it.

    It is a signal, or a break of the connections through the wire by which the front reaches the engine: `wires`, if
    there are any, in the order of the engines.
    """

    def __init__(self, front, engines, fault, wires=()):
        self.front, self.engines, self.fault, self.stack = front, engines, fault, contextlib.ExitStack()
        self.ways = dict(zip(engines, wires or engines, strict=True))
        self.victim = self.survivor = None

    def __call__(self):
        # Nothing is computed while the front is asked who has most to do: a small model would be done meanwhile.
        for one in self.engines:
            one.signal(signal.SIGSTOP)
        running = figures(self.front, "running")
        self.survivor, self.victim = sorted(self.engines, key=lambda one: running[address(self.ways[one])])
        self.survivor.signal(signal.SIGCONT)
        if isinstance(self.fault, Break):
            self.ways[self.victim].break_all(self.fault)
            self.victim.signal(signal.SIGCONT)
        else:
            self.stack.enter_context(fault(self.victim, self.fault))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()


def test_a_conversation_stays_at_one_engine_and_strangers_spread(two, fronts):
    front = fronts()
    turns = user("Name three colours.")
    for _ in range(3):
        body = {**GREEDY, "messages": turns, "max_tokens": 10}
        answer = post(front, "/v1/chat/completions", body).json()["choices"][0]["message"]
        turns += [{"role": "assistant", "content": answer["content"]}, *user("And three more.")]
    assert sorted(figures(front, "requests_total").values()) == [0, 3]
    assert sum(figures(front, "affine_requests_total").values()) == 3
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda index: ask(chat, front.url, f"Number {index}", 10), range(24)))
    assert min(figures(front, "requests_total").values()) >= 5


@pytest.mark.parametrize("api", CHAT_APIS, ids=lambda api: api.__name__)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
def test_the_rest_of_an_answer_is_what_the_survivor_says_behind_the_beginning(two, fronts, api, number):
    front = fronts()
    with Strike(front, two, number) as strike:
        answer = read(api, front.url, STORY, TOKENS, strike, **LASTING.get(api, {}))
        assert answer.is_whole
        assert sum(figures(front, "moved_requests_total").values()) == 1
        if api is chat:
            assert_continued(answer, strike.survivor)
        else:
            # The others tell the seam at the end: the answer begins as that of the engine itself.
            assert len(answer.seams) == 1 and 1 <= answer.seams[0]["after_tokens"] <= TOKENS
            whole = ask(chat, strike.survivor.url, STORY, TOKENS)
            assert answer.text.split()[:3] == whole.text.split()[:3]
            assert_counted(answer, whole)


def assert_counted(answer, whole, off_by=3):
    """The prompt counts once: what the survivor counts less what has arrived, in whose words it sees other tokens."""
    prompt, tokens = answer.usage
    assert abs(prompt - whole.usage[0]) <= off_by and tokens <= TOKENS


def assert_continued(answer, survivor):
    """Holds an answer with a seam against what the survivor says to the text before it."""
    before, tokens = answer.seam
    assert before and answer.text.startswith(before)
    turns = [*user(STORY), {"role": "assistant", "content": before.rstrip()}]
    continued = {"messages": turns, "continue_final_message": True, "add_generation_prompt": False, **LASTING[chat]}
    rest = read(chat, survivor.url, STORY, TOKENS - tokens, **continued).text
    space = before[len(before.rstrip()) :]
    assert answer.text == before + rest.removeprefix(space)


@pytest.mark.parametrize("fault", FAULTS, ids=["kill", "stop", "reset", "cut"])
def test_no_answer_of_many_is_lost_when_an_engine_dies_or_breaks_off(two, fronts, tmp_path, fault):
    with contextlib.ExitStack() as ends:
        wires = [ends.enter_context(Wire(one.url)) for one in two]
        # Whoever waits for a place of the survivor waits in Loquent: its own queue would look like silence.
        front = fronts("--max-inflight-requests", "256", "--upstream-max-running", str(SEQUENCES), ways=wires)
        proxy = Proxy(front.url, tmp_path)
        ends.callback(proxy.stop)
        assert proxy.decided() == "QUIC"
        apis = (*CHAT_APIS, completion)
        asks = [(apis[at % len(apis)], (front, proxy)[at % 2].url, f"Part {at}. {STORY}") for at in range(STREAMS)]
        begun = []
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool, Strike(front, two, fault, wires) as strike:
            answers = [
                pool.submit(read, *each, TOKENS, lambda: begun.append(1), **LASTING.get(each[0], {})) for each in asks
            ]
            wait_until(lambda: len(begun) >= STREAMS // 2, "answers begin")
            strike()
            answers = [answer.result() for answer in answers]
            undisturbed = [
                ask(api, strike.survivor.url, text, 10) if api in (chat, completion) else None for api, _, text in asks
            ]
        assert sum(figures(front, "moved_requests_total").values()) >= 2
        for (api, _, _), answer, expected in zip(asks, answers, undisturbed):
            assert answer.is_whole and answer.text, api.__name__
            # Batched, a word may differ by rounding, and with it all that follow; none is lost at the seam or doubled.
            if expected is not None:
                assert answer.text.split()[:3] == expected.text.split()[:3]
                # A busy engine puts several tokens into a chunk, which counts as one.
                assert_counted(answer, expected, off_by=TOKENS // 4)


def test_an_engine_that_is_gone_is_avoided_and_taken_back(pool, two, fronts):
    front = fronts()
    victim, survivor = two
    # As long as it is stopped, it neither answers nor refuses.
    with fault(victim, signal.SIGSTOP):
        wait_until(lambda: figures(front, "up")[address(victim)] == 0, "it counts as down")
        before = figures(front, "requests_total")[address(victim)]
        for index in range(6):
            assert ask(chat, front.url, f"Number {index}", 5).text
        assert figures(front, "requests_total")[address(victim)] == before
        assert httpx.get(f"{front.url}/ready").status_code == 200
    wait_until(lambda: figures(front, "up")[address(victim)] == 1, "it is back")
    with fault(victim, signal.SIGKILL), fault(survivor, signal.SIGKILL):
        wait_until(lambda: set(figures(front, "up").values()) == {0}, "both are down")
        path, body = chat(QUESTION, 5)
        for stream in (False, True):
            refused = post(front, path, {**body, "stream": stream})
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        wait_until(lambda: httpx.get(f"{front.url}/ready").status_code == 503, "it says so")


def test_an_answer_of_an_engine_that_is_alone_ends_with_an_error(engine, start):
    front = start("--upstream", engine.url)
    path, body = chat(STORY, CONTEXT - 100, ignore_eos=True)
    lines, killed = [], False
    with contextlib.suppress(httpx.RemoteProtocolError):
        with httpx.stream("POST", front.url + path, json={**body, "stream": True}) as stream:
            for line in stream.iter_lines():
                lines.append(line)
                if '"content":"' in line and not killed:
                    engine.end()
                    killed = True
    assert killed and "data: [DONE]" not in lines
    assert any('"error"' in line for line in lines)
    assert post(front, path, body).status_code in (502, 503)
    wait_until(lambda: httpx.get(f"{front.url}/ready").status_code == 503, "it says so")


def test_a_model_falls_back_on_another_engine(two, start):
    victim, other = two
    flags = ("--upstream", f"big={victim.url}", "--upstream", f"small={other.url}", "--upstream-fallback", "big=small")
    front = start(*flags)
    with fault(victim, signal.SIGKILL):
        for stream in (False, True):
            path, body = chat(QUESTION, 5)
            answer = post(front, path, {**body, "model": "big", "stream": stream})
            assert answer.status_code == 200, answer.text
        assert figures(front, "requests_total")[address(other)] == 2


def test_messages_over_upstreams_without_a_name_outlive_an_engine_too(two, start):
    front = start("--upstream", ",".join(one.url for one in two), "--upstream-timeout-s", SILENCE_S)
    with Strike(front, two, signal.SIGKILL) as strike:
        assert read(messages, front.url, STORY, TOKENS, strike).is_whole
