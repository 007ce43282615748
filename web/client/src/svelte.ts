// An answer as a store of Svelte's, for `$answer`. It needs nothing of Svelte's but its contract.

import { type AnswerSnapshot, AnswerView, type AnswerViewOptions } from "./answer_view.js";
import type { ChatRequest, CompletionRequest } from "./request.js";

export type { AnswerSnapshot, AnswerViewOptions } from "./answer_view.js";

/** A store of what to show, with what to do. */
export interface AnswerStore {
  /** Calls `run` now and after every change; returns what ends that. */
  readonly subscribe: (run: (snapshot: AnswerSnapshot) => void) => () => void;
  /** Asks; an answer under way is stopped. */
  readonly ask: (body: ChatRequest | CompletionRequest) => void;
  /** Ends the answer and its generation. */
  readonly stop: () => void;
}

/**
 * One answer at a time. With `remember`, it goes on after a reload, and when the first component
 * subscribes again; without it, it ends when the last one unsubscribes.
 */
export function answerStore(options: AnswerViewOptions): AnswerStore {
  const view = new AnswerView(options);
  const subscribe: AnswerStore["subscribe"] = (run) => {
    const unsubscribe = view.subscribe(() => run(view.getSnapshot()));
    run(view.getSnapshot());
    return unsubscribe;
  };
  return { subscribe, ask: view.ask, stop: view.stop };
}
