// Streaming chat, like `fetch` and as easy: asks over WebTransport if it is there within
// 500 ms, else over server-sent events, and goes on by either when a path breaks.

import { type Chunk, ChunkWriter, type Json } from "./chunk.js";
import type { PlayoutChoice } from "./quic.js";
import { discover, lastWinner, rememberWinner, serverOf, webTransportWorks } from "./discovery.js";
import type { Target } from "./connection.js";
import { LoquentError } from "./errors.js";
import { type Link, LinkAnswer, type LinkRequest, sharedLink } from "./worker_link.js";
import { ProgressStore, type Progress, forget, recall } from "./progress_store.js";
import type { Delta, PromptProgress } from "./delta.js";
import type { RequestHead } from "./message.js";
import { PathLost, REPEAT_HEADER, type AnswerHandle, type Source, type TransportName } from "./source.js";
import { askBySse, resumeBySse, stopByHttp } from "./sse.js";

/** How long WebTransport may take before server-sent events are tried as well, ms. */
const HEAD_START_MS = 500;

/** How long WebTransport may take where nothing else is wanted, ms. */
const INSISTED_MS = 15_000;

/** How long a broken answer is tried to be resumed, ms: as long as servers keep it by default. */
const RESUME_WITHIN_MS = 60_000;

/** The first pause between attempts to resume, and the longest, ms. */
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4_000;

/** Where an answer stands. */
export type AnswerState = "connecting" | "streaming" | "resuming" | "ended";

/** What callers may say about any answer. */
export interface AnswerOptions {
  /** Ends the answer, and its generation. */
  readonly signal?: AbortSignal;
  /** `auto`, or insist on one. Default `auto`. */
  readonly transport?: "auto" | TransportName;
  /**
   * How what has arrived by WebTransport is shown: `smooth` hides most stalls for a small
   * delay, `off` shows at once. Default `smooth`.
   */
  readonly pace?: PlayoutChoice;
  /** Keep the answer under this name in the tab, for {@link resumeChat} after a reload. */
  readonly remember?: string;
  /** The answer travels by this from now on. */
  readonly onTransport?: (transport: TransportName) => void;
  /** The answer's state has changed. */
  readonly onState?: (state: AnswerState) => void;
}

/** What {@link streamChat} needs. */
export interface ChatOptions extends AnswerOptions {
  /** The endpoint: `.../v1/chat/completions` or `.../v1/completions`. */
  readonly url: string | URL;
  /** The request as for OpenAI; `stream` is added. */
  readonly body: Json;
  /** Sent as a bearer token. */
  readonly apiKey?: string;
}

/** Asks, and streams the answer. Nothing is sent before the answer is read. */
export function streamChat(options: ChatOptions): Answer {
  return new Answer(absolute(options.url), options, { is: "new", body: options.body, apiKey: options.apiKey ?? null });
}

/**
 * Goes on with the answer that was kept under `remember` before the page was reloaded;
 * `null` if there is none. Its `text` is what was shown; iterating yields what follows.
 */
export function resumeChat(options: AnswerOptions & { readonly remember: string }): Answer | null {
  const progress = recall(options.remember);
  return progress && new Answer(new URL(progress.url), options, { is: "kept", progress });
}

/** Forgets what was kept under `remember`, and ends its generation. */
export function forgetChat(remember: string): void {
  const progress = recall(remember);
  if (progress) stopByHttp(serverOf(new URL(progress.url)), progress.handle);
  forget(remember);
}

/**
 * Connects ahead of a question, so that it need not wait. Resolves, once that is known, to
 * how the answer will travel; never rejects.
 */
export async function prepare(url: string | URL): Promise<TransportName> {
  const connecting = webTransportWorks() ? connected(serverOf(absolute(url))) : null;
  const link = connecting && (await Promise.race([connecting, after(INSISTED_MS)]));
  return link ? "webtransport" : "sse";
}

function absolute(url: string | URL): URL {
  return new URL(url, globalThis.document?.baseURI);
}

/** Where an answer begins. */
type Origin =
  | { readonly is: "new"; readonly body: Json; readonly apiKey: string | null }
  | { readonly is: "kept"; readonly progress: Progress };

/** One answer. Iterate it once: as deltas, or as {@link chunks}. */
export class Answer implements AsyncIterable<Delta> {
  /** Text of choice 0 so far. */
  text = "";
  /** Reasoning of choice 0 so far. */
  reasoning = "";
  /** Why choice 0 has ended; `null` before. */
  finish: string | null = null;
  /** The last token counts that came. */
  usage: Extract<Delta, { kind: "usage" }> | null = null;
  /** Where it stands before its first token, by the latest news. */
  progress: PromptProgress | null = null;
  /** How it travels; `null` before it does. */
  transport: TransportName | null = null;
  /** What proves the right to go on with it; `null` where that is not possible. */
  handle: AnswerHandle | null = null;
  /** Names of the request's parameters that the server ignored, if it said so. */
  ignoredParameters: string | null = null;
  /** Log offset after what was yielded; `null` if the server reports none. */
  offset: number | null = null;
  #meta = "{}";
  readonly #server: URL;
  readonly #stopped = new AbortController();
  readonly #memory: ProgressStore | null;
  #source: Source | null = null;
  /** WebTransport brings this answer no further, though it may be connected. */
  #isLinkUseless = false;
  /** When something last came, and how many paths have brought nothing since. */
  #progressAt = Date.now();
  #barrenPaths = 0;

  /** Use {@link streamChat} or {@link resumeChat}. */
  constructor(
    readonly url: URL,
    readonly options: AnswerOptions,
    private readonly origin: Origin,
  ) {
    this.#server = serverOf(url);
    this.#memory = options.remember === undefined ? null : new ProgressStore(options.remember, () => this.#progress());
    if (origin.is === "kept") this.#restore(origin.progress);
  }

  /** Ends the answer and its generation: the iterator throws an `AbortError`. */
  cancel(): void {
    this.#stopped.abort();
  }

  /** The rest of the answer as OpenAI's chunk objects. */
  async *chunks(): AsyncGenerator<Chunk> {
    const writer = new ChunkWriter();
    writer.chunks({ kind: "open", meta: this.#meta });
    for await (const delta of this) yield* writer.chunks(delta);
  }

  /** Reads the rest; resolves to the complete text of choice 0. */
  async finalText(): Promise<string> {
    for await (const _ of this) continue;
    return this.text;
  }

  /**
   * Yields each delta once and in order, up to `done`. Leaving the loop early ends the
   * generation.
   *
   * @throws {LoquentError} if the answer is incomplete; an `AbortError` if it was stopped.
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<Delta> {
    const unfollow = this.#followSignal();
    let isOurs = true;
    try {
      this.#state(this.origin.is === "new" ? "connecting" : "resuming");
      const first = this.origin.is === "new" ? this.#ask(this.origin) : this.#goOn(null);
      let path: Source | null = this.#enter(await first);
      while (path) {
        const lost: PathLost | null = yield* this.#follow(path);
        isOurs = lost !== null;
        path = lost && this.#enter(await this.#goOn(lost));
      }
    } catch (error) {
      if (error instanceof LoquentError && error.kind === "superseded") isOurs = false;
      throw error;
    } finally {
      unfollow();
      // A whole answer needs no word; one that others read is theirs to end.
      if (isOurs) this.#cancelAtServer();
      this.#memory?.clear();
      this.#state("ended");
    }
  }

  #cancelAtServer(): void {
    if (this.#source) this.#source.cancel();
    else if (this.handle) stopByHttp(this.#server, this.handle);
  }

  #followSignal(): () => void {
    const { signal } = this.options;
    const abort = (): void => this.#stopped.abort(signal?.reason);
    if (signal?.aborted) abort();
    signal?.addEventListener("abort", abort);
    return () => signal?.removeEventListener("abort", abort);
  }

  /** Yields what a path brings; returns how it was lost, or `null` at the answer's end. */
  async *#follow(path: Source): AsyncGenerator<Delta, PathLost | null> {
    try {
      for await (const { offset, delta } of path) {
        this.#apply(offset, delta);
        yield delta;
        if (delta.kind === "error") throw new LoquentError("failed", delta.message, { code: delta.code });
      }
      return null;
    } catch (error) {
      if (error instanceof PathLost) return error;
      throw error;
    }
  }

  #apply(offset: number | null, delta: Delta): void {
    this.#progressAt = Date.now();
    this.#barrenPaths = 0;
    this.offset = offset;
    this.handle ??= this.#source?.handle ?? null;
    this.ignoredParameters ??= this.#source?.ignoredParameters ?? null;
    if (delta.kind === "open") this.#meta = delta.meta;
    if (delta.kind === "usage") this.usage = delta;
    if (delta.kind === "progress") this.progress = delta;
    if ("choice" in delta && delta.choice === 0) {
      if (delta.kind === "text") this.text += delta.text;
      if (delta.kind === "reasoning") this.reasoning += delta.text;
      if (delta.kind === "finish") this.finish = delta.reason;
    }
    this.#memory?.handleProgress();
  }

  #state(state: AnswerState): void {
    this.options.onState?.(state);
  }

  #enter(source: Source): Source {
    this.#source = source;
    this.handle = source.handle ?? this.handle;
    this.#memory?.save();
    if (this.transport !== source.transport) {
      this.transport = source.transport;
      this.options.onTransport?.(source.transport);
    }
    this.#state("streaming");
    return source;
  }

  async #ask({ body, apiKey }: Extract<Origin, { is: "new" }>): Promise<Source> {
    this.#stopped.signal.throwIfAborted();
    const request = { ...body, stream: true };
    try {
      const link = await this.#link();
      if (link === null) return await this.#askBySse(request, apiKey, {});
      // Asked again by another way it is the same question: the server does the work once.
      const repeatable = { [REPEAT_HEADER]: randomKey() };
      const asked = await this.#askByLink(link, request, apiKey, repeatable);
      return asked ?? (await this.#askBySse(request, apiKey, repeatable));
    } catch (error) {
      throw broken(error, error instanceof PathLost ? error.message : undefined);
    }
  }

  /** `null` if another way is to be tried: nothing was shown yet, so nothing is shown twice. */
  async #askByLink(link: Link, request: Json, apiKey: string | null, headers: Headers): Promise<Source | null> {
    const path = this.url.pathname.slice(this.#server.pathname.length - 1) + this.url.search;
    const head: RequestHead = { method: "POST", path, headers, ...(apiKey !== null && { key: apiKey }) };
    try {
      return await link.ask(this.#linkRequest(), head, JSON.stringify(request));
    } catch (error) {
      if (error instanceof PathLost && this.options.transport !== "webtransport") return null;
      throw error;
    }
  }

  #askBySse(request: Json, apiKey: string | null, more: Headers): Promise<Source> {
    const authorization = apiKey === null ? {} : { authorization: `Bearer ${apiKey}` };
    const headers = { "content-type": "application/json", ...more, ...authorization };
    const body = JSON.stringify({ ...request, resumable: true });
    return askBySse({ url: this.url, headers, body }, this.#server, this.#stopped.signal);
  }

  /** Goes on with the answer, for as long as a server may still have it. */
  async #goOn(lost: PathLost | null): Promise<Source> {
    this.handle ??= this.#source?.handle ?? null;
    if (this.handle === null) throw broken(lost);
    if (lost) this.#heed(lost);
    const before = this.#source instanceof LinkAnswer ? this.#source : null;
    this.#source = null;
    this.#state("resuming");
    let resumed: Source | null = null;
    try {
      for (; resumed === null; this.#barrenPaths += 1) {
        // The first attempt after progress is made at once.
        if (this.#barrenPaths > 0) await paused(pauseAfter(this.#barrenPaths), this.#stopped.signal);
        if (Date.now() > this.#progressAt + RESUME_WITHIN_MS) throw broken(null);
        resumed = await this.#resume(this.handle, before);
      }
      return resumed;
    } finally {
      if (!(resumed instanceof LinkAnswer)) before?.forget();
    }
  }

  /** One attempt; `null` if the server cannot be reached. */
  async #resume(handle: AnswerHandle, before: LinkAnswer | null): Promise<Source | null> {
    const offset = this.offset ?? 0;
    try {
      const link = await this.#link();
      if (link) return await link.resume(this.#linkRequest(), handle, offset, before);
      return await resumeBySse(this.#server, handle, offset, this.#stopped.signal);
    } catch (error) {
      if (!(error instanceof PathLost)) throw error;
      this.#heed(error);
      return null;
    }
  }

  /** What a lost path says about the next. */
  #heed(lost: PathLost): void {
    this.#isLinkUseless ||= lost.isTransportUseless;
    // Where nothing else is wanted, the same would be tried until the server forgets the answer.
    if (this.#isLinkUseless && this.options.transport === "webtransport") throw broken(lost);
  }

  /** The link to the server, if WebTransport is wanted, possible and in time. */
  async #link(): Promise<Link | null> {
    const { transport = "auto" } = this.options;
    if (transport === "sse" || this.#isLinkUseless) return null;
    const link = await headStart(this.#server, transport);
    this.#stopped.signal.throwIfAborted();
    if (link === null && transport === "webtransport") throw new PathLost("WebTransport does not get through.");
    return link;
  }

  #linkRequest(): LinkRequest {
    return { server: this.#server, pace: this.options.pace ?? "smooth", signal: this.#stopped.signal };
  }

  #progress(): Progress | null {
    const { handle, offset, text, reasoning, finish, usage } = this;
    if (handle === null) return null;
    return { url: this.url.href, handle, offset: offset ?? 0, meta: this.#meta, text, reasoning, finish, usage };
  }

  #restore(progress: Progress): void {
    const { handle, offset, meta, text, reasoning, finish, usage } = progress;
    this.#meta = meta;
    Object.assign(this, { handle, offset, text, reasoning, finish, usage });
  }
}

type Headers = Record<string, string>;

/** 32 random hex digits. */
function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What callers are told of a lost path that nothing could follow. */
function broken(error: unknown, message = "The connection broke; the answer is incomplete."): unknown {
  return error === null || error instanceof PathLost ? new LoquentError("broken", message) : error;
}

/** The pause before trying again when `paths` in a row have brought nothing, ms. */
function pauseAfter(paths: number): number {
  return Math.min(FIRST_PAUSE_MS * 2 ** (paths - 1), LONGEST_PAUSE_MS);
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

/** Servers that said they have no WebTransport, and until when that is believed. */
const without = new Map<string, number>();
const WITHOUT_MS = 60_000;

/** The link, if it is connected in time; connecting goes on for the next time. */
async function headStart(server: URL, wish: "auto" | "webtransport"): Promise<Link | null> {
  if (wish === "webtransport") return Promise.race([connected(server), after(INSISTED_MS)]);
  if (!webTransportWorks()) return null;
  const link = await Promise.race([connected(server), after(lastWinner(server) === "sse" ? 0 : HEAD_START_MS)]);
  if (link === null) rememberWinner(server, "sse");
  return link;
}

/** Attempts under way, shared by all who wait for the same server. */
const attempts = new Map<string, Promise<Link | null>>();

/** The link, once it is connected to `server`; `null` if that fails. */
function connected(server: URL): Promise<Link | null> {
  const attempt = attempts.get(server.href) ?? attemptTo(server).finally(() => attempts.delete(server.href));
  attempts.set(server.href, attempt);
  return attempt;
}

async function attemptTo(server: URL): Promise<Link | null> {
  if (!("WebTransport" in globalThis) || (without.get(server.href) ?? 0) > Date.now()) return null;
  try {
    const link = sharedLink(); // throws where pages may not have workers
    if (!link.isConnected(server)) await connect(link, server);
    rememberWinner(server, "webtransport");
    return link;
  } catch {
    return null;
  }
}

function after(ms: number): Promise<null> {
  return new Promise((resolve) => setTimeout(() => resolve(null), ms));
}

async function connect(link: Link, server: URL): Promise<void> {
  const target = await targetAt(server);
  try {
    await link.connect(server, target);
  } catch (error) {
    // The certificate may have been renewed between the two requests (S-1.3).
    const again = await targetAt(server);
    if (again.certificate_sha256 === target.certificate_sha256) throw error;
    await link.connect(server, again);
  }
}

async function targetAt(server: URL): Promise<Target> {
  const target = await discover(server);
  if (target !== null) return target;
  without.set(server.href, Date.now() + WITHOUT_MS);
  throw new PathLost("The server has no WebTransport.");
}
