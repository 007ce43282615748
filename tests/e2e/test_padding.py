"""What an observer of QUIC learns from the lengths of its packets."""

import collections
import concurrent.futures
import json
import time

import httpx

from test_connect import connect  # noqa: F401 (a fixture)
from test_obfuscation import MOST_TOKENS, bias, mutual_information

TOKENS = 700
#: Longer packets look for the largest that the path takes.
LARGEST = 1000


def read_tokens(proxy, options):
    """When each token arrives, and its length."""
    body = {"prompt": f"tokens={TOKENS}", "max_tokens": TOKENS, "stream": True, "stream_options": options}
    arrived = []
    with httpx.stream("POST", f"{proxy.url}/v1/completions", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            choices = json.loads(line[6:])["choices"] if line.startswith("data: {") else []
            if choices and (text := choices[0]["text"]):
                arrived.append((time.monotonic(), len(text.encode())))
    return arrived


def samples(seen, arrived):
    """For each packet with new text: the number of its tokens, its length on the wire, theirs.

    A token's packet is the longest since the token before it: the others only acknowledge. Tokens
    without one of their own came in the packet of the one before.
    """
    packets = collections.deque(packet for packet in seen if packet[1] < LARGEST)
    found = []
    for at, length in arrived:
        longest = 0
        while packets and packets[0][0] <= at:
            longest = max(longest, packets.popleft()[1])
        if longest:
            found.append((1, longest, length))
        elif found:
            count, packet, bytes_before = found[-1]
            found[-1] = (count + 1, packet, bytes_before + length)
    return [sample for sample in found if sample[0] <= MOST_TOKENS]


def test_packet_lengths_tell_of_tokens_only_where_a_request_declines_padding(relays, connect):  # noqa: F811
    def told(options):
        _, relay = relays("--simulate", "30")
        proxy = connect(relay.url, "--head-start-ms", "5000")
        assert proxy.decided() == "QUIC"
        return relay, proxy, options

    def measure(observed):
        relay, proxy, options = observed
        arrived = read_tokens(proxy, options)
        found = samples(list(relay.seen), arrived)
        assert len(arrived) > TOKENS * 0.9 and len(found) > TOKENS / 2, "tokens came in few packets"
        return mutual_information(found) - bias(found), collections.Counter(length for _, length, _ in found)

    settings = [told({}), told({"include_obfuscation": False})]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        (padded, padded_lengths), (plain, plain_lengths) = pool.map(measure, settings)
    print(f"{padded:.3f} bits padded, {plain:.3f} bits not")
    assert padded <= 0.05, padded_lengths
    assert plain > 1, plain_lengths
