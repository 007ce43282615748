"""One process of attackers: runs its attacks until it is terminated, then prints what became of them.

Usage: attackers.py tcp|pools|quic SHARE SHARES PORT UDP_PORT KEY, for the attacks SHARE, SHARE + SHARES, …
"""

import asyncio
import json
import os
import signal
import sys

import pool_attacks
import quic_attacks
import tcp_attacks
from target import Target, repeat

#: The lowest priority: attackers get the processor time that nobody else wants.
NICE = 19


async def run(attacks, target):
    running = [
        asyncio.ensure_future(repeat(target, name, *attack)) for name, attack in attacks.items()
    ]

    def end(*_):
        failed = [repr(one.exception()) for one in running if one.done()]
        print(json.dumps({"counts": target.counts, "failed": failed}), flush=True)
        # What is left are sockets and tasks that nobody needs: the process's end closes them.
        os._exit(0)

    # Not by the loop, which may be busy with a large request for long.
    signal.signal(signal.SIGTERM, end)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    print("attacking", flush=True)
    await asyncio.gather(*running, return_exceptions=True)
    await asyncio.Event().wait()


def main():
    way, share, shares, port, udp_port, key = sys.argv[1:]
    os.nice(NICE)
    attacks = {"tcp": tcp_attacks.ATTACKS, "pools": pool_attacks.ATTACKS, "quic": quic_attacks.ATTACKS}[way]
    attacks = dict(list(attacks.items())[int(share) :: int(shares)])
    asyncio.run(run(attacks, Target(int(port), int(udp_port), key)))


if __name__ == "__main__":
    main()
