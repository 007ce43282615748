"""Questions in every API, and what their answers say."""

import contextlib
import dataclasses
import json

import httpx

from .engines import MODEL, PATIENCE_S

QUESTION = "Tell me about the city of Paris in a few sentences."
STORY = "Write a very long story about a lighthouse keeper, his dog and the sea."
GREEDY = {"model": MODEL, "temperature": 0}


def user(text):
    return [{"role": "user", "content": text}]


def chat(question, tokens, **more):
    return "/v1/chat/completions", {**GREEDY, "messages": user(question), "max_tokens": tokens, **more}


def completion(question, tokens, **more):
    # Asked as a chat is, a model that knows chats would end at once.
    return "/v1/completions", {**GREEDY, "prompt": f"Question: {question}\nAnswer: Well,", "max_tokens": tokens, **more}


def responses(question, tokens, **more):
    return "/v1/responses", {**GREEDY, "input": question, "max_output_tokens": tokens, "store": False, **more}


def messages(question, tokens, **more):
    return "/v1/messages", {**GREEDY, "messages": user(question), "max_tokens": tokens, **more}


def ollama(question, tokens, **more):
    options = {"temperature": 0, "num_predict": tokens}
    return "/api/chat", {"model": MODEL, "messages": user(question), "options": options, "stream": False, **more}


APIS = (chat, completion, responses, messages, ollama)
#: Those that Loquent itself puts into chat completions for an upstream with a name.
CHAT_APIS = (chat, responses, messages, ollama)


@dataclasses.dataclass
class Answer:
    """An answer as its reader has it. `usage`: tokens of the prompt and of the answer."""

    text: str = ""
    is_whole: bool = False
    usage: tuple = None
    #: The text before the place where another server went on, and its tokens; of chats and completions.
    seam: tuple = None
    #: The places where another server went on, as the end of an answer of another API lists them.
    seams: list = dataclasses.field(default_factory=list)
    #: Headers of the response.
    headers: httpx.Headers = None

    def take(self, api, event):
        """Adds one event of a stream."""
        if isinstance(seam := event.get("continued"), dict):
            self.seam = self.text, seam["after_tokens"]
        self.seams = self.seams or listed_seams(event)
        text, usage, is_last = READERS[api.__name__](event)
        self.text += text
        self.usage = usage or self.usage
        self.is_whole |= is_last


def listed_seams(event):
    told = event.get("continued") or (event.get("response") or {}).get("continued")
    return told if isinstance(told, list) else []


def of_choice(event):
    choice = (event.get("choices") or [{}])[0]
    said = choice.get("message") or choice.get("delta") or {}
    usage = event.get("usage")
    usage = usage and (usage["prompt_tokens"], usage["completion_tokens"])
    return choice.get("text") or said.get("content") or "", usage, bool(choice.get("finish_reason"))


def of_response(event):
    if event.get("type") == "response.output_text.delta":
        return event["delta"], None, False
    is_last = event.get("type") in ("response.completed", "response.incomplete")
    whole = event["response"] if is_last else event
    if whole.get("object") != "response" or not whole.get("usage"):
        return "", None, False
    parts = [part for item in whole["output"] for part in item.get("content") or []]
    text = "" if is_last else "".join(part.get("text", "") for part in parts)
    return text, (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]), True


def of_message(event):
    if event.get("type") == "message":
        usage = event["usage"]["input_tokens"], event["usage"]["output_tokens"]
        return "".join(block.get("text", "") for block in event["content"]), usage, True
    usage = event.get("usage") if event.get("type") == "message_delta" else None
    usage = usage and (usage.get("input_tokens"), usage["output_tokens"])
    return event.get("delta", {}).get("text", ""), usage, event.get("type") == "message_stop"


def of_ollama(event):
    usage = (event["prompt_eval_count"], event["eval_count"]) if event.get("done") else None
    return event.get("message", {}).get("content", ""), usage, event.get("done", False)


READERS = {"chat": of_choice, "completion": of_choice, "responses": of_response, "messages": of_message,
           "ollama": of_ollama}


def post(server, path, body):
    return httpx.post(server.url + path, json=body, timeout=PATIENCE_S)


def ask(api, url, question, tokens, **more):
    """A whole answer."""
    path, body = api(question, tokens, **more)
    response = httpx.post(url + path, json=body, timeout=PATIENCE_S)
    assert response.status_code == 200, response.text
    answer = Answer(headers=response.headers)
    answer.take(api, response.json())
    return answer


@contextlib.contextmanager
def opened(api, url, question, tokens, **more):
    """A stream that has begun: its response and its events."""
    path, body = api(question, tokens, **more)
    body["stream"] = True
    if path.endswith("completions"):
        body["stream_options"] = {"include_usage": True}
    with httpx.stream("POST", url + path, json=body, timeout=PATIENCE_S) as response:
        assert response.status_code == 200, response.read()
        yield response, events(response.iter_lines())


def events(lines):
    """The objects of an event stream, or of Ollama's lines."""
    for line in lines:
        data = line.removeprefix("data:").strip()
        if data.startswith("{"):
            event = json.loads(data)
            assert not event.get("error"), event
            yield event


def read(api, url, question, tokens, begun=lambda: None, **more):
    """A streamed answer, to its end. Calls `begun` at its first text."""
    answer = Answer()
    with opened(api, url, question, tokens, **more) as (response, stream):
        answer.headers = response.headers
        for event in stream:
            had_text = bool(answer.text)
            answer.take(api, event)
            if answer.text and not had_text:
                begun()
    return answer
