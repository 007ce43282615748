"""Files of a trained model in other formats: its weights as 32-bit floats, rounded as llama.cpp rounds them.

The formats are those of whole matrices. Where a row's length is not a multiple of a format's block, the matrix gets the
format that llama.cpp's quantiser falls back to (llama.cpp, src/llama-quant.cpp).
"""

import ctypes
import functools

import gguf
import numpy as np

FALLBACK = {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL",
            "IQ3_S": "IQ4_NL", "IQ3_XXS": "IQ4_NL"}
PLAIN = {"F32": np.float32, "F16": np.float16}


@functools.cache
def ggml():
    """ggml's library, with the signature of its quantiser (ggml.h)."""
    import xllamacpp

    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    floats, nothing = ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.c_float)
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, floats, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, nothing]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library


def fitting(name, length):
    """The format for rows of this length where `name` is wanted."""
    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    return FALLBACK[name] if length % block else name


def rounded(weights, name):
    """A matrix of 32-bit floats in a format: its bytes, as an array of a row for each of its rows."""
    if name in PLAIN:
        return weights.astype(PLAIN[name])
    kind = gguf.GGMLQuantizationType[name]
    rows, length = int(np.prod(weights.shape[:-1])), weights.shape[-1]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    out = np.zeros((rows, length // block * size), np.uint8)
    source = np.ascontiguousarray(weights, np.float32)
    written = ggml().ggml_quantize_chunk(
        kind.value, source.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), out.ctypes.data, 0, rows, length, None)
    assert written == out.nbytes, f"{written} bytes of {name}, not {out.nbytes}"
    return out


def copy_of(source, name, path):
    """Writes the model of file `source` to `path` with its matrices in the format `name`."""
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(path, architecture)
    for field in reader.fields.values():
        # The writer has its own architecture; the others are the file's counts.
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        wanted = fitting(name, weights.shape[-1]) if weights.ndim > 1 else "F32"
        data = rounded(weights, wanted)
        writer.add_tensor(tensor.name, data, raw_dtype=gguf.GGMLQuantizationType[wanted])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
