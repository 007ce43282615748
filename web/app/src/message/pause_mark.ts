// A mark in the text where an answer paused. It is no part of the text: copying leaves it out.

import { element } from "./markdown/elements.js";
import type { Pause } from "./model.js";
import { causeWord, duration, pauseSentence } from "./words.js";

export function pauseMark(pause: Pause): HTMLElement {
  const mark = element("span", "pause");
  mark.setAttribute("role", "note");
  showCause(mark, pause);
  return mark;
}

/** The cause has become clear, or clearer. */
export function showCause(mark: HTMLElement, { cause, ms }: Pause): void {
  mark.dataset["cause"] = cause;
  mark.title = pauseSentence(cause, ms);
  mark.setAttribute("aria-label", pauseSentence(cause, ms));
  // Shown by the style sheet, so that it is neither found nor copied with the text.
  mark.dataset["label"] = cause === "unknown" ? duration(ms) : `${duration(ms)} · ${causeWord(cause)}`;
}
