"""The kernels that this machine's processor can run, as `--kernels` names them."""

import pathlib

AVX2 = {"avx2", "fma", "f16c"}
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "f16c"}
NEEDS = {
    "loquent-avx512": AVX512,
    "loquent-amx": AVX512 | {"amx_tile", "amx_int8"},
    "loquent-avx-vnni": AVX2 | {"avx_vnni"},
    "loquent-avx2": AVX2,
}


def flags():
    """What the processor can do, in the kernel's words; empty where Linux does not say."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


OURS = [name for name, needs in NEEDS.items() if needs <= flags()]
#: Those of Loquent's that the tests compare bit for bit.
EXACT = next(iter(OURS), None)
ALL = ["llama.cpp", *OURS]
