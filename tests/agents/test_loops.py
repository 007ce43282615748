"""What single agents once failed at: tools of MCP servers, images, a full context, prompts that change without need."""

import json
import re
import struct
import sys
import zlib

import pytest
from scripted_model import GREETING, text_of

from agents import HERE, OPEN_WEBUI, ClaudeCode, Codex
from conftest import SECONDS, assert_streamed, whole

pytestmark = pytest.mark.timeout(4 * SECONDS)
# What the model says of 19 and 23. The number alone is in many an id that an agent prints.
SUM = re.compile(r"The result is [^\n]{0,100}\b42\b")
ADDER = [sys.executable, str(HERE / "drivers" / "mcp_adder.py")]


def image(path, side=32):
    """Writes a grey square as PNG."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80" * side) * side)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def prompts(model):
    """What the system messages of each request say, equal ones once."""
    messages = [request["messages"] for request in model.requests]
    return {"\n".join(text_of(one) for one in each if one["role"] == "system") for each in messages}


def offered(request):
    """The names of the tools that the model may call."""
    return [tool["function"]["name"] for tool in request.get("tools") or []]


def parts(model):
    """The types of all parts of all messages that reached the model."""
    contents = [one.get("content") for request in model.requests for one in request["messages"]]
    return {part["type"] for content in contents if isinstance(content, list) for part in content}


def test_codex_calls_the_tools_of_mcp_servers(run):
    command, *words = ADDER
    server = f'[mcp_servers.adder]\ncommand = "{command}"\nargs = {json.dumps(words)}\n'
    assert SUM.search(whole(run(Codex(), "ask", "add 19 23", more=server)))


def test_claude_code_calls_the_tools_of_mcp_servers(run, model):
    """It does not offer them at once: the model must search, and then gets them with the next request."""
    command, *words = ADDER
    servers = json.dumps({"mcpServers": {"adder": {"command": command, "args": words}}})
    flags = ["--mcp-config", servers, "--strict-mcp-config", "--allowed-tools=mcp__adder__add_numbers"]
    assert SUM.search(whole(run(ClaudeCode(), "ask", "add 19 23", more=flags)))
    assert "mcp__adder__add_numbers" not in offered(model.requests[0])
    assert any("mcp__adder__add_numbers" in offered(request) for request in model.requests)


@pytest.mark.parametrize("client", [Codex(), ClaudeCode()], ids=["Codex", "Claude-Code"])
def test_a_conversation_goes_on_after_an_image(client, run, model):
    image(run.place / "grey.png")
    whole(run(client, "ask", f"look {run.place}/grey.png"))
    assert "image_url" in parts(model), "the upstream's model may see it"
    assert GREETING in whole(run(client, "continue", "greet"))


def test_claude_codes_prompt_is_the_same_in_every_session(run, model, monkeypatch):
    """Its first line differs in each session if the recipe's variable is not set; the server drops it."""
    monkeypatch.setattr("recipes.variables", without("CLAUDE_CODE_ATTRIBUTION_HEADER"))
    for prompt in ("greet", "greet again"):
        whole(run(ClaudeCode(), "ask", prompt))
    assert len(prompts(model)) == 1
    assert not any("x-anthropic-billing-header" in prompt for prompt in prompts(model))


def test_claude_code_shortens_a_conversation_that_is_too_long(run, model):
    """It knows a full context by Anthropic's words for it, whichever words the upstream has."""
    for prompt in ("greet", "greet twice", "greet thrice"):
        whole(run(ClaudeCode(), "ask" if prompt == "greet" else "continue", prompt))
    printed = whole(run(ClaudeCode(), "continue", "overflow"))
    assert '"compacting"' in printed
    assert GREETING in printed.splitlines()[-1]


@pytest.mark.parametrize("client", OPEN_WEBUI, ids=["OpenAI", "Ollama"])
def test_open_webuis_page_shows_an_answer_as_it_comes(client, run, model):
    assert_streamed(run(client, "page", "be long"), model)


def test_claude_code_keeps_a_short_conversation_as_it_is(run):
    """The recipe's variables leave room for an answer."""
    assert '"compacting"' not in whole(run(ClaudeCode(), "ask", "greet"))


def without(name):
    """`recipes.variables` less one of them."""
    from recipes import variables

    return lambda *told: {key: value for key, value in variables(*told).items() if key != name}
