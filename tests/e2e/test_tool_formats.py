"""Calls in every model's own format, forced on the bundled model through llama.cpp: its file with the chat template of
each format in place of its own."""

import json
import struct
from pathlib import Path

import openai
import pytest

MODEL = Path(__file__).parents[2] / "models" / "loquent-tiny.gguf"
KEY = b"tokenizer.chat_template"
STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
ALIGNMENT = 32

# What shows the format in a chat template; the turns are those that the bundled model knows.
FORMATS = {
    "hermes": "<tool_call>",
    "bare": "",
    "qwen-coder": "<tool_call> <function=",
    "glm": "<tool_call> <arg_key>",
    "mistral-list": "[TOOL_CALLS]",
    "mistral": "[TOOL_CALLS] [ARGS]",
    "magistral": "[THINK] [TOOL_CALLS] [ARGS]",
    "gpt-oss": "<|channel|> <|message|>",
    "deepseek-v3": "<｜tool▁call▁begin｜> ```json",
    "deepseek-v3.1": "<｜tool▁call▁begin｜>",
    "deepseek-v3.2": "<think> <｜DSML｜function_calls>",
    "deepseek-later": "<think> <｜DSML｜tool_calls>",
}
TEMPLATE = (
    "{{%- for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}<|im_end|>\n{{% endfor -%}}"
    "{{%- if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}{{#- tools {} #}}"
)
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "tags": {"type": "array", "items": {"enum": ["sun", "rain"]}, "maxItems": 2},
    },
    "required": ["city", "days", "tags"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]


def value_end(data, at, kind):
    """Where a value of the file's header ends."""
    if kind == STRING:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind != ARRAY:
        return at + SIZES[kind]
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in SIZES:
        return at + SIZES[inner] * count
    for _ in range(count):
        at = value_end(data, at, inner)
    return at


def with_template(data, template):
    """The bytes of a GGUF file with another chat template."""
    tensors, pairs = struct.unpack_from("<QQ", data, 8)
    at = 24
    header = bytearray(data[:at])
    for _ in range(pairs):
        name_end = value_end(data, at, STRING)
        kind = struct.unpack_from("<I", data, name_end)[0]
        end = value_end(data, name_end + 4, kind)
        if data[at + 8 : name_end] == KEY:
            header += data[at : name_end + 4] + struct.pack("<Q", len(template)) + template
        else:
            header += data[at:end]
        at = end
    begin = at
    for _ in range(tensors):
        at = value_end(data, at, STRING)
        dimensions = struct.unpack_from("<I", data, at)[0]
        at += 4 + 8 * dimensions + 4 + 8
    header += data[begin:at]
    header += bytes(-len(header) % ALIGNMENT)
    return bytes(header) + data[at + (-at % ALIGNMENT) :]


@pytest.fixture
def speaking(start, tmp_path):
    def serve(name):
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(with_template(MODEL.read_bytes(), TEMPLATE.format(FORMATS[name]).encode()))
        server = start("--model", str(file))
        return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    return serve


@pytest.mark.parametrize("name", FORMATS)
def test_a_forced_call_fits_its_schema_in_every_format(speaking, name):
    ask = {
        "model": "any",
        "messages": [{"role": "user", "content": "How is the weather?"}],
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 400,
        "temperature": 0,
        "seed": 1,
        # Whoever thinks before it calls may do so for long.
        "extra_body": {"thinking_budget_tokens": 8},
    }
    with speaking(name) as sdk:
        choice = sdk.chat.completions.create(**ask).choices[0]
        assert choice.finish_reason == "tool_calls", choice
        (call,) = choice.message.tool_calls
        assert not choice.message.content
        found = json.loads(call.function.arguments)
        assert call.function.name == "weather" and set(found) == {"city", "days", "tags"}
        assert found["city"] in ("Oslo", "Rome") and 1 <= found["days"] <= 9
        assert set(found["tags"]) <= {"sun", "rain"} and len(found["tags"]) <= 2
        streamed = ""
        for chunk in sdk.chat.completions.create(**ask, stream=True):
            for part in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
                streamed += part.function.arguments
        assert streamed == call.function.arguments
