"""Sessions that lose datagrams, by a seed or all of them, while QUIC itself lives."""

import random

from .client.session import Session


def lossy_session(up=0.0, down=0.0, seed=1):
    """A kind of session that loses these shares of the datagrams that it sends and gets."""

    class LossySession(Session):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.dice = random.Random(seed)
            self.lost_up = self.lost_down = 0

        def write_datagram(self, data):
            if self.dice.random() < up:
                self.lost_up += 1
            else:
                super().write_datagram(data)

        def handle_datagram(self, data):
            if self.dice.random() < down:
                self.lost_down += 1
            else:
                super().handle_datagram(data)

    return LossySession
