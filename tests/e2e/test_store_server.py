"""The store's server as it is in production: a failover to its replica, a full memory, TLS, a user with few rights."""

import contextlib
import itertools

import pytest

from conftest import free_port
from redis_server import RedisServer
from test_replica_faults import asked, gate  # noqa: F401
from test_replicas import BODY, eventually, resumes, sdk, whole  # noqa: F401
from test_takeover import Reading, fence, goes_on

# Slow enough that a failover is noticed before an answer ends.
PACE = ("--simulate", "50", "--no-quic", "--resume-grace-s", "60")


@pytest.fixture
def standby(redis):
    """A Redis server that replicates `redis`."""
    running = RedisServer()
    assert running.ask("REPLICAOF", "127.0.0.1", str(redis.port)) == "OK"
    eventually(lambda: "master_link_status:up" in running.ask("INFO", "replication"))
    yield running
    running.close()


def fail_over(gate, new):  # noqa: F811
    """Makes the standby the primary and the primary its replica, to which connections that are open still lead."""
    old, gate.redis = gate.redis, new
    assert new.ask("REPLICAOF", "NO", "ONE") == "OK"
    assert old.ask("REPLICAOF", "127.0.0.1", str(new.port)) == "OK"


def stored(redis, name):
    """Bytes of an answer's log in a store."""
    return int(redis.ask("STRLEN", f"loquent:1:g:{name[0]}"))


def so_far(reading):
    """A second reader that has as much."""
    second = Reading()
    second.last, second.chunks = reading.last, reading.chunks.copy()
    return second


@pytest.mark.parametrize("lost", [False, True], ids=["nothing-lost", "the-newest-lost"])
def test_a_failover_takes_nothing_from_an_answer(start, redis, standby, gate, whole, lost):  # noqa: F811
    owner, other = [start(*PACE, "--store", gate.url) for _ in range(2)]
    reading = Reading()
    with asked(owner, BODY) as (name, lines):
        reading.take(lines, 20)
        if lost:
            # Replication is not synchronous: what is written from here on is in the primary alone.
            standby.ask("REPLICAOF", "NO", "ONE")
            before = stored(standby, name)
            eventually(lambda: stored(redis, name) > before)
            reading.take(lines, 20)
        written = stored(redis, name)
        fail_over(gate, standby)
        # The log goes on in the new primary, so that another replica can continue it.
        eventually(lambda: stored(standby, name) > written)
        owner.process.kill()
        owner.process.wait(20)
    eventually(lambda: resumes(other, name))
    goes_on(other, name, reading)
    assert reading.text() == whole


def test_an_end_that_a_failover_lost_is_read_elsewhere(start, redis, standby, gate, whole):  # noqa: F811
    owner, other = [start(*PACE, "--store", gate.url) for _ in range(2)]
    reading = Reading()
    with asked(owner, BODY) as (name, lines):
        reading.take(lines, 20)
        elsewhere = so_far(reading)
        standby.ask("REPLICAOF", "NO", "ONE")
        reading.take(lines)
    assert reading.done and reading.text() == whole
    fail_over(gate, standby)
    eventually(lambda: resumes(other, name))
    goes_on(other, name, elsewhere)
    assert elsewhere.text() == whole


def test_a_store_whose_memory_is_full_costs_no_answer(start, redis, whole):  # noqa: F811
    owner, other = [start(*PACE, "--store", redis.url) for _ in range(2)]
    assert redis.ask("CONFIG", "SET", "maxmemory", "1") == "OK"
    reading = Reading()
    with asked(owner, {**BODY, "store": True}) as (name, lines):
        reading.take(lines, 20)
        # Nobody is taken for dead, and any replica serves the answer.
        elsewhere = so_far(reading)
        goes_on(other, name, elsewhere)
        reading.take(lines)
    assert reading.done and reading.text() == elsewhere.text() == whole
    assert fence(redis, name) == "1"
    # What is new is refused, and stored once there is room.
    assert sdk(owner).chat.completions.list().data == []
    assert any("maxmemory" in line for line in owner.log)
    assert redis.ask("CONFIG", "SET", "maxmemory", "0") == "OK"
    eventually(lambda: [one.id for one in sdk(owner).chat.completions.list()] == [reading.chunks[0]["id"]])


def test_a_store_is_used_over_tls_by_a_user_with_few_rights(start, authority, trusting, whole):  # noqa: F811
    port = free_port()
    files = {"cert": "cert.pem", "key": "key.pem", "ca-cert": "ca.pem"}
    tls = [["--tls-port", str(port)], ["--tls-auth-clients", "no"]]
    tls += [[f"--tls-{kind}-file", str(authority / name)] for kind, name in files.items()]
    with contextlib.closing(RedisServer(*itertools.chain(*tls))) as redis:
        rights = ["~loquent:1:*", "+@all", "-@admin", "-@dangerous"]
        assert redis.ask("ACL", "SETUSER", "server", "on", ">secret", *rights) == "OK"
        url = f"rediss://server:secret@localhost:{port}"
        owner, other = [start(*PACE, "--store", url, env=trusting) for _ in range(2)]
        reading = Reading()
        with asked(owner, {**BODY, "store": True}) as (name, lines):
            reading.take(lines, 20)
            owner.process.kill()
            owner.process.wait(20)
        eventually(lambda: resumes(other, name))
        goes_on(other, name, reading)
        assert reading.text() == whole
        stranger = start(*PACE, "--store", url)
        assert "certificate" in stranger.heard("starting without the store")
