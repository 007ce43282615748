// How an answer finds a way: asks by WebTransport or by server-sent events, asks again where that
// may help, and goes on by either when a path is lost.

import type { AnswerOptions, ApiKey } from "./answer.js";
import type { Json } from "./chunk.js";
import { headStart, noteOutcome } from "./dial.js";
import { LoquentError } from "./errors.js";
import type { Http } from "./http.js";
import type { RequestHead } from "./message.js";
import type { PauseWatch } from "./pause.js";
import { PathLost, REPEAT_HEADER, type AnswerReference, type Source } from "./source.js";
import { askBySse, resumeBySse } from "./sse.js";
import { type Link, LinkAnswer, type LinkRequest } from "./worker_link.js";

/** How long a broken answer is tried to be resumed, ms: as long as servers keep it by default. */
const RESUME_WITHIN_MS = 60_000;

/** The first pause between attempts, and the longest, ms. */
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4_000;

/** The longest that a server may ask to wait before a question is asked again, ms. */
const LONGEST_RETRY_MS = 60_000;

/** Refusals that may pass: too many requests, and what gateways say of a server that is not there. */
const PASSING_STATUSES: readonly number[] = [429, 502, 503, 504];

/** A question, which stays the same however often and by whatever way it is asked. */
export interface Question {
  readonly body: Json;
  /** Its idempotency key (S-4.9). */
  readonly key: string;
  readonly asked_ms: number;
  readonly apiKey: ApiKey | null;
  /** How often to ask again where the server refuses for now, or is not reached. */
  readonly retries: number;
}

/** What an answer tells its {@link PathFinder}. */
export interface PathContext {
  readonly url: URL;
  readonly server: URL;
  readonly options: AnswerOptions;
  readonly http: Http;
  /** Ends every attempt. */
  readonly signal: AbortSignal;
  readonly pauses: PauseWatch;
}

/** Finds the paths of one answer. */
export class PathFinder {
  readonly #context: PathContext;
  /** WebTransport brings this answer no further, though it may be connected. */
  #isLinkUseless = false;
  /** When the path was lost that had brought something last, and how many have brought nothing since. */
  #lostAt_ms = 0;
  #barrenPaths = 0;

  constructor(context: PathContext) {
    this.#context = context;
  }

  /** The path has brought something. */
  handleProgress(): void {
    this.#barrenPaths = 0;
  }

  /** Asks, as often as the question allows. */
  async ask(question: Question): Promise<Source> {
    const { signal, pauses } = this.#context;
    for (let attempt = 0; ; attempt += 1) {
      signal.throwIfAborted();
      pauses.handleConnecting();
      try {
        return await this.#askOnce(question);
      } catch (error) {
        const wait_ms = attempt < question.retries && this.#mayPass(error) ? waitAfter(error, attempt + 1) : Infinity;
        if (wait_ms > LONGEST_RETRY_MS) throw brokenBy(error, error instanceof PathLost ? error.message : undefined);
        pauses.handleRetry(Date.now() + wait_ms);
        await paused(wait_ms, signal);
      }
    }
  }

  async #askOnce(question: Question): Promise<Source> {
    const { apiKey: given } = question;
    const apiKey = typeof given === "function" ? await given() : given;
    const body = { ...question.body, stream: true };
    const link = await this.#link();
    // Asked again by another way it is the same question: the server does the work once.
    const repeatable = { [REPEAT_HEADER]: question.key };
    const asked = link && (await this.#askByLink(link, body, apiKey, repeatable));
    // Servers that are not Loquent's may refuse a header that they do not know.
    const isRepeatable = link !== null || this.#context.options.remember !== undefined || question.retries > 0;
    return asked ?? (await this.#askBySse(body, apiKey, isRepeatable ? repeatable : {}));
  }

  /** `null` if another way is to be tried: nothing was shown yet, so nothing is shown twice. */
  async #askByLink(link: Link, body: Json, key: string | null, more: HeaderFields): Promise<Source | null> {
    const { url, server, http, options } = this.#context;
    const path = url.pathname.slice(server.pathname.length - 1) + url.search;
    const headers = { ...http.headers, ...more };
    const head: RequestHead = { method: "POST", path, headers, ...(key !== null && { key }) };
    try {
      const asked = await link.ask(this.#linkRequest(), head, JSON.stringify(body));
      noteOutcome(server, true);
      return asked;
    } catch (error) {
      if (error instanceof PathLost) noteOutcome(server, false);
      // A server that drains refuses on its session, while HTTP reaches the one that follows it.
      const mayBeElsewhere = error instanceof PathLost || (isRefusal(error) && error.status === 503);
      if (mayBeElsewhere && options.transport !== "webtransport") return null;
      throw error;
    }
  }

  #askBySse(body: Json, apiKey: string | null, more: HeaderFields): Promise<Source> {
    const { url, server, http, signal } = this.#context;
    const authorization = apiKey === null ? {} : { authorization: `Bearer ${apiKey}` };
    const headers = { "content-type": "application/json", ...more, ...authorization };
    const question = { url, headers, body: JSON.stringify({ ...body, resumable: true }) };
    return askBySse(http, question, server, signal);
  }

  /** Goes on with an answer, for as long as a server may still have it. */
  async goOn(reference: AnswerReference, offset: number, lost: PathLost | null, source: Source | null): Promise<Source> {
    if (lost) this.#heed(lost);
    // Not from the last delta on: a path may live for long and have nothing to bring.
    if (this.#barrenPaths === 0) this.#lostAt_ms = Date.now();
    const before = source instanceof LinkAnswer ? source : null;
    let [last, resumed]: [PathLost | null, Source | null] = [lost, null];
    try {
      for (; resumed === null; this.#barrenPaths += 1) {
        this.#context.pauses.handleLoss(last?.message ?? "The page was loaded again.", this.#barrenPaths);
        // The first attempt after progress is made at once.
        const wait_ms = this.#barrenPaths > 0 ? waitAfter(last?.cause, this.#barrenPaths) : 0;
        if (Date.now() + wait_ms > this.#lostAt_ms + RESUME_WITHIN_MS) throw brokenBy(last);
        if (wait_ms > 0) await paused(wait_ms, this.#context.signal);
        const next = await this.#resume(reference, offset, before);
        if (next instanceof PathLost) last = next;
        else resumed = next;
      }
      return resumed;
    } finally {
      if (!(resumed instanceof LinkAnswer)) before?.leave();
    }
  }

  /** One attempt; a {@link PathLost} if the server cannot be reached, or refuses for now. */
  async #resume(reference: AnswerReference, offset: number, before: LinkAnswer | null): Promise<Source | PathLost> {
    const { http, server, signal } = this.#context;
    try {
      const link = await this.#link();
      const resumed = link && (await this.#resumeByLink(link, reference, offset, before));
      return resumed ?? (await resumeBySse(http, server, reference, offset, signal));
    } catch (error) {
      return this.#heed(error);
    }
  }

  /** `null` if HTTP is to be tried at once: the session lives, and does not bring the answer. */
  async #resumeByLink(
    link: Link,
    reference: AnswerReference,
    offset: number,
    before: LinkAnswer | null,
  ): Promise<Source | null> {
    try {
      return await link.resume(this.#linkRequest(), reference, offset, before);
    } catch (error) {
      const lost = this.#heed(error);
      const { options, server } = this.#context;
      // A session that has ended may be followed by another one, as when the network has changed.
      if (options.transport === "webtransport" || !link.isConnected(server)) throw lost;
      return null;
    }
  }

  /** What a failed attempt says about the next; throws where there is to be none. */
  #heed(error: unknown): PathLost {
    if (!this.#mayPass(error)) throw brokenBy(error);
    const lost = error instanceof PathLost ? error : new PathLost(error.message, { cause: error });
    this.#isLinkUseless ||= lost.isTransportUseless;
    return lost;
  }

  /** Whether what failed may succeed later, or by another way. */
  #mayPass(error: unknown): error is PathLost | LoquentError {
    if (error instanceof PathLost) {
      // Where nothing else is wanted, the same would be tried until the server forgets the answer.
      return !error.isTransportUseless || this.#context.options.transport !== "webtransport";
    }
    return isRefusal(error) && PASSING_STATUSES.includes(error.status ?? 0);
  }

  /** The link to the server, if WebTransport is wanted, possible and in time. */
  async #link(): Promise<Link | null> {
    const { options, server, http, signal } = this.#context;
    const { transport = "auto" } = options;
    const isWanted = transport === "webtransport" || (transport === "auto" && http.allowsOtherTransports);
    if (!isWanted || this.#isLinkUseless) return null;
    const link = await headStart(server, transport, http);
    signal.throwIfAborted();
    if (link === null && transport === "webtransport") throw new PathLost("WebTransport does not get through.");
    return link;
  }

  #linkRequest(): LinkRequest {
    const { server, options, signal } = this.#context;
    return { server, pace: options.pace ?? "smooth", signal };
  }
}

type HeaderFields = Record<string, string>;

function isRefusal(error: unknown): error is LoquentError {
  return error instanceof LoquentError && error.kind === "refused";
}

/** What programs are told of a lost path that nothing could follow. */
export function brokenBy(error: unknown, message = "The connection broke; the answer is incomplete."): unknown {
  if (error !== null && !(error instanceof PathLost)) return error;
  return new LoquentError("broken", message, { cause: error?.cause ?? error ?? undefined });
}

/** The pause before trying again when `attempts` in a row have failed, the last by `error`, ms. */
function waitAfter(error: unknown, attempts: number): number {
  const asked_s = error instanceof LoquentError ? (error.retryAfter_s ?? 0) : 0;
  return Math.max(asked_s * 1_000, Math.min(FIRST_PAUSE_MS * 2 ** (attempts - 1), LONGEST_PAUSE_MS));
}

/** Waits, but not beyond the moment at which the network is back. */
async function paused(ms: number, signal: AbortSignal): Promise<void> {
  await new Promise<void>((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      globalThis.removeEventListener?.("online", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done);
    globalThis.addEventListener?.("online", done);
  });
  signal.throwIfAborted();
}
