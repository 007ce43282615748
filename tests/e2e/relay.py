"""A bad network in front of a server: loses UDP datagrams by a seed, or all of them when told to.

The server listens on 127.0.0.2; the relay takes the same port on 127.0.0.1 and passes on what comes
there, TCP whole and UDP as badly as it was told. To a browser it is the server.
"""

import errno
import random
import select
import socket
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

import pytest

#: Where servers behind a relay listen.
HIDDEN_HOST = "127.0.0.2"


class Relay:
    """Relays between clients and one server.

    Losses come in runs, as on radio: a state of a Markov chain stays with probability
    `stay_good` or `stay_bad` at every datagram, and a bad one loses. Each direction has a chain
    and a seed of its own.
    """

    def __init__(self, server_url, seed=1, stay_good=1.0, stay_bad=0.0):
        port = urlsplit(server_url).port
        self.url = f"http://127.0.0.1:{port}"
        self.server = (HIDDEN_HOST, port)
        self.stay = {False: stay_good, True: stay_bad}
        self.chains = [random.Random(seed), random.Random(-seed)]
        self.bad = [False, False]
        self.passed = self.lost = 0
        #: When a datagram for a client passed, and how long it was: what an observer sees.
        self.seen = []
        self.dark = False
        #: Addresses of clients whose datagrams are all lost, both ways: networks that have gone.
        self.gone = set()
        #: Datagrams that passed to each address of a client.
        self.passed_to = Counter()
        self._front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._front.bind(("127.0.0.1", port))
        try:
            self._door = socket.create_server(("127.0.0.1", port))
        except OSError:
            self._front.close()
            raise
        self._backs = {}
        self._pairs = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._ended.is_set():
            clients = {back: client for client, back in self._backs.items()}
            for ready in select.select([self._front, self._door, *clients, *self._pairs], [], [], 0.05)[0]:
                if ready is self._front:
                    data, client = ready.recvfrom(65536)
                    self._pass_datagram(0, self._back(client), data, self.server, client)
                elif ready in clients:
                    self._pass_datagram(1, self._front, ready.recv(65536), clients[ready], clients[ready])
                elif ready is self._door:
                    client, server = ready.accept()[0], socket.create_connection(self.server)
                    self._pairs |= {client: server, server: client}
                elif ready in self._pairs:
                    self._pass_bytes(ready)

    def _pass_datagram(self, direction, sock, data, address, client):
        if self.chains[direction].random() >= self.stay[self.bad[direction]]:
            self.bad[direction] = not self.bad[direction]
        if self.dark or self.bad[direction] or client[0] in self.gone:
            self.lost += 1
        else:
            self.passed += 1
            if direction == 1:
                self.passed_to[client[0]] += 1
                self.seen.append((time.monotonic(), len(data)))
            sock.sendto(data, address)

    def _back(self, client):
        if client not in self._backs:
            self._backs[client] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._backs[client].bind(("127.0.0.1", 0))
        return self._backs[client]

    def _pass_bytes(self, source):
        try:
            data = source.recv(65536)
            self._pairs[source].sendall(data)
        except OSError:
            data = b""
        if not data:
            for sock in (source, self._pairs.pop(source)):
                self._pairs.pop(sock, None)
                sock.close()

    def close(self):
        self._ended.set()
        self._thread.join(10)
        for sock in (self._front, self._door, *self._backs.values(), *self._pairs):
            sock.close()


def need_hidden_host():
    """Skips the test where the system has no second address on loopback."""
    try:
        socket.create_server((HIDDEN_HOST, 0)).close()
    except OSError:
        pytest.skip(f"this system has no {HIDDEN_HOST} (macOS: ifconfig lo0 alias {HIDDEN_HOST})")


@pytest.fixture
def relays(start):
    """Starts servers behind relays of their own."""
    running = []

    def start_behind_relay(*args, **kwargs):
        need_hidden_host()
        for _ in range(20):
            server = start("--host", HIDDEN_HOST, *args)
            try:
                running.append(Relay(server.url, **kwargs))
                return server, running[-1]
            except OSError as error:
                # Another test has the same port on the other address.
                if error.errno != errno.EADDRINUSE:
                    raise
                server.stop()
        raise AssertionError("no port is free on both addresses")

    yield start_behind_relay
    for relay in running:
        relay.close()
