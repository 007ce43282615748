"""A folder of packages behind the addresses of PyPI, npm and a release, on loopback."""

import base64
import hashlib
import http.server
import json
import tarfile
import threading
from urllib.parse import unquote, urlsplit


class LocalIndex:
    """Serves `folder`: the files at /release, wheels at /simple (PEP 503), npm's packages at /npm."""

    def __init__(self, folder):
        self.folder = folder
        #: The paths that were asked for.
        self.asked = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.release = f"{self.url}/release"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def environment(self):
        """What tells pip, uv and npm of it, and of no settings of this machine."""
        return {
            "PIP_INDEX_URL": f"{self.url}/simple/",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "UV_DEFAULT_INDEX": f"{self.url}/simple/",
            "UV_NO_CONFIG": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "npm_config_registry": f"{self.url}/npm/",
            "npm_config_update_notifier": "false",
        }

    def answer(self, path):
        """The type and the bytes at a path; None if there is nothing."""
        match path.strip("/").split("/", 1):
            case ["release", name] if "/" not in name and (self.folder / name).is_file():
                return "application/octet-stream", (self.folder / name).read_bytes()
            case ["simple", "loquent"]:
                return "text/html", self._wheels().encode()
            case ["npm", "@loquent/client"]:
                return "application/json", json.dumps(self._packument()).encode()
        return None

    def _wheels(self):
        """The page of one project in the simple index."""
        links = [
            f'<a href="/release/{path.name}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}">{path.name}</a>'
            for path in sorted(self.folder.glob("loquent-*.whl"))
        ]
        return "<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>"

    def _packument(self):
        """What npm's registry says of one package."""
        (path,) = self.folder.glob("loquent-client-*.tgz")
        with tarfile.open(path) as archive:
            manifest = json.load(archive.extractfile("package/package.json"))
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
        version = {**manifest, "dist": {"tarball": f"{self.release}/{path.name}", "integrity": integrity}}
        number = manifest["version"]
        return {"name": manifest["name"], "dist-tags": {"latest": number}, "versions": {number: version}}

    def _handler(self):
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                path = unquote(urlsplit(self.path).path)
                index.asked.append(path)
                found = index.answer(path)
                if found is None:
                    self.send_error(404)
                    return
                kind, data = found
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data)

            do_HEAD = do_GET

            def log_message(self, *_):
                """Requests are not news."""

        return Handler
