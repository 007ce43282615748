"""tools/cpu-env, which sets llama.cpp's build for a processor, given what Linux says of some."""

import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "cpu-env"


def settings(folder: Path, machine: str, line: str) -> str:
    cpuinfo = folder / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{line}\n\nprocessor\t: 1\n{line}\n")
    environment = {"PATH": "/usr/bin:/bin"}
    command = [TOOL, cpuinfo, machine]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("features", ["fp asimd asimddp", "fp asimd asimddp sve i8mm bf16"])
def test_aarch64_with_byte_products_is_built_for_itself(tmp_path: Path, features: str) -> None:
    found = settings(tmp_path, "aarch64", f"Features\t: {features}")
    assert found.strip() == 'export RUSTFLAGS="${RUSTFLAGS:-} -Ctarget-cpu=native"'


def test_aarch64_without_is_left_as_it_is(tmp_path: Path) -> None:
    assert settings(tmp_path, "aarch64", "Features\t: fp asimd aes crc32") == ""


def test_x86_64_names_what_there_is_and_what_is_not(tmp_path: Path) -> None:
    found = settings(tmp_path, "x86_64", "flags\t\t: avx avx2 bmi2 f16c avx_vnni").splitlines()
    assert found == ["export GGML_FMA=OFF", "export GGML_AVX_VNNI=ON"]


def test_other_machines_get_nothing(tmp_path: Path) -> None:
    assert settings(tmp_path, "riscv64", "isa\t: rv64imafdc") == ""
