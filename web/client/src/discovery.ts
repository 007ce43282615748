// Where a server's WebTransport is, whether to try it, and what worked the last time.

import type { Target } from "./connection.js";
import type { Http } from "./http.js";
import type { TransportName } from "./source.js";

/** How long a transport that lost its race is not waited for, ms. */
const REMEMBERED_MS = 10 * 60_000;

/** How long the request for the server's WebTransport address may take, ms. */
const DISCOVERY_MS = 5_000;

/** Where a server says where its WebTransport is (S-1.3). */
const PATH = ".well-known/loquent";

/** The version of the protocol that this client speaks (S-1.6). */
const VERSION = 1;

/** The URL that `v1/...` of the same server is relative to: of an endpoint's URL. */
export function serverOf(endpoint: URL): URL {
  const at = endpoint.pathname.lastIndexOf("/v1/");
  const path = at < 0 ? endpoint.pathname.replace(/[^/]*$/, "") : endpoint.pathname.slice(0, at + 1);
  return new URL(path, endpoint.origin);
}

/**
 * Asks a server where its WebTransport is (S-1.3); `null` if it has none. Rejects if the
 * server cannot be asked.
 */
export async function discover(server: URL, http: Http): Promise<Target | null> {
  const signal = AbortSignal.timeout(DISCOVERY_MS);
  const response = await http.request(new URL(PATH, server), { method: "GET" }, signal);
  return response.ok ? targetOf(server, await response.json().catch(() => null)) : null;
}

/** Reads what a server answered; `null` if it offers nothing that this version can use. */
export function targetOf(server: URL, document: unknown): Target | null {
  const first = (document ?? {}) as Record<string, unknown>;
  // Further versions are listed; the members at the top are the first one's.
  const others: unknown[] = Array.isArray(first["versions"]) ? first["versions"] : [];
  const offers = [first, ...others.map((other) => (other ?? {}) as Record<string, unknown>)];
  const offer = offers.find(({ version }) => version === VERSION);
  return offer ? targetOfOffer(server, offer) : null;
}

function targetOfOffer(server: URL, offer: Record<string, unknown>): Target | null {
  const { port, certificate_sha256: hash, path } = offer;
  const usable = Number.isInteger(port) && Number(port) > 0 && Number(port) < 65536;
  if (!usable || typeof path !== "string" || !path.startsWith("/")) return null;
  if (hash !== null && !(typeof hash === "string" && /^[0-9a-f]{64}$/.test(hash))) return null;
  const urls = hostsOf(server.hostname, hash !== null).map((host) => `https://${host}:${Number(port)}${path}`);
  return { urls, certificate_sha256: hash };
}

/**
 * Browsers do not go from ::1 to 127.0.0.1 by themselves when QUIC gets no answer. Where a
 * hash vouches for the certificate, its name does not matter, and both can be tried.
 */
function hostsOf(host: string, anyName: boolean): string[] {
  return host === "localhost" && anyName ? [host, "127.0.0.1"] : [host];
}

/** Whether to try WebTransport here at all. */
export function webTransportWorks(): boolean {
  // Undefined on plain http:// pages of other machines, which are no secure context, and in Apple's
  // browsers before 26.4.
  return "WebTransport" in globalThis;
}

interface RaceOutcome {
  readonly winner: TransportName;
  readonly until: number;
}

const remembered = new Map<string, RaceOutcome>();
const winnerKey = (server: URL): string => `loquent:transport:${server.href}`;

/** The transport that won the last race for this server, if that was not long ago. */
export function lastWinner(server: URL): TransportName | null {
  const memory = remembered.get(server.href) ?? stored(server);
  return memory && memory.until > Date.now() ? memory.winner : null;
}

/** Remembers who won, in this page and in the next ones of this origin. */
export function rememberWinner(server: URL, winner: TransportName): void {
  const memory = { winner, until: Date.now() + REMEMBERED_MS };
  remembered.set(server.href, memory);
  try {
    localStorage.setItem(winnerKey(server), JSON.stringify(memory));
  } catch {
    // No storage here: this page remembers.
  }
}

function stored(server: URL): RaceOutcome | null {
  try {
    const memory: unknown = JSON.parse(localStorage.getItem(winnerKey(server)) ?? "null");
    const { winner, until } = (memory ?? {}) as Partial<RaceOutcome>;
    return (winner === "sse" || winner === "webtransport") && typeof until === "number" ? { winner, until } : null;
  } catch {
    return null;
  }
}
