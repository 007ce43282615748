// One answer after the other as something to show: snapshots that change at most once per frame,
// and listeners whose coming and going begins, leaves and takes up answers. What the hooks and
// stores for React, Vue and Svelte are made of.

import type { Answer, AnswerOptions, AnswerState, ApiKey } from "./answer.js";
import { resumeChat, streamChat } from "./chat.js";
import type { Delta } from "./delta.js";
import { LoquentError, isDetached } from "./errors.js";
import type { Pause } from "./pause.js";
import type { UrlLike } from "./platform.js";
import type { ChatRequest, CompletionRequest } from "./request.js";
import type { AnswerReference, TransportName } from "./source.js";

/** Listeners are told of new text at most this often, ms: more than a frame shows nobody sees. */
const FRAME_MS = 16;

/** What is shown of an answer. */
export interface AnswerSnapshot {
  /** `idle` before the first question; `stopped` by the user. */
  readonly status: "idle" | Exclude<AnswerState, "ended"> | "done" | "stopped" | "failed";
  readonly text: string;
  readonly reasoning: string;
  /** Why the model ended. */
  readonly finish: string | null;
  readonly usage: Extract<Delta, { kind: "usage" }> | null;
  readonly transport: TransportName | null;
  /** Why nothing comes just now. */
  readonly pause: Pause | null;
  /** Of an answer that failed; mostly a `LoquentError`. */
  readonly error: unknown;
  readonly reference: AnswerReference | null;
}

/** How answers are asked for and kept. */
export interface AnswerViewOptions extends Omit<AnswerOptions, "signal" | "onPause" | "onState" | "onTransport"> {
  /** The endpoint: `.../v1/chat/completions` or `.../v1/completions`. */
  readonly url: UrlLike;
  readonly apiKey?: ApiKey | undefined;
  /** How often to ask again when the server is overloaded or not reached. Default 0. */
  readonly retries?: number | undefined;
}

const IDLE: AnswerSnapshot = {
  status: "idle",
  text: "",
  reasoning: "",
  finish: null,
  usage: null,
  transport: null,
  pause: null,
  error: null,
  reference: null,
};

/**
 * Shows one answer at a time. With `remember`, the first listener takes up what a reload or the
 * last listener left; without it, an answer ends when the last listener goes.
 */
export class AnswerView {
  #options: AnswerViewOptions;
  #snapshot = IDLE;
  #answer: Answer | null = null;
  readonly #listeners = new Set<() => void>();
  #frame: ReturnType<typeof setTimeout> | null = null;
  #leaving: ReturnType<typeof setTimeout> | null = null;

  constructor(options: AnswerViewOptions) {
    this.#options = options;
  }

  /** Options for the next question. */
  setOptions(options: AnswerViewOptions): void {
    this.#options = options;
  }

  readonly getSnapshot = (): AnswerSnapshot => this.#snapshot;

  /** What servers render. */
  readonly getServerSnapshot = (): AnswerSnapshot => IDLE;

  /** Calls `listener` after every change; returns what ends that. */
  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    if (this.#leaving !== null) clearTimeout(this.#leaving);
    this.#leaving = null;
    if (this.#answer === null) this.#takeUp();
    return () => {
      this.#listeners.delete(listener);
      // React's StrictMode unsubscribes and subscribes again at once: that is no leaving.
      if (this.#listeners.size === 0) this.#leaving ??= setTimeout(() => this.#leave(), 0);
    };
  };

  /** Asks; an answer under way is stopped. */
  readonly ask = (body: ChatRequest | CompletionRequest): void => {
    this.#answer?.cancel();
    this.#show(streamChat({ ...this.#options, ...this.#listening(), body }) as Answer);
  };

  /** Ends the answer and its generation; what came of it stays. */
  readonly stop = (): void => {
    this.#answer?.cancel();
  };

  #takeUp(): void {
    const { remember } = this.#options;
    if (remember === undefined) return;
    const kept = resumeChat({ ...this.#options, ...this.#listening(), remember });
    if (kept !== null) this.#show(kept);
  }

  #leave(): void {
    this.#leaving = null;
    if (this.#options.remember === undefined) this.#answer?.cancel();
    else this.#answer?.detach();
    this.#answer = null;
  }

  #listening(): Pick<AnswerOptions, "onPause" | "onState" | "onTransport"> {
    const changed = (): void => this.#schedule();
    return { onPause: changed, onState: changed, onTransport: changed };
  }

  #show(answer: Answer): void {
    this.#answer = answer;
    this.#tell(snapshotOf(answer, null));
    void this.#read(answer);
  }

  async #read(answer: Answer): Promise<void> {
    let failure: { readonly error: unknown } | null = null;
    try {
      for await (const _ of answer) this.#schedule();
    } catch (error) {
      failure = { error };
    }
    if (this.#answer !== answer) return; // another question was asked, or everybody has left
    this.#answer = null;
    this.#tell(snapshotOf(answer, failure));
  }

  #schedule(): void {
    this.#frame ??= setTimeout(() => {
      this.#frame = null;
      if (this.#answer !== null) this.#tell(snapshotOf(this.#answer, null));
    }, FRAME_MS);
  }

  #tell(snapshot: AnswerSnapshot): void {
    this.#snapshot = snapshot;
    for (const listener of [...this.#listeners]) listener();
  }
}

function snapshotOf(answer: Answer, failure: { readonly error: unknown } | null): AnswerSnapshot {
  const { text, reasoning, finish, usage, transport, pause, reference } = answer;
  const shown = { text, reasoning, finish, usage, transport, pause, reference };
  if (failure === null) return { ...shown, status: answer.state === "ended" ? "done" : answer.state, error: null };
  const isStopped = isDetached(failure.error) || !isFailure(failure.error);
  return { ...shown, status: isStopped ? "stopped" : "failed", error: isStopped ? null : failure.error };
}

function isFailure(error: unknown): boolean {
  return error instanceof LoquentError || !(error instanceof DOMException && error.name === "AbortError");
}
