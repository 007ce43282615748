// One answer over a connection: asks or resumes on a stream, drives the receiver with what
// comes by datagram or on the stream, sends its acknowledgements (spec/session.md, 4).

import type { Connection, Stream } from "./connection.js";
import { encodeFrame } from "./frame.js";
import { type Playout, smoothPlayout } from "./playout.js";
import { Receiver, type ReceiverEvent, WITH_ANOTHER_PATH } from "./receiver.js";
import type { Delta } from "./delta.js";
import {
  type AnswerHead,
  type Message,
  MessageReader,
  MessageType,
  type RequestHead,
  type ResponseHead,
  decodeAnswerHead,
  decodeResponseHead,
  encodeJson,
  encodeMessage,
  fromHex,
} from "./message.js";
import { WireError, type WireFault, decodeUtf8, encodeUtf8 } from "./wire.js";

/** A delta and the log offset after it. */
export type Shown = readonly [offset: number, delta: Delta];

/** Receives what happens to an answer, in order. */
export interface AnswerListener {
  /** The server has begun; from here on the answer can be resumed. */
  answered(head: AnswerHead): void;
  /** The server said no. */
  refused(head: ResponseHead, body: string): void;
  /** Due to be shown. */
  deltas(deltas: Shown[]): void;
  /** The answer is complete. */
  complete(): void;
  /** The answer ends here and is incomplete. */
  failed(fault: WireFault | null): void;
  /** The path is dead; `offset` is where another one goes on. */
  lost(offset: number, why: string): void;
  /** Nothing more will be told or sent; comes once, last. */
  over(): void;
}

/** How what has arrived is shown: at once, smoothed for the path, or as told. */
export type PlayoutChoice = "off" | "smooth" | Playout;

/** Deltas told and not reported as read, after which the answer waits for its reader. */
const MAX_UNREAD = 512;

/** Longest refusal that is read, bytes. */
const MAX_REFUSAL_BYTES = 64 * 1024;

/** How long a server may take to begin, ms, before another way is tried. */
const ANSWER_WITHIN_MS = 10_000;

/** A silent path that stays so for this much longer, ms, is given up (S-4.10). */
const GIVE_UP_AFTER_MS = 1_000;

type State =
  | { readonly is: "asking" }
  | { readonly is: "refused"; readonly head: ResponseHead; readonly body: Uint8Array[] }
  | { readonly is: "streaming" }
  /** Everything was told; acknowledging until the sender knows. */
  | { readonly is: "told" }
  | { readonly is: "over" };

/** Where an answer currently comes from. */
interface Path {
  readonly connection: Connection;
  readonly number: number;
  stream: Stream | null;
  /** The last DATA came on the stream: datagrams may not get through. */
  byStream: boolean;
  /** No frame arrives although probes were sent. */
  isSilent: boolean;
  /** The server has ended the stream. */
  ended: boolean;
}

/** Receives one answer. Every call that it gets may tell its listener something. */
export class DatagramAnswer {
  #state: State = { is: "asking" };
  #path: Path | null = null;
  #receiver: Receiver | null = null;
  #offset = 0;
  #unread = 0;
  #timer: ReturnType<typeof setTimeout> | null = null;

  constructor(
    readonly listener: AnswerListener,
    /** Milliseconds, monotonic. */
    readonly clock: () => number,
    readonly pace: PlayoutChoice,
    private hidden: boolean,
  ) {}

  /** Asks for an answer (S-4.1). */
  ask(connection: Connection, head: RequestHead, body: string): void {
    const path = this.#enter(connection);
    const request = encodeJson(MessageType.Request, { ...head, stream: path.number });
    const end = encodeMessage(MessageType.Body, new Uint8Array(0));
    void this.#run(path, [request, encodeMessage(MessageType.Body, encodeUtf8(body)), end]);
  }

  /** Goes on with an answer (S-4.7): what has arrived here already stays (D-6.4). */
  resume(connection: Connection, id: string, token: string, offset: number): void {
    const path = this.#enter(connection);
    const stream = path.number;
    this.#receiver?.migrate(this.#now(), stream);
    this.#offset = this.#receiver?.cumulative ?? offset;
    const frame = { kind: "resume", stream, id: fromHex(id), token: fromHex(token), offset: this.#offset } as const;
    void this.#run(path, [encodeMessage(MessageType.Frame, encodeFrame(frame))]);
  }

  /** The page was hidden, or is seen again. */
  setHidden(hidden: boolean): void {
    this.hidden = hidden;
    this.#receiver?.setHidden(this.#now(), hidden);
    this.#drive();
  }

  /** The reader has taken `count` of the deltas that it was told. */
  handleRead(count: number): void {
    this.#unread -= count;
    this.#drive();
  }

  /** The reader wants no more (S-4.5). */
  stop(): void {
    const path = this.#path;
    if (path) {
      const stop = encodeFrame({ kind: "stop", stream: path.number });
      path.connection.send(stop);
      path.stream?.writer.write(encodeMessage(MessageType.Frame, stop)).catch(() => {});
    }
    this.#finish();
  }

  /** Releases everything without a message to the server, which keeps the answer for the grace period. */
  forget(): void {
    this.#leave();
    this.#finish();
  }

  /** The answer needs this path no more, nor any other. */
  #finish(): void {
    if (this.#state.is === "over") return;
    this.#state = { is: "over" };
    this.#path?.stream?.writer.close().catch(() => {});
    this.#leave(false);
    this.#receiver = null;
    this.listener.over();
  }

  #now(): number {
    return Math.floor(this.clock() * 1_000);
  }

  #enter(connection: Connection): Path {
    this.#leave();
    this.#state = { is: "asking" };
    const number = connection.addStream((datagram) => this.#handleFrame(path, datagram, false));
    const path: Path = { connection, number, stream: null, byStream: false, isSilent: false, ended: false };
    this.#path = path;
    this.#timer = setTimeout(() => this.#lose(path, "the server does not begin"), ANSWER_WITHIN_MS);
    return path;
  }

  /** Leaves the path; a reset without code 3 is no cancellation (S-4.5). */
  #leave(reset = true): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    this.#path?.connection.dropStream(this.#path.number);
    if (reset) this.#path?.stream?.writer.abort().catch(() => {});
    this.#path = null;
  }

  #lose(path: Path, why: string): void {
    if (path !== this.#path || this.#state.is === "over") return;
    this.#leave();
    if (this.#state.is === "told") return this.#finish();
    this.listener.lost(this.#receiver?.shown ?? this.#offset, why);
  }

  /** Writes the first messages and reads the stream to its end. */
  async #run(path: Path, messages: Uint8Array[]): Promise<void> {
    try {
      path.stream = await path.connection.openStream();
      if (path !== this.#path) return void path.stream.writer.abort().catch(() => {});
      for (const message of messages) path.stream.writer.write(message).catch(() => {});
      await this.#read(path, path.stream.readable);
      this.#handleEnd(path);
    } catch (error) {
      this.#lose(path, String(error));
    }
  }

  async #read(path: Path, readable: ReadableStream<Uint8Array>): Promise<void> {
    const reader = readable.getReader();
    const messages = new MessageReader();
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      for (const message of messages.push(next.value)) this.#handleMessage(path, message);
      if (path !== this.#path) return void reader.cancel().catch(() => {});
    }
    if (messages.partial) throw new WireError("Truncated");
  }

  #handleMessage(path: Path, { type, payload }: Message): void {
    if (path !== this.#path) return;
    const state = this.#state;
    if (type === MessageType.Frame && state.is !== "refused") {
      this.#handleFrame(path, payload, true);
    } else if (type === MessageType.Answer && state.is === "asking") {
      this.#begin(path);
      this.listener.answered(decodeAnswerHead(payload));
      this.#drive();
    } else if (type === MessageType.Response && state.is === "asking") {
      this.#state = { is: "refused", head: decodeResponseHead(payload), body: [] };
    } else if (type === MessageType.Body && state.is === "refused") {
      const bytes = state.body.reduce((sum, piece) => sum + piece.length, payload.length);
      if (bytes <= MAX_REFUSAL_BYTES) state.body.push(payload);
    } else if (type !== MessageType.Answer || state.is !== "streaming") {
      // An ANSWER that data has overtaken names the answer all the same.
      throw new WireError("Malformed");
    } else {
      this.listener.answered(decodeAnswerHead(payload));
    }
  }

  /** The first word of the answer, whether ANSWER or, overtaking it, DATA. */
  #begin(path: Path): Receiver {
    if (this.#state.is === "asking") this.#state = { is: "streaming" };
    this.#receiver ??= new Receiver(this.#now(), path.number, this.#offset, {
      ...WITH_ANOTHER_PATH,
      ...(this.pace !== "off" && {
        playout: this.pace === "smooth" ? smoothPlayout(path.connection.rtt_us) : this.pace,
      }),
    });
    this.#receiver.setHidden(this.#now(), this.hidden);
    return this.#receiver;
  }

  #handleFrame(path: Path, frame: Uint8Array, byStream: boolean): void {
    if (path !== this.#path || this.#state.is === "refused" || this.#state.is === "over") return;
    const [receiver, now] = [this.#begin(path), this.#now()];
    const fault = receiver.handleDatagram(now, frame);
    if (fault === null) {
      path.byStream = byStream;
      path.isSilent = false;
    }
    this.#drive();
  }

  /** The server has ended the stream: it refused, or knows that everything arrived (S-4.6). */
  #handleEnd(path: Path): void {
    if (path !== this.#path) return;
    path.ended = true;
    const state = this.#state;
    if (state.is === "refused") {
      const body = state.body.map((piece) => decodeUtf8(piece)).join("");
      this.listener.refused(state.head, body);
      this.#finish();
    } else if (state.is === "asking") {
      this.#lose(path, "the server ended the stream without an answer");
    } else {
      this.#drive();
    }
  }

  /** Tells what is due, sends what is due, and comes back when something is. */
  #drive(): void {
    const [path, receiver] = [this.#path, this.#receiver];
    if (!path || !receiver || (this.#state.is !== "streaming" && this.#state.is !== "told")) return;
    const now = this.#now();
    receiver.handleTimeout(now);
    const ends = this.#tellDeltas(receiver);
    this.#transmit(path, receiver, now);
    for (const end of ends) this.#handleEvent(path, end);
    if (path !== this.#path) return;
    if (receiver.closed || (path.ended && this.#state.is === "told")) return this.#finish();
    if (path.ended && receiver.starved) return this.#lose(path, "the server ended the stream too early");
    this.#schedule(receiver, now);
  }

  /** Tells deltas as far as the reader follows; returns the other events. */
  #tellDeltas(receiver: Receiver): ReceiverEvent[] {
    const deltas: Shown[] = [];
    const others: ReceiverEvent[] = [];
    while (this.#unread < MAX_UNREAD) {
      const event = receiver.pollEvent();
      if (event === null) break;
      if (event.event === "delta") {
        deltas.push([event.offset, event.delta]);
        this.#unread += 1;
      } else {
        others.push(event);
      }
    }
    if (deltas.length > 0) this.listener.deltas(deltas);
    return others;
  }

  #handleEvent(path: Path, event: ReceiverEvent): void {
    if (event.event === "complete") {
      this.#state = { is: "told" };
      this.listener.complete();
    } else if (event.event === "failed") {
      this.#state = { is: "told" };
      this.listener.failed(event.error);
    } else if (event.event === "silent" && !path.ended) {
      path.isSilent = true;
      setTimeout(() => this.#giveUp(path), GIVE_UP_AFTER_MS);
    }
  }

  /** The path was silent: it is dead unless something has arrived since. */
  #giveUp(path: Path): void {
    if (path !== this.#path || !path.isSilent || path.ended) return;
    this.#lose(path, "nothing was heard");
    path.connection.close(); // dead for the others too
  }

  #transmit(path: Path, receiver: Receiver, now: number): void {
    for (let frame = receiver.pollTransmit(now); frame; frame = receiver.pollTransmit(now)) {
      path.connection.send(frame);
      const writer = path.byStream ? path.stream?.writer : null;
      // Where data comes on the stream, datagrams may be lost both ways (S-4.4).
      if (writer && (writer.desiredSize ?? 0) > 0) {
        writer.write(encodeMessage(MessageType.Frame, frame)).catch(() => {});
      }
    }
  }

  #schedule(receiver: Receiver, now: number): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    const at = receiver.pollTimeout();
    this.#timer = at === null ? null : setTimeout(() => this.#drive(), Math.max(0, Math.ceil((at - now) / 1_000)));
  }
}
