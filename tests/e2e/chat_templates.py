"""GGUF files with another chat template in place of their own."""

import struct

KEY = b"tokenizer.chat_template"
STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
ALIGNMENT = 32


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
