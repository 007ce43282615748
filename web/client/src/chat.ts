// Streaming chat, like `fetch` and as easy: asks over WebTransport if it is there within
// 500 ms, else over server-sent events, and goes on by either when a path breaks.

import type { Answer, ChatOptions, HttpOptions, ReferredOptions, RememberedOptions } from "./answer.js";
import type { ChatChunk, Chunk, TextChunk } from "./chunk.js";
import { patient } from "./dial.js";
import { serverOf, webTransportWorks } from "./discovery.js";
import { Http } from "./http.js";
import { LiveAnswer, type Origin } from "./live_answer.js";
import type { StorageLike, UrlLike } from "./platform.js";
import { type Kept, forget, isReference, recall, tabStorage } from "./progress_store.js";
import type { ChatRequest, CompletionRequest } from "./request.js";
import type { TransportName } from "./source.js";
import { stopByHttp } from "./sse.js";

/** Asks, and streams the answer. Nothing is sent before the answer is read. */
export function streamChat(options: ChatOptions<ChatRequest>): Answer<ChatChunk>;
export function streamChat(options: ChatOptions<CompletionRequest>): Answer<TextChunk>;
export function streamChat(options: ChatOptions): Answer<Chunk>;
export function streamChat(options: ChatOptions): Answer<never> {
  const { url, body, extraBody, apiKey = null, retries = 0 } = options;
  const question = { body: { ...body, ...extraBody }, key: randomKey(), asked_ms: Date.now(), apiKey, retries };
  return new LiveAnswer(absolute(url), options, { is: "question", question });
}

/**
 * Goes on with an answer: with the one that was kept under `remember` before the page was
 * reloaded, `null` if there is none; or with the one that `reference` names, from `offset` on.
 * `text` is what was kept of it; iterating yields what follows.
 */
export function resumeChat(options: ReferredOptions): Answer;
export function resumeChat(options: RememberedOptions): Answer | null;
export function resumeChat(options: RememberedOptions | ReferredOptions): Answer | null {
  if ("reference" in options) return resumeReferred(options);
  const kept = recall(options.remember, options.storage ?? tabStorage());
  return kept && new LiveAnswer<ChatChunk>(new URL(kept.url), options, originOf(kept, options));
}

function resumeReferred(options: ReferredOptions): Answer {
  const { reference, offset = 0 } = options;
  if (!isReference(reference)) throw new TypeError("reference: id and token are 32 hex digits each");
  if (!Number.isSafeInteger(offset) || offset < 0) throw new TypeError("offset: a whole number from 0 on");
  return new LiveAnswer<ChatChunk>(absolute(options.url), options, { is: "reference", reference, offset });
}

function originOf(kept: Kept, { apiKey }: RememberedOptions): Origin {
  if (kept.is === "begun") return { is: "progress", progress: kept };
  const { body, key, asked_ms } = kept;
  return { is: "question", question: { body, key, asked_ms, apiKey: apiKey ?? null, retries: 0 } };
}

/** Forgets what was kept under `remember`, and ends its generation. */
export function forgetChat(remember: string, options: HttpOptions & { readonly storage?: StorageLike | undefined } = {}): void {
  const { storage = tabStorage() } = options;
  const kept = recall(remember, storage);
  if (kept?.is === "begun") stopByHttp(new Http(options), serverOf(new URL(kept.url)), kept.reference);
  forget(remember, storage);
}

/**
 * Connects ahead of a question, so that it need not wait. Resolves, once that is known, to
 * how the answer will travel; never rejects.
 */
export async function prepare(url: UrlLike, options: HttpOptions = {}): Promise<TransportName> {
  const http = new Http(options);
  const isPossible = webTransportWorks() && http.allowsOtherTransports;
  const link = isPossible ? await patient(serverOf(absolute(url)), http) : null;
  return link ? "webtransport" : "sse";
}

function absolute(url: UrlLike): URL {
  return new URL(typeof url === "string" ? url : url.href, globalThis.document?.baseURI);
}

/** 32 random hex digits. */
function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
