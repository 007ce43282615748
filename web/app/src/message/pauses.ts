// When an answer pauses, and why. A silence is a pause if it is several times as long as the gaps
// that are usual in this answer: a slow model does not pause between its tokens. While it lasts only
// signs can be read: the page is hidden, the path is lost. Afterwards the answer itself tells: what
// was made meanwhile comes faster than the model makes it, and a model that made nothing goes on at
// its own speed.

import type { PauseCause } from "./model.js";

/** No shorter silence is worth a word, ms: readers do not take it for a stall. */
export const PAUSE_MS = 700;

/** So many usual gaps are a pause. */
const PAUSE_GAPS = 4;

/** Gaps that tell the usual one: the median of the latest, once there are enough. */
const LATEST_GAPS = 31;
const ENOUGH_GAPS = 3;

/** A silence this long is a pause before the usual gap is known, ms. */
const PAUSE_AT_FIRST_MS = 3_000;

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

/** A pause that lasts. */
export interface LastingPause {
  readonly cause: PauseCause;
  /** When the last tokens came before it. */
  readonly since: number;
  readonly ms: number;
}

/** How long a silence must be to count. */
export interface PauseLimits {
  /** No shorter silence is a pause, ms. */
  readonly shortestMs: number;
  /** So many usual gaps are a pause. */
  readonly gaps: number;
  /** The usual gap where it is known beforehand, ms; otherwise the answer itself tells it. */
  readonly gapMs: number | null;
}

const READERS_LIMITS: PauseLimits = { shortestMs: PAUSE_MS, gaps: PAUSE_GAPS, gapMs: null };

/** What one can see of the path besides tokens. */
interface Signs {
  /** The connection is lost, or the browser is offline. */
  isLost: boolean;
  isHidden: boolean;
  /** The server has said that nothing comes for now. */
  isAnnounced: boolean;
  /** What the client library says. */
  told: PauseCause | null;
}

/** Watches one answer; times are ms of any one clock. */
export class PauseWatch {
  #arrivals: { readonly at: number; readonly tokens: number }[] = [];
  readonly #gaps: number[] = [];
  readonly #signs: Signs = { isLost: false, isHidden: false, isAnnounced: false, told: null };
  /** Signs that were there at some time since the last tokens. */
  #seen: Signs = { ...this.#signs };
  #undecided: { readonly pause: EndedPause; readonly speed: number; tokens: number } | null = null;

  constructor(readonly limits: PauseLimits = READERS_LIMITS) {}

  /** A longer silence than this is a pause by now, ms. */
  get limitMs(): number {
    const { shortestMs, gaps } = this.limits;
    if (this.#seen.isLost || this.#seen.isAnnounced) return shortestMs;
    const usual = this.#usualGap();
    return usual === null ? Math.max(shortestMs, PAUSE_AT_FIRST_MS) : Math.max(shortestMs, gaps * usual);
  }

  /** `tokens` are shown at `now`. Returns the pause that they end. */
  handleTokens(now: number, tokens: number): EndedPause | null {
    this.decide(now);
    const last = this.#arrivals.at(-1)?.at;
    const ended = last !== undefined && now - last > this.limitMs ? this.#endPause(last, now) : null;
    if (last !== undefined) this.#gaps.push(now - last);
    if (this.#gaps.length > LATEST_GAPS) this.#gaps.shift();
    this.#signs.isAnnounced = false;
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
    this.#seen.isAnnounced ||= this.#signs.isAnnounced;
    if (this.#signs.told !== null) this.#seen.told = this.#signs.told;
  }

  /** The pause that lasts at `now`, if any. */
  current(now: number): LastingPause | null {
    const since = this.#arrivals.at(-1)?.at;
    if (since === undefined || now - since <= this.limitMs) return null;
    return { cause: causeBySigns(this.#seen), since, ms: now - since };
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

  /** The gap that is usual between tokens, ms; `null` while too few have come. */
  #usualGap(): number | null {
    if (this.limits.gapMs !== null) return this.limits.gapMs;
    if (this.#gaps.length < ENOUGH_GAPS) return null;
    return [...this.#gaps].sort((one, other) => one - other)[this.#gaps.length >> 1] ?? null;
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
