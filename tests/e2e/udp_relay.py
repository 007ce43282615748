"""A UDP relay that loses datagrams by a seed, or all of them when it is told to."""

import random
import select
import socket
import threading


class Relay:
    """Relays between clients and one server on loopback.

    Losses come in runs, as on radio: a state of a Markov chain stays with probability
    `stay_good` or `stay_bad` at every datagram, and a bad one loses. Each direction has a chain
    and a seed of its own.
    """

    def __init__(self, server_port, seed=1, stay_good=1.0, stay_bad=0.0):
        self.server = ("127.0.0.1", server_port)
        self.front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.front.bind(("127.0.0.1", 0))
        self.port = self.front.getsockname()[1]
        self.stay = {False: stay_good, True: stay_bad}
        self.chains = [random.Random(seed), random.Random(-seed)]
        self.bad = [False, False]
        self.passed = self.lost = 0
        self.dark = False
        self._backs = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _loses(self, direction):
        if self.chains[direction].random() >= self.stay[self.bad[direction]]:
            self.bad[direction] = not self.bad[direction]
        return self.dark or self.bad[direction]

    def _forward(self, direction, sock, data, address):
        if self._loses(direction):
            self.lost += 1
        else:
            self.passed += 1
            sock.sendto(data, address)

    def _run(self):
        while not self._ended.is_set():
            clients = {back: client for client, back in self._backs.items()}
            for ready in select.select([self.front, *clients], [], [], 0.05)[0]:
                data, address = ready.recvfrom(65536)
                if ready is self.front:
                    self._forward(0, self._back(address), data, self.server)
                else:
                    self._forward(1, self.front, data, clients[ready])

    def _back(self, client):
        if client not in self._backs:
            self._backs[client] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._backs[client].bind(("127.0.0.1", 0))
        return self._backs[client]

    def close(self):
        self._ended.set()
        self._thread.join(10)
        for sock in (self.front, *self._backs.values()):
            sock.close()
