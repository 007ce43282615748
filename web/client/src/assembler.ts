// The log on the side that receives it: ranges in any order, deltas out in order, exactly
// once. The same rules as `proto::Assembler`.

import { type Delta, decodeRecord, isLast } from "./delta.js";
import { MAX_INT, WireError } from "./wire.js";

/** Bounds of an {@link Assembler} (D-7.1). */
export interface AssemblerLimits {
  /** Bytes held in all: contiguous ones not read yet, and ranges beyond a hole. */
  readonly maxBytes: number;
  /** Ranges held beyond a hole. */
  readonly maxRanges: number;
}

/** 128 KiB, a few of the longest records, and 16 ranges: more than is ever in flight. */
export const DEFAULT_LIMITS: AssemblerLimits = { maxBytes: 128 * 1024, maxRanges: 16 };

interface Held {
  readonly start: number;
  readonly bytes: Uint8Array;
}

const endOf = (held: Held): number => held.start + held.bytes.length;

function joined(first: Uint8Array, second: Uint8Array): Uint8Array {
  const both = new Uint8Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}

/**
 * Puts byte ranges of a log back in order and reads its records.
 *
 * Whatever arrives, in whatever order and however often: memory stays within the limits,
 * every delta comes out once and in order, and bytes that were accepted are never replaced
 * by later ones (D-4.4).
 */
export class Assembler {
  readonly #limits: AssemblerLimits;
  /** Contiguous bytes from the cursor on are `#ready[#taken..]`. */
  #ready: Uint8Array = new Uint8Array(0);
  #taken = 0;
  #cursor: number;
  /** Ascending and apart. */
  #held: Held[] = [];
  #heldBytes = 0;
  #ended = false;
  #failed: WireError | null = null;

  /** Expects the log from `offset` on, the start of a record. */
  constructor(offset: number, limits: AssemblerLimits = DEFAULT_LIMITS) {
    this.#cursor = offset;
    this.#limits = limits;
  }

  /** Offset below which every byte has arrived: the cumulative acknowledgement (D-5.2). */
  get cumulative(): number {
    return this.#cursor + this.#ready.length - this.#taken;
  }

  /** Offset after the last record that was polled. */
  get cursor(): number {
    return this.#cursor;
  }

  /** Whether the last record was polled. */
  get ended(): boolean {
    return this.#ended;
  }

  /** Ranges held beyond the first hole, ascending. */
  get held(): [number, number][] {
    return this.#held.map((held) => [held.start, endOf(held)]);
  }

  /** Bytes in {@link held}. */
  get heldBytes(): number {
    return this.#heldBytes;
  }

  /** Forgets the ranges beyond the first hole: they may be of another log. */
  forgetHeld(): void {
    this.#held = [];
    this.#heldBytes = 0;
  }

  /**
   * Takes in `bytes` at `offset`, copied; returns whether {@link cumulative} moved.
   *
   * @throws {WireError} `NoRoom` if the limits do not allow it (what fits contiguously is
   * taken, the rest counts as lost); `Malformed` for offsets that cannot be; or what
   * {@link poll} threw.
   */
  insert(offset: number, bytes: Uint8Array): boolean {
    if (this.#failed) throw this.#failed;
    const end = offset + bytes.length;
    if (end > MAX_INT) throw new WireError("Malformed");
    const cumulative = this.cumulative;
    if (end <= cumulative) return false;
    if (offset > cumulative) {
      this.#hold(offset, bytes);
      return false;
    }
    const news = bytes.subarray(cumulative - offset);
    // Held ranges can always be had again; contiguous bytes cannot wait for them.
    if (news.length > this.#room()) this.forgetHeld();
    const room = this.#room();
    this.#append(news.subarray(0, room));
    this.#joinHeld();
    if (room === 0) throw new WireError("NoRoom");
    return true;
  }

  /**
   * The next complete delta and the offset after it; `null` if none is complete. Unknown
   * kinds are skipped (D-3.5).
   *
   * @throws {WireError} if the log cannot be read any further; every later call throws it
   * again.
   */
  poll(): { offset: number; delta: Delta } | null {
    if (this.#failed) throw this.#failed;
    try {
      return this.#nextDelta();
    } catch (error) {
      if (error instanceof WireError) this.#failed = error;
      throw error;
    }
  }

  #nextDelta(): { offset: number; delta: Delta } | null {
    while (!this.#ended) {
      const record = decodeRecord(this.#ready.subarray(this.#taken));
      if (record === null) break;
      this.#taken += record.length;
      this.#cursor += record.length;
      if (record.delta !== null) {
        this.#ended = isLast(record.delta);
        return { offset: this.#cursor, delta: record.delta };
      }
    }
    this.#dropTaken();
    return null;
  }

  #room(): number {
    const used = this.#ready.length - this.#taken + this.#heldBytes;
    return Math.max(0, this.#limits.maxBytes - used);
  }

  #append(news: Uint8Array): void {
    this.#dropTaken();
    this.#ready = joined(this.#ready, news);
  }

  #dropTaken(): void {
    if (this.#taken === 0) return;
    this.#ready = this.#ready.slice(this.#taken);
    this.#taken = 0;
  }

  /** Keeps the parts of a range beyond a hole that are not held yet. */
  #hold(offset: number, bytes: Uint8Array): void {
    const end = offset + bytes.length;
    let at = offset;
    while (at < end) {
      const covering = this.#held.find((held) => held.start <= at && endOf(held) > at);
      if (covering) {
        at = endOf(covering);
        continue;
      }
      const next = this.#held.find((held) => held.start > at);
      const stop = Math.min(end, next?.start ?? end);
      this.#holdPart(at, bytes.slice(at - offset, stop - offset));
      at = stop;
    }
  }

  /** Keeps `part`, joined to the ranges that touch it. */
  #holdPart(start: number, part: Uint8Array): void {
    if (part.length > this.#room()) throw new WireError("NoRoom");
    const before = this.#held.find((held) => endOf(held) === start);
    const after = this.#held.find((held) => held.start === start + part.length);
    if (!before && this.#held.length >= this.#limits.maxRanges) throw new WireError("NoRoom");
    let range: Held = before ? { start: before.start, bytes: joined(before.bytes, part) } : { start, bytes: part };
    if (after) range = { start: range.start, bytes: joined(range.bytes, after.bytes) };
    this.#held = this.#held.filter((held) => held !== before && held !== after);
    const at = this.#held.findIndex((held) => held.start > range.start);
    this.#held.splice(at < 0 ? this.#held.length : at, 0, range);
    this.#heldBytes += part.length;
  }

  #joinHeld(): void {
    for (;;) {
      const first = this.#held[0];
      if (!first || first.start > this.cumulative) return;
      this.#held.shift();
      this.#heldBytes -= first.bytes.length;
      const news = this.cumulative - first.start;
      if (news < first.bytes.length) this.#append(first.bytes.subarray(news));
    }
  }
}
