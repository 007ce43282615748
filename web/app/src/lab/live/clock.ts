// The present of a live run, a moment late: what happens on the link is told a moment after it happens.

import type { Moment } from "../playhead.js";

/** How late the page shows things, in ms: more than news of the link take to arrive. */
const BEHIND_MS = 150;

/** Time since a run began, with the screen's frames until it is stopped. */
export class LiveClock implements Moment {
  #began: number | null = null;
  #stoppedAt: number | null = null;
  #frame: number | null = null;
  readonly #listeners = new Set<() => void>();

  /** Milliseconds since the run began: when something happened. */
  get now(): number {
    return this.#began === null ? 0 : performance.now() - this.#began;
  }

  /** The moment to show. */
  get time(): number {
    return this.#stoppedAt ?? Math.max(0, this.now - BEHIND_MS);
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** The run began at this time of the page. */
  begin(at: number): void {
    this.#began = at;
    this.#ask();
  }

  /** Stands still, at a time that is shown from now on. */
  stop(): void {
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#frame = null;
    this.#stoppedAt = this.now;
    this.#tell();
  }

  #ask(): void {
    this.#frame = requestAnimationFrame(() => {
      this.#tell();
      if (this.#stoppedAt === null) this.#ask();
    });
  }

  #tell(): void {
    for (const listener of [...this.#listeners]) listener();
  }
}
