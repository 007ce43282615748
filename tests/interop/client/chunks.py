"""From records to OpenAI's chunks: spec/session.md, section 6.

Written from the text of spec/ alone, without reading Loquent's code. Keep it so.
"""

from __future__ import annotations

import json
from typing import Any, Iterator

from .events import ServerEvent
from .receiver import Shown
from .wire import Done, Error, Finish, Logprobs, Open, Other, Progress, Reasoning, Record, Text, ToolCall, Usage


class ChunkWriter:
    """Writes the events of one log, record by record."""

    def __init__(self) -> None:
        self.meta: dict[str, Any] = {}
        self.begun: set[int] = set()
        self.logprobs: dict[int, Any] = {}
        self.usage: Any = None
        self.usage_is_told = True

    def write(self, shown: Shown) -> list[ServerEvent]:
        """The events of a record; the last has the id (S-6.5)."""
        datas = [json.dumps(data) for data in self._datas(shown.record)]
        if isinstance(shown.record, Done):
            datas.append("[DONE]")
        ids = [None] * (len(datas) - 1) + [shown.offset]
        return [ServerEvent(data, event_id) for data, event_id in zip(datas, ids)]

    def _datas(self, record: Record) -> Iterator[Any]:
        match record:
            case Open(meta):
                self.meta = json.loads(meta)
            case Logprobs(choice, text):
                self.logprobs[choice] = json.loads(text)  # S-6.2: of the Text record that follows
            case Text(choice, _, text):
                yield from self._text(choice, {"content": text}, {"text": text})
            case Reasoning(choice, _, text):
                delta: dict[str, Any] = {"reasoning_content": text}
                yield from self._text(choice, delta, {"text": "", **delta})
            case ToolCall():
                delta = {"tool_calls": [_tool_call(record)]}
                yield from self._text(record.choice, delta, {"text": "", **delta})
            case Finish(choice, reason):
                yield from self._text(choice, {}, {"text": ""}, finish_reason=reason)
            case Other(_, text):  # S-6.4
                beside = {key: self.meta[key] for key in ("id", "object", "created", "model")}
                yield {**beside, "choices": [], **json.loads(text)}
            case Progress() if self.meta.get("progress") is True:  # S-6.7
                yield self._progress(record)
            case Usage():  # S-6.3
                self.usage, self.usage_is_told = _usage(record), False
                if self.meta.get("usage") != "counts":
                    yield self._chunk([], is_usage=True)
            case Done() if not self.usage_is_told:  # no chunk came that could carry it
                yield self._chunk([])
            case Error(code, message):
                yield {"error": {"message": message, "type": "server_error", "param": None, "code": code or None}}

    def _text(
        self, choice: int, delta: dict[str, Any], completion: dict[str, Any], finish_reason: Any = None
    ) -> Iterator[Any]:
        """The chunk of a choice: `delta` is what it says in a chat, `completion` in a text completion."""
        logprobs = self.logprobs.pop(choice, None)
        if self.meta["object"] == "text_completion":
            yield self._choice(choice, completion, logprobs, finish_reason)
            return
        if choice not in self.begun:  # S-6.2: a chat's choice begins with its role
            self.begun.add(choice)
            yield self._choice(choice, {"delta": {"role": "assistant", "content": ""}})
        yield self._choice(choice, {"delta": delta}, logprobs, finish_reason)

    def _choice(self, choice: int, says: dict[str, Any], logprobs: Any = None, finish_reason: Any = None) -> Any:
        return self._chunk([{"index": choice, **says, "logprobs": logprobs, "finish_reason": finish_reason}])

    def _progress(self, record: Progress) -> dict[str, Any]:
        """A chunk without content, whose choice has not begun."""
        is_chat = self.meta["object"] != "text_completion"
        chunk = self._choice(0, {"delta": {}} if is_chat else {"text": ""})
        chunk["prompt_progress"] = {
            "total": record.total,
            "cache": record.cached,
            "processed": record.processed,
            "time_ms": record.elapsed_ms,
            "queued": record.queued,
            "eta_ms": record.eta_ms,
        }
        return chunk

    def _chunk(self, choices: list[Any], is_usage: bool = False) -> dict[str, Any]:
        chunk = {key: value for key, value in self.meta.items() if key not in ("usage", "obfuscation", "progress")}
        chunk["choices"] = choices
        told = self.meta.get("usage")
        if is_usage or told == "counts":
            chunk["usage"], self.usage_is_told = self.usage, True
        elif told == "null":
            chunk["usage"] = None
        return chunk


def _tool_call(call: ToolCall) -> dict[str, Any]:
    """A fragment: id and name stand in the first only (D-3.4)."""
    function = {"name": call.name, "arguments": call.arguments} if call.name else {"arguments": call.arguments}
    named = {"id": call.id, "type": "function"} if call.id else {}
    return {"index": call.index, **named, "function": function}


def _usage(usage: Usage) -> dict[str, Any]:
    """In OpenAI's words; reasoning is told if there was any."""
    reasoning = {"completion_tokens_details": {"reasoning_tokens": usage.reasoning}} if usage.reasoning else {}
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        **reasoning,
    }
