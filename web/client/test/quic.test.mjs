// One answer over a connection, step by step with a clock of our own: which way acknowledgements,
// probes and STOP take, and what frames that mean nothing leave as it was.
import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { MessageType, encodeFrame, encodeUtf8 } from "../dist/protocol.js";
import { Bench, settled } from "./bench.mjs";
import { answerOf, logOf, seeded } from "./support.mjs";

const head = { id: "1".repeat(32), token: "2".repeat(32), channel: 1, offset: 0 };
const answer = answerOf(seeded(1), 20);
const log = logOf(answer);

let bench;
let packet;

/** A DATA frame of the log's bytes. */
function data(from, to) {
  return encodeFrame({ kind: "data", channel: 1, packet: packet++, offset: from, bytes: log.subarray(from, to) });
}

/** The server begins. */
const begin = () => bench.message(MessageType.Answer, JSON.stringify(head));

beforeEach(async () => {
  packet = 0;
  bench = new Bench(mock.timers);
  await settled();
});
afterEach(() => mock.timers.reset());

test("ACK frames have one length, whatever has arrived", async () => {
  await begin();
  for (const [from, to] of [[0, 20], [20, 60], [70, 90], [95, 120], [60, 70]]) bench.receive(data(from, to));
  const datagrams = bench.sent.filter(({ on }) => on === "datagram");
  assert.deepEqual(datagrams.map(({ bytes }) => bytes.length), [32, 32, 32, 32, 32]);
  assert.equal(bench.datagrams.at(-1).cumulative, 90);
});

test("DATA in a FRAME is acknowledged in a FRAME at once, though it brings nothing new", async () => {
  await begin();
  bench.receive(data(0, 40));
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 0 });
  await bench.message(MessageType.Frame, data(0, 40));
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 1 });
  await bench.message(MessageType.Frame, data(0, 40));
  assert.deepEqual(bench.acks(), { datagrams: 0, frames: 0 }, "without news the gap of D-9.2 holds");
  await bench.pass(100);
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 1 });
  bench.receive(data(40, 80));
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 0 }, "datagrams come again");
});

test("from the second unanswered probe on, probes travel on the stream too", async () => {
  await begin();
  bench.receive(data(0, 40));
  bench.acks();
  await bench.pass(1_000);
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 0 });
  await bench.pass(1_000);
  assert.ok(bench.frames.at(-1)?.probe);
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 1 });
  bench.receive(data(40, 80));
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 0 });
});

test("an ACK for which the stream has no room leaves once there is some, the newest of them", async () => {
  await begin();
  bench.room = 0;
  await bench.message(MessageType.Frame, data(0, 40));
  await bench.message(MessageType.Frame, data(40, 80));
  assert.deepEqual(bench.frames, []);
  await bench.drain();
  assert.deepEqual(bench.frames.map(({ cumulative }) => cumulative), [80]);
});

test("a log that cannot be read is answered with one STOP, on the stream", async () => {
  await begin();
  const bytes = Uint8Array.of(0x01, 0x0f); // a kind beyond the tag, and not there
  bench.receive(encodeFrame({ kind: "data", channel: 1, packet: 0, offset: 0, bytes }));
  assert.deepEqual(bench.told.map(([name]) => name), ["answered", "failed", "over"]);
  assert.deepEqual(bench.frames, [{ kind: "stop", channel: 1 }]);
  assert.deepEqual(bench.datagrams, []);
});

test("a reader that wants no more says so on the stream", async () => {
  await begin();
  bench.answer.stop();
  assert.deepEqual([bench.frames, bench.datagrams], [[{ kind: "stop", channel: 1 }], []]);
});

test("frames that mean nothing here begin no answer", async () => {
  const grease = Uint8Array.of(0x17, 0x3a, 0x01);
  for (const frame of [grease, Uint8Array.of(0x10), encodeFrame({ kind: "stop", channel: 1 })]) {
    bench.receive(frame);
    await bench.message(MessageType.Frame, frame);
  }
  await bench.message(MessageType.Response, '{"status":429,"headers":{"Retry-After":"7"}}');
  await bench.message(MessageType.Body, encodeUtf8("later"));
  bench.server.close();
  await settled();
  const refused = ["refused", { status: 429, headers: { "retry-after": "7" } }, "later"];
  assert.deepEqual(bench.told, [refused, ["over"]]);
});

test("a server that computes for minutes keeps its question by signs of life, and loses it without them", async () => {
  const sign = async () => {
    bench.server.enqueue(Uint8Array.of(89, 0)); // a type that is skipped
    await settled();
  };
  for (let waited = 0; waited < 60_000; waited += 4_000) {
    await bench.pass(4_000);
    await sign();
  }
  assert.deepEqual(bench.told, []);
  await bench.pass(9_000);
  assert.deepEqual(bench.told, []);
  await bench.pass(1_000);
  assert.deepEqual(bench.told, [["lost", 0, { why: "the server does not begin", malformed: false }, []]]);
});

test("an ANSWER that the whole answer has overtaken still names it", async () => {
  bench.receive(data(0, log.length));
  await begin();
  assert.deepEqual(bench.told.map(([name]) => name), ["deltas", "complete", "answered"]);
});

test("a stream that breaks off after the whole log has come leaves the rest to be shown", async () => {
  mock.timers.reset();
  const pace = { buffer_us: 0, max_tokens_per_s: 10 };
  bench = new Bench(mock.timers, { channel: 1, head: {}, body: "{}", pace });
  await settled();
  await begin();
  bench.receive(data(0, log.length));
  bench.server.error(new TypeError("no code, as in Firefox"));
  await settled();
  await bench.pass(10_000);
  assert.deepEqual(bench.told.map(([name]) => name).filter((name) => name !== "deltas"), ["answered", "complete", "over"]);
  const deltas = bench.told.flatMap(([name, batch]) => (name === "deltas" ? batch : []));
  assert.deepEqual(deltas.map(([, delta]) => delta), answer);
});

test("an ANSWER to another request is the server's fault", async () => {
  for (const wrong of [{ channel: 2 }, { offset: 9 }]) {
    mock.timers.reset();
    bench = new Bench(mock.timers);
    await settled();
    await bench.message(MessageType.Answer, JSON.stringify({ ...head, ...wrong }));
    assert.deepEqual(bench.told, [["lost", 0, { why: "WireError: Malformed", malformed: true }, []]]);
  }
});

test("a message that the stream's end cuts short is the server's fault", async () => {
  await begin();
  bench.server.enqueue(Uint8Array.of(MessageType.Frame, 5, 0x10));
  bench.server.close();
  await settled();
  assert.deepEqual(bench.told.at(-1), ["lost", 0, { why: "WireError: Truncated", malformed: true }, []]);
});
