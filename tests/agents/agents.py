"""The agents: how each is started, by its recipe in docs/apps.md, in a home of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import recipes
from process import Process

HERE = Path(__file__).parent
INSTALLED = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target")).resolve() / "agents"
PROGRAMS = INSTALLED / "node" / "node_modules" / ".bin"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


class Client:
    """One row of the table.

    `start` runs it once: mode "ask" for a whole answer, "stream" for one that is printed as it comes, "continue" for
    the next turn of the conversation, "schema" for an answer that fits `CITY`.
    """

    name = ""
    package = ""  # as in the file that pins it
    lacks = ()  # columns that it has no feature for
    # After its server was killed in the middle: does it ask again by itself, or does it tell its user?
    asks_again = False
    # A program that outlives the answer that it cancels.
    is_library = False
    # The first turn of a conversation, in which the model learns the word; the file has it.
    first_turn = "read {file}"

    def start(self, mode, prompt, place, url):
        raise NotImplementedError

    def version(self):
        """The installed version."""
        raise NotImplementedError

    def __repr__(self):
        return self.name


def environment(place, **more):
    """A user's environment with nothing of the one who runs the tests."""
    home = place / "home"
    home.mkdir(exist_ok=True)
    folders = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "CACHE", "DATA", "STATE")}
    path = f"{INSTALLED / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    basics = {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": str(home), "NO_COLOR": "1"}
    return {**basics, **folders, **more}


class NodeAgent(Client):
    """An agent that npm installs."""

    def version(self):
        return json.loads((INSTALLED / "node" / "node_modules" / self.package / "package.json").read_text())["version"]

    def run(self, words, place, env):
        process = Process([str(word) for word in words], place, env)
        process.close_input()
        return process

    def drive(self, driver, words, place, env):
        """Runs a driver that speaks to the agent's own server."""
        words = [sys.executable, HERE / "drivers" / driver, *words]
        return Process([str(word) for word in words], place, env, is_driver=True)


class Codex(NodeAgent):
    name = "Codex CLI"
    package = "@openai/codex"
    asks_again = True

    def start(self, mode, prompt, place, url, more=""):
        env = environment(place, **recipes.variables(url, "LOQUENT_API_KEY", "codex"))
        env["CODEX_HOME"] = str(place / "home" / ".codex")
        folder = Path(env["CODEX_HOME"])
        folder.mkdir(exist_ok=True)
        quiet = "check_for_update_on_startup = false\n"
        recipe = recipes.text(url, "toml", "model_providers.loquent")
        (folder / "config.toml").write_text(f"{quiet}{recipe}\n[analytics]\nenabled = false\n{more}")
        program = PROGRAMS / "codex"
        if mode == "stream":
            # `codex exec` prints whole messages; editors see the pieces, over this.
            return self.drive("codex_app_server.py", [program, prompt], place, env)
        words = [program, "exec"]
        flags = ["--json", "--skip-git-repo-check"]
        if mode == "continue":
            words += ["resume", "--last"]
        elif mode == "schema":
            (place / "schema.json").write_text(json.dumps(CITY))
            flags += ["--output-schema", "schema.json"]
        return self.run([*words, *flags, "-c", 'sandbox_mode="danger-full-access"', prompt], place, env)


class ClaudeCode(NodeAgent):
    name = "Claude Code"
    package = "@anthropic-ai/claude-code"
    asks_again = True

    def start(self, mode, prompt, place, url, more=()):
        env = environment(place, **recipes.variables(url, "ANTHROPIC_BASE_URL", "claude"))
        env["CLAUDE_CONFIG_DIR"] = str(place / "home" / ".claude")
        env.update(CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_TELEMETRY="1", DISABLE_AUTOUPDATER="1")
        words = [PROGRAMS / "claude", "--print", "--verbose", "--output-format", "stream-json"]
        words += {
            "stream": ["--include-partial-messages"],
            "continue": ["--continue"],
            "schema": ["--json-schema", json.dumps(CITY)],
        }.get(mode, [])
        return self.run([*words, *more, "--allowed-tools=Read", "--", prompt], place, env)


class Opencode(NodeAgent):
    name = "opencode"
    package = "opencode-ai"
    asks_again = True

    def start(self, mode, prompt, place, url):
        quiet = {f"OPENCODE_DISABLE_{name}": "1" for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "SHARE")}
        env = environment(place, **quiet)
        (place / "opencode.json").write_text(recipes.text(url, "json", "@ai-sdk/openai-compatible"))
        program = PROGRAMS / "opencode"
        if mode in ("stream", "schema"):
            # `opencode run` prints whole messages and takes no schema; its own server does both.
            schema = [json.dumps(CITY)] if mode == "schema" else []
            return self.drive("opencode_events.py", [program, prompt, *schema], place, env)
        words = [program, "run", "--format", "json"]
        words += ["--continue"] if mode == "continue" else ["--title", "A test"]
        return self.run([*words, prompt], place, env)


class QwenCode(NodeAgent):
    name = "Qwen Code"
    package = "@qwen-code/qwen-code"
    asks_again = True

    def start(self, mode, prompt, place, url):
        env = environment(place, **recipes.variables(url, "OPENAI_BASE_URL", "qwen"))
        settings = place / "home" / ".qwen" / "settings.json"
        settings.parent.mkdir(exist_ok=True)
        quiet = {"privacy": {"usageStatisticsEnabled": False}, "general": {"enableAutoUpdate": False}}
        settings.write_text(json.dumps({**quiet, "telemetry": {"enabled": False}}))
        words = [
            PROGRAMS / "qwen",
            *recipes.command(url, "OPENAI_BASE_URL", "qwen")[1:],
            "--output-format",
            "stream-json",
        ]
        words += {
            "stream": ["--include-partial-messages"],
            "continue": ["--continue"],
            "schema": ["--json-schema", json.dumps(CITY)],
        }.get(mode, [])
        return self.run([*words, prompt], place, env)


class Continue(NodeAgent):
    name = "Continue CLI"
    package = "@continuedev/cli"
    # It asks for a stream, and neither its window nor `cn --print` nor `cn serve` shows an answer before its end.
    lacks = ("streams", "structured")
    asks_again = True

    def start(self, mode, prompt, place, url):
        env = environment(place, CONTINUE_METRICS_ENABLED="0", CONTINUE_TELEMETRY_ENABLED="0")
        config = place / "home" / ".continue" / "config.yaml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(recipes.text(url, "yaml", "provider: openai"))
        words = [PROGRAMS / "cn", "--config", config, "--auto"]
        words += ["--resume"] if mode == "continue" else []
        return self.run([*words, "--print", prompt], place, env)


class Cline(NodeAgent):
    name = "Cline CLI"
    package = "cline"
    lacks = ("structured",)

    def start(self, mode, prompt, place, url):
        # Otherwise it leaves a daemon behind that runs its sessions.
        env = environment(place, CLINE_SESSION_BACKEND_MODE="local", CLINE_NO_AUTO_UPDATE="1")
        words = [PROGRAMS / "cline", *recipes.command(url, "cline auth")[1:]]
        subprocess.run(words, cwd=place, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        if mode == "continue":
            # With `--json` it refuses `--id`; editors go on with a conversation, over this.
            env.update(CLINE_PROVIDER="openai-compatible", CLINE_MODEL="any", CLINE_API_KEY="none")
            return self.drive("cline_acp.py", [PROGRAMS / "cline", prompt], place, env)
        return self.run([PROGRAMS / "cline", "--json", prompt], place, env)


class Pi(NodeAgent):
    name = "pi"
    package = "@earendil-works/pi-coding-agent"
    lacks = ("structured",)
    asks_again = True

    def start(self, mode, prompt, place, url):
        env = environment(place, PI_OFFLINE="1")
        folder = place / "home" / ".pi" / "agent"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "models.json").write_text(recipes.text(url, "json", "openai-completions"))
        words = [PROGRAMS / "pi", *recipes.command(url, "pi --model")[1:], "--mode", "json"]
        words += ["--continue"] if mode == "continue" else []
        return self.run([*words, prompt], place, env)


class Aider(Client):
    name = "aider"
    package = "aider-chat"
    lacks = ("tools", "structured")  # it edits files by its answers' text: test_aider_edits_a_file
    asks_again = True
    first_turn = "write note.txt word-0a1b2c3d"

    def start(self, mode, prompt, place, url):
        env = environment(place, **recipes.variables(url, "OPENAI_API_BASE", "aider"))
        words = [INSTALLED / "python" / "aider" / "bin" / "aider"]
        words += recipes.command(url, "OPENAI_API_BASE", "aider")[1:]
        words += [
            "--no-check-update",
            "--analytics-disable",
            "--no-show-model-warnings",
            "--no-git",
            "--yes-always",
            "--no-pretty",
            "--no-detect-urls",
            "--disable-playwright",
        ]
        words += ["--restore-chat-history"] if mode == "continue" else []
        process = Process([str(word) for word in [*words, "--message", prompt]], place, env)
        process.close_input()
        return process

    def version(self):
        return installed("aider", self.package)


class OpenWebUI(Client):
    """Open WebUI with one of its two kinds of connection; its driver is the page that a browser shows."""

    package = "open-webui"
    lacks = ("structured",)
    # Its server goes on when the page stops an answer.
    is_library = True

    def __init__(self, kind, variable):
        self.name, self.variable = f"Open WebUI, {kind} API", variable

    def start(self, mode, prompt, place, url):
        env = environment(place, **recipes.variables(url, self.variable, "open-webui serve"))
        # Its maker's variant without models for searching documents: no torch, and nothing to download.
        env.update(USE_SLIM_DOCKER="true", OFFLINE_MODE="true", DATA_DIR=str(place / "home" / "open-webui"))
        words = [INSTALLED / "python" / "open-webui" / "bin" / "python", HERE / "drivers" / "open_webui_driver.py"]
        return Process([str(word) for word in [*words, mode, prompt]], place, env, is_driver=True)

    def version(self):
        return installed("open-webui", self.package)


OPEN_WEBUI = [OpenWebUI("OpenAI", "OPENAI_API_BASE_URL"), OpenWebUI("Ollama", "OLLAMA_BASE_URL")]


def installed(folder, package):
    """The version of a package in one of the environments."""
    (found,) = (INSTALLED / "python" / folder / "lib").glob(
        f"python3*/site-packages/{package.replace('-', '_')}-*.dist-info"
    )
    return found.name.removesuffix(".dist-info").rsplit("-", 1)[1]
