// An answer as a hook of React's, safe in StrictMode.

import { useEffect, useState, useSyncExternalStore } from "react";
import { type AnswerSnapshot, AnswerView, type AnswerViewOptions } from "./answer_view.js";
import type { ChatRequest, CompletionRequest } from "./request.js";

export type { AnswerSnapshot, AnswerViewOptions } from "./answer_view.js";

/** What {@link useAnswer} gives: what to show, and what to do. */
export interface UsedAnswer extends AnswerSnapshot {
  /** Asks; an answer under way is stopped. */
  readonly ask: (body: ChatRequest | CompletionRequest) => void;
  /** Ends the answer and its generation. */
  readonly stop: () => void;
}

/**
 * One answer at a time, as state of a component. With `remember`, it goes on after a reload, and
 * when the component comes back; without it, it ends with the component. Give components of
 * other names another `key`.
 */
export function useAnswer(options: AnswerViewOptions): UsedAnswer {
  const [view] = useState(() => new AnswerView(options));
  useEffect(() => view.setOptions(options));
  const snapshot = useSyncExternalStore(view.subscribe, view.getSnapshot, view.getServerSnapshot);
  return { ...snapshot, ask: view.ask, stop: view.stop };
}
