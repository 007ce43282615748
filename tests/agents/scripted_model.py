"""A model that follows a script, behind the chat completions API: what `loquent serve --upstream` is pointed at.

The prompt chooses what it does, so an agent needs no fixture of its own:

    read FILE     calls the agent's own tool that reads a file or runs a command, then says the word that it found
    add A B       calls the tool `add_numbers`, then says its result; first lets the agent search for it, if it is not
                  offered yet
    look FILE     calls the agent's own tool that shows an image, then greets
    overflow      is refused, as vLLM refuses a prompt that is too long, until the conversation was shortened
    recall        says the word that an earlier turn of the conversation has
    long          begins to answer, waits until the test opens the gate, and ends
    fill          calls the tool by which some agents ask for an object of a schema
    write FILE W  writes a file as agents without tools are told to: its name, then all its text in a fence
    anything else a greeting

A request with a JSON schema gets an object that fits it.
"""

import itertools
import json
import queue
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What the files of the tests hold, and what the model looks for in results and in the conversation.
WORD = re.compile(r"\bword-[0-9a-f]{8}\b")
GREETING = "Hello from the script."
FIRST, LAST = "The answer begins", " and here it ends."
# The tools that stand for a schema.
FILLED = ("StructuredOutput", "structured_output", "final_result")
# A gate that a test never opens ends by itself.
GATE_S = 60
MOST_BODY = 64 << 20

# The tools of agents that read a file, the first one that is offered is called. Their arguments for a path: `None` for
# the path alone, under the name that the tool has for it.
READERS = {
    "exec_command": lambda path: {"cmd": f"cat {path}"},
    "shell_command": lambda path: {"command": f"cat {path}"},
    "shell": lambda path: {"command": ["cat", path]},
    "Read": None,
    "read_file": None,
    "read": None,
    "Bash": lambda path: {"command": f"cat {path}", "description": "Shows the file"},
    "bash": lambda path: {"command": f"cat {path}", "description": "Shows the file"},
    "read_word": None,
    "read_files": lambda path: {"files": [{"path": path}]},
}


# By this tool Claude Code lets the model find those tools that it does not offer at once.
SEARCH = "ToolSearch"
VIEWERS = {"view_image": None, "Read": None}
# What tools call the path of a file.
PATHS = ("file_path", "filePath", "filepath", "path")
# A conversation of more messages than this does not fit, where the prompt asks for that.
FITTING = 3
TOO_LONG = {
    "object": "error",
    "type": "BadRequestError",
    "param": None,
    "code": 400,
    "message": (
        "This model's maximum context length is 32768 tokens. However, you requested 40000 tokens (36000 in the "
        "messages, 4000 in the completion). Please reduce the length of the messages or completion."
    ),
}


class ScriptedModel:
    """A server on a free port; `requests` holds the bodies of all chat completions that it was asked for."""

    def __init__(self):
        self.requests = []
        self.gate = threading.Event()
        # One entry for each answer that begins to wait at the gate, and one for each that its reader broke off.
        self.waiting = queue.Queue()
        self.broken_off = queue.Queue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"model": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self):
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def answers_to(self, request):
        """The steps of an answer: deltas of chunks, and `None` where it waits at the gate."""
        messages = [one for one in request["messages"] if one["role"] not in ("system", "developer")]
        last = messages[-1] if messages else {"role": "user", "content": ""}
        asked = _asked(messages)
        schema = _schema_of(request)
        tools = {one["function"]["name"]: one["function"] for one in request.get("tools") or []}
        if last["role"] == "tool" and not _is_of_search(messages):
            return [{"content": _said(text_of(last))}]
        if schema is not None:
            return [{"content": json.dumps(example(schema))}]
        filled = next((name for name in FILLED if name in tools), None)
        if filled and re.search(r"\bfill\b", asked):
            return [_call(filled, example(tools[filled]["parameters"]))]
        if forced := _forced(request, tools):
            return [_call(forced["name"], example(forced.get("parameters") or {}))]
        if found := re.search(r"\badd (\d+) (\d+)", asked):
            if adder := next((name for name in tools if name.endswith("add_numbers")), None):
                return [_call(adder, {"a": int(found[1]), "b": int(found[2])})]
            if SEARCH in tools and last["role"] != "tool":
                return [_call(SEARCH, {"query": "add_numbers", "max_results": 5})]
        for verb, callers in (("read", READERS), ("look", VIEWERS)):
            name = next((name for name in callers if name in tools), None)
            if name and (found := re.search(rf"\b{verb} (\S+)", asked)):
                arguments = callers[name] or _path_of(tools[name])
                return [_call(name, arguments(found[1]))]
        if found := re.search(r"\bwrite (\S+) (\S+)", asked):
            return [{"content": f"{found[1]}\n```\n{found[2]}\n```\n"}]
        if re.search(r"\brecall\b", asked):
            words = WORD.findall("\n".join(text_of(one) for one in messages))
            return [{"content": f"It was {words[0]}." if words else "There is no word in this conversation."}]
        if re.search(r"\blong\b", asked):
            return [{"content": FIRST}, None, {"content": LAST}]
        return [{"content": piece} for piece in re.findall(r"\S+\s*", GREETING)]


def text_of(message):
    """The text of a message's content, whatever its form."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""


def _asked(messages):
    """The last message of the user that is the test's own: agents add reminders of theirs."""
    texts = [text_of(one) for one in messages if one["role"] == "user"]
    marked = [found[-1] for text in texts if (found := re.findall(r"PLEASE ([^\n<\"]+)", text))]
    return marked[-1] if marked else ""


def _is_too_long(messages):
    """Whether it is refused: a request to shorten the conversation is not."""
    turns = [one for one in messages if one["role"] not in ("system", "developer")]
    is_summary = turns and "summary" in text_of(turns[-1])
    return re.search(r"\boverflow\b", _asked(turns)) and len(turns) > FITTING and not is_summary


def _said(result):
    """What the model says of a tool's result."""
    found = WORD.search(result)
    return f"The result has {found[0]}." if found else f"The result is {result.strip()[:200]}"


def _is_of_search(messages):
    """Whether the last message is the result of a search for tools."""
    calls = [call["function"]["name"] for one in messages for call in one.get("tool_calls") or []]
    return calls[-1:] == [SEARCH]


def _schema_of(request):
    wanted = request.get("response_format") or {}
    return wanted["json_schema"].get("schema", {}) if wanted.get("type") == "json_schema" else None


def _forced(request, tools):
    choice = request.get("tool_choice")
    if isinstance(choice, dict):
        return tools.get((choice.get("function") or choice).get("name"))
    return next(iter(tools.values()), None) if choice == "required" else None


def _path_of(tool):
    """The arguments of a tool that takes a path."""
    names = tool["parameters"]["properties"]
    name = next(name for name in PATHS if name in names)
    return lambda path: {name: path}


def _call(name, arguments):
    call = {"index": 0, "id": f"call_{next(_IDS)}", "type": "function"}
    return {"tool_calls": [{**call, "function": {"name": name, "arguments": json.dumps(arguments)}}]}


def example(schema, root=None):
    """A value that fits a JSON schema, as far as the tests use them."""
    root = root or schema
    if "$ref" in schema:
        return example(root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root)
    if "enum" in schema:
        return schema["enum"][0]
    for choices in ("anyOf", "oneOf", "allOf"):
        if schema.get(choices):
            return example(schema[choices][0], root)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        names = schema.get("required") or schema.get("properties", {})
        return {name: example(schema["properties"][name], root) for name in names}
    values = {"array": [], "integer": 7, "number": 7.5, "boolean": True, "null": None}
    return values.get(kind, "Paris")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model = None  # a subclass has it

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._json(
            {"object": "list", "data": [{"id": "scripted", "object": "model", "created": 1, "owned_by": "tests"}]}
        )

    def do_POST(self):
        length = min(int(self.headers.get("content-length") or 0), MOST_BODY)
        body = self.rfile.read(length)
        if not self.path.endswith("/chat/completions"):
            return self._json({"error": {"message": "not here", "type": "invalid_request_error"}}, 404)
        request = json.loads(body)
        self.model.requests.append(request)
        if _is_too_long(request["messages"]):
            return self._json(TOO_LONG, 400)
        steps = self.model.answers_to(request)
        if request.get("stream"):
            return self._stream(steps)
        return self._whole(steps)

    def _json(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _whole(self, steps):
        if None in steps:
            self._wait()
        deltas = [step for step in steps if step is not None]
        text = "".join(step.get("content", "") for step in deltas)
        calls = [
            {key: value for key, value in call.items() if key != "index"}
            for step in deltas
            for call in step.get("tool_calls", [])
        ]
        message = {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": _finish(deltas)}
        self._json({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE})

    def _stream(self, steps):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for step in steps:
                if step is None:
                    self._wait()
                else:
                    self._event({"choices": [{"index": 0, "delta": step, "finish_reason": None}]})
            finish = _finish([step for step in steps if step is not None])
            self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
            self._event({"choices": [], "usage": _USAGE})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.model.broken_off.put(True)

    def _event(self, chunk):
        whole = {**_HEAD, "object": "chat.completion.chunk", **chunk}
        self.wfile.write(f"data: {json.dumps(whole)}\n\n".encode())
        self.wfile.flush()

    def _wait(self):
        """Waits at the gate; raises `OSError` as soon as the reader is gone."""
        self.model.waiting.put(True)
        self.connection.settimeout(0.05)
        for _ in range(GATE_S * 20):
            if self.model.gate.is_set():
                break
            try:
                if self.connection.recv(1) == b"":
                    raise ConnectionResetError("the reader is gone")
            except TimeoutError:
                pass
        self.connection.settimeout(None)


def _finish(deltas):
    return "tool_calls" if any("tool_calls" in step for step in deltas) else "stop"


# Agents pair calls and results by them, over the whole conversation.
_IDS = itertools.count(1)
_HEAD = {"id": "chatcmpl-script", "created": 1, "model": "scripted"}
_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
