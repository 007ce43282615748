"""Speaks to `codex app-server` as an editor does: prints the pieces of an answer; SIGINT interrupts the turn.

codex_app_server.py PROGRAM PROMPT
"""

import json
import signal
import subprocess
import sys


class Interrupted(Exception):
    """Ctrl-C."""


def interrupt(*_):
    raise Interrupted


class AppServer:
    def __init__(self, program):
        self.process = subprocess.Popen(
            [program, "app-server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=False
        )
        self.last = 0

    def send(self, method, **params):
        self.last += 1
        self.process.stdin.write(json.dumps({"id": self.last, "method": method, "params": params}) + "\n")
        self.process.stdin.flush()
        return self.last

    def ask(self, method, **params):
        """Sends a request and returns its result."""
        wanted = self.send(method, **params)
        for message in self.messages():
            if message.get("id") == wanted and "method" not in message:
                if "error" in message:
                    sys.exit(f"{method}: {message['error']}")
                return message["result"]

    def messages(self):
        while line := self.process.stdout.readline():
            yield json.loads(line)
        sys.exit("codex app-server ended")


def follow(server):
    """Prints what comes until the turn ends; returns its status."""
    for message in server.messages():
        params = message.get("params", {})
        if message.get("method") == "item/agentMessage/delta":
            print(params["delta"], end="", flush=True)
        elif message.get("method") == "error":
            print(f"\n(error: {params['error']['message']})", file=sys.stderr, flush=True)
        elif message.get("method") == "turn/completed":
            return params["turn"]["status"]


def main():
    program, prompt = sys.argv[1:]
    server = AppServer(program)
    try:
        server.ask("initialize", clientInfo={"name": "loquent-tests", "version": "0"})
        started = server.ask("thread/start", sandbox="danger-full-access", approvalPolicy="never")
        thread = started["thread"]["id"]
        turn = server.ask("turn/start", threadId=thread, input=[{"type": "text", "text": prompt}])["turn"]["id"]
        signal.signal(signal.SIGINT, interrupt)
        try:
            status = follow(server)
        except Interrupted:
            server.send("turn/interrupt", threadId=thread, turnId=turn)
            status = follow(server)
        print(f"\n({status})", flush=True)
        sys.exit(0 if status == "completed" else 1)
    finally:
        server.process.kill()
        server.process.wait()


if __name__ == "__main__":
    main()
