"""A lossy path to a server on this machine: another loopback address with the same port,
so that what the server says of its ports holds there too."""

import random
import socket
import threading

# Linux answers on all of 127.0.0.0/8 without any set-up.
ADDRESS = "127.0.0.2"


class LossyPath:
    """Passes TCP on as it is, and UDP but for packets lost by a seed, in both directions."""

    def __init__(self, port, loss=0.2, seed=1):
        self.port = port
        self.url = f"http://{ADDRESS}:{port}"
        self.dropped = 0
        # Both may be changed while it runs.
        self.loss = loss
        self.longest = 65_535  # datagrams that are longer are lost
        self._moves = 0
        self._random = random.Random(seed)
        self._closed = threading.Event()
        self._tcp = socket.create_server((ADDRESS, port))
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind((ADDRESS, port))
        self._udp.settimeout(0.2)
        self._threads = []
        self._start(self._accept)
        self._start(self._relay_udp)

    def _start(self, work, *args):
        thread = threading.Thread(target=work, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self):
        while not self._closed.is_set():
            try:
                client, _ = self._tcp.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.port))
            for one, other in ((client, server), (server, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._start(self._pump, one, other)

    @staticmethod
    def _pump(one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        for end, how in ((other, socket.SHUT_WR), (one, socket.SHUT_RD)):
            try:
                end.shutdown(how)
            except OSError:
                pass

    def _lost(self, packet):
        lost = self._random.random() < self.loss or len(packet) > self.longest
        self.dropped += lost
        return lost

    def move_client(self):
        """From now on the server sees the client at another address."""
        self._moves += 1

    def _relay_udp(self):
        ups = {}
        while not self._closed.is_set():
            try:
                packet, client = self._udp.recvfrom(2048)
            except TimeoutError:
                continue
            except OSError:
                return
            name = (client, self._moves)
            if name not in ups:
                up = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                up.connect(("127.0.0.1", self.port))
                up.settimeout(0.2)
                ups[name] = up
                self._start(self._relay_back, up, *name)
            if not self._lost(packet):
                try:
                    ups[name].send(packet)
                except OSError:
                    pass  # the server has gone

    def _relay_back(self, up, client, moves):
        while not self._closed.is_set() and moves == self._moves:
            try:
                packet = up.recv(2048)
            except TimeoutError:
                continue
            except OSError:
                if self._closed.wait(0.05):
                    return
                continue
            if not self._lost(packet):
                try:
                    self._udp.sendto(packet, client)
                except OSError:
                    return  # closed

    def close(self):
        self._closed.set()
        self._tcp.close()
        self._udp.close()
