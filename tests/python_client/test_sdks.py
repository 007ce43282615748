"""Unmodified SDKs over `loquent.Client`: on a bad path every answer is that of a clean one."""

import asyncio
import concurrent.futures
import time

import anthropic
import httpx2
import langchain_openai
import loquent
import openai
import pytest

PACED = ("--simulate", "100")
PATIENCE_S = 60
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}


def question(n, tokens):
    return {
        "model": "x",
        "temperature": 0,
        "messages": [{"role": "user", "content": f"Question {n}: tokens={tokens}"}],
    }


def delivering(url, **options):
    """A client with time for a handshake on a busy machine."""
    return loquent.Client(url, head_start=10, **options)


def sdk(client, **options):
    """OpenAI's SDK as a program has it, with the one argument that is new."""
    return openai.OpenAI(api_key="none", max_retries=0, http_client=client, **options)


def direct(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def collect(sdk, asked, on_third=None, expected=""):
    """The text of a streamed answer; `on_third` is called once a third of `expected` is there."""
    text, finish = "", None
    for chunk in sdk.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            before = len(text)
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            if on_third and before < len(expected) // 3 <= len(text):
                on_third()
    return text, finish


def until(condition, otherwise):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def running(server):
    return int(server.metric("num_requests_running"))


def test_answers_over_a_lossy_path_are_those_of_a_clean_one(start, path):
    server = start("--simulate", "200", "--max-batch-size", "16")
    lossy = path(server, loss=0.2)
    asked = [question(n, 40) for n in range(24)]
    clean = direct(server)
    with delivering(lossy.url) as client:
        assert client.warm_up() == "quic"
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            expected = list(pool.map(lambda one: collect(clean, one), asked))
            assert list(pool.map(lambda one: collect(sdk(client), one), asked)) == expected
    assert len({text for text, _ in expected}) == len(asked)
    assert lossy.dropped > 20, "the path lost next to nothing"


@pytest.mark.parametrize("change", ["move", "die"])
def test_an_answer_survives_a_new_address_and_the_death_of_udp(start, path, change):
    server = start(*PACED)
    lossy = path(server, loss=0)
    asked = question(1, 200)
    expected = collect(direct(server), asked)
    happen = lossy.move_client if change == "move" else lambda: setattr(lossy, "loss", 1)
    with delivering(lossy.url) as client:
        assert client.warm_up() == "quic"
        assert collect(sdk(client), asked, happen, expected[0]) == expected


def test_where_quic_is_blocked_a_cut_event_stream_is_resumed(start, path):
    server = start(*PACED)
    blocked = path(server, loss=1)
    asked = question(2, 200)
    expected = collect(direct(server), asked)
    cut = []
    with loquent.Client(blocked.url, head_start=0.2) as client:
        assert client.warm_up() == "http"
        assert collect(sdk(client), asked, lambda: cut.append(blocked.cut()), expected[0]) == expected
    assert cut[0] > 0, "no connection was there to cut"


def test_the_async_twin(start, path):
    server = start(*PACED)
    lossy = path(server, loss=0.2)
    asked = [question(n, 60) for n in range(8)]
    expected = [collect(direct(server), one)[0] for one in asked]

    async def one(sdk, asked):
        chunks = await sdk.chat.completions.create(**asked, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])

    async def all_of_them():
        async with loquent.AsyncClient(lossy.url, head_start=10) as client:
            assert await client.warm_up() == "quic"
            sdk = openai.AsyncOpenAI(api_key="none", max_retries=0, http_client=client)
            answers = await asyncio.gather(*(one(sdk, question) for question in asked))
            assert (await sdk.models.list()).data
            with pytest.raises(openai.BadRequestError):
                await sdk.chat.completions.create(**{**asked[0], "temperature": 9}, stream=True)
            return answers

    assert asyncio.run(all_of_them()) == expected


def test_a_reader_that_leaves_cancels_its_answer(start, path):
    server = start(*PACED)
    with delivering(path(server, loss=0).url) as client:
        chunks = sdk(client).chat.completions.create(**question(3, 5000), stream=True)
        next(iter(chunks))
        until(lambda: running(server) == 1, "it is not generated")
        chunks.close()
        until(lambda: running(server) == 0, "it is generated for nobody")


def test_a_cancelled_task_cancels_its_answer(start, path):
    server = start(*PACED)
    url = path(server, loss=0).url

    async def read(client):
        chunks = await openai.AsyncOpenAI(api_key="none", http_client=client).chat.completions.create(
            **question(3, 5000), stream=True
        )
        async with chunks:
            async for _ in chunks:
                begun.set()

    async def cancelled():
        async with loquent.AsyncClient(url, head_start=10) as client:
            task = asyncio.create_task(read(client))
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(until, lambda: running(server) == 0, "it is generated for nobody")

    begun = asyncio.Event()
    asyncio.run(cancelled())


def test_tools_arrive_as_they_do_directly(server, path):
    asked = {
        "model": "x",
        "temperature": 0,
        "messages": [{"role": "user", "content": "How is the weather in Paris?"}],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }

    def call(sdk):
        name, arguments = "", ""
        for chunk in sdk.chat.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                for piece in choice.delta.tool_calls or []:
                    name += piece.function.name or ""
                    arguments += piece.function.arguments or ""
        return name, arguments

    expected = call(direct(server))
    assert expected[0] == "weather" and "city" in expected[1]
    with delivering(path(server, loss=0.2).url) as client:
        assert call(sdk(client)) == expected


def test_errors_are_the_sdks_own(start, path):
    server = start(*PACED)
    with delivering(path(server, loss=0).url) as client:
        for stream in (True, False):
            with pytest.raises(openai.BadRequestError) as refused:
                sdk(client).chat.completions.create(**{**question(1, 5), "temperature": 9}, stream=stream)
            assert refused.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            sdk(client).models.retrieve("other")
        assert client.get("/health").status_code == 200
    with loquent.Client("http://127.0.0.1:9") as client, pytest.raises(openai.APIConnectionError) as unreachable:
        sdk(client).chat.completions.create(**question(1, 5), stream=True)
    assert "check the URL" in str(unreachable.value.__cause__)
    with pytest.raises(ValueError, match="https://host:8443"):
        loquent.Client("host:8443/v2")


@pytest.mark.parametrize("way", ["quic", "http"])
def test_a_timeout_of_httpx_is_honoured(start, path, way):
    server = start(*PACED)
    frozen = path(server, loss=0 if way == "quic" else 1)

    def freeze():
        frozen.loss = 1
        frozen.open.clear()

    with loquent.Client(frozen.url, head_start=10 if way == "quic" else 0.1) as client:
        assert client.warm_up() == way
        stalled = sdk(client, timeout=httpx2.Timeout(1, connect=5))
        with pytest.raises((httpx2.ReadTimeout, openai.APITimeoutError)):
            collect(stalled, question(4, 5000), freeze, "x" * 90)
        frozen.open.set()


def test_a_server_that_computes_for_longer_than_the_timeout_is_waited_for(start):
    server = start("--simulate", "0.25")
    with delivering(server.url) as client:
        assert client.warm_up() == "quic"
        patient = sdk(client, timeout=httpx2.Timeout(2, connect=10))
        text, finish = collect(patient, question(9, 2))
        assert text and finish


def test_a_server_that_ends_ends_its_answer_and_its_successor_is_found(start, restart):
    server = start(*PACED)
    port = server.url.rsplit(":", 1)[1]
    with loquent.Client(server.url, head_start=10, resume_limit=2) as client:
        chunks = sdk(client).chat.completions.create(**question(5, 5000), stream=True)
        next(iter(chunks))
        server.process.kill()
        server.process.wait(PATIENCE_S)
        with pytest.raises((openai.APIError, httpx2.HTTPError)):
            for _ in chunks:
                pass
        successor = restart(port)
        asked = question(6, 30)
        expected = collect(direct(successor), asked)
        until(lambda: answers(client, asked) == expected, "the successor is not found")


def answers(client, asked):
    """An answer, None while the server cannot be reached."""
    try:
        return collect(sdk(client), asked)
    except openai.APIConnectionError:
        return None


def test_anthropics_sdk_over_a_lossy_path(start, path):
    server = start(*PACED)
    asked = {"model": "x", "max_tokens": 200, "messages": question(7, 80)["messages"]}
    plain = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    with plain.messages.stream(**asked) as stream:
        expected = "".join(stream.text_stream)
    lossy = path(server, loss=0.2)
    with delivering(lossy.url) as client:
        assert client.warm_up() == "quic"
        before = lossy.dropped
        with anthropic.Anthropic(api_key="none", max_retries=0, http_client=client).messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == expected
            assert stream.response.extensions["loquent"].transport == "quic"
        assert lossy.dropped > before
        with pytest.raises(anthropic.BadRequestError):
            bad = {**asked, "max_tokens": -2}
            anthropic.Anthropic(api_key="none", max_retries=0, http_client=client).messages.create(**bad, stream=True)

    async def twin():
        async with loquent.AsyncClient(lossy.url, head_start=10) as client:
            sdk = anthropic.AsyncAnthropic(api_key="none", max_retries=0, http_client=client)
            async with sdk.messages.stream(**asked) as stream:
                return "".join([text async for text in stream.text_stream])

    assert asyncio.run(twin()) == expected


def test_langchain_over_a_lossy_path(start, path):
    server = start(*PACED)
    asked = question(8, 80)
    expected = collect(direct(server), asked)[0]
    lossy = path(server, loss=0.2)
    asynchronous = loquent.AsyncClient(lossy.url, head_start=10)
    with delivering(lossy.url) as client:
        model = langchain_openai.ChatOpenAI(
            model="x", temperature=0, api_key="none", http_client=client, http_async_client=asynchronous
        )
        prompt = asked["messages"][0]["content"]
        assert "".join(chunk.text for chunk in model.stream(prompt)) == expected

        async def twin():
            async with asynchronous:
                return "".join([chunk.text async for chunk in model.astream(prompt)])

        assert asyncio.run(twin()) == expected
    assert lossy.dropped > 10, "the path lost next to nothing"
