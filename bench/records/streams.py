"""Requests of a bench, and the events of an answer with the times at which they came.

For readers that are threads; those that are many tasks of one thread (readers.py, abuse/honest.py), or follow the ids
of events (replicas.py), read for themselves.
"""

import http.client
import itertools
import json
import time


def post(port, path, body, timeout_s=300):
    """The response of a server on this machine, whose body is not read yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    return connection.getresponse()


def events(response):
    """The time (`time.monotonic`) and the JSON of each event of a stream. Parsing is left to those who need it: it
    would delay other readers of this process."""
    for line in response:
        if line.startswith(b"data: {"):
            yield time.monotonic(), line.removeprefix(b"data: ")


def gaps_ms(response):
    """The gaps between the events of a stream."""
    times = [at for at, _ in events(response)]
    return [(after - before) * 1e3 for before, after in itertools.pairwise(times)]
