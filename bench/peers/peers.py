"""The servers that Loquent is compared with: where bench/peers/build.sh puts them, how they start, what can be set."""

import dataclasses
import os
import pathlib

import servers

#: What is common to all llama-servers: the same prompts are sent once, so that a cache on the side only costs.
LLAMA = ["--cache-ram", "0"]


@dataclasses.dataclass(frozen=True)
class Peer:
    """A server to compare with. `factors`: by name, levels of command line words; the first is the usual one."""

    name: str
    folder: pathlib.Path
    factors: dict
    kind: str = "llama-server"
    fixed: tuple = ()
    #: The factor that is varied in a quick comparison too, beside the builds.
    quick: str = "cache"
    #: Whether its memory is that of one process, which is what the generator reads.
    one_process: bool = True

    def version(self):
        """What build.sh wrote down about it."""
        for path in [self.folder / "version", *sorted(self.folder.glob("*/version"))]:
            if path.exists():
                return path.read_text().strip().removesuffix(", plain").removesuffix(", openmp")
        return "of unknown version"

    def missing(self, model):
        """Why it cannot serve `model` here, or nothing."""
        if self.kind == "vllm":
            if not (self.folder / "bin/vllm").exists():
                return f"it is not built: bench/peers/build.sh {self.name}"
            if not checkpoint(model).exists():
                return f"{checkpoint(model).name} is not there: bench/peers/checkpoint.py makes it"
        elif not self.binaries():
            return f"it is not built: bench/peers/build.sh {self.name}"
        return None

    def binaries(self):
        """The folders with a llama-server, by variant."""
        places = [self.folder / "llama-server", *sorted(self.folder.glob("*/llama-server"))]
        return {path.parent.name if path.parent != self.folder else "": path.parent for path in places if path.exists()}

    def levels(self, scenario, threads, quick):
        """The factors of its settings: the builds, its own, of which a scenario may name other levels, and threads."""
        factors = {}
        if self.kind == "llama-server" and len(self.binaries()) > 1:
            # Plain first, as the one that is always built.
            variants = sorted(self.binaries(), key=lambda variant: variant != "plain")
            factors["build"] = [[f"build={variant}"] for variant in variants]
        own = {name: scenario.get("factors", {}).get(name, levels) for name, levels in self.factors.items()}
        factors |= {name: levels for name, levels in own.items() if name == self.quick or not quick}
        if self.kind == "llama-server" and threads > 1 and not quick:
            fewer = sorted({1, threads // 2})
            factors["threads"] = [["-t", str(number)] for number in [threads, *fewer]]
        return factors

    def usual(self, scenario):
        """The words of its usual setting."""
        return [word for levels in self.levels(scenario, 1, True).values() for word in levels[0]]

    def command(self, setting_words, scenario, model, threads):
        """Its command line without the program, for a setting's words."""
        words = [word for word in setting_words if not word.startswith("build=")]
        if self.kind == "vllm":
            return [str(checkpoint(model)), *self.fixed, "--max-num-seqs", str(scenario["slots"]),
                    "--max-model-len", str(scenario["context"] // scenario["slots"]), *words]
        at_work = [] if "-t" in words else ["-t", str(threads)]
        return ["-m", str(model), *self.fixed, "-np", str(scenario["slots"]), "-c", str(scenario["context"]), *LLAMA,
                *at_work, *words]

    def server(self, setting_words, scenario, model, threads, log):
        """The server, not started yet."""
        arguments = self.command(setting_words, scenario, model, threads)
        if self.kind == "vllm":
            return servers.vllm(self.folder, arguments, log, self.name, threads)
        variant = next((word.removeprefix("build=") for word in setting_words if word.startswith("build=")), None)
        folders = self.binaries()
        folder = folders[variant] if variant is not None else next(iter(folders.values()))
        return servers.llama_server(folder, arguments, log, self.name)


# What may change most comes first, in case that time is short.
LLAMA_CPP = {
    "cache": [["--no-kv-unified"], ["--kv-unified"]],
    "polling": [[], ["--poll", "0"]],
    "batch": [[], ["-ub", "256"], ["-b", "256", "-ub", "128"]],
    "attention": [["-fa", "on"], ["-fa", "off"]],
    "repacking": [[], ["--no-repack"]],
}
# ik_llama.cpp has no unified cache and no polling; it may bring weights into another order when it loads them. Its flash
# attention ends the server by an assertion where many sequences share a batch, so that the first setting is without it.
IK_LLAMA = {
    "attention": [["-fa", "off"], ["-fa", "on"]],
    "repacking": [[], ["-rtr"]],
    "batch": [[], ["-ub", "256"], ["-b", "256", "-ub", "128"]],
}
VLLM = {
    "compiling": [[], ["--enforce-eager"]],
    "batch": [[], ["--max-num-batched-tokens", "512"]],
    "prefix cache": [["--no-enable-prefix-caching"], ["--enable-prefix-caching"]],
}


def checkpoint(model):
    """The folder of a model's checkpoint, beside its GGUF file."""
    return pathlib.Path(model).with_suffix(".checkpoint")


def cache():
    """Where build.sh puts the peers."""
    home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return pathlib.Path(os.environ.get("PEERS") or home / "loquent/peers")


def all_peers(root, llama=None):
    """Every peer by name, those that build.sh knows first, then each further FOLDER/llama-server in `root`."""
    known = [
        Peer("llama-server", pathlib.Path(llama or root / "bin"), LLAMA_CPP, fixed=("--no-ui",)),
        Peer("llama-server-clang", root / "llama-server-clang", LLAMA_CPP, fixed=("--no-ui",)),
        Peer("llama.cpp-new", root / "llama.cpp-new", LLAMA_CPP, fixed=("--no-ui",)),
        Peer("ik_llama.cpp", root / "ik_llama.cpp", IK_LLAMA, quick="repacking"),
        Peer("vllm", root / "vllm", VLLM, kind="vllm", one_process=False, quick="compiling",
             fixed=("--dtype", "bfloat16", "--generation-config", "vllm")),
    ]
    taken = {peer.folder.resolve() for peer in known} | {(root / "bin").resolve()}
    further = [Peer(path.parent.name, path.parent, LLAMA_CPP, fixed=("--no-ui",))
               for path in sorted(root.glob("*/llama-server")) if path.parent.resolve() not in taken]
    return {peer.name: peer for peer in [*known, *further]}
