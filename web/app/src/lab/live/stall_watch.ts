// Notices when a lane's text stands still, and when it goes on.

import { NOT_A_STALL_MS } from "../events.js";
import type { LaneEvent } from "../events.js";

/** Where the model itself is slow, a stall is this many of its gaps. */
const STALL_GAPS = 3;

/** Turns text and time into a lane's events. The first wait is no stall: the model is at work. */
export class StallWatch {
  readonly #limitMs: number;
  #lastAt: number | null = null;
  #isStalled = false;

  constructor(tokensPerS: number) {
    this.#limitMs = Math.max(NOT_A_STALL_MS, (STALL_GAPS * 1_000) / tokensPerS);
  }

  /** Text has come at `at`. */
  handleText(at: number): readonly LaneEvent[] {
    const before = this.handleTime(at);
    this.#lastAt = at;
    if (!this.#isStalled) return before;
    this.#isStalled = false;
    return [...before, { kind: "resumed", at }];
  }

  /** It is `at`, whether or not something has come. */
  handleTime(at: number): readonly LaneEvent[] {
    if (this.#lastAt === null || this.#isStalled || at - this.#lastAt <= this.#limitMs) return [];
    this.#isStalled = true;
    return [{ kind: "stalled", at: this.#lastAt + this.#limitMs, since: this.#lastAt }];
  }

  /** Nothing follows after `at`. */
  handleEnd(at: number, complete: boolean): readonly LaneEvent[] {
    const resumed: readonly LaneEvent[] = this.#isStalled ? [{ kind: "resumed", at }] : [];
    this.#lastAt = null;
    this.#isStalled = false;
    return [...resumed, { kind: "ended", at, complete }];
  }
}
