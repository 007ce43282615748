"""Speaks to `cline --acp` as an editor does: goes on with the last conversation and prints the answer.

cline_acp.py PROGRAM PROMPT
"""

import json
import os
import subprocess
import sys


class Agent:
    def __init__(self, program):
        self.process = subprocess.Popen(
            [program, "--acp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=False
        )
        self.last = 0

    def ask(self, method, **params):
        """Sends a request; prints what the agent says until its result, which it returns."""
        self.last += 1
        request = {"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            message = json.loads(line)
            update = message.get("params", {}).get("update", {})
            if update.get("sessionUpdate") == "agent_message_chunk":
                print(update["content"]["text"], end="", flush=True)
            elif message.get("id") == self.last and "method" not in message:
                if "error" in message:
                    sys.exit(f"{method}: {message['error']}")
                return message["result"]
        sys.exit("cline ended")


def main():
    program, prompt = sys.argv[1:]
    told = subprocess.run([program, "history", "--json"], capture_output=True, text=True, check=True)
    place = {"sessionId": json.loads(told.stdout)[0]["sessionId"], "cwd": os.getcwd(), "mcpServers": []}
    agent = Agent(program)
    try:
        agent.ask("initialize", protocolVersion=1, clientCapabilities={})
        agent.ask("session/load", **place)
        print("\n(loaded)", flush=True)
        agent.ask("session/prompt", sessionId=place["sessionId"], prompt=[{"type": "text", "text": prompt}])
    finally:
        agent.process.kill()
        agent.process.wait()


if __name__ == "__main__":
    main()
