"""Speaks to `opencode serve` as its own windows do: prints the pieces of an answer; SIGINT aborts it.

opencode_events.py PROGRAM PROMPT [SCHEMA]
"""

import json
import re
import subprocess
import sys
import urllib.request


def post(url, **body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=100) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def follow(events, session):
    """Prints what comes until the session is idle; returns whether it ended without an error."""
    is_whole, roles = True, {}
    for line in events:
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        properties = event.get("properties", {})
        if event["type"] == "message.updated":
            roles[properties["info"]["id"]] = properties["info"]["role"]
        elif event["type"] == "message.part.delta" and roles.get(properties["messageID"]) == "assistant":
            print(properties["delta"], end="", flush=True)
        elif event["type"] == "session.error":
            is_whole = False
            print(f"\n({properties.get('error')})", file=sys.stderr, flush=True)
        elif event["type"] == "session.idle" and properties.get("sessionID") == session:
            return is_whole
    return False


def stream(url, prompt):
    session = post(f"{url}/session", title="A test")["id"]
    with urllib.request.urlopen(f"{url}/event", timeout=100) as events:
        post(f"{url}/session/{session}/prompt_async", parts=[{"type": "text", "text": prompt}])
        try:
            return follow(events, session)
        except KeyboardInterrupt:
            post(f"{url}/session/{session}/abort")
            return follow(events, session)


def fill(url, prompt, schema):
    session = post(f"{url}/session", title="A test")["id"]
    wanted = {"type": "json_schema", "schema": schema}
    answer = post(f"{url}/session/{session}/message", parts=[{"type": "text", "text": prompt}], format=wanted)
    print(json.dumps(answer["info"].get("structured")))
    return answer["info"].get("error") is None


def main():
    program, prompt, *schema = sys.argv[1:]
    words = [program, "serve", "--hostname", "127.0.0.1", "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=False)
    try:
        url = next(found[0] for line in server.stdout if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        is_whole = fill(url, prompt, json.loads(schema[0])) if schema else stream(url, prompt)
        sys.exit(0 if is_whole else 1)
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
