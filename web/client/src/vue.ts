// An answer as a composable of Vue's.

import { onScopeDispose, shallowReactive } from "vue";
import { type AnswerSnapshot, AnswerView, type AnswerViewOptions } from "./answer_view.js";
import type { ChatRequest, CompletionRequest } from "./request.js";

export type { AnswerSnapshot, AnswerViewOptions } from "./answer_view.js";

/** What {@link useAnswer} gives: a reactive object, and what to do. */
export interface UsedAnswer {
  /** Reactive: its members change. Do not destructure it. */
  readonly answer: AnswerSnapshot;
  /** Asks; an answer under way is stopped. */
  readonly ask: (body: ChatRequest | CompletionRequest) => void;
  /** Ends the answer and its generation. */
  readonly stop: () => void;
}

/**
 * One answer at a time, as state of a component. With `remember`, it goes on after a reload, and
 * when the component comes back; without it, it ends with the component.
 */
export function useAnswer(options: AnswerViewOptions): UsedAnswer {
  const view = new AnswerView(options);
  const answer = shallowReactive({ ...view.getSnapshot() });
  const unsubscribe = view.subscribe(() => void Object.assign(answer, view.getSnapshot()));
  onScopeDispose(unsubscribe);
  return { answer, ask: view.ask, stop: view.stop };
}
