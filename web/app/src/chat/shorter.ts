// What to do with a conversation that is longer than the model can read.

import { answerAgain, ask, change, current, isRunning, startNew } from "./chats.js";
import { type Conversation, type Turn, questionText, shownPath, turnOf, withoutUnanswered } from "./conversation.js";
import { say } from "./toast.js";

/**
 * Leaves out the oldest exchanges, so that about `share` of the text that is sent now remains;
 * `null` if there is only the last one.
 */
export function forgetOldest(conversation: Conversation, share: number): Conversation | null {
  const path = shownPath(conversation);
  const from = Math.max(0, path.findIndex(({ id }) => id === conversation.seenFrom));
  const starts = path.flatMap(({ message }, at) => (message.role === "user" && at > from ? [at] : []));
  const lengthFrom = (at: number): number => path.slice(at).reduce((sum, turn) => sum + questionText(turn).length, 0);
  const wanted = lengthFrom(from) * share;
  const start = starts.find((at) => lengthFrom(at) <= wanted) ?? starts.at(-1);
  const first = start === undefined ? undefined : path[start];
  return first ? { ...conversation, seenFrom: first.id } : null;
}

/** Lets the model forget the oldest turns, and asks the last question again. */
export function goOnShorter(turn: Turn): void {
  const shorter = forgetOldest(current.peek(), 0.5);
  if (shorter === null) return say("There is nothing left to leave out: this question alone is too long.");
  current.value = shorter;
  answerAgain(turn);
}

/** Begins a new conversation with the question that `turn` could not answer. */
export function goOnInNewChat(turn: Turn): void {
  const question = turnOf(current.peek(), turn.parent);
  if (question === null || isRunning()) return;
  change(withoutUnanswered(current.peek()));
  startNew(current.peek().preset);
  ask(question.message.text, question.files);
}
