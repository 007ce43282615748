// One answer while it is read: applies what comes, follows it from path to path, keeps what a
// reload needs, and says where it stands.

import type { Answer, AnswerOptions, AnswerState } from "./answer.js";
import { type Chunk, ChunkWriter } from "./chunk.js";
import type { Delta, PromptProgress, ToolCall } from "./delta.js";
import { serverOf } from "./discovery.js";
import { type Deferred, newDeferred } from "./deferred.js";
import { AlreadyReadError, LoquentError, abortReason, isDetached } from "./errors.js";
import { Http } from "./http.js";
import { type Pause, PauseWatch } from "./pause.js";
import { type Kept, type Progress, ProgressStore, tabStorage } from "./progress_store.js";
import { PathFinder, type Question, brokenBy } from "./path_finder.js";
import { ReadingAgain } from "./reading_again.js";
import { PathLost, type AnswerReference, type Source, type TransportName } from "./source.js";
import { stopByHttp } from "./sse.js";
import { LinkAnswer } from "./worker_link.js";

/** Where an answer begins. */
export type Origin =
  | { readonly is: "question"; readonly question: Question }
  | { readonly is: "progress"; readonly progress: Progress }
  | { readonly is: "reference"; readonly reference: AnswerReference; readonly offset: number };

/** How reading ended; whether the answer is whole is another question. */
type Ending =
  | { readonly is: "read" }
  /** The program left the loop, or returned the iterator. */
  | { readonly is: "left" }
  | { readonly is: "failed"; readonly error: unknown };

/** How a path ended before its answer did; with a `LoquentError`, the server did not have it. */
type Lost = PathLost | LoquentError;

/** See {@link Answer}. */
export class LiveAnswer<C extends Chunk> implements Answer<C> {
  text = "";
  reasoning = "";
  toolCalls: readonly ToolCall[] = [];
  finish: string | null = null;
  usage: Extract<Delta, { kind: "usage" }> | null = null;
  progress: PromptProgress | null = null;
  state: AnswerState;
  pause: Pause | null = null;
  transport: TransportName | null = null;
  reference: AnswerReference | null = null;
  ignoredParameters: string | null = null;
  offset: number | null = null;
  #meta = "{}";
  readonly #options: AnswerOptions;
  readonly #origin: Origin;
  readonly #http: Http;
  readonly #server: URL;
  readonly #stopped = new AbortController();
  readonly #memory: ProgressStore | null;
  readonly #paths: PathFinder;
  readonly #pauses = new PauseWatch((pause) => this.#handlePause(pause));
  readonly #again: ReadingAgain;
  readonly #whole: Deferred<string> = newDeferred();
  #source: Source | null = null;
  #isRead = false;
  #isDone = false;

  constructor(
    readonly url: URL,
    options: AnswerOptions,
    origin: Origin,
  ) {
    this.#options = options;
    this.#origin = origin;
    this.#http = new Http(options);
    this.#server = serverOf(url);
    const { remember, storage = tabStorage() } = options;
    this.#memory = remember === undefined ? null : new ProgressStore(remember, storage, () => this.#kept());
    const { signal } = this.#stopped;
    this.#paths = new PathFinder({ url, server: this.#server, options, http: this.#http, signal, pauses: this.#pauses });
    this.state = origin.is === "question" ? "connecting" : "resuming";
    this.#again = new ReadingAgain(origin.is === "question" || (origin.is === "reference" && origin.offset === 0));
    if (origin.is === "reference") Object.assign(this, { reference: origin.reference, offset: origin.offset });
    if (origin.is === "progress") this.#restore(origin.progress);
  }

  cancel(): void {
    this.#leave(new DOMException("The answer was stopped.", "AbortError"));
  }

  detach(): void {
    this.#leave(new LoquentError("detached", "The program has left this answer; the server goes on with it."));
  }

  /** Makes the reader throw `reason`; where there is none yet, this is all the reading there is. */
  #leave(reason: unknown): void {
    if (this.#stopped.signal.aborted || this.state === "ended") return;
    this.#stopped.abort(reason);
    if (this.#isRead) return;
    this.#isRead = true;
    this.#handleEnding({ is: "failed", error: reason });
  }

  async *chunks(): AsyncGenerator<C> {
    const writer = new ChunkWriter();
    writer.chunks({ kind: "open", meta: this.#meta });
    for await (const delta of this) yield* writer.chunks(delta) as C[];
  }

  async finalText(): Promise<string> {
    // Its error reaches whoever waits below.
    if (!this.#isRead) readAll(this).catch(() => {});
    return await this.#whole.promise;
  }

  [Symbol.asyncIterator](): AsyncGenerator<Delta> {
    if (this.#isRead) throw new AlreadyReadError();
    this.#isRead = true;
    return this.#read();
  }

  async *#read(): AsyncGenerator<Delta> {
    const unfollow = this.#followSignal();
    let ending: Ending = { is: "left" };
    try {
      for (let path: Source | null = yield* this.#begin(); path !== null; ) {
        this.#enter(path);
        const lost: Lost | null = yield* this.#follow(path);
        path = lost && (yield* this.#goOn(lost));
      }
      ending = { is: "read" };
    } catch (error) {
      ending = { is: "failed", error };
      throw error;
    } finally {
      unfollow();
      this.#handleEnding(ending);
    }
  }

  #handleEnding(ending: Ending): void {
    this.#pauses.handleEnd();
    if (this.#isDone) {
      this.#memory?.clear();
    } else if (isDetached(this.#stopped.signal.reason)) {
      this.#source?.leave();
      this.#memory?.release();
    } else {
      if (this.#isOursToEnd(ending)) this.#cancelAtServer();
      // Without the answer's last record the path would wait for its reader for ever.
      else if (!hasFailed(ending)) this.#source?.leave();
      this.#memory?.clear();
    }
    this.#setState("ended");
    if (this.#isDone) this.#whole.resolve(this.text);
    else if (ending.is === "failed") this.#whole.reject(ending.error);
    else this.#whole.reject(new DOMException("The answer was left before its end.", "AbortError"));
  }

  /** Others may read an answer too: it ends for all only if somebody here wanted that. */
  #isOursToEnd(ending: Ending): boolean {
    if (ending.is !== "failed") return ending.is === "left";
    const isUnreadable = ending.error instanceof LoquentError && ending.error.kind === "unreadable";
    return this.#stopped.signal.aborted || isUnreadable;
  }

  #cancelAtServer(): void {
    if (this.#source) this.#source.cancel();
    else if (this.reference) stopByHttp(this.#http, this.#server, this.reference);
  }

  #followSignal(): () => void {
    const { signal } = this.#options;
    const abort = (): void => this.#stopped.abort(signal?.reason);
    if (signal?.aborted) abort();
    signal?.addEventListener("abort", abort);
    return () => signal?.removeEventListener("abort", abort);
  }

  async *#begin(): AsyncGenerator<Delta, Source> {
    this.#setState(this.state);
    if (this.#origin.is !== "question") return yield* this.#goOn(null);
    // A reload from here on finds the question, and asks it again with the same key.
    this.#memory?.save();
    return await this.#paths.ask(this.#origin.question);
  }

  /** Yields what a path brings; returns how it was lost, or `null` at the answer's end. */
  async *#follow(path: Source): AsyncGenerator<Delta, Lost | null> {
    try {
      for await (const { offset, delta: whole } of path) {
        const delta = this.#take(offset, whole);
        if (delta === null) continue;
        yield delta;
        if (delta.kind === "error") throw new LoquentError("failed", delta.message, { code: delta.code });
        if (this.#stopped.signal.aborted && delta.kind !== "done") throw abortReason(this.#stopped.signal);
      }
      return null;
    } catch (error) {
      if (error instanceof PathLost) return error;
      // GONE in answer to a RESUME, of which only what had waited to be shown was read.
      if (path instanceof LinkAnswer && !path.isAnswered && isGone(error)) return error;
      throw error;
    }
  }

  /** Takes in the next delta; returns what is new of it, if anything is. */
  #take(offset: number | null, whole: Delta): Delta | null {
    const delta = this.#again.restOf(whole);
    if (delta === null) this.offset = offset; // it was shown before
    else this.#apply(offset, delta);
    return delta;
  }

  #apply(offset: number | null, delta: Delta): void {
    this.#paths.handleProgress();
    this.offset = offset;
    this.reference ??= this.#source?.reference ?? null;
    this.ignoredParameters ??= this.#source?.ignoredParameters ?? null;
    this.#isDone ||= delta.kind === "done";
    if (delta.kind === "open") this.#meta = delta.meta;
    if (delta.kind === "usage") this.usage = delta;
    if (delta.kind === "progress") this.progress = delta;
    if ("choice" in delta && delta.choice === 0) {
      if (delta.kind === "text") this.text += delta.text;
      if (delta.kind === "reasoning") this.reasoning += delta.text;
      if (delta.kind === "tool_call") this.toolCalls = withPiece(this.toolCalls, delta);
      if (delta.kind === "finish") this.finish = delta.reason;
    }
    this.#memory?.handleProgress();
    this.#pauses.handleDelta(delta);
  }

  #setState(state: AnswerState): void {
    this.state = state;
    tell(this.#options.onState, state);
  }

  #handlePause(pause: Pause | null): void {
    this.pause = pause;
    tell(this.#options.onPause, pause);
  }

  #enter(source: Source): void {
    this.#source = source;
    this.reference = source.reference ?? this.reference;
    this.#memory?.save();
    if (this.transport !== source.transport) {
      this.transport = source.transport;
      tell(this.#options.onTransport, source.transport);
    }
    this.#pauses.handlePath(source);
    this.#setState("streaming");
  }

  async *#goOn(why: Lost | null): AsyncGenerator<Delta, Source> {
    const lost = why instanceof LoquentError ? new PathLost(why.message, { cause: why }) : why;
    const before = this.#source;
    this.reference ??= before?.reference ?? null;
    if (this.reference === null) {
      yield* this.#restOf(before);
      throw brokenBy(lost);
    }
    this.#source = null;
    if (lost !== null) this.#setState("resuming");
    try {
      if (why instanceof LoquentError) throw why;
      return await this.#paths.goOn(this.reference, this.offset ?? 0, lost, before);
    } catch (error) {
      yield* this.#restOf(before);
      // It may be there, with less of it than was read here.
      if (!(isGone(error) && this.#again.begin())) throw error;
      this.offset = 0;
      return await this.#paths.goOn(this.reference, 0, lost, null);
    }
  }

  /** What had come by `path`, and waited to be shown when that was lost. */
  *#restOf(path: Source | null): Generator<Delta> {
    if (!(path instanceof LinkAnswer) || this.#stopped.signal.aborted) return;
    for (const [offset, whole] of path.rest) {
      const delta = this.#take(offset, whole);
      if (delta !== null) yield delta;
    }
  }

  #kept(): Kept | null {
    const { reference, usage } = this;
    const meta = this.#meta;
    // Where it stands in a log that is read again says nothing of what was shown.
    const from = this.#again.isUnderWay ? { offset: 0, text: "", reasoning: "", toolCalls: [], finish: null } : this;
    const { text, reasoning, toolCalls, finish } = from;
    if (reference !== null) {
      const shown = { offset: from.offset ?? 0, meta, text, reasoning, toolCalls, finish, usage };
      return { is: "begun", url: this.url.href, reference, ...shown };
    }
    if (this.#origin.is !== "question") return null;
    const { body, key, asked_ms } = this.#origin.question;
    return { is: "asked", url: this.url.href, body, key, asked_ms };
  }

  #restore(progress: Progress): void {
    const { reference, offset, meta, text, reasoning, toolCalls, finish, usage } = progress;
    this.#meta = meta;
    Object.assign(this, { reference, offset, text, reasoning, toolCalls, finish, usage });
  }
}

/** `calls` with the next piece of one of them, or with a further one. */
function withPiece(calls: readonly ToolCall[], { index, id, name, arguments: piece }: ToolCall): readonly ToolCall[] {
  if (!calls.some((call) => call.index === index)) return [...calls, { index, id, name, arguments: piece }];
  return calls.map((call) => (call.index === index ? { ...call, arguments: call.arguments + piece } : call));
}

function isGone(error: unknown): error is LoquentError {
  return error instanceof LoquentError && error.kind === "gone";
}

/** Whether the answer's last record said that it has failed. */
function hasFailed(ending: Ending): boolean {
  return ending.is === "failed" && ending.error instanceof LoquentError && ending.error.kind === "failed";
}

async function readAll(answer: AsyncIterable<unknown>): Promise<void> {
  for await (const _ of answer) continue;
}

/** Tells a listener, whose mistakes are no end of the answer. */
function tell<T>(listener: ((news: T) => void) | undefined, news: T): void {
  try {
    listener?.(news);
  } catch (error) {
    (globalThis.reportError ?? console.error)(error);
  }
}
