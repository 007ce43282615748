"""The SDKs: each is run by a driver of its own, with the code of its recipe in docs/apps.md."""

import json
import shutil
from pathlib import Path

import recipes
from process import Process

from agents import HERE, INSTALLED, Client, environment, installed

DRIVERS = HERE / "drivers"


class Library(Client):
    is_library = True

    def __init__(self, name, package, driver, recipe, lacks=()):
        self.name, self.package, self.driver, self.recipe, self.lacks = name, package, driver, recipe, lacks


class PythonLibrary(Library):
    def __init__(self, *told, folder="sdks", **more):
        super().__init__(*told, **more)
        self.folder = folder

    def start(self, mode, prompt, place, url):
        env = environment(place, RECIPE=recipes.text(url, "python", *self.recipe), PYTHONUNBUFFERED="1")
        python = INSTALLED / "python" / self.folder / "bin" / "python"
        return Process([str(python), str(DRIVERS / self.driver), mode, prompt], place, env)

    def version(self):
        return installed(self.folder, self.package)


class NodeLibrary(Library):
    def start(self, mode, prompt, place, url):
        modules = place / "node_modules"
        if not modules.exists():
            modules.symlink_to(INSTALLED / "node" / "node_modules")
            for name in ("sdk.mjs", self.driver):
                shutil.copy(DRIVERS / name, place / name)
        code = recipes.text(url, "js", *self.recipe)
        exported = "agent" if "const agent" in code else "client"
        (place / "recipe.mjs").write_text(f"{code}\nexport {{ {exported} }};\n")
        return Process([str(INSTALLED / "bin" / "node"), self.driver, mode, prompt], place, environment(place))

    def version(self):
        package = Path(INSTALLED / "node" / "node_modules" / self.package / "package.json")
        return json.loads(package.read_text())["version"]


SDKS = [
    PythonLibrary("OpenAI Agents SDK, Python", "openai-agents", "openai_agents.py", ["from agents import"]),
    NodeLibrary("OpenAI Agents SDK, JavaScript", "@openai/agents", "openai_agents_node.mjs", ["@openai/agents"]),
    PythonLibrary("LangChain", "langchain-openai", "langchain_openai_driver.py", ["langchain_openai"]),
    PythonLibrary(
        "LlamaIndex",
        "llama-index-core",
        "llama_index_driver.py",
        ["llama_index"],
        folder="llamaindex",
    ),
    NodeLibrary("Vercel's AI SDK", "ai", "ai_sdk.mjs", ["@ai-sdk/openai-compatible"]),
    PythonLibrary(
        "instructor",
        "instructor",
        "instructor_driver.py",
        ["instructor"],
        folder="instructor",
        lacks=("tools", "resumes"),
    ),
    PythonLibrary("pydantic-ai", "pydantic-ai-slim", "pydantic_ai_driver.py", ["pydantic_ai"], folder="pydantic-ai"),
    PythonLibrary("Anthropic SDK, Python", "anthropic", "anthropic_python.py", ["from anthropic import"]),
    NodeLibrary("Anthropic SDK, JavaScript", "@anthropic-ai/sdk", "anthropic_node.mjs", ["@anthropic-ai/sdk"]),
    PythonLibrary("OpenAI SDK, Python", "openai", "openai_python.py", ["from openai import OpenAI"]),
    NodeLibrary("OpenAI SDK, JavaScript", "openai", "openai_node.mjs", ["new OpenAI("]),
]
