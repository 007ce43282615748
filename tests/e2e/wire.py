"""A TCP wire in front of a server, which breaks its connections as networks do."""

import contextlib
import enum
import socket
import struct
import threading
from urllib.parse import urlsplit

PIECE_BYTES = 65536


class Break(enum.Enum):
    """The way in which a wire's connections end."""

    #: A TCP reset, and nothing of what was on its way.
    RESET = "reset"
    #: An orderly end in the middle of what the server sends next.
    CUT = "cut"


class Wire:
    """Forwards connections to `url` from a port of its own. As a context, it is closed at the end."""

    def __init__(self, url):
        self.target = urlsplit(url)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.lock, self.pairs, self.how = threading.Lock(), set(), None
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.break_all(Break.RESET)

    def break_all(self, how):
        """Ends all connections in the way of `how`; further ones are closed at once."""
        with self.lock:
            self.how = how
            pairs = list(self.pairs)
        if how is Break.RESET:
            for pair in pairs:
                for end in pair:
                    reset(end)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                here, _ = self.listener.accept()
                if self.how:
                    here.close()
                    continue
                there = socket.create_connection((self.target.hostname, self.target.port))
                with self.lock:
                    self.pairs.add((here, there))
                for pump in (self._to_server, self._to_client):
                    threading.Thread(target=pump, args=(here, there), daemon=True).start()

    def _to_server(self, here, there):
        with contextlib.suppress(OSError):
            while piece := here.recv(PIECE_BYTES):
                there.sendall(piece)
            if self.how is not Break.RESET:
                there.shutdown(socket.SHUT_WR)

    def _to_client(self, here, there):
        with contextlib.suppress(OSError):
            while piece := there.recv(PIECE_BYTES):
                if self.how is Break.CUT:
                    here.sendall(piece[: len(piece) // 2])
                    break
                here.sendall(piece)
        # After an end of its own, a connection is not reset any more.
        for end in () if self.how is Break.RESET else (here, there):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self.lock:
            self.pairs.discard((here, there))


def reset(end):
    """Ends a connection with a reset. Closed alone, it would stay open under the threads that read from it."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Wakes the reading thread without an end that the other side could see.
        end.shutdown(socket.SHUT_RD)
        end.close()
