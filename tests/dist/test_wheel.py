"""The wheel, installed by pip into a clean environment."""

import re
import subprocess
import sys

import pytest

from .conftest import assert_serves, bare_environment


@pytest.fixture(scope="module")
def environment(packages, tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, packages.one("*.whl")], check=True, timeout=100)
    return folder


def test_it_serves_from_a_clean_environment(environment, tmp_path):
    assert_serves(environment / "bin/loquent", tmp_path / "home")


def test_python_runs_the_binary_of_its_environment(environment, tmp_path):
    command = [environment / "bin/python", "-m", "loquent", "--version"]
    done = subprocess.run(command, env=bare_environment(tmp_path), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("loquent ")


def test_pip_knows_every_file(environment):
    pip = [environment / "bin/python", "-m", "pip"]
    listed = subprocess.run([*pip, "show", "--files", "loquent"], check=True, capture_output=True, text=True).stdout
    assert "bin/loquent" in listed and "loquent/__main__.py" in listed
    assert "licenses/THIRD-PARTY.txt" in listed and "sboms/loquent.cdx.json" in listed


def test_the_tag_names_the_c_library_and_the_processor(packages):
    name = packages.one("*.whl").name
    assert re.search(r"-py3-none-manylinux_2_\d+_(x86_64|aarch64)", name), name
