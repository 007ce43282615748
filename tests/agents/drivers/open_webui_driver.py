"""Starts Open WebUI and chats as its page does: over its API, with an answer's pieces from its socket.

open_webui_driver.py MODE PROMPT, in the environment that Open WebUI is installed in. SIGINT is the page's button that
stops an answer; the process then lives until its input ends. In mode "page" its own page in Chromium chats.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from uuid import uuid4

import aiohttp
import socketio

USER = {"name": "Test", "email": "test@example.com", "password": "none-none-1"}
START_S = 120
READ_WORD = '''
class Tools:
    def read_word(self, path: str) -> str:
        """
        Reads a file.
        :param path: the file's path
        """
        with open(path) as file:
            return file.read()
'''
TOOL = {"id": "read_word", "name": "Read a word", "content": READ_WORD, "meta": {"description": "Reads a file."}}


class Page:
    """What a browser holds: the user's token, the socket, and what came over it."""

    def __init__(self, url, http):
        self.url, self.http = url, http
        self.socket = socketio.AsyncClient()
        self.events = asyncio.Queue()
        self.socket.on("events", lambda event: self.events.put_nowait(event["data"]))

    async def call(self, method, path, **body):
        async with self.http.request(method, f"{self.url}{path}", json=body or None) as answer:
            return answer.status, await answer.json()

    async def get(self, path):
        status, value = await self.call("GET", path)
        assert status == 200, (path, value)
        return value

    async def post(self, path, **body):
        status, value = await self.call("POST", path, **body)
        assert status == 200, (path, value)
        return value

    async def enter(self):
        """Signs in; the first time it signs up, and brings the tool along."""
        status, session = await self.call("POST", "/api/v1/auths/signin", **USER)
        is_new = status != 200
        if is_new:
            session = await self.post("/api/v1/auths/signup", **USER)
        self.http.headers["authorization"] = f"Bearer {session['token']}"
        if is_new:
            await self.post("/api/v1/tools/create", **TOOL)
        who = {"token": session["token"]}
        await self.socket.connect(self.url, socketio_path="/ws/socket.io", transports=["websocket"], auth=who)

    async def ask(self, prompt, chat):
        """Sends the prompt, to a chat that there is or to a new one; returns the chat's id."""
        (model,) = (await self.get("/api/models"))["data"]
        question = {"id": str(uuid4()), "role": "user", "content": prompt, "timestamp": int(time.time())}
        if chat:
            history = (await self.get(f"/api/v1/chats/{chat}"))["chat"]["history"]
            question["parentId"] = history["currentId"]
        begun = await self.post(
            "/api/chat/completions",
            model=model["id"],
            stream=True,
            messages=[{"role": "user", "content": prompt}],
            chat_id=chat,
            parent_id=question.get("parentId"),
            user_message=question,
            id=str(uuid4()),
            session_id=self.socket.get_sid(),
            tool_ids=[TOOL["id"]],
        )
        return begun["chat_id"]

    async def follow(self):
        """Prints the answer as it comes; returns the type of the event that ends it."""
        while True:
            event = await self.events.get()
            data = event.get("data") or {}
            print(json.dumps(event), file=sys.stderr)
            if data.get("type") == "response.output_text.delta":
                print(data["delta"], end="", flush=True)
            if event["type"] in ("chat:message:error", "chat:tasks:cancel") or data.get("done"):
                return event["type"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def is_healthy(url, http, server):
    """Whether Open WebUI has started; asks until it has, or has ended."""
    for _ in range(10 * START_S):
        try:
            async with http.get(f"{url}/health") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            if server.returncode is not None:
                return False
            await asyncio.sleep(0.1)
    return False


async def chat_on_page(page, prompt):
    """Lets the page that a browser shows chat; returns whether it showed a whole answer."""
    _, token = page.http.headers["authorization"].split()
    driver = Path(__file__).with_name("open_webui_page.mjs")
    words = ["node", driver, page.url, token, prompt]
    # Chromium puts a socket there, whose path must be short.
    env = {**os.environ, "TMPDIR": "/tmp"}
    browser = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL, env=env)
    return await browser.wait() == 0


async def chat(page, mode, prompt):
    """Runs the mode; returns whether the answer came to its own end."""
    await page.enter()
    if mode == "page":
        return await chat_on_page(page, prompt)
    chats = await page.get("/api/v1/chats/") if mode == "continue" else []
    chat = await page.ask(prompt, chats[0]["id"] if chats else None)
    loop, stops = asyncio.get_running_loop(), []

    def stop():
        stops.append(loop.create_task(page.post(f"/api/tasks/chat/{chat}/stop")))

    loop.add_signal_handler(signal.SIGINT, stop)
    ended = await page.follow()
    if stops:
        print("\n(cancelled)", flush=True)
        await asyncio.gather(*stops)
        await loop.run_in_executor(None, sys.stdin.read)
    await page.socket.disconnect()
    return ended == "chat:completion"


async def main(mode, prompt):
    url = f"http://127.0.0.1:{(port := free_port())}"
    words = [Path(sys.executable).parent / "open-webui", "serve", "--host", "127.0.0.1", "--port", str(port)]
    with open("open-webui.log", "ab") as log:
        server = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        async with aiohttp.ClientSession() as http:
            assert await is_healthy(url, http, server), Path("open-webui.log").read_text()[-2000:]
            return 0 if await chat(Page(url, http), mode, prompt) else 1
    finally:
        server.kill()
        await server.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
