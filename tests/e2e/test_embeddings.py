"""/v1/embeddings with the real binary and openai-python, unmodified: an embedding model of random
weights, and the bundled model beside its answers."""

import base64
import concurrent.futures
import math
import struct
import subprocess
from pathlib import Path

import httpx
import openai
import pytest

from conftest import BINARY

SHAPE = ["bge-small", "--layers", "2", "--vocab-size", "2000", "--quant", "F16", "--threads", "1"]
TEXTS = ["a stream of tokens", "a stream of token", "0123 9876 (5)"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small BERT that pools by its first token, as BGE does."""
    file = tmp_path_factory.mktemp("model") / "embedding.gguf"
    subprocess.run([Path(BINARY).with_name("shape-model"), *SHAPE, "--out", file], check=True)
    return file


@pytest.fixture
def embedder(start, model):
    server = start("--model", str(model))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_openai_python_embeds(embedder):
    # The SDK asks for base64 and decodes it.
    found = embedder.embeddings.create(model="any", input=TEXTS)
    vectors = [one.embedding for one in found.data]
    assert [len(vector) for vector in vectors] == [384] * 3
    assert all(abs(math.hypot(*vector) - 1) < 1e-5 for vector in vectors)
    assert [one.index for one in found.data] == [0, 1, 2]
    assert found.usage.prompt_tokens == found.usage.total_tokens > 20
    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2]), "one letter differs"
    floats = embedder.embeddings.create(model="any", input=TEXTS[0], encoding_format="float")
    assert cosine(floats.data[0].embedding, vectors[0]) > 0.99999
    few = embedder.embeddings.create(model="any", input=TEXTS[0], dimensions=64).data[0].embedding
    length = math.hypot(*vectors[0][:64])
    assert few == pytest.approx([x / length for x in vectors[0][:64]], abs=1e-5)


def test_token_ids_and_texts_mean_the_same(embedder):
    url = str(embedder.base_url).removesuffix("/v1/")
    tokens = httpx.post(f"{url}/tokenize", json={"prompt": TEXTS[0]}).json()["tokens"]
    # Texts are framed by [CLS] and [SEP]; /tokenize adds the first.
    both = embedder.embeddings.create(model="any", input=[[*tokens, 3], tokens])
    text = embedder.embeddings.create(model="any", input=TEXTS[0]).data[0].embedding
    assert cosine(both.data[0].embedding, text) > 0.99999 > cosine(both.data[1].embedding, text)


def test_encodings_carry_the_same_numbers(embedder):
    url = f"{embedder.base_url}embeddings"
    body = {"input": "one"}
    floats = httpx.post(url, json=body).json()["data"][0]["embedding"]
    text = httpx.post(url, json={**body, "encoding_format": "base64"}).json()["data"][0]["embedding"]
    numbers = struct.unpack("<384f", base64.b64decode(text))
    assert floats == pytest.approx(numbers, rel=1e-6)


def test_errors_name_the_input(embedder):
    for inputs, named in [(["a", ""], "input[1]"), (["a", "b " * 600], "input[1]")]:
        with pytest.raises(openai.BadRequestError, match=r"input.1.") as error:
            embedder.embeddings.create(model="any", input=inputs)
        assert error.value.param == "input" and named in error.value.message
    with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
        embedder.chat.completions.create(model="any", messages=[{"role": "user", "content": "a"}])


def test_many_clients_get_their_own_vectors(embedder):
    def embed(number):
        inputs = [f"{number} {word}" for word in ("one", "two", "three") * (number + 1)]
        found = embedder.embeddings.create(model="any", input=inputs).data
        return [one.embedding for one in found]

    alone = [embed(number) for number in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        together = list(pool.map(embed, range(6)))
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one, other, strict=True):
            assert cosine(a, b) > 0.9999


def test_a_model_that_chats_embeds_beside_its_answers(start):
    server = start("--embeddings", "mean")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        ask = {"model": "any", "messages": [{"role": "user", "content": "What is a token?"}]}
        alone = sdk.chat.completions.create(**ask).choices[0].message.content
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            embedding = pool.submit(sdk.embeddings.create, model="any", input=["some text"] * 200)
            beside = sdk.chat.completions.create(**ask).choices[0].message.content
            found = embedding.result()
    assert beside == alone
    first, last = found.data[0].embedding, found.data[-1].embedding
    assert len(found.data) == 200 and cosine(first, last) > 0.9999
    assert server.metric("embedding_inputs_total") == 200


def test_a_model_that_chats_alone_says_how_to_embed(client):
    with pytest.raises(openai.BadRequestError, match="--embeddings"):
        client.embeddings.create(model="any", input="a")
