"""The list of what the binary is built from: complete, and without a path of this machine."""

import json
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not shutil.which("cargo"), reason="cargo is not installed")
def test_the_list_of_parts_is_whole(tmp_path):
    path = tmp_path / "parts.json"
    subprocess.run([ROOT / "tools/sbom", path], check=True, timeout=120)
    text = path.read_text()
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    parts = {part["name"]: part for part in bill["components"]}
    assert {"loquent-server", "quinn", "rustls", "llama-cpp-sys-2", "llama.cpp"} <= parts.keys()
    assert not {"proptest", "libfuzzer-sys"} & parts.keys(), "what is for tests alone is not in the binary"
    assert all(part.get("licenses") for part in parts.values())
    from_registry = [part for part in parts.values() if "purl" in part]
    assert all(part["hashes"][0]["alg"] == "SHA-256" for part in from_registry)
    refs = {part["bom-ref"] for part in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    needs = {edge["ref"]: edge["dependsOn"] for edge in bill["dependencies"]}
    assert needs.keys() == refs and all(set(needed) <= refs for needed in needs.values())
    assert "llama.cpp" in needs[parts["llama-cpp-sys-2"]["bom-ref"]]
    assert str(ROOT) not in text
