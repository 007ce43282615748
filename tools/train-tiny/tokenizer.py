"""The model's own tokenizer: byte-level BPE of 4,096 entries with the pre-tokenizer expression that GGUF names `qwen2`."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|pad|>",
    "<|reserved_0|>",
    "<|reserved_1|>",
    "<|reserved_2|>",
    "<|reserved_3|>",
]
# The expression that llama.cpp applies for `tokenizer.ggml.pre = qwen2`; both sides must agree to the letter.
QWEN2_EXPRESSION = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def assembled(bpe):
    """A tokenizer around a BPE model, with the pre-tokenizer and decoder that both ends share."""
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_EXPRESSION), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def restored_tokenizer(vocab, merges):
    """The tokenizer of a vocabulary and its merges, as read from a GGUF."""
    tokenizer = assembled(models.BPE(vocab=vocab, merges=merges))
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def train_tokenizer(texts):
    """A tokenizer trained on `texts`; the same texts in the same order give the same tokenizer."""
    tokenizer = assembled(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
