// What `loquent demo` offers this page: two doors to its server, with a bad link behind both.

/** The weather of one run. */
export interface LiveWeather {
  /** Round-trip time in ms. */
  readonly rtt_ms: number;
  /** Share of packets that are lost. */
  readonly loss: number;
  /** Mean length of a burst of losses in ms; 0 spreads them evenly. */
  readonly burst_ms: number;
  /** Rate of each direction in kbit/s; absent where it is unlimited. */
  readonly rate_kbps?: number;
  /** Decides which packets are lost. */
  readonly seed: number;
}

/** What crosses the link: the kernel's TCP and QUIC, or QUIC beside the simulator's TCP. */
export type LiveNetwork = "kernel" | "modelled";

/** A demonstration that can be run from here. */
export interface LiveOffer {
  readonly network: LiveNetwork;
  /** The server as it is reached over TCP, and over Loquent. */
  readonly tcpUrl: URL;
  readonly loquentUrl: URL;
  /** What the command line asked for. */
  readonly weather: LiveWeather;
  readonly question: string;
  readonly maxTokens: number;
  readonly tokensPerS: number;
}

/** Where the offer is, and what belongs to it. */
export const LIVE_PATH = "/v1/lab/live";

/** The offer of this page's server; `null` where `loquent demo` does not run (204). */
export async function fetchOffer(headers: Readonly<Record<string, string>>, signal: AbortSignal): Promise<LiveOffer | null> {
  const response = await fetch(LIVE_PATH, { cache: "no-store", headers: { ...headers }, signal });
  return response.status === 200 ? readOffer(await response.json()) : null;
}

/** Reads an offer; `null` if it is none that this page understands. */
export function readOffer(value: unknown): LiveOffer | null {
  const offer = record(value);
  const weather = readWeather(offer["weather"]);
  const tcpUrl = door(offer["tcp_url"]);
  const loquentUrl = door(offer["loquent_url"]);
  const { network, question, max_tokens: maxTokens, tokens_per_s: tokensPerS } = offer;
  if (network !== "kernel" && network !== "modelled") return null;
  if (weather === null || tcpUrl === null || loquentUrl === null || typeof question !== "string") return null;
  if (!isBetween(maxTokens, 1, 100_000) || !isBetween(tokensPerS, 0.1, 10_000)) return null;
  return { network, tcpUrl, loquentUrl, weather, question, maxTokens, tokensPerS };
}

function readWeather(value: unknown): LiveWeather | null {
  const { rtt_ms, loss, burst_ms, rate_kbps, seed } = record(value);
  if (!isBetween(rtt_ms, 0, 60_000) || !isBetween(loss, 0, 1) || !isBetween(burst_ms, 0, 60_000)) return null;
  if (!isBetween(seed, 0, 2 ** 32 - 1)) return null;
  if (rate_kbps === undefined) return { rtt_ms, loss, burst_ms, seed };
  return isBetween(rate_kbps, 0, 1e9) ? { rtt_ms, loss, burst_ms, rate_kbps, seed } : null;
}

/** An address of this machine alone: what the page asks is nobody else's business. */
function door(value: unknown): URL | null {
  if (typeof value !== "string" || !URL.canParse(value)) return null;
  const url = new URL(value);
  return url.protocol === "http:" && /^127(\.\d+){3}$/.test(url.hostname) ? url : null;
}

/** The members of an object; none of anything else. */
export function record(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null ? { ...value } : {};
}

export function isBetween(value: unknown, low: number, high: number): value is number {
  return typeof value === "number" && value >= low && value <= high;
}
