// When a receiver shows what it has: smoothing stalls away, and a reader's own speed. The
// same arithmetic as `proto::playout`: whole microseconds, rounded down.

/** Parameters of a {@link PlayoutClock}. */
export interface Playout {
  /** Text to hold back beyond what a steady flow leaves waiting, microseconds; 0: none. */
  readonly buffer_us: number;
  /** Maximum tokens shown per second; `null`: no limit. */
  readonly max_tokens_per_s: number | null;
}

/** How what has arrived is shown: at once, smoothed for the path, or as told. */
export type PlayoutChoice = "off" | "smooth" | Playout;

/** Everything at once. */
export const PLAY_AT_ONCE: Playout = { buffer_us: 0, max_tokens_per_s: null };

/**
 * Holds back what hides nearly all stalls of a lossy path of this round trip. The first
 * token is never delayed.
 */
export function smoothPlayout(rtt_us: number): Playout {
  return { buffer_us: Math.max(5_000, Math.floor((rtt_us * 3) / 10) - 8_000), max_tokens_per_s: null };
}

/** How much slower than the generator an empty buffer makes the reader, in thousandths. */
const SLOPE_PERMILLE = 450;
const FASTEST_PERMILLE = 500;

/** The longest gap that readers do not take for a stall (the Eloquent paper, 2.2: 200 ms). */
const NOT_A_STALL_US = 190_000;

/** Arrivals remembered for the generator's speed, and their least distance. */
const MEASURED = 32;
const MEASURE_GAP_US = 125_000;

/** Decides when the next delta is shown. Times are microseconds of the caller's clock. */
export class PlayoutClock {
  #playout: Playout;
  #arrivedTokens = 0;
  /** When, and the tokens that had arrived by then. */
  #arrivals: { at: number; tokens: number }[] = [];
  #nextAt: number | null = null;

  constructor(playout: Playout) {
    this.#playout = playout;
  }

  /** Other parameters from now on. */
  setPlayout(playout: Playout): void {
    this.#playout = playout;
    this.#nextAt = null;
  }

  /** When the next delta may be shown; `null`: at once. */
  get nextAt(): number | null {
    return this.#nextAt;
  }

  /** `tokens` have arrived at `now`. */
  onArrival(now: number, tokens: number): void {
    this.#arrivedTokens += tokens;
    const last = this.#arrivals.at(-1);
    if (last && this.#arrivals.length > 1 && now - last.at < MEASURE_GAP_US) {
      last.tokens = this.#arrivedTokens;
    } else {
      this.#arrivals.push({ at: now, tokens: this.#arrivedTokens });
    }
    if (this.#arrivals.length > MEASURED) this.#arrivals.shift();
  }

  /** The generator's time per token, microseconds; `null` while arrivals do not tell. */
  get tokenGap(): number | null {
    const [first, last] = [this.#arrivals[0], this.#arrivals.at(-1)];
    if (!first || !last || last.tokens === first.tokens) return null;
    return Math.floor(Math.max(0, last.at - first.at) / (last.tokens - first.tokens));
  }

  /** A delta of `tokens` was shown at `now`, with `waiting` tokens left to show. */
  onShown(now: number, tokens: number, waiting: number): void {
    const off = this.#playout.buffer_us === 0 && this.#playout.max_tokens_per_s === null;
    if (off || tokens === 0) return;
    this.#nextAt = now + this.step(now, waiting) * tokens;
  }

  /** Time per token shown at `now`, microseconds; 0 if nothing is held back. */
  step(now: number, waiting: number): number {
    const rate = this.#playout.max_tokens_per_s;
    const limit = rate === null ? 0 : Math.floor(1_000_000 / Math.max(1, rate));
    const gap = this.tokenGap;
    const smooth = gap !== null && this.#playout.buffer_us > 0 ? this.#smoothStep(now, gap, waiting) : 0;
    return Math.max(smooth, limit);
  }

  /**
   * In proportion to what the buffer lacks: slower than the generator while it is short,
   * though never so slow that it looks like a stall, faster while it is long.
   */
  #smoothStep(now: number, gap: number, waiting: number): number {
    const sinceArrival = Math.max(0, now - (this.#arrivals.at(-1)?.at ?? now));
    const buffered = Math.max(0, gap * waiting - Math.min(sinceArrival, gap));
    const surplus = Math.floor((SLOPE_PERMILLE * buffered) / this.#playout.buffer_us);
    const permille = Math.max(1_000 + SLOPE_PERMILLE - surplus, FASTEST_PERMILLE);
    return Math.min(Math.floor((gap * permille) / 1_000), Math.max(NOT_A_STALL_US, gap));
  }
}
