"""Calls in every model's own format, forced on the bundled model through llama.cpp: its file with the chat template of
each format in place of its own."""

import json
from pathlib import Path

import openai
import pytest

from chat_templates import with_template

MODEL = Path(__file__).parents[2] / "models" / "loquent-tiny.gguf"

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
