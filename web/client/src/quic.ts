// One answer over a connection: asks or resumes on a stream, drives the receiver with what
// comes by datagram or on the stream, sends its acknowledgements (spec/session.md, 4).

import { type Connection, type Stream, reasonOf } from "./connection.js";
import { encodeFrame, greaseAck, kindOf, padAck } from "./frame.js";
import { greaseMember, greaseMessage, isGreased } from "./grease.js";
import { type PlayoutChoice, smoothPlayout } from "./playout.js";
import { epochOf, offsetOf, positionOf } from "./position.js";
import { Receiver, type ReceiverEvent, WITH_ANOTHER_PATH } from "./receiver.js";
import type { Delta } from "./delta.js";
import {
  type AnswerHead,
  Code,
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

/** A delta and the position after it (D-6.8). */
export type Shown = readonly [position: number, delta: Delta];

/** Receives what happens to an answer, in order. */
export interface AnswerListener {
  /** The server has begun; from here on the answer can be resumed. */
  answered(head: AnswerHead): void;
  /** The server said no. */
  refused(head: ResponseHead, body: string): void;
  /** The server lives, though it may have nothing new to say; told now and then. */
  heard(): void;
  /** Due to be shown. */
  deltas(deltas: Shown[]): void;
  /** The answer is complete. */
  complete(): void;
  /** The answer ends here and is incomplete. */
  failed(fault: WireFault | null): void;
  /** The server has ended the answer here, and says by `code` that no other path may go on (S-2.6). */
  ended(code: Code): void;
  /** The path is dead. Another one continues at `position`; if none does, `rest`, which was not due yet, is shown. */
  lost(position: number, loss: Loss, rest: Shown[]): void;
  /** Nothing more will be told or sent; comes once, last. */
  over(): void;
}

/** Why a path is dead. */
export interface Loss {
  readonly why: string;
  /** The two ends do not understand each other: the same request would fail again (S-2.6). */
  readonly malformed: boolean;
}

/** How often the page is told that the server is heard, at most, ms. */
const HEARD_EVERY_MS = 500;

/** Deltas told and not reported as read, after which the answer waits for its reader. */
const MAX_UNREAD = 512;

/** From this unanswered probe on, probes travel on the stream as well (D-9.5). */
const PROBES_BY_STREAM = 2;

/** Longest refusal that is read, bytes. */
const MAX_REFUSAL_BYTES = 64 * 1024;

/** How long nothing may come on the stream before an answer begins, ms, until another way is tried (S-4.12). */
const SILENT_FOR_MS = 10_000;

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
  readonly channel: number;
  /** Carries what the server must skip (S-2.7). */
  readonly greased: boolean;
  stream: Stream | null;
  /** The last DATA came on the stream: datagrams may not get through, one way or the other. */
  byStream: boolean;
  /** The newest frame for which the stream had no room yet. */
  waiting: Uint8Array | null;
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
  /** By which the server knows the answer, once it has begun. */
  #reference: { readonly id: string; readonly token: string } | null = null;
  #offset = 0;
  #epoch = 0;
  #unread = 0;
  #heardToldAt_ms = 0;
  #timer: ReturnType<typeof setTimeout> | null = null;

  constructor(
    readonly listener: AnswerListener,
    /** Milliseconds, monotonic. */
    readonly clock: () => number,
    readonly pace: PlayoutChoice,
    private hidden: boolean,
    /** Numbers in [0, 1), which decide about grease. */
    readonly random: () => number = Math.random,
  ) {}

  /** Asks for an answer (S-4.1). */
  ask(connection: Connection, head: RequestHead, body: string): void {
    const path = this.#enter(connection);
    const grease = path.greased ? greaseMember(this.random()) : {};
    const request = encodeJson(MessageType.Request, { ...head, channel: path.channel, ...grease });
    const end = encodeMessage(MessageType.Body, new Uint8Array(0));
    void this.#run(path, [request, encodeMessage(MessageType.Body, encodeUtf8(body)), end]);
  }

  /** Goes on with an answer (S-4.7): what has arrived here already stays (D-6.4). */
  resume(connection: Connection, id: string, token: string, position: number): void {
    const path = this.#enter(connection);
    const { channel } = path;
    this.#receiver?.migrate(this.#now(), channel);
    if (!this.#receiver) this.#epoch = epochOf(position);
    this.#offset = this.#receiver?.cumulative ?? offsetOf(position);
    const offset = positionOf(this.#epoch, this.#offset);
    const frame = { kind: "resume", channel, id: fromHex(id), token: fromHex(token), offset } as const;
    void this.#run(path, [encodeMessage(MessageType.Frame, encodeFrame(frame))]);
  }

  /** What it comes over; `null` while there is no path. */
  get connection(): Connection | null {
    return this.#path?.connection ?? null;
  }

  /** Goes on over `connection`, unless the server has not named the answer yet, or all of it is here. */
  moveTo(connection: Connection): void {
    if (this.#state.is !== "streaming" || this.#reference === null || this.#receiver?.ended) return;
    this.resume(connection, this.#reference.id, this.#reference.token, this.#offset);
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
    if (path) this.#sendStop(path, encodeFrame({ kind: "stop", channel: path.channel }));
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
    if (!this.#path?.ended) this.#path?.stream?.writer.close().catch(() => {});
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
    const path: Path = {
      connection,
      channel: connection.addChannel((datagram) => this.#handleFrame(path, datagram, false)),
      greased: isGreased(this.random()),
      stream: null,
      byStream: false,
      waiting: null,
      isSilent: false,
      ended: false,
    };
    this.#path = path;
    this.#awaitSign(path);
    return path;
  }

  /** Gives the server time to begin, or to say that it is there. */
  #awaitSign(path: Path): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#lose(path, "the server does not begin"), SILENT_FOR_MS);
  }

  /** Leaves the path; unless `reason` says so, its reset is no cancellation (S-4.5). */
  #leave(reset = true, reason?: unknown): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    this.#path?.connection.dropChannel(this.#path.channel);
    if (reset) this.#path?.stream?.writer.abort(reason).catch(() => {});
    this.#path = null;
  }

  #lose(path: Path, why: string, malformed = false): void {
    if (path !== this.#path || this.#state.is === "over") return;
    this.#leave(true, malformed ? reasonOf(Code.Malformed) : undefined);
    if (this.#state.is === "told") return this.#finish();
    const position = positionOf(this.#epoch, this.#receiver?.shown ?? this.#offset);
    this.listener.lost(position, { why, malformed }, this.#shown(this.#receiver?.unpolled ?? []));
  }

  /** The stream broke off, by whichever end: what the code says becomes of the answer (S-2.6). */
  #handleReset(path: Path, code: Code, why: string): void {
    if (path !== this.#path || this.#state.is === "over") return;
    if (this.#receiver?.ended && this.#state.is !== "told") {
      // Everything is here: what is left is to show it. Firefox reports even a clean end as an error.
      this.#begin(this.#receiver);
      return this.#handleEnd(path);
    }
    const isOver = code === Code.Superseded || code === Code.Stopped || code === Code.Cancelled;
    // A request that the server had not answered may be made elsewhere, a resume too.
    const isLeft = code === Code.ShuttingDown && this.#state.is !== "asking";
    if (this.#state.is === "told" || !(isOver || isLeft)) return this.#lose(path, why, code === Code.Malformed);
    this.#tellRest();
    if (this.#receiver?.ended) this.listener.complete();
    else this.listener.ended(code);
    this.#finish();
  }

  /** Writes the first messages and reads the stream to its end. */
  async #run(path: Path, messages: Uint8Array[]): Promise<void> {
    try {
      path.stream = await path.connection.openStream();
      if (path !== this.#path) return void path.stream.writer.abort().catch(() => {});
      for (const message of messages) writeTo(path, path.stream, message);
      if (path.greased) writeTo(path, path.stream, greaseMessage(this.random()));
      await this.#read(path, path.stream.readable);
      this.#handleEnd(path);
    } catch (error) {
      const ours = error instanceof WireError; // the server's violation, not its word
      this.#handleReset(path, ours ? Code.Malformed : await path.connection.codeOf(error), String(error));
    }
  }

  async #read(path: Path, readable: ReadableStream<Uint8Array>): Promise<void> {
    const reader = readable.getReader();
    const messages = new MessageReader();
    try {
      for (let next = await reader.read(); !next.done; next = await reader.read()) {
        path.connection.spend(next.value.length);
        if (path === this.#path && this.#state.is === "asking") this.#awaitSign(path);
        for (const message of messages.push(next.value)) this.#handleMessage(path, message);
        if (path !== this.#path) return void reader.cancel().catch(() => {});
      }
    } catch (error) {
      if (error instanceof WireError) reader.cancel(reasonOf(Code.Malformed)).catch(() => {});
      throw error;
    }
    if (messages.partial) throw new WireError("Truncated");
  }

  #handleMessage(path: Path, { type, payload }: Message): void {
    if (path !== this.#path) return;
    const state = this.#state;
    if (type === MessageType.Frame && state.is !== "refused") {
      this.#handleFrame(path, payload, true);
    } else if (type === MessageType.Answer && state.is === "asking") {
      const head = this.#answerHead(path, payload);
      this.#begin(this.#receiver ?? this.#newReceiver(path));
      this.listener.answered(head);
      this.#drive();
    } else if (type === MessageType.Response && state.is === "asking") {
      this.#state = { is: "refused", head: decodeResponseHead(payload), body: [] };
    } else if (type === MessageType.Body && state.is === "refused") {
      const bytes = state.body.reduce((sum, piece) => sum + piece.length, payload.length);
      if (bytes <= MAX_REFUSAL_BYTES) state.body.push(payload);
    } else if (type === MessageType.Answer && (state.is === "streaming" || state.is === "told")) {
      // Data has overtaken it; it names the answer all the same.
      this.listener.answered(this.#answerHead(path, payload));
    } else {
      throw new WireError("Malformed");
    }
  }

  /** An ANSWER's head, which is to the request that was made here (S-4.2, S-4.7). */
  #answerHead(path: Path, payload: Uint8Array): AnswerHead {
    const head = decodeAnswerHead(payload);
    if (head.channel !== path.channel || head.offset !== this.#offset) throw new WireError("Malformed");
    this.#reference = head;
    // What was told before it has an older epoch, and is compared if it is not there any more.
    this.#epoch = head.epoch;
    return head;
  }

  #newReceiver(path: Path): Receiver {
    const receiver = new Receiver(this.#now(), path.channel, this.#offset, {
      ...WITH_ANOTHER_PATH,
      ...(this.pace !== "off" && {
        playout: this.pace === "smooth" ? smoothPlayout(path.connection.rtt_us) : this.pace,
      }),
    });
    receiver.setHidden(this.#now(), this.hidden);
    return receiver;
  }

  /** The first word of the answer, whether ANSWER or, overtaking it, DATA. */
  #begin(receiver: Receiver): void {
    this.#receiver = receiver;
    if (this.#state.is === "asking") this.#state = { is: "streaming" };
  }

  #handleFrame(path: Path, frame: Uint8Array, byStream: boolean): void {
    if (path !== this.#path || this.#state.is === "refused" || this.#state.is === "over") return;
    const [receiver, now] = [this.#receiver ?? this.#newReceiver(path), this.#now()];
    if (receiver.handleDatagram(now, frame) !== null) return; // as if it had not come (D-2.5)
    this.#begin(receiver);
    this.#tellHeard();
    // The server has seen no acknowledgement of its datagrams: it needs one by this way now (S-4.4).
    if (byStream && !path.byStream) receiver.acknowledgeAtOnce(now);
    path.byStream = byStream;
    path.isSilent = false;
    this.#drive();
  }

  #tellHeard(): void {
    const now_ms = this.clock();
    if (now_ms - this.#heardToldAt_ms < HEARD_EVERY_MS) return;
    this.#heardToldAt_ms = now_ms;
    this.listener.heard();
  }

  /** The server has ended the stream: it refused, or knows that everything arrived (S-4.6). */
  #handleEnd(path: Path): void {
    if (path !== this.#path) return;
    path.ended = true;
    path.stream?.writer.close().catch(() => {}); // its end is answered with ours (S-4.6)
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
        deltas.push([positionOf(this.#epoch, event.offset), event.delta]);
        this.#unread += 1;
      } else {
        others.push(event);
      }
    }
    if (deltas.length > 0) this.listener.deltas(deltas);
    return others;
  }

  /** Tells at once what was held back: an error follows, which ends the reading (D-9.1). */
  #tellRest(): void {
    const rest = this.#shown(this.#receiver?.takeRest() ?? []);
    if (rest.length > 0) this.listener.deltas(rest);
  }

  #shown(deltas: readonly { offset: number; delta: Delta }[]): Shown[] {
    return deltas.map(({ offset, delta }) => [positionOf(this.#epoch, offset), delta]);
  }

  #handleEvent(path: Path, event: ReceiverEvent): void {
    if (event.event === "complete") {
      this.#state = { is: "told" };
      this.listener.complete();
    } else if (event.event === "failed") {
      this.#state = { is: "told" };
      this.#tellRest();
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
    for (let due = receiver.pollTransmit(now); due; due = receiver.pollTransmit(now)) {
      if (kindOf(due) === "stop") {
        this.#sendStop(path, due);
        continue;
      }
      if (path.greased) greaseAck(due);
      const frame = padAck(due);
      path.connection.send(frame);
      // Where data comes on the stream, or none at all, datagrams may be lost (S-4.4, D-9.5).
      const isHeard = !path.byStream && receiver.unansweredProbes < PROBES_BY_STREAM;
      if (!isHeard && path.stream) writeAck(path, path.stream, frame);
    }
  }

  /** By the stream, which loses nothing (D-6.6), if there is one. */
  #sendStop(path: Path, stop: Uint8Array): void {
    if (path.stream) writeTo(path, path.stream, encodeMessage(MessageType.Frame, stop));
    else path.connection.send(stop);
  }

  #schedule(receiver: Receiver, now: number): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    const at = receiver.pollTimeout();
    this.#timer = at === null ? null : setTimeout(() => this.#drive(), Math.max(0, Math.ceil((at - now) / 1_000)));
  }
}

/** Writes a message; what becomes of the stream is told where it is read. */
function writeTo(path: Path, { writer }: Stream, message: Uint8Array): void {
  path.connection.spend(message.length);
  writer.write(message).catch(() => {});
}

/** Writes an ACK; while the stream has no room only the newest waits, which says all the others said. */
function writeAck(path: Path, stream: Stream, ack: Uint8Array): void {
  const isWaiting = path.waiting !== null;
  path.waiting = ack;
  if (isWaiting) return;
  const write = (): void => {
    if (path.waiting) writeTo(path, stream, encodeMessage(MessageType.Frame, path.waiting));
    path.waiting = null;
  };
  if ((stream.writer.desiredSize ?? 0) > 0) write();
  else stream.writer.ready.then(write, () => {}); // a stream that is gone takes nothing
}
