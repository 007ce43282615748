"""The prefix cache on disk: found again after a restart and at a second server, by its own key alone."""

import pathlib
import stat
import subprocess

import httpx

from conftest import BINARY, PATIENCE_S

# Some hundred tokens: several blocks of the cache.
PROMPT = " ".join(f"Line {n} says that a stream of tokens goes on." for n in range(80))
FLAGS = ("--api-key", "ann", "--api-key", "bob")


def ask(server, key="ann", prompt=PROMPT):
    """The text of the answer, the tokens of its prompt, and how many of them were not computed."""
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0}
    answer = httpx.post(
        f"{server.url}/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S
    )
    answer.raise_for_status()
    usage = answer.json()["usage"]
    return answer.json()["choices"][0]["text"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def end(server):
    server.terminate()
    assert server.process.wait(PATIENCE_S) == 0, "".join(server.log)


def filled(start, folder):
    """Fills the cache; returns the answer, and the flags of servers that use it."""
    flags = (*FLAGS, "--prefix-cache-dir", str(folder))
    server = start(*flags)
    text, tokens, cached = ask(server)
    assert tokens > 512 and cached == 0
    end(server)
    assert not any("prefix" in line for line in server.log), server.log
    return text, tokens, flags


def blocks(folder):
    return sorted(pathlib.Path(folder).glob("*.kv"))


def test_a_prompt_is_found_again_after_a_restart_by_its_own_key_alone(start, tmp_path):
    folder = tmp_path / "cache"
    text, tokens, flags = filled(start, folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert blocks(folder) and {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    server = start(*flags)
    assert ask(server, "bob") == (text, tokens, 0), "it would tell what the other asked"
    restored, _, cached = ask(server)
    assert restored == text
    assert tokens - 128 <= cached < tokens
    assert server.metric("prefix_cache_restored_tokens_total") == cached
    # A second server beside it, too.
    assert ask(start(*flags)) == (text, tokens, cached)


def test_damaged_files_are_ignored_and_said(start, tmp_path):
    folder = tmp_path / "cache"
    text, tokens, flags = filled(start, folder)
    for file in blocks(folder):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    server = start(*flags)
    assert ask(server) == (text, tokens, 0)
    end(server)
    said = [line for line in server.log if "ignored and removed" in line]
    assert len(said) == 1 and "checksum" in said[0], server.log
    # What was found damaged was written again.
    again, _, cached = ask(start(*flags))
    assert again == text and cached >= 128


def test_it_stays_within_its_size(start, tmp_path):
    folder = tmp_path / "cache"
    flags = (*FLAGS, "--prefix-cache-dir", str(folder), "--prefix-cache-mb", "1")
    server = start(*flags)
    for n in range(6):
        ask(server, prompt=f"{n} {PROMPT}")
    end(server)
    assert blocks(folder)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 1 << 20


def test_engines_that_cannot_use_it_refuse_it(tmp_path):
    for flags in (["--engine-process"], ["--no-prefix-cache"]):
        ended = subprocess.run(
            [BINARY, "serve", "--port", "0", "--prefix-cache-dir", str(tmp_path / "cache"), *flags],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ended.returncode != 0 and "--prefix-cache-dir" in ended.stderr, ended.stderr
