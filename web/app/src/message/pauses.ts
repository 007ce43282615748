// Why an answer paused. While it pauses only signs can be read: the page is hidden, the path is
// lost. Afterwards the answer itself tells: what was made meanwhile comes faster than the model
// makes it, and a model that made nothing goes on at its own speed.

import type { PauseCause } from "./model.js";

/** A silence this long is worth a word, ms: readers take it for a stall. */
export const PAUSE_MS = 700;

/** Arrivals before a pause that tell the answer's speed, ms. */
const SPEED_WINDOW_MS = 6_000;

/** How long after a pause the speed is watched, ms. */
const SHORTEST_WATCH_MS = 150;
const LONGEST_WATCH_MS = 1_500;

/** So many times the speed of before means that text was made meanwhile. */
const FASTER = 1.3;

/** A pause that is over, whose cause may still become clear. */
export interface EndedPause {
  readonly from: number;
  readonly to: number;
  cause: PauseCause;
}

/** What one can see of the path besides tokens. */
interface Signs {
  /** The connection is lost, or the browser is offline. */
  isLost: boolean;
  isHidden: boolean;
  /** What the client library says. */
  told: PauseCause | null;
}

/** Watches one answer; times are ms of any one clock. */
export class PauseWatch {
  #arrivals: { readonly at: number; readonly tokens: number }[] = [];
  readonly #signs: Signs = { isLost: false, isHidden: false, told: null };
  /** Signs that were there at some time since the last tokens. */
  #seen: Signs = { ...this.#signs };
  #undecided: { readonly pause: EndedPause; readonly speed: number; tokens: number } | null = null;

  /** `tokens` are shown at `now`. Returns the pause that they end. */
  handleTokens(now: number, tokens: number): EndedPause | null {
    this.decide(now);
    const last = this.#arrivals.at(-1)?.at;
    const ended = last !== undefined && now - last >= PAUSE_MS ? this.#endPause(last, now) : null;
    if (this.#undecided) this.#undecided.tokens += tokens;
    this.#arrivals.push({ at: now, tokens });
    if (this.#arrivals.length > 512) this.#arrivals.splice(0, 256);
    this.#seen = { ...this.#signs };
    return ended;
  }

  handleSigns(signs: Partial<Signs>): void {
    Object.assign(this.#signs, signs);
    this.#seen.isLost ||= this.#signs.isLost;
    this.#seen.isHidden ||= this.#signs.isHidden;
    if (this.#signs.told !== null) this.#seen.told = this.#signs.told;
  }

  /** The pause that lasts at `now`, if any. */
  current(now: number): { readonly cause: PauseCause; readonly ms: number } | null {
    const last = this.#arrivals.at(-1)?.at;
    if (last === undefined || now - last < PAUSE_MS) return null;
    return { cause: causeBySigns(this.#seen), ms: now - last };
  }

  /** Judges the latest pause if enough has come since. Returns whether it did. */
  decide(now: number, isOver = false): boolean {
    const { pause, speed, tokens } = this.#undecided ?? {};
    if (pause === undefined || speed === undefined || tokens === undefined) return false;
    const watched = now - pause.to;
    const wanted = Math.min(Math.max((pause.to - pause.from) / 2, SHORTEST_WATCH_MS), LONGEST_WATCH_MS);
    if (watched < wanted && !isOver) return false;
    this.#undecided = null;
    pause.cause = tokens > speed * watched * FASTER + 2 ? "network" : "engine";
    return true;
  }

  #endPause(from: number, to: number): EndedPause {
    const pause: EndedPause = { from, to, cause: causeBySigns(this.#seen) };
    const speed = this.#speed(from);
    this.#undecided = pause.cause === "unknown" && speed !== null ? { pause, speed, tokens: 0 } : null;
    return pause;
  }

  /** Tokens per ms before `now`; `null` if too few came. */
  #speed(now: number): number | null {
    const recent = this.#arrivals.filter(({ at }) => at > now - SPEED_WINDOW_MS);
    const [first, last] = [recent[0], recent.at(-1)];
    if (!first || !last || recent.length < 4 || last.at === first.at) return null;
    const tokens = recent.slice(1).reduce((sum, one) => sum + one.tokens, 0);
    return tokens / (last.at - first.at);
  }
}

function causeBySigns({ isLost, isHidden, told }: Signs): PauseCause {
  if (isHidden) return "hidden";
  if (isLost) return "network";
  return told ?? "unknown";
}
