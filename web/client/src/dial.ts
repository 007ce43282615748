// Connecting to a server by WebTransport: once for all answers, with a head start before
// server-sent events, and not again where there was none.

import type { Target } from "./connection.js";
import { discover, lastWinner, rememberWinner, webTransportWorks } from "./discovery.js";
import type { Http } from "./http.js";
import { PathLost } from "./source.js";
import { type Link, sharedLink } from "./worker_link.js";

/** How long WebTransport may take before server-sent events are tried as well, ms. */
const HEAD_START_MS = 500;

/** How long WebTransport may take where nothing else is wanted, ms. */
const INSISTED_MS = 15_000;

/** Servers that said they have no WebTransport, and until when that is believed. */
const without = new Map<string, number>();
const WITHOUT_MS = 60_000;

/** How long WebTransport is not tried again that opened and brought no answer, ms. */
const UNPROVEN_MS = 10 * 60_000;

/** Servers that answered by WebTransport here the last time, or the time before. */
const proven = new Set<string>();

/** Attempts under way, shared by all who wait for the same server. */
const attempts = new Map<string, Promise<Link | null>>();

/** The link, if it is connected in time; connecting goes on for the next time. */
export async function headStart(server: URL, wish: "auto" | "webtransport", http: Http): Promise<Link | null> {
  if (wish === "webtransport") return patient(server, http);
  if (!webTransportWorks()) return null;
  const link = await within(lastWinner(server) === "sse" ? 0 : HEAD_START_MS, connected(server, http));
  if (link === null) rememberWinner(server, "sse");
  return link;
}

/** A question that went by WebTransport was answered, or was lost. */
export function noteOutcome(server: URL, isAnswered: boolean): void {
  if (isAnswered) proven.add(server.href);
  // Sessions that open and bring nothing look like any other. Nobody waits for the next one, but for
  // one where there were answers before: a session may break as it is asked.
  else if (!proven.delete(server.href)) without.set(server.href, Date.now() + UNPROVEN_MS);
}

/** The link, as soon as it is connected; `null` if that fails or takes far too long. */
export function patient(server: URL, http: Http): Promise<Link | null> {
  return within(INSISTED_MS, connected(server, http));
}

/** The link, once it is connected to `server`; `null` if that fails. */
function connected(server: URL, http: Http): Promise<Link | null> {
  const attempt = attempts.get(server.href) ?? attemptTo(server, http).finally(() => attempts.delete(server.href));
  attempts.set(server.href, attempt);
  return attempt;
}

async function attemptTo(server: URL, http: Http): Promise<Link | null> {
  if (!("WebTransport" in globalThis) || (without.get(server.href) ?? 0) > Date.now()) return null;
  try {
    const link = sharedLink(); // throws where pages may not have workers
    if (!link.isConnected(server)) await openSession(link, server, http);
    rememberWinner(server, "webtransport");
    return link;
  } catch {
    return null;
  }
}

async function openSession(link: Link, server: URL, http: Http): Promise<void> {
  const target = await targetAt(server, http);
  try {
    await link.connect(server, target);
  } catch (error) {
    // The certificate may have been renewed between the two requests (S-1.3).
    const again = await targetAt(server, http);
    if (again.certificate_sha256 === target.certificate_sha256) throw error;
    await link.connect(server, again);
  }
}

async function targetAt(server: URL, http: Http): Promise<Target> {
  const target = await discover(server, http);
  if (target !== null) return target;
  without.set(server.href, Date.now() + WITHOUT_MS);
  throw new PathLost("The server has no WebTransport.");
}

/** What `promise` gives within `ms`, else `null`; no timer outlives it. */
async function within<T>(ms: number, promise: Promise<T>): Promise<T | null> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<null>((resolve) => (timer = setTimeout(() => resolve(null), ms)));
  return await Promise.race([promise, late]).finally(() => clearTimeout(timer));
}
