// The receiving side of one answer (spec/delivery.md, section 9): reassembly, acknowledgement,
// playout. The same state machine as `proto::Receiver`: both replay `spec/vectors/receiver.json`
// and `sessions.json`.
// Time (in whole microseconds of any clock) and bytes are arguments; what is due is polled.

import { Assembler, type AssemblerLimits, DEFAULT_LIMITS } from "./assembler.js";
import { ACK_WINDOW, type DataFrame, MAX_ACK_RANGES, decodeFrame, encodeFrame } from "./frame.js";
import { PLAY_AT_ONCE, type Playout, PlayoutClock } from "./playout.js";
import { type Delta, tokensOf } from "./delta.js";
import { MAX_INT, WireError, type WireFault } from "./wire.js";

/** Parameters of a {@link Receiver}. */
export interface ReceiverConfig {
  /** Bounds of what waits for a hole to fill, or to be shown (D-7.1). */
  readonly limits: AssemblerLimits;
  /** Frames carry a checksum and must (D-2.4). */
  readonly checked: boolean;
  /** When to show what has arrived. */
  readonly playout: Playout;
  /** Gap between acknowledgements that carry no news, microseconds. */
  readonly ackGap_us: number;
  /** Send a probe after this time without a frame, and further ones ever less often. */
  readonly probeAfter_us: number;
  /** Report `silent` after this time without a frame. */
  readonly silentAfter_us: number;
  /** How long to go on acknowledging after the end (D-9.1). */
  readonly linger_us: number;
}

/** What `spec/vectors` are written for. */
export const DEFAULT_CONFIG: ReceiverConfig = {
  limits: DEFAULT_LIMITS,
  checked: false,
  playout: PLAY_AT_ONCE,
  ackGap_us: 100_000,
  probeAfter_us: 2_000_000,
  silentAfter_us: 10_000_000,
  linger_us: 3_000_000,
};

/**
 * For a client that can try another path (S-4.10): after 3 s without a frame two probes have gone
 * unanswered, and trying another path costs one request.
 */
export const WITH_ANOTHER_PATH = { probeAfter_us: 1_000_000, silentAfter_us: 3_000_000 } as const;

/** What a {@link Receiver} reports to its driver, in order. */
export type ReceiverEvent =
  /** The next step, due to be shown; `offset` after it is the cursor from which to resume. */
  | { readonly event: "delta"; readonly offset: number; readonly delta: Delta }
  /** The log's end was shown: the answer is complete. */
  | { readonly event: "complete" }
  /**
   * The answer ends here and is incomplete: the sender reported an error (its delta came
   * before), or the log cannot be read, or the sender does not have it any more.
   */
  | { readonly event: "failed"; readonly error: WireFault | null }
  /** Nothing was heard for `silentAfter_us`: said once per silence. */
  | { readonly event: "silent" };

type State =
  | { readonly is: "open" }
  /** The last record was shown; acknowledging until then. */
  | { readonly is: "lingering"; readonly until: number }
  | { readonly is: "closed" };

/** Deltas read ahead for the playout clock; the rest waits as bytes. */
const MAX_QUEUE = 512;

/**
 * Events that may wait to be polled. A driver that stops polling thereby fills the queue,
 * then the limits, and at last makes the sender wait: memory stays bounded.
 */
const MAX_EVENTS = 512;

/** Unanswered probes, each after twice the silence of the one before. */
const MAX_PROBES = 5;

const WINDOW = (1n << BigInt(ACK_WINDOW)) - 1n;

/** Packets that have arrived, as an acknowledgement reports them (D-5.4). */
class Arrived {
  largest: number | null = null;
  largestAt = 0;
  /** Bit i: packet `largest - 1 - i` has arrived. */
  #before = 0n;

  note(now: number, packet: number): void {
    if (this.largest === null || packet > this.largest) {
      const shift = this.largest === null ? Infinity : packet - this.largest;
      this.#before = shifted(this.#before, shift) | shifted(1n, shift - 1);
      this.largest = packet;
      this.largestAt = now;
    } else if (packet < this.largest) {
      this.#before |= shifted(1n, this.largest - packet - 1);
    }
  }

  get missing(): number {
    const reported = Math.min(this.largest ?? 0, ACK_WINDOW);
    return Number(~this.#before & ((1n << BigInt(reported)) - 1n));
  }
}

function shifted(bits: bigint, by: number): bigint {
  return by < ACK_WINDOW ? (bits << BigInt(by)) & WINDOW : 0n;
}

/** The earliest of the times that are set. */
function earliest(...times: (number | null)[]): number | null {
  const set = times.filter((time) => time !== null);
  return set.length === 0 ? null : Math.min(...set);
}

/**
 * Receives one answer. After every call with `now`, and when {@link pollTimeout} has come,
 * call {@link handleTimeout}, then poll events and transmits until `null`. What was polled
 * as an event counts as shown.
 */
export class Receiver {
  readonly #config: ReceiverConfig;
  #channel: number;
  #state: State = { is: "open" };
  readonly #assembler: Assembler;
  readonly #playout: PlayoutClock;
  /** Read from the log, not shown yet. */
  #queue: { offset: number; delta: Delta }[] = [];
  #queuedTokens = 0;
  #events: ReceiverEvent[] = [];
  /** The time of the latest call. */
  #now: number;
  #shown: number;
  #arrived = new Arrived();
  #hidden = false;
  #nextAck = 0;
  #ackAt: number | null = null;
  #lastAck: number | null = null;
  #silentSince: number;
  #probes = 0;
  #silentSaid = false;
  #stopping = false;

  /** Receives the answer on `channel` from log `offset` on: 0, or where an earlier receiver stood. */
  constructor(now: number, channel: number, offset: number, config: Partial<ReceiverConfig> = {}) {
    this.#config = { ...DEFAULT_CONFIG, ...config };
    this.#channel = channel;
    this.#assembler = new Assembler(offset, this.#config.limits);
    this.#playout = new PlayoutClock(this.#config.playout);
    this.#now = now;
    this.#shown = offset;
    this.#silentSince = now;
  }

  /**
   * Goes on with the same answer on another path, as `channel` of another connection: what
   * has arrived stays. Ask the sender to resume from {@link cumulative} (D-6.4).
   */
  migrate(now: number, channel: number): void {
    this.#channel = channel;
    // Beyond the cumulative offset the next sender may have other bytes (D-6.8).
    this.#assembler.forgetHeld();
    this.#arrived = new Arrived();
    this.#nextAck = 0;
    this.#lastAck = null;
    this.#ackAt = null;
    this.#beginSilence(now);
  }

  /** Offset below which every byte has arrived: where a resume in place goes on. */
  get cumulative(): number {
    return this.#assembler.cumulative;
  }

  /** Offset after the last delta that was due to be shown. */
  get shown(): number {
    return this.#shown;
  }

  /** Whether the last record was read: what is left is to show it, and needs no sender. */
  get ended(): boolean {
    return this.#assembler.ended;
  }

  /** Whether everything that has arrived was shown, and more is expected. */
  get starved(): boolean {
    return this.#state.is === "open" && this.#shown === this.cumulative;
  }

  /** Whether the answer is over and nothing more will be sent or shown. */
  get closed(): boolean {
    return this.#state.is === "closed" && this.#events.length === 0;
  }

  /**
   * Probes that nothing has followed. From the second on they travel by the reliable stream too,
   * where there is one (D-9.5).
   */
  get unansweredProbes(): number {
    return this.#probes;
  }

  /** Acknowledges at once: acknowledgements travel another way from now on (S-4.4). */
  acknowledgeAtOnce(now: number): void {
    this.#catchUp(now);
    this.#ackAt = now;
  }

  /** Nobody looks at the answer any more, or somebody does again. */
  setHidden(now: number, hidden: boolean): void {
    this.#catchUp(now);
    if (this.#hidden === hidden) return;
    this.#hidden = hidden;
    this.#ackAt = now;
    this.#showDue(now);
  }

  /** The reader's speed has changed. */
  setPlayout(now: number, playout: Playout): void {
    this.#catchUp(now);
    this.#playout.setPlayout(playout);
    this.#ackAt = now;
    this.#showDue(now);
  }

  /** The reader wants no more: sends STOP (D-6.6) and closes. */
  stop(): void {
    if (this.#state.is !== "open") return;
    this.#state = { is: "closed" };
    this.#stopping = true;
  }

  /** A datagram has arrived. Returns what was wrong with it, in which case it had no effect. */
  handleDatagram(now: number, datagram: Uint8Array): WireFault | null {
    try {
      this.#handleFrame(now, datagram);
      return null;
    } catch (error) {
      if (error instanceof WireError) return error.fault;
      throw error;
    }
  }

  #handleFrame(now: number, datagram: Uint8Array): void {
    const frame = decodeFrame(datagram, this.#config.checked);
    if (frame.channel !== this.#channel) throw new WireError("WrongChannel");
    if (frame.kind === "data") this.#handleData(now, frame);
    else if (frame.kind !== "gone") throw new WireError("Malformed");
    else if (!this.#mayBeWhole()) this.#fail(null);
  }

  #handleData(now: number, data: DataFrame): void {
    if (this.#state.is === "closed") return;
    this.#catchUp(now);
    this.#beginSilence(now);
    this.#arrived.note(now, data.packet);
    const held = this.#assembler.heldBytes;
    // What is not shown yet counts against the same bound as what has holes.
    const room = Math.max(0, this.#shown + this.#config.limits.maxBytes - data.offset);
    const moved = this.#insert(data.offset, data.bytes.subarray(0, room));
    const news = moved || this.#assembler.heldBytes !== held;
    const quietUntil = this.#lastAck === null ? now : this.#lastAck + this.#config.ackGap_us;
    const ackAt = news ? now : Math.max(quietUntil, now);
    this.#ackAt = Math.min(this.#ackAt ?? ackAt, ackAt);
    this.#readAhead(now);
    this.#showDue(now);
  }

  #insert(offset: number, bytes: Uint8Array): boolean {
    try {
      return this.#assembler.insert(offset, bytes);
    } catch (error) {
      if (error instanceof WireError && error.fault === "NoRoom") return false;
      throw error;
    }
  }

  /** Reads records for the playout clock, as far as its queue allows. */
  #readAhead(now: number): void {
    let arrived = 0;
    while (this.#queue.length < MAX_QUEUE && this.#state.is === "open") {
      const next = this.#pollAssembler();
      if (next === null) break;
      const tokens = tokensOf(next.delta);
      arrived += tokens;
      this.#queuedTokens += tokens;
      this.#queue.push(next);
    }
    if (arrived > 0) this.#playout.onArrival(now, arrived);
  }

  #pollAssembler(): { offset: number; delta: Delta } | null {
    try {
      return this.#assembler.poll();
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      this.#fail(error.fault);
      return null;
    }
  }

  /**
   * Shows what became due since the latest call, each delta at its own time: the pace is the same
   * however coarse the driver's timers are.
   */
  #catchUp(now: number): void {
    for (let at = this.#playout.nextAt; at !== null && at <= now; at = this.#playout.nextAt) {
      const shown = this.#shown;
      this.#showDue(Math.max(at, this.#now));
      if (this.#shown === shown) break;
    }
    this.#now = now;
  }

  /** Moves what is due from the queue to the events. */
  #showDue(now: number): void {
    for (let next = this.#queue[0]; next !== undefined; next = this.#queue[0]) {
      const tokens = tokensOf(next.delta);
      const heldBack = tokens > 0 && !this.#hidden;
      if (this.#events.length >= MAX_EVENTS) return;
      if (heldBack && (this.#playout.nextAt ?? 0) > now) return;
      const wasBehind = this.#isBehind();
      this.#queue.shift();
      this.#queuedTokens -= tokens;
      this.#playout.onShown(now, tokens, this.#queuedTokens);
      this.#show(now, next.offset, next.delta);
      this.#readAhead(now);
      if (wasBehind && !this.#isBehind()) this.#beginSilence(now);
    }
  }

  /**
   * Silence counts from `now` on: a frame came, a path began, or the reader is no longer behind, so
   * that only from here on the sender is needed (D-9.4, D-9.6).
   */
  #beginSilence(now: number): void {
    this.#silentSince = now;
    this.#probes = 0;
    this.#silentSaid = false;
  }

  #show(now: number, offset: number, delta: Delta): void {
    this.#shown = offset;
    this.#events.push({ event: "delta", offset, delta });
    if (delta.kind !== "done" && delta.kind !== "error") return;
    this.#events.push(delta.kind === "done" ? { event: "complete" } : { event: "failed", error: null });
    this.#state = { is: "lingering", until: now + this.#config.linger_us };
  }

  #fail(error: WireFault | null): void {
    this.#state = { is: "closed" };
    this.#stopping = error !== null; // a sender that has gone needs no STOP
    this.#events.push({ event: "failed", error });
  }

  /** Time has passed: shows what is due, asks an overdue sender, ends the lingering. */
  handleTimeout(now: number): void {
    this.#catchUp(now);
    this.#showDue(now);
    if (this.#state.is === "lingering" && now >= this.#state.until) this.#state = { is: "closed" };
    const silentAt = this.#silentAt();
    if (silentAt !== null && now >= silentAt) {
      this.#silentSaid = true;
      this.#events.push({ event: "silent" });
    }
  }

  /** When to call {@link handleTimeout} next; `null`: only after something else happened. */
  pollTimeout(): number | null {
    if (this.#state.is === "closed") return null;
    const linger = this.#state.is === "lingering" ? this.#state.until : null;
    const showing = this.#queue.length > 0 && this.#events.length < MAX_EVENTS;
    const showAt = showing ? this.#playout.nextAt : null;
    return earliest(linger, showAt, this.#ackAt, this.#probeAt(), this.#silentAt());
  }

  /** What has happened, once each and in order. */
  pollEvent(): ReceiverEvent | null {
    if (this.#events.length === 0 && this.#state.is !== "closed") this.#showDue(this.#now); // had no room
    return this.#events.shift() ?? null;
  }

  /** What was read from the log and not polled; it stays here. */
  get unpolled(): readonly { offset: number; delta: Delta }[] {
    return [...this.#events.filter((event) => event.event === "delta"), ...this.#queue];
  }

  /** What has arrived in order and was not polled: for a driver whose path has ended for good. */
  takeRest(): { offset: number; delta: Delta }[] {
    const rest = [...this.unpolled];
    [this.#events, this.#queue, this.#queuedTokens] = [[], [], 0];
    // What was not read ahead; of a log that cannot be read only what came before that.
    for (let next = this.#pollAssembler(); next !== null; next = this.#pollAssembler()) rest.push(next);
    this.#events = [];
    return rest;
  }

  /** The datagram that is due at `now`, if one is. */
  pollTransmit(now: number): Uint8Array | null {
    if (this.#stopping) {
      this.#stopping = false;
      return encodeFrame({ kind: "stop", channel: this.#channel }, this.#config.checked);
    }
    if (this.#state.is === "closed") return null;
    const probeAt = this.#probeAt();
    const probe = probeAt !== null && now >= probeAt;
    if (!probe && (this.#ackAt === null || now < this.#ackAt)) return null;
    const ack = this.#encodeAck(now, probe);
    this.#probes += probe ? 1 : 0;
    this.#nextAck += 1;
    this.#ackAt = null;
    this.#lastAck = now;
    return ack;
  }

  #encodeAck(now: number, probe: boolean): Uint8Array {
    const cumulative = this.#assembler.cumulative;
    const ack = {
      kind: "ack",
      channel: this.#channel,
      number: this.#nextAck,
      cumulative,
      largest: this.#arrived.largest,
      missing: this.#arrived.missing,
      hold_us: this.#arrived.largest === null ? 0 : Math.max(0, now - this.#arrived.largestAt),
      unshown: cumulative - this.#shown,
      pace: this.#paceBytesPerS(now),
      hidden: this.#hidden,
      probe,
      ranges: this.#assembler.held.slice(0, MAX_ACK_RANGES),
    } as const;
    return encodeFrame(ack, this.#config.checked);
  }

  /** How fast unshown bytes are being shown; 0 if nothing is held back. */
  #paceBytesPerS(now: number): number {
    const step = this.#playout.step(now, this.#queuedTokens);
    if (step === 0 || this.#queuedTokens === 0 || this.#hidden) return 0;
    const queued = (this.#queue.at(-1)?.offset ?? this.#shown) - this.#shown;
    const bytesPerTokenMilli = Math.floor((queued * 1_000) / this.#queuedTokens);
    return Math.min(Math.floor((bytesPerTokenMilli * 1_000) / step), MAX_INT);
  }

  /**
   * Whether anything is still to come. What has arrived can be shown without the sender, and a
   * reader that is behind is in no hurry to learn that its path is dead.
   */
  #needsSender(): boolean {
    return this.#state.is === "open" && !this.#mayBeWhole() && !this.#isBehind();
  }

  /** Whether the last record has arrived, or may be among what was not read yet. */
  #mayBeWhole(): boolean {
    return this.#state.is !== "open" || this.#assembler.ended || this.#queue.length >= MAX_QUEUE;
  }

  /** Whether nothing more can be taken in before the reader is shown something (D-9.4). */
  #isBehind(): boolean {
    const unshown = this.#assembler.cumulative - this.#shown;
    return this.#queue.length >= MAX_QUEUE || unshown >= this.#config.limits.maxBytes;
  }

  #probeAt(): number | null {
    const asking = this.#needsSender() && this.#probes < MAX_PROBES;
    return asking ? this.#silentSince + this.#config.probeAfter_us * 2 ** this.#probes : null;
  }

  #silentAt(): number | null {
    const waiting = this.#needsSender() && !this.#silentSaid;
    return waiting ? this.#silentSince + this.#config.silentAfter_us : null;
  }
}
