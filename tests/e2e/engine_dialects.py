"""Stand-ins for vLLM and SGLang: their routes, chunks and errors, in a process that holds no model.

An answer repeats the question word by word, a streamed one behind the thought "Hm.". The stand-ins
know their model by one name and refuse any other, as the real servers do.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class StandIn:
    """A server on a free port, as a context manager. `pace_s` is the time of each word."""

    model = "org/Model-8B"

    def __init__(self, pace_s=0.0):
        self.pace_s = pace_s
        self.asked = []
        stand_in = self

        class Handler(_Handler):
            engine = stand_in

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def health(self):
        """The status of `/health`, and its body."""
        return 200, b""

    def card(self):
        """Its entry in the list of models."""
        return {"id": self.model, "object": "model", "created": 1, "owned_by": self.name}

    def chunk(self, delta, finish=None, **more):
        """One chunk of a stream."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **more}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": self.model,
            "choices": [choice],
        }


class Vllm(StandIn):
    """vLLM's dialect: `/health` is empty, the first chunk has the role and empty content."""

    name = "vllm"

    def card(self):
        return {**super().card(), "root": self.model, "parent": None, "max_model_len": 4096, "permission": []}

    def refusal(self, message, status):
        kind = "NotFoundError" if status == 404 else "BadRequestError"
        return {"error": {"message": message, "type": kind, "param": None, "code": status}}

    def chunks(self, words):
        yield self.chunk({"role": "assistant", "content": ""})
        # Its only name for reasoning since January 2026.
        yield self.chunk({"reasoning": "Hm."}, token_ids=None)
        for word in words:
            yield self.chunk({"content": word}, token_ids=None)
        yield self.chunk({"content": ""}, "stop", stop_reason=None, token_ids=None)

    def usage(self, words):
        return {
            "prompt_tokens": 5,
            "total_tokens": 5 + words,
            "completion_tokens": words,
            "prompt_tokens_details": None,
        }


class Sglang(StandIn):
    """SGLang's dialect: errors are objects of their own, the last chunk says what it matched."""

    name = "sglang"

    def refusal(self, message, status):
        return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": status}

    def chunks(self, words):
        yield self.chunk(
            {"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}, matched_stop=None
        )
        yield self.chunk(
            {"role": None, "content": None, "reasoning_content": "Hm.", "tool_calls": None}, matched_stop=None
        )
        for word in words:
            yield self.chunk(
                {"role": None, "content": word, "reasoning_content": None, "tool_calls": None}, matched_stop=None
            )
        yield self.chunk(
            {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}, "stop", matched_stop=2
        )

    def usage(self, words):
        return {"prompt_tokens": 5, "total_tokens": 5 + words, "completion_tokens": words, "reasoning_tokens": 0}


class _Handler(BaseHTTPRequestHandler):
    """One connection of a stand-in."""

    protocol_version = "HTTP/1.1"
    engine: StandIn

    def log_message(self, *_):
        """Says nothing."""

    def send_json(self, status, value):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/health":
            self.send_json(*self.engine.health())
        elif self.path == "/v1/models":
            self.send_json(200, {"object": "list", "data": [self.engine.card()]})
        else:
            self.send_json(404, {"detail": "Not Found"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/chat/completions":
            return self.send_json(404, {"detail": "Not Found"})
        self.engine.asked.append(body)
        if body.get("model") != self.engine.model:
            message = f"The model `{body.get('model')}` does not exist."
            return self.send_json(404, self.engine.refusal(message, 404))
        if not body["messages"]:
            return self.send_json(400, self.engine.refusal("messages is empty", 400))
        words = [word + " " for word in body["messages"][-1]["content"].split()]
        if not body.get("stream"):
            message = {"role": "assistant", "content": "".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": self.engine.model}
            return self.send_json(200, {**answer, "choices": [choice], "usage": self.engine.usage(len(words))})
        self.stream(words, (body.get("stream_options") or {}).get("include_usage"))

    def stream(self, words, include_usage):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for chunk in self.engine.chunks(words):
                self.send_event(json.dumps(chunk))
                time.sleep(self.engine.pace_s)
            if include_usage:
                last = {**self.engine.chunk({}), "choices": [], "usage": self.engine.usage(len(words))}
                self.send_event(json.dumps(last))
            self.send_event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            # The client has left.
            self.close_connection = True

    def send_event(self, data):
        event = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        self.wfile.flush()
