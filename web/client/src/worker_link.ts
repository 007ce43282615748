// The page's side of the worker: connections and answers as promises and iterators.

import type { Target } from "./connection.js";
import { type Deferred, newDeferred } from "./deferred.js";
import type { PlayoutChoice } from "./playout.js";
import type { Shown } from "./quic.js";
import { LoquentError, abortReason, isDetached, refusal } from "./errors.js";
import type { News, Order, Port } from "./service.js";
import { Code, type RequestHead } from "./message.js";
import { IGNORED_HEADER, type Item, PathLost, type AnswerReference, type Source } from "./source.js";

/** What an answer over a link needs to begin or to go on. */
export interface LinkRequest {
  readonly server: URL;
  readonly pace: PlayoutChoice;
  readonly signal: AbortSignal;
}

/** A service somewhere, and what waits for it. */
export class Link {
  readonly #port: Port<News, Order>;
  readonly #connecting = new Map<string, Deferred<void>>();
  readonly #connected = new Set<string>();
  readonly #answers = new Map<number, LinkAnswer>();
  #nextAnswer = 0;
  #dead: string | null = null;

  constructor(port: Port<News, Order>) {
    this.#port = port;
    port.onmessage = ({ data }) => this.#handleNews(data);
  }

  /** Whether a connection to `server` is open. */
  isConnected(server: URL): boolean {
    return this.#connected.has(server.href);
  }

  /** Opens a connection to `server`, or shares the one that is open; rejects if it fails. */
  connect(server: URL, target: Target): Promise<void> {
    if (this.#dead !== null) return Promise.reject(new PathLost(this.#dead));
    const before = this.#connecting.get(server.href);
    if (before) return before.promise;
    const waiting = newDeferred<void>();
    this.#connecting.set(server.href, waiting);
    this.order({ type: "connect", server: server.href, target });
    return waiting.promise;
  }

  /** Asks for an answer; resolves once the server has begun, rejects if it refuses. */
  async ask({ server, pace, signal }: LinkRequest, head: RequestHead, body: string): Promise<LinkAnswer> {
    const answer = this.#add(null, signal);
    this.order({ type: "ask", answer: answer.number, server: server.href, head, body, pace });
    return await begun(answer);
  }

  /** Goes on with an answer from `offset`; `before` is what received it here, if anything did. */
  async resume(
    { server, pace, signal }: LinkRequest,
    reference: AnswerReference,
    offset: number,
    before: LinkAnswer | null,
  ): Promise<LinkAnswer> {
    const answer = this.#add(before?.number ?? null, signal);
    answer.reference = reference;
    const { id, token } = reference;
    this.order({ type: "resume", answer: answer.number, server: server.href, id, token, offset, pace });
    return await begun(answer);
  }

  /** Tells the senders whether anybody looks (D-5.7). */
  setHidden(hidden: boolean): void {
    this.order({ type: "hidden", hidden });
  }

  /** The service has died: everything that waits for it is lost. */
  handleDeath(why: string): void {
    this.#dead = why;
    for (const server of [...this.#connecting.keys()]) this.#handleDisconnected(server, why);
    for (const answer of this.#answers.values()) answer.handleEnd(new PathLost(why));
  }

  /** Gives the service an order. */
  order(order: Order): void {
    if (this.#dead === null) this.#port.postMessage(order);
  }

  #add(number: number | null, signal: AbortSignal): LinkAnswer {
    const answer = new LinkAnswer(this, number ?? this.#nextAnswer++, signal);
    this.#answers.set(answer.number, answer);
    return answer;
  }

  #handleNews(news: News): void {
    if (news.type === "connected") {
      this.#connected.add(news.server);
      this.#connecting.get(news.server)?.resolve();
    } else if (news.type === "disconnected") {
      this.#handleDisconnected(news.server, news.why);
    } else {
      const answer = this.#answers.get(news.answer);
      answer?.handleNews(news);
      if (answer?.ended) this.#answers.delete(news.answer);
    }
  }

  #handleDisconnected(server: string, why: string): void {
    this.#connected.delete(server);
    this.#connecting.get(server)?.reject(new PathLost(why));
    this.#connecting.delete(server);
  }
}

/** `answer`, once it has begun. One that is not waited for any more is given up in the service too. */
async function begun(answer: LinkAnswer): Promise<LinkAnswer> {
  try {
    await answer.begun;
    return answer;
  } catch (error) {
    if (answer.signal.aborted && isDetached(answer.signal.reason)) answer.leave();
    else if (answer.signal.aborted) answer.cancel();
    throw error;
  }
}

type AnswerNews = Extract<News, { answer: number }>;

/** An answer that comes over a link. Bounded: the service waits for what is not read here. */
export class LinkAnswer implements Source {
  readonly transport = "webtransport";
  reference: AnswerReference | null = null;
  ignoredParameters: string | null = null;
  heardAt_ms = Date.now();
  /** Whether the server has said that it has the answer. Without that, what is read was here before. */
  isAnswered = false;
  /** What had come when the path was lost, and waited to be shown; where another path goes on it comes again. */
  rest: readonly Shown[] = [];
  #queue: Shown[] = [];
  /** Set once nothing more is queued; `null` inside: a clean end. */
  #end: { readonly error: unknown } | null = null;
  #wake: () => void = () => {};
  readonly #begun = newDeferred<void>();

  constructor(
    readonly link: Link,
    readonly number: number,
    readonly signal: AbortSignal,
  ) {
    signal.addEventListener("abort", () => this.handleEnd(abortReason(signal)), { once: true });
    if (signal.aborted) this.handleEnd(abortReason(signal));
  }

  /** Resolves at the answer's first sign of life; rejects if it ends before. */
  get begun(): Promise<void> {
    return this.#begun.promise;
  }

  /** Whether no news can come any more. */
  get ended(): boolean {
    return this.#end !== null;
  }

  cancel(): void {
    this.link.order({ type: "stop", answer: this.number });
  }

  /** The reader leaves, or another transport goes on with the answer. */
  leave(): void {
    this.link.order({ type: "forget", answer: this.number });
  }

  /** Takes in what the service reports. */
  handleNews(news: AnswerNews): void {
    this.heardAt_ms = Date.now();
    switch (news.type) {
      case "answered":
        this.isAnswered = true;
        this.reference = { id: news.head.id, token: news.head.token };
        this.ignoredParameters = news.head.headers[IGNORED_HEADER] ?? null;
        return this.#begun.resolve();
      case "deltas":
        this.#queue.push(...news.deltas);
        this.#begun.resolve();
        return this.#wake();
      case "heard":
        return;
      case "refused":
        return this.handleEnd(refusal(news.head.status, news.head.headers["retry-after"] ?? null, news.body));
      case "complete":
        return this.handleEnd(null);
      case "failed":
        return this.handleEnd(failure(news.fault));
      case "ended":
        return this.handleEnd(ending(news.code));
      case "lost":
        this.rest = news.rest;
        return this.handleEnd(new PathLost(news.loss.why, {}, news.loss.malformed));
    }
  }

  /** Nothing more comes, because of `error` or, if that is `null`, because all has come. */
  handleEnd(error: unknown): void {
    this.#end ??= { error };
    if (error === null) this.#begun.resolve();
    else this.#begun.reject(error);
    this.#wake();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Item> {
    for (;;) {
      const batch = this.#queue;
      this.#queue = [];
      for (const [offset, delta] of batch) {
        if (this.signal.aborted) throw abortReason(this.signal);
        yield { offset, delta };
      }
      if (batch.length > 0) {
        this.link.order({ type: "read", answer: this.number, count: batch.length });
      } else if (this.#end) {
        if (this.#end.error !== null) throw this.#end.error;
        return;
      } else {
        await new Promise<void>((resolve) => (this.#wake = resolve));
      }
    }
  }
}

function failure(fault: string | null): LoquentError {
  if (fault === null) return new LoquentError("gone", "The rest of this answer is not kept any more.");
  return new LoquentError("unreadable", `What the server sent cannot be read (${fault}).`);
}

/** What a server means that ends an answer before its end (S-2.6). */
function ending(code: Code): LoquentError {
  if (code === Code.Superseded) return new LoquentError("superseded", "Another reader has taken this one's place.");
  if (code === Code.ShuttingDown) return new LoquentError("gone", "The server is shutting down. Ask again.");
  return new LoquentError("gone", "The answer was stopped.");
}

let shared: Link | null = null;

/** The page's link: one worker for all servers and answers, begun when first needed. */
export function sharedLink(): Link {
  if (shared === null) {
    const worker = new Worker(new URL("./loquent-worker.js", import.meta.url), { type: "module", name: "loquent" });
    const link = new Link(worker as Port<News, Order>);
    worker.onerror = (event) => link.handleDeath(event.message || "the worker cannot be loaded");
    watchVisibility(link);
    shared = link;
  }
  return shared;
}

/** Lets tests, and places without workers, give a link of their own. */
export function setSharedLink(link: Link | null): void {
  shared = link;
}

function watchVisibility(link: Link): void {
  if (typeof document === "undefined") return;
  const tell = (): void => link.setHidden(document.visibilityState === "hidden");
  document.addEventListener("visibilitychange", tell);
  tell();
}
