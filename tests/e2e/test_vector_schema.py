"""spec/vectors: every file has the members that its schema explains, and no others."""

import json
import pathlib

import jsonschema
import pytest

VECTORS = pathlib.Path(__file__).resolve().parents[2] / "spec" / "vectors"
SCHEMA = json.loads((VECTORS / "schema.json").read_text())
FILES = sorted(path.name for path in VECTORS.glob("*.json") if path.name != "schema.json")


def validator(definition):
    schema = {**SCHEMA, "$ref": f"#/$defs/{definition}"}
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_is_one_and_covers_every_file():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert FILES == sorted(name for name in SCHEMA["$defs"] if name.endswith(".json"))


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_as_the_schema_says(name):
    file = json.loads((VECTORS / name).read_text())
    errors = [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(file)]
    assert errors == []


@pytest.mark.parametrize("name", FILES)
def test_a_member_that_nobody_explains_is_found(name):
    file = json.loads((VECTORS / name).read_text())
    file["cases"][0]["unexplained"] = 1
    assert not validator(name).is_valid(file)


def explained(schema, path="#"):
    """Yields the path of every member that has no description of its own or of what it refers to."""
    if isinstance(schema, list):
        for at, part in enumerate(schema):
            yield from explained(part, f"{path}/{at}")
    if not isinstance(schema, dict):
        return
    for name, member in schema.get("properties", {}).items():
        is_plain = isinstance(member, dict) and not {"description", "const", "$ref"} & member.keys()
        if is_plain:
            yield f"{path}/{name}"
    for name, part in schema.items():
        yield from explained(part, f"{path}/{name}")


def test_every_member_is_explained():
    assert list(explained(SCHEMA)) == []
