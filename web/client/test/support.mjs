// What the tests share: a seeded generator, answers, a sender that is as simple as it can
// be, and a server of the session protocol behind an in-memory WebTransport.
import { MessageReader, MessageType, WireError, decodeFrame, decodeUtf8, encodeFrame, encodeJson, encodeMessage, encodePaddedFrame, encodeRecord } from "../dist/protocol.js";

/** Numbers in [0, 1) that depend on the seed alone (mulberry32's recurrence). */
export function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** An answer of `words` texts, one of them not ASCII and some long. */
export function answerOf(random, words) {
  const pieces = ["token", " by", " token", " 语言", "", " naïve", " 🦀", " x".repeat(200)];
  const text = (at) => ({ kind: "text", choice: 0, tokens: 1, text: pieces[Math.floor(random() * pieces.length)] + at });
  return [
    { kind: "open", meta: '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m"}' },
    ...Array.from({ length: words }, (_, at) => text(at)),
    { kind: "finish", choice: 0, reason: "stop" },
    { kind: "usage", prompt: 3, completion: words, cached: 0, reasoning: 0 },
    { kind: "done" },
  ];
}

export const textOf = (deltas) => deltas.map((delta) => (delta.kind === "text" ? delta.text : "")).join("");

/** The records of `deltas`, one after the other. */
export function logOf(deltas) {
  const records = deltas.map(encodeRecord);
  const log = new Uint8Array(records.reduce((sum, record) => sum + record.length, 0));
  let at = 0;
  for (const record of records) {
    log.set(record, at);
    at += record.length;
  }
  return log;
}

/** Sends what is not acknowledged, oldest first, whenever asked: no clock, no cleverness. */
export class PlainSender {
  cumulative = 0;
  #packet = 0;
  constructor(channel, log) {
    this.channel = channel;
    this.log = log;
  }

  get done() {
    return this.cumulative === this.log.length;
  }

  /** A DATA frame of at most `room` bytes of what had been generated up to `head`. */
  data(head, room, from = this.cumulative) {
    return encodeFrame(this.frame(head, room, from));
  }

  /** The same in a PADDED frame whose length is a multiple of `step`. */
  padded(step, head, room) {
    const frame = this.frame(head, room, this.cumulative);
    const length = encodePaddedFrame(frame, 0).length;
    return encodePaddedFrame(frame, Math.ceil(length / step) * step);
  }

  frame(head, room, from) {
    const bytes = this.log.subarray(from, Math.min(head, from + room));
    return { kind: "data", channel: this.channel, packet: this.#packet++, offset: from, bytes };
  }

  handleAck(ack) {
    this.cumulative = Math.max(this.cumulative, ack.cumulative);
  }
}

/**
 * One end of a pipe: what is written at the other end is read here, unless `pass` says no. With
 * `credit` everything stops, the end too, at the byte that there is no credit for.
 */
function pipe(pass = () => true, credit = null) {
  let controller;
  let isStuck = false;
  if (credit !== null) pass = (chunk) => !(isStuck ||= (credit.bytes -= chunk.length) < 0);
  const readable = new ReadableStream({ start: (given) => (controller = given) }, { highWaterMark: 1024 });
  const finish = (how) => {
    try {
      how();
    } catch {
      // The other end was faster.
    }
  };
  const writable = new WritableStream({
    write: (chunk) => void (pass(chunk) && finish(() => controller.enqueue(chunk.slice()))),
    close: () => isStuck || finish(() => controller.close()),
    abort: (reason) => finish(() => controller.error(reason ?? new Error("reset"))),
  });
  return { readable, writable, fail: (error) => finish(() => controller.error(error)) };
}

/**
 * Speaks the session protocol (spec/session.md) for `WebTransport`s that it makes.
 *
 * `deltas`: what every question is answered with. `loses(datagram, way)`: whether a datagram on
 * its way `up` or `down` is lost. `tick_ms`: time per token. `refuse`: a RESPONSE instead. `mute`:
 * no session ever opens. `datagrams`: whether any get through. `frames`: when to send DATA in FRAME
 * messages, `instead` of datagrams or `too`, `never` otherwise. `breakAt`: counts of records after
 * which all sessions break off. `breaksUnanswered`: they break off when asked. `ignored`: names of
 * parameters that had no effect. `padding`: the step of padded frames. `extras`: messages that
 * precede an answer's first word. `shutsDown`: it refuses questions with code 6. `onResume(stream, frame)`: what
 * becomes of a resume, if not what was asked for. `silent`: questions are taken, and nothing comes back. `certificate`: the one byte that its hash is made of.
 * `credit`: the `bytes` and `streams` that a session may have, and never gets more of, as in WebKit.
 * `frameBytes`: the most of a log that one frame has. `holds`: answers begin when they are released.
 * `refusesSessions`: no further one opens. `refuseResumes`: RESPONSEs to the first resumes. `createsWritable`: datagrams are written as in Safari.
 */
export class FakeServer {
  questions = [];
  /** The type of every message, and the flags of every ACK, as they came. */
  types = [];
  flags = [];
  /** Why streams were reset by the client. */
  resets = [];
  acks = [];
  stopped = [];
  resumed = [];
  sessions = [];
  held = [];
  answers = new Map();

  constructor(options) {
    const defaults = { deltas: [], loses: () => false, tick_ms: 1, refuse: null, mute: false, datagrams: true, frames: "never", breakAt: [] };
    Object.assign(this, defaults, { breaksUnanswered: false, ignored: null, padding: null, extras: [], shutsDown: false, onResume: null, silent: false, certificate: null, credit: null, frameBytes: 1000, holds: false, refusesSessions: false, refuseResumes: [], createsWritable: false }, options);
    this.breakAt = [...this.breakAt];
    if (!this.datagrams) this.frames = "instead";
    const { deltas } = this;
    this.log = logOf(deltas);
    let end = 0;
    this.ends = deltas.map((delta) => (end += encodeRecord(delta).length));
    const server = this;
    this.WebTransport = class extends FakeTransport {
      constructor(url, options) {
        super(server, url, options);
      }
    };
  }

  /** Notes an ACK's flags, which its decoded form does not show all of. */
  noteFlags(frame) {
    const ack = (frame[0] & 7) === 5 ? frame.subarray(frame[1] < 64 ? 2 : 3) : frame; // PADDED
    if ((ack[0] & 7) === 1) this.flags.push(ack[1]);
  }

  /** The answers that were held back begin. */
  release() {
    for (const begin of this.held.splice(0)) begin();
  }

  /** All sessions break off, as when an address changes. */
  breakSessions() {
    for (const session of this.sessions) session.fail(new Error("the network changed"));
  }

  /** Resets the QUIC streams of all answers. */
  resetAnswers(code) {
    for (const session of this.sessions) for (const stream of [...session.open]) stream.reset(code);
  }

  /** Closes all sessions with a code. */
  closeSessions(closeCode) {
    for (const session of this.sessions) session.fail(null, closeCode);
  }

  close() {
    for (const session of this.sessions) session.close();
  }
}

class FakeTransport {
  constructor(server, url, options) {
    Object.assign(this, { server, url, options, open: new Set(), credit: server.credit && { ...server.credit }, isOver: false });
    server.sessions.push(this);
    const keeps = (way) => (datagram) => server.datagrams && !server.loses(datagram, way);
    const [down, up] = [pipe(keeps("down")), pipe(keeps("up"))];
    this.datagrams = { readable: down.readable, writable: up.writable, incomingHighWaterMark: 1, outgoingHighWaterMark: 1 };
    // Where Safari has it, which has no `writable`.
    if (server.createsWritable) Object.assign(this.datagrams, { writable: undefined, createWritable: () => up.writable });
    this.toClient = down.writable.getWriter();
    this.ends = [down, up];
    this.closed = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
    this.closed.catch(() => {});
    if (server.refusesSessions) this.ready = Promise.reject(new Error("no more sessions"));
    else this.ready = server.mute ? this.closed.then(() => Promise.reject(new Error("closed"))) : this.#handshake();
    this.ready.catch(() => {});
    void this.#acks(up.readable.getReader());
  }

  async #handshake() {
    const { certificate } = this.server;
    const hashed = this.options.serverCertificateHashes.every(({ value }) => value.every((byte) => byte === certificate));
    if (certificate !== null && !hashed) throw new Error("the certificate is another");
  }

  async createBidirectionalStream() {
    if (this.credit && --this.credit.streams < 0) return await new Promise(() => {});
    const [toServer, toClient] = [pipe(undefined, this.credit), pipe(undefined, this.credit)];
    const stream = new FakeStream(this, toServer.readable.getReader(), toClient);
    this.open.add(stream);
    this.ends.push(toServer, toClient);
    void stream.serve();
    return { readable: toClient.readable, writable: toServer.writable };
  }

  close() {
    this.fail(null);
  }

  fail(error, closeCode = 0) {
    this.isOver = true;
    for (const stream of this.open) stream.end();
    for (const end of this.ends) end.fail(error ?? new Error("closed"));
    if (error) this.reject(error);
    else this.resolve({ closeCode, reason: "" });
  }

  async #acks(reader) {
    for (let next = await reader.read().catch(() => ({ done: true })); !next.done; ) {
      const frame = decodeFrame(next.value);
      this.server.noteFlags(next.value);
      for (const stream of this.open) if (stream.sender?.channel === frame.channel) stream.handleFrame(frame);
      next = await reader.read().catch(() => ({ done: true }));
    }
  }
}

/** One question, its answer generated a token per tick from when it was first asked. */
class FakeStream {
  sender = null;
  #timer = null;
  #body = "";

  constructor(session, reader, toClient) {
    Object.assign(this, { session, server: session.server, reader, writer: toClient.writable.getWriter(), pipe: toClient });
  }

  async serve() {
    const messages = new MessageReader();
    for (;;) {
      const next = await this.reader.read().catch((reason) => ({ done: true, reason }));
      if (next.reason) this.server.resets.push(next.reason);
      if (next.done) return;
      this.server.types.push(next.value[0]); // messages come as they were written
      for (const message of messages.push(next.value)) this.#handleMessage(message);
    }
  }

  #handleMessage({ type, payload }) {
    if (type === MessageType.Request) this.head = JSON.parse(decodeUtf8(payload));
    else if (type === MessageType.Body && payload.length > 0) this.#body += decodeUtf8(payload);
    else if (type === MessageType.Body) this.#answer();
    else if (type === MessageType.Frame) this.#handleFrameMessage(payload);
    else throw new WireError("Malformed");
  }

  #answer() {
    this.server.questions.push({ head: this.head, body: JSON.parse(this.#body) });
    if (this.server.refuse) return this.#refuse(this.server.refuse);
    if (this.server.shutsDown) return this.reset(6);
    if (this.server.silent) return;
    if (this.server.breaksUnanswered) return this.server.breakSessions();
    for (const extra of this.server.extras) this.#write(extra(this.head.channel));
    const hex = (at) => at.toString(16).padStart(32, "0");
    const number = this.server.answers.size + 1;
    const answer = { id: hex(number), token: hex(number * 77), from: performance.now() };
    this.server.answers.set(answer.id, answer);
    const begin = () => this.begin(answer, this.head.channel, 0);
    if (this.server.holds) this.server.held.push(begin);
    else begin();
  }

  #refuse({ status, headers, body }) {
    this.#write(encodeJson(MessageType.Response, { status, headers }));
    const bytes = new TextEncoder().encode(body);
    this.#write(encodeMessage(MessageType.Body, bytes.subarray(0, 5)));
    this.#write(encodeMessage(MessageType.Body, bytes.subarray(5)));
    this.writer.close().catch(() => {});
  }

  begin(answer, channel, offset) {
    this.answer = answer;
    this.sender = new PlainSender(channel, this.server.log);
    this.sender.cumulative = offset;
    this.#write(encodeJson(MessageType.Answer, { id: answer.id, token: answer.token, channel, offset, ...this.#headers() }));
    this.#timer = setInterval(() => this.#tick(), this.server.tick_ms);
  }

  #headers() {
    const { ignored } = this.server;
    return ignored === null ? {} : { headers: { "x-loquent-ignored-parameters": ignored } };
  }

  #handleFrameMessage(payload) {
    this.server.noteFlags(payload);
    this.handleFrame(decodeFrame(payload), true);
  }

  handleFrame(frame, byStream = false) {
    if (frame.kind === "ack") {
      this.server.acks.push({ ...frame, byStream });
      this.sender?.handleAck(frame);
    } else if (frame.kind === "stop") {
      this.server.stopped.push(this.answer?.id);
      this.end();
    } else if (frame.kind === "resume") {
      this.#resume(frame);
    }
  }

  #resume(frame) {
    const { id, token, offset, channel } = frame;
    const hex = (bytes) => Buffer.from(bytes).toString("hex");
    const answer = this.server.answers.get(hex(id));
    this.server.resumed.push({ offset, known: answer?.token === hex(token) });
    if (this.server.onResume) return this.server.onResume(this, frame);
    if (this.server.refuseResumes.length > 0) return this.#refuse(this.server.refuseResumes.shift());
    if (answer?.token === hex(token)) return this.begin(answer, channel, offset);
    this.gone(channel);
  }

  gone(channel) {
    this.#write(encodeMessage(MessageType.Frame, encodeFrame({ kind: "gone", channel })));
    this.writer.close().catch(() => {});
  }

  #tick() {
    if (this.sender.done) {
      this.end();
      return void this.writer.close().catch(() => {});
    }
    const tokens = Math.floor((performance.now() - this.answer.from) / this.server.tick_ms);
    const head = this.server.ends[Math.min(tokens, this.server.ends.length - 1)];
    if (this.server.ends[this.server.breakAt[0]] <= this.sender.cumulative) {
      this.server.breakAt.shift();
      return this.server.breakSessions();
    }
    const { padding, frames, frameBytes } = this.server;
    const data = () => (padding === null ? this.sender.data(head, frameBytes) : this.sender.padded(padding, head, frameBytes));
    if (frames !== "instead") this.session.toClient.write(data()).catch(() => {});
    if (frames !== "never") this.#write(encodeMessage(MessageType.Frame, data()));
  }

  #write(message) {
    this.writer.write(message).catch(() => {});
  }

  reset(code) {
    this.end();
    this.pipe.fail(Object.assign(new Error(`reset ${code}`), { streamErrorCode: code }));
  }

  end() {
    clearInterval(this.#timer);
    this.session.open.delete(this);
  }
}
