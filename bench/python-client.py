#!/usr/bin/env python3
"""openai-python over `loquent.Client` and over httpx, on the same lossy link: medians of the time to
the first token, of the longest pause and of the time stalled in an answer.

    target/python/venv/bin/python bench/python-client.py --binary target/release/loquent

A relay on loopback is the link, for no rights are needed there: it delays and loses UDP datagrams.
A relay sees no TCP segments; it passes each piece that it reads on as TCP would at best: a lost
piece comes after a tail-loss probe (two round trips, RFC 8985), a lost repetition after a timeout
that doubles from 200 ms (RFC 6298, as Linux has it), and what follows waits for it.
"""

import argparse
import asyncio
import random
import re
import statistics
import subprocess
import threading
import time
import urllib.request

import httpx2
import loquent
import openai

LINK = "127.0.0.2"  # another address with the server's port, as the server announces its port
MIN_RTO_S = 0.2
STALL_S = 0.1  # a pause beyond it is a stall


class Link(threading.Thread):
    """The lossy link to a server on this machine, in a thread of its own."""

    def __init__(self, port, loss, delay_s, seed):
        super().__init__(daemon=True)
        self.port, self.loss, self.delay_s = port, loss, delay_s
        self.random = random.Random(seed)
        self.ready = threading.Event()
        self.bytes = {"tcp": 0, "udp": 0}  # towards the client

    def run(self):
        asyncio.run(self._serve())

    async def _serve(self):
        loop = asyncio.get_running_loop()
        await asyncio.start_server(self._connection, LINK, self.port)
        await loop.create_datagram_endpoint(lambda: Front(self), local_addr=(LINK, self.port))
        self.ready.set()
        await asyncio.Event().wait()

    async def _connection(self, reader, writer):
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(self._pump(reader, up_writer), self._pump(up_reader, writer, counted=True))

    async def _pump(self, reader, writer, counted=False):
        queue = asyncio.Queue()
        passing = asyncio.create_task(self._deliver(queue, writer))
        loop = asyncio.get_running_loop()
        try:
            while data := await reader.read(65536):
                self.bytes["tcp"] += len(data) if counted else 0
                queue.put_nowait((loop.time() + self.delay_s + self._recovery(), data))
        except ConnectionError:
            pass
        queue.put_nowait((loop.time() + self.delay_s, b""))
        await passing

    async def _deliver(self, queue, writer):
        try:
            while True:
                at, data = await queue.get()
                await asyncio.sleep(at - asyncio.get_running_loop().time())
                if not data:
                    break
                writer.write(data)
        finally:
            writer.close()

    def _recovery(self):
        waited, pause = 0.0, 4 * self.delay_s
        while self.random.random() < self.loss:
            waited += pause
            pause = max(MIN_RTO_S, 2 * pause)
        return waited


class Front(asyncio.DatagramProtocol):
    """The client's side of the UDP link."""

    def __init__(self, link):
        self.link, self.backs, self.tasks = link, {}, set()

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, client):
        task = asyncio.ensure_future(self._up(data, client))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _up(self, data, client):
        loop = asyncio.get_running_loop()
        if client not in self.backs:
            make = loop.create_datagram_endpoint(
                lambda: Back(self, client), remote_addr=("127.0.0.1", self.link.port)
            )
            self.backs[client] = asyncio.ensure_future(make)
        back, _ = await self.backs[client]
        self.pass_on(back.sendto, data)

    def pass_on(self, send, *arguments):
        if self.link.random.random() >= self.link.loss:
            asyncio.get_running_loop().call_later(self.link.delay_s, send, *arguments)


class Back(asyncio.DatagramProtocol):
    """The server's side of the UDP link, for one client."""

    def __init__(self, front, client):
        self.front, self.client = front, client

    def datagram_received(self, data, _):
        self.front.link.bytes["udp"] += len(data)
        self.front.pass_on(self.front.transport.sendto, data, self.client)


def measure(sdk, question, tokens):
    """One answer: text, seconds to its first token, of its longest pause, and stalled in all."""
    asked = [{"role": "user", "content": f"Question {question}: tokens={tokens}"}]
    began = last = time.monotonic()
    text, first, pauses = "", None, []
    for chunk in sdk.chat.completions.create(model="x", messages=asked, stream=True, temperature=0):
        if not (chunk.choices and chunk.choices[0].delta.content):
            continue
        now = time.monotonic()
        if first is None:
            first = now - began
        else:
            pauses.append(now - last)
        last, text = now, text + chunk.choices[0].delta.content
    stalled = sum(pause - STALL_S for pause in pauses if pause > STALL_S)
    return text, first, max(pauses), stalled


def start(binary, rate):
    command = [binary, "serve", "--port", "0", "--simulate", str(rate)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    port = next(int(found[1]) for line in server.stderr if (found := re.search(r"on http://\S+?:(\d+)", line)))
    threading.Thread(target=server.stderr.read, daemon=True).start()
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready").close()
            return server, port
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server is not ready after a minute")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--binary", default="target/release/loquent")
    parser.add_argument("--answers", type=int, default=30, help="answers of each client")
    parser.add_argument("--tokens", type=int, default=80, help="tokens of an answer")
    parser.add_argument("--rate", type=int, default=50, help="tokens a second")
    parser.add_argument("--loss", type=float, default=0.05, help="share of packets lost, each way")
    parser.add_argument("--delay-ms", type=float, default=30, help="delay, each way")
    return parser.parse_args()


def main():
    args = parse()
    server, port = start(args.binary, args.rate)
    try:
        link = Link(port, args.loss, args.delay_ms / 1000, seed=1)
        link.start()
        link.ready.wait(10)
        url = f"http://{LINK}:{port}"
        clients = {"loquent.Client": loquent.Client(url, head_start=10), "httpx": httpx2.Client()}
        print(f"{args.loss:.0%} lost each way, {args.delay_ms:g} ms each way; answers come over "
              f"{clients['loquent.Client'].warm_up()}")
        rows, texts, sent = {name: [] for name in clients}, {}, dict.fromkeys(clients, 0)
        for question in range(args.answers):
            for name, client in clients.items():
                sdk = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=client)
                before = sum(link.bytes.values())
                text, *figures = measure(sdk, question, args.tokens)
                sent[name] += sum(link.bytes.values()) - before
                assert texts.setdefault(question, text) == text, "the answers differ"
                rows[name].append(figures)
        print(f"{'medians of ' + str(args.answers):>16} {'TTFT':>9} {'longest':>9} {'stalled':>9} {'kB/answer':>9}")
        for name, figures in rows.items():
            medians = [f"{statistics.median(column) * 1000:6.0f} ms" for column in zip(*figures)]
            print(f"{name:>16} {' '.join(medians)} {sent[name] / args.answers / 1000:9.1f}")
        for client in clients.values():
            client.close()
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
