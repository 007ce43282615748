// One answer over a connection that is in a test's hands, with a clock of its own.
import { MessageReader, MessageType, decodeFrame, encodeJson, encodeMessage } from "../dist/protocol.js";
import { DatagramAnswer } from "../dist/quic.js";

const QUESTION = { channel: 1, head: { method: "POST", path: "/v1/chat/completions" }, body: "{}" };
const NEWS = ["answered", "refused", "heard", "deltas", "complete", "failed", "ended", "lost", "over"];

/** What happens in one turn of the event loop, promises included. */
export const settled = () => new Promise((resolve) => setImmediate(resolve));

/** An answer that was asked for, what left of it, and what became of it. */
export class Bench {
  now_ms = 0;
  /** Frames that left in datagrams, and in FRAME messages. */
  datagrams = [];
  frames = [];
  /** Everything that left, as bytes: `on` a `stream` or in a `datagram`; `null` is the stream's end. */
  sent = [];
  told = [];
  /** How often the stream takes a message before it is full. */
  room = Infinity;
  #ready = {};

  constructor(timers, { channel, head, body, pace = "off" } = QUESTION) {
    timers.enable({ apis: ["setTimeout"] });
    this.timers = timers;
    this.#ready.promise = new Promise((resolve) => (this.#ready.resolve = resolve));
    const readable = new ReadableStream({ start: (controller) => (this.server = controller) });
    const stream = { readable, writer: this.#writer() };
    const connection = {
      rtt_us: 0,
      addChannel: (receive) => ((this.receive = receive), channel),
      dropChannel: () => {},
      openStream: async () => stream,
      spend: () => {},
      send: (datagram) => this.#send(datagram),
      codeOf: async () => 2,
      close: () => {},
    };
    const listener = Object.fromEntries(NEWS.map((name) => [name, (...facts) => this.told.push([name, ...facts])]));
    this.answer = new DatagramAnswer(listener, () => this.now_ms, pace, false, () => 0.9);
    this.answer.ask(connection, head, body);
  }

  #send(datagram) {
    this.sent.push({ on: "datagram", bytes: datagram });
    this.datagrams.push(decodeFrame(datagram));
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
        bench.sent.push({ on: "stream", bytes });
        for (const { type, payload } of messages.push(bytes)) {
          if (type === MessageType.Frame) bench.frames.push(decodeFrame(payload));
        }
      },
      close: async () => void bench.sent.push({ on: "stream", bytes: null }),
      abort: async () => {},
    };
  }

  /** The stream has room again. */
  drain() {
    this.room = Infinity;
    this.#ready.resolve();
    return settled();
  }

  /** A message from the server; a string is the JSON of one. */
  message(type, payload) {
    this.server.enqueue(typeof payload === "string" ? encodeJson(type, JSON.parse(payload)) : encodeMessage(type, payload));
    return settled();
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
