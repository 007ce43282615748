// What a program sees of an answer: how it is asked for, how it is read, where it stands.

import type { ChatChunk, Chunk, Json } from "./chunk.js";
import type { Delta, PromptProgress, ToolCall } from "./delta.js";
import type { Pause } from "./pause.js";
import type { AbortSignalLike, Credentials, FetchLike, StorageLike, UrlLike } from "./platform.js";
import type { PlayoutChoice } from "./playout.js";
import type { ChatRequest, CompletionRequest } from "./request.js";
import type { AnswerReference, TransportName } from "./source.js";

/** Where an answer stands. */
export type AnswerState = "connecting" | "streaming" | "resuming" | "ended";

/** How an app wants its HTTP requests. */
export interface HttpOptions {
  /** Makes the requests in place of the platform's `fetch`. */
  readonly fetch?: FetchLike | undefined;
  /** Sent with every request, for a gateway or a guard against cross-site requests. */
  readonly headers?: Readonly<Record<string, string>> | undefined;
  /** Whether requests carry cookies. Default: as `fetch`, to the page's own origin only. */
  readonly credentials?: Credentials | undefined;
}

/** What programs may say about any answer. */
export interface AnswerOptions extends HttpOptions {
  /** Ends the answer, and its generation; the iterator then throws the signal's reason. */
  readonly signal?: AbortSignalLike | undefined;
  /**
   * `auto`, or insist on one. Default `auto`, which is `sse` where `fetch` is given or
   * `credentials` is `include`.
   */
  readonly transport?: "auto" | TransportName | undefined;
  /**
   * How what has arrived by WebTransport is shown: `smooth` hides most stalls for a small
   * delay, `off` shows at once. Default `smooth`.
   */
  readonly pace?: PlayoutChoice | undefined;
  /** Keep the answer under this name in `storage`, for `resumeChat` after a reload. */
  readonly remember?: string | undefined;
  /** Where `remember` keeps it. Default: the tab's `sessionStorage`, where there is one. */
  readonly storage?: StorageLike | undefined;
  /** The answer travels by this from now on. */
  readonly onTransport?: ((transport: TransportName) => void) | undefined;
  /** The answer's state has changed. */
  readonly onState?: ((state: AnswerState) => void) | undefined;
  /** The answer stands still, and why; `null`: it moves again. */
  readonly onPause?: ((pause: Pause | null) => void) | undefined;
}

/** A key as it is, or a function that gets one whenever a question is asked. */
export type ApiKey = string | (() => string | Promise<string>);

/** What `streamChat` needs. */
export interface ChatOptions<Request extends ChatRequest | CompletionRequest = ChatRequest | CompletionRequest>
  extends AnswerOptions {
  /** The endpoint: `.../v1/chat/completions` or `.../v1/completions`. */
  readonly url: UrlLike;
  /** The request as for OpenAI; `stream` is added. */
  readonly body: Request;
  /** Parameters that the types of `body` do not know. */
  readonly extraBody?: Json | undefined;
  /** Sent as a bearer token. In browsers, a token made for the purpose: see "Keys" in the README. */
  readonly apiKey?: ApiKey | undefined;
  /**
   * How often to ask again when the server is overloaded or not reached, after the time
   * that it asks for (at most a minute). Default 0.
   */
  readonly retries?: number | undefined;
}

/** What `resumeChat` needs to find what was kept under a name. */
export interface RememberedOptions extends AnswerOptions {
  readonly remember: string;
  /** For a question that was asked just before the reload. */
  readonly apiKey?: ApiKey | undefined;
}

/** What `resumeChat` needs of an answer that is known by its reference. */
export interface ReferredOptions extends AnswerOptions {
  /** The endpoint that was asked. */
  readonly url: UrlLike;
  /** The `reference` of the answer. Whoever has it can read and stop the answer: treat it as a key. */
  readonly reference: AnswerReference;
  /** The `offset` up to which the answer was read. Default 0: all of it, as far as it is kept. */
  readonly offset?: number | undefined;
}

/**
 * One answer: an async iterable of deltas that can be iterated once, up to `done`. Leaving the
 * loop ends the generation; {@link detach} does not.
 *
 * Iteration throws a `LoquentError` if the answer is incomplete, the signal's reason (or an
 * `AbortError`) if it was stopped, and an `AlreadyReadError` the second time.
 */
export interface Answer<C extends Chunk = ChatChunk> extends AsyncIterable<Delta> {
  /** The endpoint. */
  readonly url: { readonly href: string };
  /** Text of choice 0 so far. */
  readonly text: string;
  /** Reasoning of choice 0 so far. */
  readonly reasoning: string;
  /** Calls of tools of choice 0 so far, each with the arguments so far. */
  readonly toolCalls: readonly ToolCall[];
  /** Why choice 0 has ended; `null` before. */
  readonly finish: string | null;
  /** The last token counts that came. */
  readonly usage: Extract<Delta, { kind: "usage" }> | null;
  /** Where it stands before its first token, by the latest news. */
  readonly progress: PromptProgress | null;
  readonly state: AnswerState;
  /** Why it stands still; `null` while it moves. */
  readonly pause: Pause | null;
  /** How it travels; `null` before it does. */
  readonly transport: TransportName | null;
  /** What proves the right to go on with it; `null` where that is not possible. */
  readonly reference: AnswerReference | null;
  /** Where the answer goes on after what was yielded; `null` if the server reports none. */
  readonly offset: number | null;
  /** Names of the request's parameters that the server ignored, if it said so. */
  readonly ignoredParameters: string | null;

  /** The deltas; throws an `AlreadyReadError` if they were asked for before. */
  [Symbol.asyncIterator](): AsyncGenerator<Delta>;
  /** The same as OpenAI's chunk objects, instead of the deltas. */
  chunks(): AsyncGenerator<C>;
  /**
   * Resolves to the whole text of choice 0, as often as it is called, and whether or not the
   * answer is iterated too; reads the answer itself where nothing else does.
   */
  finalText(): Promise<string>;
  /** Ends the answer and its generation, for all who read it: the iterator throws an `AbortError`. */
  cancel(): void;
  /**
   * Leaves the answer, and lets the server go on with it: for this page to come back to (what
   * `remember` keeps stays), or for others who read it. The iterator throws a `LoquentError`
   * of the kind `detached`.
   */
  detach(): void;
}
