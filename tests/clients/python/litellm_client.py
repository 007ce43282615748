"""LiteLLM's providers for OpenAI-compatible servers, Anthropic and Ollama, against the server whose URL is
the argument."""

import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network for prices otherwise
import litellm

url = sys.argv[1]
question = [{"role": "user", "content": "What is Loquent?"}]


def ask(model, base, **more):
    return litellm.completion(
        model=model, api_base=base, api_key="none", messages=question, temperature=0, max_tokens=48, **more
    )


texts = set()
for model, base in [
    ("openai/loquent-tiny", f"{url}/v1"),
    ("hosted_vllm/loquent-tiny", f"{url}/v1"),
    ("anthropic/loquent-tiny", url),
    ("ollama_chat/loquent-tiny", url),
]:
    whole = ask(model, base)
    text = whole.choices[0].message.content
    assert text and whole.usage.completion_tokens > 0, (model, whole)
    chunks = [chunk.choices[0].delta.content or "" for chunk in ask(model, base, stream=True)]
    assert "".join(chunks) == text, (model, chunks, text)
    assert len(chunks) > 2, f"{model} came in pieces"
    texts.add(text)
assert len(texts) == 1, f"every way gives the same greedy text: {texts}"
