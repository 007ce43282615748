// Events of a lane whose text stands still, and goes on.

import { PauseWatch } from "../../message/pauses.js";
import { NOT_A_STALL_MS } from "../events.js";
import type { LaneEvent } from "../events.js";

/** Where the model itself is slow, a stall is this many of its gaps. */
const STALL_GAPS = 3;

/** Turns text and time into a lane's events. The first wait is no stall: the model is at work. */
export class StallWatch {
  readonly #pauses: PauseWatch;
  #isStalled = false;
  #isOver = false;

  constructor(tokensPerS: number) {
    this.#pauses = new PauseWatch({ shortestMs: NOT_A_STALL_MS, gaps: STALL_GAPS, gapMs: 1_000 / tokensPerS });
  }

  /** Text has come at `at`. */
  handleText(at: number): readonly LaneEvent[] {
    const before = this.handleTime(at);
    this.#pauses.handleTokens(at, 1);
    return [...before, ...this.#resume(at)];
  }

  /** It is `at`, whether or not something has come. */
  handleTime(at: number): readonly LaneEvent[] {
    const pause = this.#isStalled || this.#isOver ? null : this.#pauses.current(at);
    if (pause === null) return [];
    this.#isStalled = true;
    return [{ kind: "stalled", at: pause.since + this.#pauses.limitMs, since: pause.since }];
  }

  /** Nothing follows after `at`. */
  handleEnd(at: number, complete: boolean): readonly LaneEvent[] {
    this.#isOver = true;
    return [...this.#resume(at), { kind: "ended", at, complete }];
  }

  #resume(at: number): readonly LaneEvent[] {
    if (!this.#isStalled) return [];
    this.#isStalled = false;
    return [{ kind: "resumed", at }];
  }
}
