// Everything that happened in one lane, kept so that any moment of it can be looked at: columns of
// numbers with running sums, searched by time. Thousands of packets cost a few searches per frame.

import type { LaneEvent, TokenRun } from "./events.js";

/** How many events of a kind a lane keeps; what comes later is counted in `dropped`. */
const MAX_EVENTS = 100_000;

/** What happened to a packet, as far as it is known. */
export type Fate = "flying" | "arrived" | "lost";

/** One packet. */
export interface Packet {
  readonly number: number;
  readonly sentAt: number;
  readonly way: "down" | "up";
  readonly bytes: number;
  readonly carried: readonly TokenRun[] | null;
  /** Whether it is the first to carry its last token; false for repetitions and acknowledgements. */
  readonly isNews: boolean;
  arrivedAt: number;
  isLost: boolean;
}

/** A wait that the reader notices from `noticedAt` on; `to` is infinite while it lasts. */
export interface Stall {
  readonly since: number;
  readonly noticedAt: number;
  to: number;
}

/** A lane at one moment. */
export interface LaneMoment {
  readonly shownTokens: number;
  readonly shownChars: number;
  /** Characters that the model had generated; 0 where the source does not know them. */
  readonly generatedChars: number;
  /** Packets sent to the reader, and how many of them were lost. */
  readonly packets: number;
  readonly lost: number;
  readonly bytesDown: number;
  readonly bytesUp: number;
  readonly stalls: number;
  /** Milliseconds spent in stalls, each from the text before it. */
  readonly stalledMs: number;
  readonly isStalled: boolean;
  /** Mean time from a token's generation to its display; null before the first, or if unknown. */
  readonly delayMs: number | null;
  readonly isComplete: boolean;
}

/** A column that only grows at its end, with what it adds up to. */
class Sums {
  readonly at: number[] = [];
  readonly total: number[] = [];

  add(at: number, amount: number): void {
    this.total.push((this.total.at(-1) ?? 0) + amount);
    this.at.push(at);
  }

  /** How many amounts had been added by `time`. */
  countBy(time: number): number {
    return countUntil(this.at, time);
  }

  /** What had been added by `time`. */
  by(time: number): number {
    return this.total[countUntil(this.at, time) - 1] ?? 0;
  }
}

/** How many of the rising `times` are at most `time`. */
export function countUntil(times: readonly number[], time: number): number {
  return partition(times, (other) => other <= time);
}

/** How many of the rising `times` are below `time`. */
function countBelow(times: readonly number[], time: number): number {
  return partition(times, (other) => other < time);
}

/** How many times are in the first part, all of which `isFirst`. */
function partition(times: readonly number[], isFirst: (time: number) => boolean): number {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isFirst(times[middle] as number)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** One way of delivering the answer, and all that has happened in it so far. */
export class Lane {
  /** A short name: "TCP". */
  readonly name: string;
  readonly packets: Packet[] = [];
  readonly stalls: Stall[] = [];
  /** All text shown so far. */
  text = "";
  /** All text generated so far; empty where the source does not know it. */
  generatedText = "";
  /** How long the latest packet that arrived was under way, in ms. */
  flightMs = 100;
  /** When the lane ended; infinite while it has not. */
  endedAt = Number.POSITIVE_INFINITY;
  /** Events that were not kept. */
  dropped = 0;
  /** The time of the latest event. */
  latest = 0;

  readonly #sentAt: number[] = [];
  readonly #byNumber = new Map<number, Packet>();
  readonly #generatedAt: number[] = [];
  readonly #generatedChars = new Sums();
  readonly #chars = new Sums();
  readonly #tokens = new Sums();
  readonly #delay = new Sums();
  readonly #down = new Sums();
  readonly #up = new Sums();
  readonly #lost = new Sums();
  readonly #shownAt: number[] = [];
  #shownTokens = 0;
  #sentTokens = 0;
  #isComplete = false;

  constructor(name: string) {
    this.name = name;
  }

  /** Takes the next event. Events of unknown packets are ignored. */
  add(event: LaneEvent): void {
    if (this.packets.length >= MAX_EVENTS || this.#shownAt.length >= MAX_EVENTS) {
      this.dropped += 1;
      return;
    }
    this.latest = Math.max(this.latest, event.at);
    switch (event.kind) {
      case "token":
        this.#generatedAt.push(event.at);
        this.#generatedChars.add(event.at, event.text.length);
        this.generatedText += event.text;
        return;
      case "sent":
        return this.#addPacket(event);
      case "arrived":
      case "lost":
        return this.#settle(event.kind, event.at, event.packet);
      case "shown":
        return this.#show(event.at, event.text, event.tokens);
      case "stalled":
        this.stalls.push({ since: event.since, noticedAt: event.at, to: Number.POSITIVE_INFINITY });
        return;
      case "resumed":
        return this.#resume(event.at);
      case "ended":
        this.endedAt = event.at;
        this.#isComplete = event.complete;
    }
  }

  #addPacket(event: Extract<LaneEvent, { kind: "sent" }>): void {
    const end = (event.carried ?? []).reduce((most, run) => Math.max(most, run.first + run.count), 0);
    const isNews = event.way === "down" && (event.carried === null || end > this.#sentTokens);
    this.#sentTokens = Math.max(this.#sentTokens, end);
    const { packet: number, at: sentAt, way, bytes, carried } = event;
    const packet: Packet = { number, sentAt, way, bytes, carried, isNews, arrivedAt: Number.NaN, isLost: false };
    this.packets.push(packet);
    this.#sentAt.push(sentAt);
    this.#byNumber.set(number, packet);
    (way === "down" ? this.#down : this.#up).add(sentAt, bytes);
  }

  #settle(fate: "arrived" | "lost", at: number, number: number): void {
    const packet = this.#byNumber.get(number);
    if (!packet || packet.isLost || !Number.isNaN(packet.arrivedAt)) return;
    if (fate === "arrived") {
      packet.arrivedAt = at;
      if (packet.way === "down") this.flightMs = at - packet.sentAt;
      return;
    }
    packet.isLost = true;
    if (packet.way === "down") this.#lost.add(at, 1);
  }

  #show(at: number, text: string, tokens: number): void {
    this.text += text;
    this.#shownAt.push(at);
    this.#chars.add(at, text.length);
    this.#tokens.add(at, tokens);
    let delay = 0;
    for (const generated of this.#generatedAt.slice(this.#shownTokens, this.#shownTokens + tokens)) {
      delay += at - generated;
    }
    this.#delay.add(at, delay);
    this.#shownTokens += tokens;
  }

  #resume(at: number): void {
    const last = this.stalls.at(-1);
    if (last && last.to === Number.POSITIVE_INFINITY) last.to = at;
  }

  /** The lane as it was at `time`. */
  moment(time: number): LaneMoment {
    const shownTokens = this.#tokens.by(time);
    const noticed = this.stalls.filter((stall) => stall.noticedAt <= time);
    const delayKnown = shownTokens > 0 && this.#generatedAt.length >= shownTokens;
    return {
      shownTokens,
      shownChars: this.#chars.by(time),
      generatedChars: this.#generatedChars.by(time),
      packets: this.#down.countBy(time),
      lost: this.#lost.by(time),
      bytesDown: this.#down.by(time),
      bytesUp: this.#up.by(time),
      stalls: noticed.length,
      stalledMs: noticed.reduce((sum, stall) => sum + Math.min(stall.to, time) - stall.since, 0),
      isStalled: noticed.some((stall) => stall.to > time),
      delayMs: delayKnown ? this.#delay.by(time) / shownTokens : null,
      isComplete: this.#isComplete && time >= this.endedAt,
    };
  }

  /** How many packets had left by `time`; they are in the order of leaving. */
  packetsBy(time: number): number {
    return countUntil(this.#sentAt, time);
  }

  /** Whether a packet was flying, there or lost at `time`. */
  fate(packet: Packet, time: number): Fate {
    if (packet.isLost) return "lost";
    return packet.arrivedAt <= time ? "arrived" : "flying";
  }

  /** When the text changed, in order. */
  get changes(): readonly number[] {
    return this.#shownAt;
  }

  /** How many tokens the reader sees by the end of the events so far. */
  get shownTokens(): number {
    return this.#shownTokens;
  }

  /** When tokens were generated, in order. */
  get generated(): readonly number[] {
    return this.#generatedAt;
  }

  /** The text of the generated tokens of `run`, as far as it is known. */
  textOf(run: TokenRun): string {
    const start = run.first > 0 ? (this.#generatedChars.total[run.first - 1] ?? 0) : 0;
    const end = this.#generatedChars.total[run.first + run.count - 1];
    return end === undefined ? "" : this.generatedText.slice(start, end);
  }

  /** The first time after `time` at which something happened; infinite if nothing did. */
  nextAfter(time: number): number {
    return this.#neighbour((times) => times[countUntil(times, time)], Math.min, Number.POSITIVE_INFINITY);
  }

  /** The last time before `time` at which something happened; minus infinity if nothing did. */
  lastBefore(time: number): number {
    return this.#neighbour((times) => times[countBelow(times, time) - 1], Math.max, Number.NEGATIVE_INFINITY);
  }

  #neighbour(
    choose: (times: readonly number[]) => number | undefined,
    better: (a: number, b: number) => number,
    none: number,
  ): number {
    return [this.#sentAt, this.#shownAt, this.#generatedAt].reduce(
      (best, times) => better(best, choose(times) ?? none),
      none,
    );
  }
}
