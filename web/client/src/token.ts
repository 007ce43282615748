// Tokens that an app's server gets for its users' browsers, kept until they are about to end.

/** What an app's server hands on of the answer to `POST /v1/tokens`. */
export interface FetchedToken {
  readonly token: string;
  /** Seconds that it lasts from now. */
  readonly expires_in: number;
}

/** A token is not used any more in the last part of its life, at most this long, ms. */
const SPARE_MS = 30_000;

/**
 * An `apiKey` that asks `get` for a token when the last one is about to end, and once for all
 * questions that wait for it.
 */
export function cachedToken(get: () => Promise<FetchedToken>): () => Promise<string> {
  let [kept, until_ms]: [Promise<string> | null, number] = [null, Infinity];
  const renew = async (): Promise<string> => {
    const { token, expires_in } = await get();
    const life_ms = expires_in * 1_000;
    until_ms = Date.now() + life_ms - Math.min(SPARE_MS, life_ms / 2);
    return token;
  };
  return () => {
    if (kept !== null && Date.now() < until_ms) return kept;
    until_ms = Infinity;
    const renewed = renew();
    // One that failed is not kept for the next question.
    renewed.catch(() => (kept = kept === renewed ? null : kept));
    kept = renewed;
    return renewed;
  };
}
