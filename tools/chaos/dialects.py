"""Streams of the APIs, as readers take them: requests, and what a piece of a stream says."""

import dataclasses
import json
import random

#: Words of questions. The model need not understand them.
WORDS = ("river sea token packet lighthouse train server mountain letter rain story bridge stone garden winter lamp "
         "forest island window road").split()
#: So many that less than half of a prompt is the chat template's, which all prompts of a key share.
PROMPT_WORDS = 90


@dataclasses.dataclass(frozen=True)
class Piece:
    """What one event of a stream says. `place` names it: a position of the log, or a number of the event."""

    text: str = ""
    place: int = None
    finish: str = None
    usage: dict = None
    error: str = None
    is_done: bool = False
    object_id: str = None


def prompt(seed, number):
    """Question `number` of a run: no two begin alike."""
    draw = random.Random(f"{seed}/prompt/{number}")
    return f"{number} " + " ".join(draw.choice(WORDS) for _ in range(PROMPT_WORDS)) + ": tell me a long story."


def request(api, text, tokens, sampled=None):
    """Path and body of a question. Without `sampled`, the server's own sampling counts."""
    messages = [{"role": "user", "content": text}]
    if api == "ollama":
        return "/api/chat", {"model": "loquent-tiny", "messages": messages, "stream": True,
                             "options": {"num_predict": tokens, "temperature": 0}}
    if api == "messages":
        return "/v1/messages", {"model": "any", "messages": messages, "stream": True, "max_tokens": tokens,
                                "temperature": 0}
    if api == "responses":
        return "/v1/responses", {"model": "any", "input": text, "background": True, "max_output_tokens": tokens,
                                 **(sampled or {})}
    body = {"stream": True, "resumable": True, "stream_options": {"include_usage": True}, "max_tokens": tokens,
            "ignore_eos": True, **(sampled or {})}
    if api == "completions":
        return "/v1/completions", {**body, "prompt": text}
    return "/v1/chat/completions", {**body, "messages": messages}


async def pieces(response):
    """The pieces of a stream, of whichever API; what is no whole event counts for nothing."""
    is_sse = response.headers.get("content-type", "").startswith("text/event-stream")
    end, read, rest = (b"\n\n", of_event, b"") if is_sse else (b"\n", of_line, b"")
    async for more in response.aiter_bytes():
        *whole, rest = (rest + more).split(end)
        for event in whole:
            if piece := read(event.decode()):
                yield piece


def of_event(event):
    """The piece of a server-sent event; nothing for a comment."""
    place, data = None, None
    for line in event.split("\n"):
        name, _, value = line.partition(":")
        if name == "id":
            place = int(value)
        elif name == "data":
            data = value.removeprefix(" ")
    if data is None:
        return None
    if data == "[DONE]":
        return Piece(place=place, is_done=True)
    said = json.loads(data)
    if "type" in said and "choices" not in said and "error" not in said:
        return of_typed(said)
    if said.get("error"):
        return Piece(place=place, error=str(said["error"].get("message")))
    text, finish = "", None
    for choice in said.get("choices", []):
        text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        finish = choice.get("finish_reason") or finish
    return Piece(text, place, finish, said.get("usage"), object_id=said.get("id"))


def of_typed(said):
    """An event of Anthropic's Messages or OpenAI's Responses."""
    kind, place = said["type"], said.get("sequence_number")
    if kind == "content_block_delta":
        return Piece(said["delta"].get("text", ""))
    if kind == "message_delta":
        usage = {"completion_tokens": said["usage"]["output_tokens"]}
        return Piece(finish=said["delta"].get("stop_reason"), usage=usage)
    if kind == "response.output_text.delta":
        return Piece(said["delta"], place)
    if kind in ("response.completed", "response.incomplete"):
        return Piece(place=place, finish=said["response"]["status"], usage=said["response"]["usage"], is_done=True)
    if kind in ("response.failed", "error"):
        return Piece(place=place, error=str((said.get("response") or said).get("error"))[:300])
    return Piece(place=place, is_done=kind == "message_stop")


def of_line(line):
    """A line of Ollama's stream."""
    if not line.strip():
        return None
    said = json.loads(line)
    if said.get("error"):
        return Piece(error=str(said["error"]))
    usage = {"completion_tokens": said["eval_count"]} if said.get("done") else None
    return Piece(said["message"]["content"], None, said.get("done_reason"), usage, is_done=bool(said.get("done")))


def text_of_response(said):
    """The text of a stored response."""
    parts = [part for item in said.get("output", []) for part in item.get("content", [])]
    return "".join(part.get("text", "") for part in parts)
