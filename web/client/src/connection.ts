// One WebTransport session with a server: its datagrams by channel, its streams.

import { newDeferred } from "./deferred.js";
import { peekChannel } from "./frame.js";
import { Code, codeOf } from "./message.js";

/** Where a server's WebTransport is (S-1.3). */
export interface Target {
  /** To be tried at the same time; the first that answers is taken. */
  readonly urls: readonly string[];
  /** SHA-256 of a self-signed certificate, 64 hex digits; `null`: an authority's. */
  readonly certificate_sha256: string | null;
}

/** The constructor of `WebTransport`, an argument so that tests can give another. */
export type WebTransportConstructor = new (url: string, options?: WebTransportOptions) => WebTransport;

/** Datagrams that wait to be read; a browser's default may be one (delivery of bursts). */
const INCOMING_DATAGRAMS = 1024;

/** Datagrams that wait to leave. Acknowledgements repeat themselves: what exceeds it is lost. */
const OUTGOING_DATAGRAMS = 64;

/** Time limit for opening a session, ms. Requests that arrive meanwhile wait for the same attempt. */
const OPEN_WITHIN_MS = 15_000;

/**
 * What a session may carry on its streams before another one takes its place. WebKit never refills
 * a session's credit (bug 319818, open in September 2026): everything on its streams stands still
 * after about 16 MiB, or after some 7,000 streams (moq-dev/moq#2388, with Safari 26.5). Half the
 * bytes leaves room for what comes while the next session opens. Datagrams need no credit.
 */
export const SESSION_BYTES = 8 << 20;
export const SESSION_STREAMS = 1_000;

/** A bidirectional stream and where it is written. */
export interface Stream {
  readonly readable: ReadableStream<Uint8Array>;
  readonly writer: WritableStreamDefaultWriter<Uint8Array>;
}

/** How a session ended. */
export interface Closing {
  /** As the server gave it; {@link Code.BrokenOff} if it gave none. */
  readonly code: Code;
  readonly why: string;
}

/** Names of the same setting, older and newer, that lib.dom does not know all of. */
interface DatagramSettings {
  incomingHighWaterMark?: number;
  incomingMaxBufferedDatagrams?: number;
  outgoingHighWaterMark?: number;
  outgoingMaxBufferedDatagrams?: number;
  createWritable?: () => WritableStream<Uint8Array>;
}

/** An open session. */
export class Connection {
  readonly #transport: WebTransport;
  readonly #datagrams: WritableStreamDefaultWriter<Uint8Array>;
  readonly #receivers = new Map<number, (datagram: Uint8Array) => void>();
  #lastChannel = 0;
  #streams = 0;
  #streamBytes = 0;
  readonly #spent = newDeferred<void>();
  /** Resolves once the session is over; never rejects. */
  readonly closed: Promise<Closing>;
  /** Resolves once the session has carried what one may carry; never rejects. */
  readonly spent: Promise<void> = this.#spent.promise;

  private constructor(
    transport: WebTransport,
    /** Rough round trip, microseconds, from how long opening took. */
    readonly rtt_us: number,
  ) {
    this.#transport = transport;
    const datagrams = transport.datagrams as WebTransportDatagramDuplexStream & DatagramSettings;
    widen(datagrams);
    // A newer draft moved the writable side; browsers have one or the other.
    this.#datagrams = (datagrams.createWritable?.() ?? datagrams.writable).getWriter();
    this.#datagrams.closed.catch(() => {}); // told by `closed`
    this.closed = transport.closed.then(
      (info) => ({ code: codeOf(info?.closeCode), why: info?.reason || "closed" }),
      (error: unknown) => ({ code: Code.BrokenOff, why: String(error) }),
    );
    void this.#readDatagrams(datagrams.readable as ReadableStream<Uint8Array>);
  }

  /** Opens a session with whichever address of `target` answers first; rejects if none does. */
  static async open(target: Target, Transport: WebTransportConstructor, clock_us: () => number): Promise<Connection> {
    const begun = clock_us();
    const attempts = target.urls.map((url) => new Transport(url, optionsFor(target)));
    // Losers reject `closed` too; nobody waits for those.
    for (const attempt of attempts) attempt.closed.catch(() => {});
    const winner = await firstToOpen(attempts);
    // Opening takes a round trip for QUIC and one for HTTP/3.
    return new Connection(winner, Math.floor((clock_us() - begun) / 2));
  }

  /** Makes `receive` get the datagrams of a channel that this connection has not used; returns it. */
  addChannel(receive: (datagram: Uint8Array) => void): number {
    this.#lastChannel += 1;
    this.#receivers.set(this.#lastChannel, receive);
    return this.#lastChannel;
  }

  /** No more datagrams of `channel`, please. */
  dropChannel(channel: number): void {
    this.#receivers.delete(channel);
  }

  /** A new bidirectional stream; {@link spend} gets to know what it carries. */
  async openStream(): Promise<Stream> {
    this.#streams += 1;
    if (this.#streams >= SESSION_STREAMS) this.#spent.resolve();
    const { readable, writable } = await this.#transport.createBidirectionalStream();
    const writer = (writable as WritableStream<Uint8Array>).getWriter();
    writer.closed.catch(() => {}); // the reading side reports it
    return { readable: readable as ReadableStream<Uint8Array>, writer };
  }

  /** `bytes` were read from a stream, or written to one. */
  spend(bytes: number): void {
    this.#streamBytes += bytes;
    if (this.#streamBytes >= SESSION_BYTES) this.#spent.resolve();
  }

  /** With which code a stream ended whose reading threw `error` (S-2.6). */
  async codeOf(error: unknown): Promise<Code> {
    const { streamErrorCode } = (error ?? {}) as { streamErrorCode?: unknown };
    if (typeof streamErrorCode === "number") return codeOf(streamErrorCode);
    // A session that ends fails its streams before it says why.
    const soon = new Promise<null>((resolve) => setTimeout(() => resolve(null), 0));
    return (await Promise.race([this.closed, soon]))?.code ?? Code.BrokenOff;
  }

  /**
   * Sends a datagram, or loses it if too many wait. Never awaited: a browser resolves the
   * write late, and a reader that waits for it loses what arrives meanwhile.
   */
  send(datagram: Uint8Array): void {
    if ((this.#datagrams.desiredSize ?? 0) <= -OUTGOING_DATAGRAMS) return;
    this.#datagrams.write(datagram).catch(() => {});
  }

  /** Ends the session. */
  close(): void {
    this.#receivers.clear();
    try {
      this.#transport.close();
    } catch {
      // It was closed already.
    }
  }

  async #readDatagrams(readable: ReadableStream<Uint8Array>): Promise<void> {
    const reader = readable.getReader();
    try {
      for (let next = await reader.read(); !next.done; next = await reader.read()) {
        const channel = peekChannel(next.value);
        if (channel !== null) this.#receivers.get(channel)?.(next.value);
      }
    } catch {
      // The session is over; `closed` has the reason.
    }
  }
}

/** Whichever of `attempts` opens first, in time; the others are closed. */
async function firstToOpen(attempts: readonly WebTransport[]): Promise<WebTransport> {
  let [timer, winner]: [ReturnType<typeof setTimeout> | undefined, WebTransport | null] = [undefined, null];
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error("no session opens")), OPEN_WITHIN_MS);
  });
  try {
    const ready = attempts.map((attempt) => attempt.ready.then(() => attempt));
    winner = await Promise.race([Promise.any(ready), late]);
    return winner;
  } finally {
    clearTimeout(timer);
    for (const attempt of attempts) if (attempt !== winner) attempt.close();
  }
}

function optionsFor(target: Target): WebTransportOptions {
  const hash = target.certificate_sha256;
  if (hash === null) return { congestionControl: "low-latency" };
  const value = Uint8Array.from(hash.match(/../g) ?? [], (pair) => parseInt(pair, 16));
  return { congestionControl: "low-latency", serverCertificateHashes: [{ algorithm: "sha-256", value }] };
}

function widen(datagrams: DatagramSettings): void {
  if ("incomingHighWaterMark" in datagrams) datagrams.incomingHighWaterMark = INCOMING_DATAGRAMS;
  if ("incomingMaxBufferedDatagrams" in datagrams) datagrams.incomingMaxBufferedDatagrams = INCOMING_DATAGRAMS;
  if ("outgoingHighWaterMark" in datagrams) datagrams.outgoingHighWaterMark = OUTGOING_DATAGRAMS;
  if ("outgoingMaxBufferedDatagrams" in datagrams) datagrams.outgoingMaxBufferedDatagrams = OUTGOING_DATAGRAMS;
}

type ReasonConstructor = new (message: string, init: { streamErrorCode: number }) => unknown;

/** The reason with which a stream is aborted or cancelled so that the server reads `code` (S-2.6). */
export function reasonOf(code: Code): unknown {
  const { WebTransportError: Reason } = globalThis as { WebTransportError?: ReasonConstructor };
  try {
    return Reason && new Reason(`code ${code}`, { streamErrorCode: code });
  } catch {
    return undefined; // browsers of an older draft make it otherwise
  }
}
