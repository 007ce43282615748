"""Files and batches with openai-python, unmodified, and what happens to them."""

import json
import signal
import time

import httpx
import openai
import pytest

from conftest import PATIENCE_S

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def sdk(server, key="none"):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def line(name, tokens=8, url=CHAT, **more):
    body = {"model": "any", "max_tokens": tokens, "messages": [{"role": "user", "content": f"Say {name}."}], **more}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def upload(client, lines):
    text = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)
    return client.files.create(file=("in.jsonl", text.encode()), purpose="batch")


def begin(client, lines, endpoint=CHAT, **more):
    file = upload(client, lines)
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def until(client, batch, wanted):
    """Waits until the batch is as wanted; fails when it has ended otherwise."""
    for _ in range(PATIENCE_S * 20):
        batch = client.batches.retrieve(batch.id)
        if wanted(batch):
            return batch
        assert batch.status not in ENDED, batch
        time.sleep(0.05)
    raise AssertionError(batch)


def ended(client, batch):
    return until(client, batch, lambda now: now.status in ENDED)


def lines_of(client, file):
    return [json.loads(one) for one in client.files.content(file).text.splitlines()]


def test_a_batch_goes_all_the_way(start):
    client = sdk(start())
    lines = [line("one"), line("two", temperature=0), line("bad", temperature=9)]
    batch = begin(client, lines, metadata={"topic": "tea"})
    assert batch.object == "batch" and batch.metadata == {"topic": "tea"}
    batch = ended(client, batch)
    assert batch.status == "completed" and batch.completed_at >= batch.in_progress_at >= batch.created_at
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    answers = lines_of(client, batch.output_file_id)
    assert sorted(one["custom_id"] for one in answers) == ["one", "two"]
    for one in answers:
        response = one["response"]
        assert response["status_code"] == 200 and response["request_id"] and one["error"] is None
        assert response["body"]["choices"][0]["message"]["content"]
    [error] = lines_of(client, batch.error_file_id)
    assert error["custom_id"] == "bad" and error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["param"] == "temperature"
    assert [one.id for one in client.batches.list()] == [batch.id]


@pytest.mark.parametrize(
    ("endpoint", "body", "has"),
    [
        ("/v1/completions", {"prompt": "Say"}, "choices"),
        ("/v1/responses", {"input": "Say"}, "output"),
        ("/v1/embeddings", {"input": "Say"}, "data"),
    ],
)
def test_other_endpoints(start, endpoint, body, has):
    client = sdk(start(*(["--embeddings", "mean"] if has == "data" else [])))
    batch = ended(client, begin(client, [{**line("a", url=endpoint), "body": body}], endpoint))
    assert batch.status == "completed", batch
    [answer] = lines_of(client, batch.output_file_id)
    assert answer["response"]["body"][has]


def test_files_are_listed_page_by_page_and_deleted(start):
    client = sdk(start("--simulate", "inf"))
    ids = [upload(client, [line(str(at))]).id for at in range(3)]
    assert [one.id for one in client.files.list(limit=2, order="asc")] == ids
    assert [one.id for one in client.files.list(purpose="batch")] == ids[::-1]
    assert not client.files.list(purpose="batch_output").data
    file = client.files.retrieve(ids[0])
    assert (file.filename, file.purpose, file.bytes) == ("in.jsonl", "batch", len(json.dumps(line("0"))))
    assert client.files.content(ids[0]).content == json.dumps(line("0")).encode()
    assert client.files.delete(ids[0]).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(ids[0])


def test_what_is_wrong_is_said(start):
    client = sdk(start("--simulate", "inf"))
    with pytest.raises(openai.BadRequestError) as wrong:
        client.files.create(file=("a", b"a"), purpose="fine-tune")
    assert wrong.value.param == "purpose"
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id="file-no", endpoint=CHAT, completion_window="24h")
    with pytest.raises(openai.BadRequestError) as wrong:
        begin(client, [line("a")], "/v1/messages")
    assert wrong.value.param == "endpoint"
    lines = [line("a"), "{", line("a"), line("b", url="/v1/embeddings"), {**line("c"), "method": "GET"}]
    batch = ended(client, begin(client, [*lines, line("d", stream=True)]))
    assert batch.status == "failed" and batch.failed_at
    assert [(one.line, one.code) for one in batch.errors.data] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "mismatched_endpoint"),
        (5, "invalid_method"),
        (6, "invalid_request"),
    ]
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(batch.id)


def test_files_and_batches_are_their_keys_alone(start):
    server = start("--simulate", "inf", "--api-key", "ann", "--api-key", "bob")
    ann, bob = sdk(server, "ann"), sdk(server, "bob")
    batch = ended(ann, begin(ann, [line("a")]))
    for call, of in [
        (bob.files.retrieve, batch.input_file_id),
        (bob.files.content, batch.output_file_id),
        (bob.files.delete, batch.input_file_id),
        (bob.batches.retrieve, batch.id),
        (bob.batches.cancel, batch.id),
    ]:
        with pytest.raises(openai.NotFoundError):
            call(of)
    with pytest.raises(openai.NotFoundError):
        bob.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
    assert not bob.files.list().data and not bob.batches.list().data
    assert ann.files.content(batch.output_file_id).text


def test_a_cancelled_batch_has_what_was_answered(start):
    client = sdk(start("--simulate", "100"))
    batch = begin(client, [line(f"short-{at}", 1) for at in range(4)] + [line(f"long-{at}", 4000) for at in range(8)])
    until(client, batch, lambda now: now.request_counts.completed >= 4)
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = ended(client, batch)
    assert batch.status == "cancelled" and batch.cancelled_at >= batch.cancelling_at
    answered = {one["custom_id"] for one in lines_of(client, batch.output_file_id)}
    assert answered == {f"short-{at}" for at in range(4)}
    errors = lines_of(client, batch.error_file_id)
    assert {one["custom_id"] for one in errors} == {f"long-{at}" for at in range(8)}
    assert {one["error"]["code"] for one in errors} == {"batch_cancelled"}


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_batch_goes_on_after_a_restart(start, tmp_path, end):
    options = ("--simulate", "400", "--store", str(tmp_path / "store"))
    server = start(*options)
    client = sdk(server)
    names = [f"line-{at}" for at in range(40)]
    batch = begin(client, [line(name, 40) for name in names])
    before = until(client, batch, lambda now: now.request_counts.completed >= 8)
    server.process.send_signal(end)
    server.process.wait(PATIENCE_S)
    assert before.request_counts.completed < len(names)
    server = start(*options)
    client = sdk(server)
    # It goes on before anybody asks for it.
    for _ in range(PATIENCE_S * 20):
        if server.metric("generation_tokens_total"):
            break
        time.sleep(0.05)
    batch = ended(client, batch)
    assert batch.status == "completed" and batch.request_counts.completed == len(names)
    assert batch.error_file_id is None
    answers = lines_of(client, batch.output_file_id)
    assert [one["custom_id"] for one in answers] == names, "each once"
    # What had been answered was not computed again.
    computed = server.metric("generation_tokens_total")
    assert computed <= 40 * (len(names) - before.request_counts.completed), computed


def test_answers_outlive_their_input(start, tmp_path):
    options = ("--simulate", "100", "--store", str(tmp_path / "store"))
    server = start(*options)
    client = sdk(server)
    batch = begin(client, [line(f"short-{at}", 1) for at in range(4)] + [line(f"long-{at}", 4000) for at in range(8)])
    until(client, batch, lambda now: now.request_counts.completed >= 4)
    client.files.delete(batch.input_file_id)
    server.process.kill()
    server.process.wait(PATIENCE_S)
    client = sdk(start(*options))
    batch = ended(client, batch)
    assert batch.status == "failed" and [one.code for one in batch.errors.data] == ["invalid_input_file"]
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (12, 4, 8)
    answered = {one["custom_id"] for one in lines_of(client, batch.output_file_id)}
    assert answered == {f"short-{at}" for at in range(4)}


def test_a_batch_leaves_the_way_free(start):
    # One place of admission and two of the engine: a batch that took them would be in the way.
    limits = ("--max-inflight-requests", "1", "--max-batch-size", "2")
    server = start("--simulate", "100", "--api-key", "ann", "--api-key", "bob", *limits)
    ann, bob = sdk(server, "ann"), sdk(server, "bob")
    batch = begin(ann, [line(f"line-{at}", 2000) for at in range(8)])
    until(ann, batch, lambda now: now.status == "in_progress")
    for _ in range(PATIENCE_S * 20):
        if server.metric("generation_tokens_total"):
            break
        time.sleep(0.05)
    for _ in range(5):
        answer = bob.chat.completions.create(
            model="any", max_tokens=5, messages=[{"role": "user", "content": "Say hi."}]
        )
        assert answer.usage.completion_tokens == 5
    now = ann.batches.retrieve(batch.id)
    assert (now.status, now.request_counts.completed) == ("in_progress", 0), "the others came first"
    assert ann.batches.cancel(batch.id).status == "cancelling"
    assert ended(ann, batch).status == "cancelled"


def test_a_file_is_bounded(start):
    server = start("--simulate", "inf", "--max-request-bytes", str(1 << 20))
    with pytest.raises(openai.APIStatusError) as large:
        upload(sdk(server), ["x" * (1 << 20)])
    assert large.value.status_code == 413
    broken = httpx.post(
        f"{server.url}/v1/files", content=b"--b", headers={"content-type": "multipart/form-data; boundary=b"}
    )
    assert broken.status_code == 400
