"""Answers whose replica is killed, and what else may fail while another one takes them over."""

import contextlib
import json
import signal
import threading

import httpx
import openai
import pytest

from test_replicas import BODY, PACE, QUESTION, eventually, named, resumes, sdk, text_of, whole  # noqa: F401

KEY = {"authorization": "Bearer secret"}
CHAT = "/v1/chat/completions"


class Reading:
    """What was read of an answer, over however many connections."""

    def __init__(self):
        self.chunks, self.last, self.done = [], None, False

    def take(self, lines, count=None):
        """Takes the events of a connection, at most `count` of them."""
        id, data = None, None
        for line in lines:
            if line.startswith("id: "):
                id = line[4:]
            elif line.startswith("data: "):
                data = line[6:]
            elif not line and data is not None:
                # A whole event: half of one counts for nothing.
                self.last = id or self.last
                if data == "[DONE]":
                    self.done = True
                    return
                self.chunks.append(json.loads(data))
                id, data = None, None
                if count is not None and (count := count - 1) == 0:
                    return

    def choices(self, index=0):
        choices = [choice for chunk in self.chunks for choice in chunk["choices"]]
        return [choice for choice in choices if choice["index"] == index]

    def text(self, index=0):
        parts = [choice.get("text") or choice.get("delta", {}).get("content") for choice in self.choices(index)]
        return "".join(part or "" for part in parts)

    def scores(self):
        """The log-probabilities of all tokens, a list for each member that has one."""
        lists = {}
        for choice in self.choices():
            for name, entries in (choice["logprobs"] or {}).items():
                if isinstance(entries, list):
                    lists.setdefault(name, []).extend(entries)
        return lists


def resumed(server, name, last):
    headers = {**KEY, "x-loquent-stream-token": name[1]}
    if last is not None:
        headers["last-event-id"] = last
    return httpx.stream("GET", f"{server.url}/v1/streams/{name[0]}", headers=headers, timeout=60)


def killed(owner, body, count=20, path=CHAT):
    """Asks `owner`, kills it in the midst of its answer, and returns the answer's name and what was read of it."""
    reading = Reading()
    with httpx.stream("POST", f"{owner.url}{path}", json=body, headers=KEY, timeout=60) as response:
        assert response.status_code == 200, response.read()
        name, lines = named(response), response.iter_lines()
        reading.take(lines, count)
        owner.process.kill()
        # What was on its way.
        with contextlib.suppress(httpx.TransportError):
            reading.take(lines)
    owner.process.wait(20)
    assert reading.chunks and not reading.done
    return name, reading


def goes_on(replica, name, reading):
    with resumed(replica, name, reading.last) as response:
        assert response.status_code == 200, replica.log
        reading.take(response.iter_lines())
    assert reading.done, replica.log


def breaks_off(replica, name, reading):
    """Reads on at a replica that cannot go on with the answer."""
    with resumed(replica, name, reading.last) as response:
        assert response.status_code == 200, replica.log
        with pytest.raises(httpx.RemoteProtocolError):
            reading.take(response.iter_lines())
    assert not reading.done


def fence(redis, name):
    return redis.ask("HGET", f"loquent:1:a:{name[0]}", "f")


@pytest.fixture
def replicas(start, redis):
    """Three replicas that share a store."""
    return [start(*PACE, "--store", redis.url) for _ in range(3)]


def test_a_stored_answer_goes_on_and_is_stored_once_for_its_owner(start, redis, whole):  # noqa: F811
    first, second = (start(*PACE, "--store", redis.url, "--api-key", "secret") for _ in range(2))
    body = {**BODY, "store": True, "metadata": {"by": "ann"}, "temperature": 0}
    name, reading = killed(first, body)
    goes_on(second, name, reading)
    assert reading.text() == whole
    client = openai.OpenAI(base_url=f"{second.url}/v1", api_key="secret", max_retries=0)
    stored = list(client.chat.completions.list())
    began = reading.chunks[0]
    assert [(one.id, one.created) for one in stored] == [(began["id"], began["created"])]
    assert stored[0].choices[0].message.content == whole and stored[0].metadata == {"by": "ann"}
    asked = client.chat.completions.messages.list(began["id"]).data
    assert [message.content for message in asked] == [QUESTION[0]["content"]]


def test_usage_of_an_answer_that_is_taken_over_is_counted_once(start, redis, tmp_path):
    file = tmp_path / "keys"
    file.write_text('[[key]]\nname = "ann"\nkey = "secret"\n')
    file.chmod(0o600)
    owner, other = (start(*PACE, "--store", redis.url, "--api-key-file", str(file)) for _ in range(2))
    body = {**BODY, "stream_options": {"include_usage": True}}
    reading = Reading()
    with httpx.stream("POST", f"{owner.url}{CHAT}", json=body, headers=KEY, timeout=60) as response:
        name, lines = named(response), response.iter_lines()
        reading.take(lines, 100)
        owner.terminate()
        with contextlib.suppress(httpx.TransportError):
            reading.take(lines)
    owner.process.wait(20)
    goes_on(other, name, reading)
    told = reading.chunks[-1]["usage"]

    def is_counted_once():
        total = httpx.get(f"{other.url}/v1/usage", headers=KEY).raise_for_status().json()["total"]
        once = (total["requests"], total["prompt_tokens"]) == (1, told["prompt_tokens"])
        # The first replica may have generated a few tokens that it did not store.
        return once and abs(total["completion_tokens"] - told["completion_tokens"]) <= 20

    eventually(is_counted_once)


def test_an_owner_that_slept_stores_nothing_over_what_its_successor_has_stored(replicas, whole):  # noqa: F811
    owner, other, _ = replicas
    reading = Reading()
    with httpx.stream("POST", f"{owner.url}{CHAT}", json={**BODY, "store": True}, timeout=60) as response:
        name, lines = named(response), response.iter_lines()
        reading.take(lines, 20)
        owner.process.send_signal(signal.SIGSTOP)
        goes_on(other, name, reading)
        assert reading.text() == whole
        id = reading.chunks[0]["id"]
        sdk(other).chat.completions.update(id, metadata={"by": "client"})
        owner.process.send_signal(signal.SIGCONT)
        # It learns of its successor, and sends its reader away.
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in lines:
                pass
    assert [(one.id, one.metadata) for one in sdk(owner).chat.completions.list()] == [(id, {"by": "client"})]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, {"messages": QUESTION, "logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"prompt": "tokens=300", "logprobs": 2, "max_tokens": 300}),
    ],
)
def test_log_probabilities_go_on_with_neither_a_gap_nor_a_duplicate(replicas, path, asked):
    owner, other, third = replicas
    plain = httpx.post(f"{other.url}{path}", json=asked, timeout=60).json()["choices"][0]
    name, reading = killed(owner, {**asked, "stream": True, "resumable": True}, path=path)
    assert len(reading.scores()) > 0
    goes_on(other, name, reading)
    scores = {name: entries for name, entries in plain["logprobs"].items() if isinstance(entries, list)}
    again = Reading()
    goes_on(third, name, again)
    for read in (reading, again):
        assert read.text() == (plain.get("text") or plain["message"]["content"])
        assert read.scores() == scores


def test_an_owner_that_dies_while_it_takes_an_answer_over_is_succeeded_too(replicas, redis, whole):  # noqa: F811
    first, second, third = replicas
    name, reading = killed(first, BODY)
    with resumed(second, name, reading.last) as response:
        assert response.status_code == 200
        eventually(lambda: fence(redis, name) == "2")
        # It owns the answer, and may not have written a byte of it.
        second.process.kill()
        with contextlib.suppress(httpx.TransportError):
            reading.take(response.iter_lines())
    goes_on(third, name, reading)
    assert reading.text() == whole and fence(redis, name) == "3"


def test_a_reader_that_leaves_while_its_answer_is_taken_over_finds_it_again(replicas, redis, whole):  # noqa: F811
    first, second, third = replicas
    name, reading = killed(first, BODY)
    with resumed(second, name, reading.last) as response:
        assert response.status_code == 200
    # Nobody reads at the replica that takes it over, and others go on elsewhere.
    elsewhere = Reading()
    there = threading.Thread(target=goes_on, args=(third, name, elsewhere))
    there.start()
    eventually(lambda: fence(redis, name) == "2")
    goes_on(second, name, reading)
    there.join(60)
    assert reading.text() == elsewhere.text() == whole and elsewhere.done
    assert fence(redis, name) == "2", "one owner is enough"


def test_a_replica_with_another_model_leaves_an_answer_to_one_that_has_it(start, redis, whole):  # noqa: F811
    models = (), ("--served-model-name", "another"), ()
    first, odd, third = (start(*PACE, "--store", redis.url, *model) for model in models)
    name, reading = killed(first, BODY)
    breaks_off(odd, name, reading)
    assert fence(redis, name) == "1"
    goes_on(third, name, reading)
    assert reading.text() == whole


def test_a_log_that_the_store_has_lost_with_its_owner_is_not_mixed_with_another(replicas, redis):
    first, second, _ = replicas
    name, reading = killed(first, BODY)
    redis.ask("DEL", f"loquent:1:g:{name[0]}")
    with resumed(second, name, reading.last) as response:
        assert response.status_code == 404
    breaks_off(second, name, Reading())
    assert fence(redis, name) == "1"


def test_a_request_of_another_version_is_left_alone(replicas, redis):
    first, second, _ = replicas
    name, reading = killed(first, BODY)
    redis.ask("HSET", f"loquent:1:a:{name[0]}", "q", '{"endpoint": "songs", "verses": 4}')
    breaks_off(second, name, reading)
    assert fence(redis, name) == "1"


def test_an_answer_that_has_ended_outlives_a_restart_of_the_store(replicas, redis, whole):  # noqa: F811
    owner, other, _ = replicas
    reading = Reading()
    with httpx.stream("POST", f"{owner.url}{CHAT}", json=BODY, timeout=60) as response:
        name = named(response)
        reading.take(response.iter_lines())
    assert reading.done
    redis.kill()
    assert redis.start(), "and it has lost everything"
    eventually(lambda: resumes(other, name))
    owner.process.kill()
    owner.process.wait(20)
    again = Reading()
    goes_on(other, name, again)
    assert again.text() == reading.text() == whole


@pytest.fixture
def background(replicas):
    """A background response that the first replica generates, of which the store has some text."""
    response = sdk(replicas[0]).responses.create(model="any", input=QUESTION[0]["content"], background=True)
    eventually(lambda: sdk(replicas[1]).responses.retrieve(response.id).output_text)
    return response.id


def text_when_complete(replica, id):
    eventually(lambda: sdk(replica).responses.retrieve(id).status == "completed")
    return sdk(replica).responses.retrieve(id).output_text


def test_a_background_response_goes_on_where_its_client_asks_for_it(replicas, background, whole):  # noqa: F811
    first, second, third = replicas
    first.process.kill()
    first.process.wait(20)
    assert text_when_complete(second, background) == whole
    second.process.kill()
    second.process.wait(20)
    events = list(sdk(third).responses.retrieve(background, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole
    # What the first one had sent and not stored had numbers that nothing else has.
    numbers = [event.sequence_number for event in events]
    (at,) = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
    client = sdk(third).responses
    rest = client.retrieve(background, stream=True, starting_after=numbers[at - 1])
    assert [event.sequence_number for event in rest] == numbers[at:]
    with pytest.raises(openai.APIStatusError) as unknown:
        client.retrieve(background, stream=True, starting_after=numbers[at - 1] + 1)
    assert unknown.value.status_code == 410


def test_a_background_response_is_not_undone_by_an_owner_that_slept(replicas, background, whole):  # noqa: F811
    first, second, _ = replicas
    first.process.send_signal(signal.SIGSTOP)
    assert text_when_complete(second, background) == whole
    first.process.send_signal(signal.SIGCONT)
    # It has it from the store, once it knows that it is not its own any more.
    assert text_when_complete(first, background) == whole
    assert text_when_complete(second, background) == whole
