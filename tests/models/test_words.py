"""How clean a trained model's text is without any sampling parameter: with the defaults of `serve`, no larger share of
its words is in no dictionary than with those of llama.cpp's server."""

import re

import pytest
from spellchecker import SpellChecker

from .ask import post

SEEDS = 2
TOKENS = 80
QUESTIONS = [
    "Why is the sky blue?", "How does a bicycle stay upright?", "What is a good breakfast?", "How do plants drink?",
    "What makes bread rise?", "Why do cats purr?", "How is paper made?", "What is the moon made of?",
    "How do I learn to swim?", "Why do leaves change colour?", "What does a nurse do?", "How do boats float?",
    "What is rain?", "How can I sleep better?", "Why do we dream?", "What is a friend?", "How do birds find their way?",
    "What should I pack for a weekend by the sea?", "How does a clock work?", "Why is exercise good for us?",
    "What is a library?", "How do bees make honey?", "What happens when water boils?", "Why do people travel?",
]
#: Names and what begins a sentence are left out with all that is not in lower case.
WORD = re.compile(r"(?<![\w'’-])[a-z]{3,}(?![\w'’-])")


def unknown_share(texts):
    words = [word for text in texts for word in WORD.findall(text)]
    assert len(words) > 20 * len(texts), "too little text to judge"
    unknown = SpellChecker().unknown(set(words))
    return sum(word in unknown for word in words) / len(words), sorted(unknown)


def asks():
    for question in QUESTIONS:
        for seed in range(SEEDS):
            yield {"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS, "seed": seed}


def said(answer):
    return answer["choices"][0]["message"]["content"]


@pytest.mark.timeout(900)
def test_no_more_words_are_in_no_dictionary_than_with_llama_cpps_defaults(serve, smollm2, llama_cpp):
    server = serve(smollm2, "--context", "1024")
    ours, our_unknown = unknown_share([said(post(server, "/v1/chat/completions", ask)) for ask in asks()])
    with llama_cpp(smollm2, 1024) as reference:
        theirs, their_unknown = unknown_share([said(reference.ask("/v1/chat/completions", ask)) for ask in asks()])
    print(f"words in no dictionary: {ours:.2%} (llama.cpp's server {theirs:.2%})")
    assert ours <= theirs, (our_unknown, their_unknown)
