"""Writes trained parameters and the tokenizer as one GGUF file of the `llama` architecture."""

import json

import gguf
import torch

from tokenizer import SPECIALS

CONTEXT_LENGTH = 2048
# Our names of a layer's matrices and GGUF's.
MATRICES = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
# ChatML. No default system prompt is added: the model answers the same with and without one.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def add_metadata(writer, shape):
    writer.add_name("loquent-tiny")
    writer.add_basename("loquent-tiny")
    writer.add_description("The small model bundled with Loquent: answers questions on token streaming and LLM serving.")
    writer.add_license("MIT OR Apache-2.0")
    writer.add_languages(["en"])
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocab)


def add_tokenizer(writer, tokenizer):
    model = json.loads(tokenizer.to_str())["model"]
    ids = sorted(model["vocab"].items(), key=lambda item: item[1])
    kinds = [gguf.TokenType.CONTROL if text in SPECIALS else gguf.TokenType.NORMAL for text, _ in ids]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([text for text, _ in ids])
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    end = model["vocab"]["<|im_end|>"]
    writer.add_eos_token_id(end)
    writer.add_eot_token_id(end)
    writer.add_pad_token_id(model["vocab"]["<|pad|>"])
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def named_tensors(params):
    """(GGUF name, tensor) pairs; the head is tied to the embedding, so it is left out."""
    yield "token_embd.weight", params["embed"]
    yield "output_norm.weight", params["norm"]
    for index, layer in enumerate(params["layers"]):
        yield f"blk.{index}.attn_norm.weight", layer["attn_norm"]
        yield f"blk.{index}.ffn_norm.weight", layer["ffn_norm"]
        for key, name in MATRICES.items():
            yield f"blk.{index}.{name}.weight", layer[key]


def write_gguf(path, params, tokenizer, shape, quant="q8_0"):
    """Writes the model to `path`; `quant` is q8_0, f16 or f32 for the matrices (vectors stay f32)."""
    kinds = {"q8_0": gguf.GGMLQuantizationType.Q8_0, "f16": gguf.GGMLQuantizationType.F16, "f32": gguf.GGMLQuantizationType.F32}
    files = {"q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "f16": gguf.LlamaFileType.MOSTLY_F16, "f32": gguf.LlamaFileType.ALL_F32}
    writer = gguf.GGUFWriter(str(path), "llama")
    add_metadata(writer, shape)
    writer.add_file_type(files[quant])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_tokenizer(writer, tokenizer)
    for name, tensor in named_tensors(params):
        array = tensor.detach().numpy()
        if array.ndim == 1:
            writer.add_tensor(name, array)
        else:
            kind = kinds[quant]
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_gguf(path, shape_type):
    """The (params, vocabulary, merges, shape) of a file that write_gguf made: the start of a second phase of training."""
    reader = gguf.GGUFReader(path)
    value = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    shape = shape_type(
        vocab=value["llama.vocab_size"],
        layers=value["llama.block_count"],
        width=value["llama.embedding_length"],
        heads=value["llama.attention.head_count"],
        kv_heads=value["llama.attention.head_count_kv"],
        ffn=value["llama.feed_forward_length"],
    )
    tensors = {t.name: torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}
    layers = []
    for index in range(shape.layers):
        layer = {key: tensors[f"blk.{index}.{name}.weight"] for key, name in MATRICES.items()}
        layer |= {key: tensors[f"blk.{index}.{key}.weight"] for key in ("attn_norm", "ffn_norm")}
        layers.append(layer)
    params = {"embed": tensors["token_embd.weight"], "layers": layers, "norm": tensors["output_norm.weight"]}
    vocab = {text: i for i, text in enumerate(value["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in value["tokenizer.ggml.merges"]]
    return params, vocab, merges, shape
