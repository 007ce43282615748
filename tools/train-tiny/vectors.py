"""Prints texts with the ids that Hugging Face's `tokenizers` gives them with the bundled model's vocabulary.

The engine's tests hold llama.cpp's tokenizer to them:

    vectors.py > crates/engine/tests/llama/bundled_tokens.json
"""

import json

from lengths import MODEL, tokenizer_of

TEXTS = [
    "",
    " ",
    "   ",
    "\t\t",
    "\n",
    "\n\n\n",
    " \n \r\n\t x",
    "Token streaming shows an answer while it is written.",
    "  Two spaces before,  two between, two after  ",
    "line one\nline two\n\n    indented(line);\r\nlast",
    "I'm sure they'll say it's HERS, we've SEEN it, you'd KNOW: DON'T.",
    "3 apples, 31.4 kg, 1,234,567 bytes, 0x7fff, 2026-11-24T12:00:00Z",
    "snake_case camelCase kebab-case path/to/file.rs user@example.org",
    "if (a[i] != b->c) { return !x || y && z; } // ???!!!...",
    "Straße, Ærø, façade, naïve, e\u0301 beside \u00e9, ﬁ",
    "Привет, мир! Γειά σου. שלום. مرحبا ١٢٣.",
    "日本語の文章と、漢字かな交じり文。 한국어 문장. 中文，标点。",
    "नमस्ते दुनिया, สวัสดีชาวโลก",
    "🌊 🚆🚆 👩‍👩‍👧‍👦 🇨🇭 ✌🏽",
    "zero\u200bwidth non\u00a0breaking \u3000wide \ufeffmark",
    "<|im_start|>user\n<|im_end|> as text, <|endoftext|>",
    "\x00\x01\x7f control",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbb",
    "½ ² ₃ Ⅷ ∑ → ≠ € ™",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0010ffff",
]


def main():
    tokenizer = tokenizer_of(MODEL)
    # As text of a user: names of special tokens are ordinary text.
    tokenizer.encode_special_tokens = True
    lines = (json.dumps({"text": text, "ids": tokenizer.encode(text).ids}) for text in TEXTS)
    print("[\n" + ",\n".join(lines) + "\n]")


if __name__ == "__main__":
    main()
