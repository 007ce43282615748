"""A program of a client's: what it prints as it comes, and its end by its id."""

import os
import signal
import subprocess
import threading
import time


class Process:
    """Runs in a process group of its own; `printed` grows as it prints."""

    def __init__(self, words, cwd, env, is_driver=False):
        self.words = words
        # A driver's own children must not hear Ctrl-C: it tells them in its way.
        self._is_driver = is_driver
        self._process = subprocess.Popen(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            bufsize=1,
            start_new_session=True,
        )
        self.printed, self.complained = "", ""
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(name,), daemon=True) for name in ("stdout", "stderr")
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name):
        attribute = {"stdout": "printed", "stderr": "complained"}[name]
        descriptor = getattr(self._process, name).fileno()
        while piece := os.read(descriptor, 65536):
            with self._changed:
                setattr(self, attribute, getattr(self, attribute) + piece.decode(errors="replace"))
                self._changed.notify_all()

    def wait_for(self, text, seconds):
        """Waits until `text` was printed; fails with all that was said if it is not."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while text not in self.printed:
                left = deadline - time.monotonic()
                assert left > 0, f"{text!r} was not printed in {seconds} s:\n{self.said()}"
                assert self.is_running() or self._is_read(), f"ended without {text!r}:\n{self.said()}"
                self._changed.wait(min(left, 0.2))

    def _is_read(self):
        return any(reader.is_alive() for reader in self._readers)

    def wait(self, seconds):
        """Waits for its end; returns its exit status."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.said()}") from None
        for reader in self._readers:
            reader.join(seconds)
        return status

    def is_running(self):
        return self._process.poll() is None

    def close_input(self):
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass

    def interrupt(self):
        """What Ctrl-C does in a terminal."""
        if self._is_driver:
            self._process.send_signal(signal.SIGINT)
        else:
            os.killpg(self._process.pid, signal.SIGINT)

    def said(self):
        return f"$ {' '.join(self.words)[:600]}\n{self.printed[-6000:]}\n--- stderr\n{self.complained[-3000:]}"

    def end(self):
        """Ends its process group, if anything of it still runs."""
        self.close_input()
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(30)
        for reader in self._readers:
            reader.join(30)
        for pipe in (self._process.stdout, self._process.stderr):
            pipe.close()
