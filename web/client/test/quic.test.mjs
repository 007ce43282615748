// One answer over a connection, step by step with a clock of our own: which way acknowledgements,
// probes and STOP take, and what frames that mean nothing leave as it was.
import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { MessageReader, MessageType, decodeFrame, encodeFrame, encodeJson, encodeMessage, encodeUtf8 } from "../dist/protocol.js";
import { DatagramAnswer } from "../dist/quic.js";
import { answerOf, logOf, seeded } from "./support.mjs";

const head = { id: "1".repeat(32), token: "2".repeat(32), channel: 1, offset: 0 };
const log = logOf(answerOf(seeded(1), 20));

/** A connection in a test's hands, with an answer that was asked for and what became of it. */
class Bench {
  now_ms = 0;
  /** Frames that left in datagrams, and in FRAME messages. */
  datagrams = [];
  frames = [];
  told = [];
  /** How often the stream takes a message before it is full. */
  room = Infinity;
  #packet = 0;
  #ready = withResolvers();

  constructor(timers) {
    timers.enable({ apis: ["setTimeout"] });
    this.timers = timers;
    const readable = new ReadableStream({ start: (controller) => (this.server = controller) });
    const stream = { readable, writer: this.#writer() };
    const connection = {
      rtt_us: 0,
      addChannel: (receive) => ((this.receive = receive), 1),
      dropChannel: () => {},
      openStream: async () => stream,
      send: (datagram) => this.datagrams.push(decodeFrame(datagram)),
      codeOf: async () => 2,
      close: () => {},
    };
    const names = ["answered", "refused", "deltas", "complete", "failed", "ended", "lost", "over"];
    const listener = Object.fromEntries(names.map((name) => [name, (...facts) => this.told.push([name, ...facts])]));
    this.answer = new DatagramAnswer(listener, () => this.now_ms, "off", false, () => 0.9);
    this.answer.ask(connection, { method: "POST", path: "/v1/chat/completions" }, "{}");
  }

  #writer() {
    const bench = this;
    const messages = new MessageReader();
    return {
      get desiredSize() {
        return bench.room;
      },
      get ready() {
        return bench.#ready.promise;
      },
      async write(bytes) {
        bench.room -= 1;
        for (const { type, payload } of messages.push(bytes)) {
          if (type === MessageType.Frame) bench.frames.push(decodeFrame(payload));
        }
      },
      close: async () => {},
      abort: async () => {},
    };
  }

  /** The stream has room again. */
  drain() {
    this.room = Infinity;
    this.#ready.resolve();
    return settled();
  }

  /** A message from the server. */
  message(type, payload) {
    this.server.enqueue(typeof payload === "string" ? encodeJson(type, JSON.parse(payload)) : encodeMessage(type, payload));
    return settled();
  }

  begin() {
    return this.message(MessageType.Answer, JSON.stringify(head));
  }

  data(from, to) {
    return encodeFrame({ kind: "data", channel: 1, packet: this.#packet++, offset: from, bytes: log.subarray(from, to) });
  }

  async pass(ms) {
    this.now_ms += ms;
    this.timers.tick(ms);
    await settled();
  }

  /** What has left since the last call, as the number of ACK frames either way. */
  acks() {
    const counts = [this.datagrams, this.frames].map((frames) => frames.filter(({ kind }) => kind === "ack").length);
    [this.datagrams, this.frames] = [[], []];
    return { datagrams: counts[0], frames: counts[1] };
  }
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

function withResolvers() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

let bench;
beforeEach(async () => {
  bench = new Bench(mock.timers);
  await settled();
});
afterEach(() => mock.timers.reset());

test("DATA in a FRAME is acknowledged in a FRAME at once, though it brings nothing new", async () => {
  await bench.begin();
  bench.receive(bench.data(0, 40));
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 0 });
  await bench.message(MessageType.Frame, bench.data(0, 40));
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 1 });
  await bench.message(MessageType.Frame, bench.data(0, 40));
  assert.deepEqual(bench.acks(), { datagrams: 0, frames: 0 }, "without news the gap of D-9.2 holds");
  await bench.pass(100);
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 1 });
  bench.receive(bench.data(40, 80));
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 0 }, "datagrams come again");
});

test("from the second unanswered probe on, probes travel on the stream too", async () => {
  await bench.begin();
  bench.receive(bench.data(0, 40));
  bench.acks();
  await bench.pass(1_000);
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 0 });
  await bench.pass(1_000);
  assert.ok(bench.frames.at(-1)?.probe);
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 1 });
  bench.receive(bench.data(40, 80));
  assert.deepEqual(bench.acks(), { datagrams: 1, frames: 0 });
});

test("an ACK for which the stream has no room leaves once there is some, the newest of them", async () => {
  await bench.begin();
  bench.room = 0;
  await bench.message(MessageType.Frame, bench.data(0, 40));
  await bench.message(MessageType.Frame, bench.data(40, 80));
  assert.deepEqual(bench.frames, []);
  await bench.drain();
  assert.deepEqual(bench.frames.map(({ cumulative }) => cumulative), [80]);
});

test("a log that cannot be read is answered with one STOP, on the stream", async () => {
  await bench.begin();
  const bytes = Uint8Array.of(0x01, 0x0f); // a kind beyond the tag, and not there
  bench.receive(encodeFrame({ kind: "data", channel: 1, packet: 0, offset: 0, bytes }));
  assert.deepEqual(bench.told.map(([name]) => name), ["answered", "failed", "over"]);
  assert.deepEqual(bench.frames, [{ kind: "stop", channel: 1 }]);
  assert.deepEqual(bench.datagrams, []);
});

test("a reader that wants no more says so on the stream", async () => {
  await bench.begin();
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

test("an ANSWER that the whole answer has overtaken still names it", async () => {
  bench.receive(bench.data(0, log.length));
  await bench.begin();
  assert.deepEqual(bench.told.map(([name]) => name), ["deltas", "complete", "answered"]);
});

test("an ANSWER to another request is the server's fault", async () => {
  for (const wrong of [{ channel: 2 }, { offset: 9 }]) {
    mock.timers.reset();
    bench = new Bench(mock.timers);
    await settled();
    await bench.message(MessageType.Answer, JSON.stringify({ ...head, ...wrong }));
    assert.deepEqual(bench.told, [["lost", 0, { why: "WireError: Malformed", malformed: true }]]);
  }
});

test("a message that the stream's end cuts short is the server's fault", async () => {
  await bench.begin();
  bench.server.enqueue(Uint8Array.of(MessageType.Frame, 5, 0x10));
  bench.server.close();
  await settled();
  assert.deepEqual(bench.told.at(-1), ["lost", 0, { why: "WireError: Truncated", malformed: true }]);
});
