// An answer on its way, handed to another device by a link. What proves the right to it is in the
// link's fragment, which browsers send to nobody.

import { emptyMessage } from "../message/model.js";
import { newTurnId, readAlong, save, show } from "./chats.js";
import { type AnswerReference, addAnswer, addQuestion, newConversation } from "./conversation.js";
import { readReference } from "./read_conversation.js";

export interface HandedOver {
  readonly reference: AnswerReference;
  /** What was asked, for a heading. */
  readonly question: string;
}

const NAME = "answer";

/** Longest question that a link holds, characters: the QR code has to stay readable. */
const MAX_QUESTION = 120;

/** The link by which another device goes on with `handed`. */
export function handoverLink({ reference, question }: HandedOver): string {
  const link = new URL(document.baseURI);
  link.search = "";
  link.hash = new URLSearchParams({ [NAME]: `${reference.id}.${reference.token}`, q: question.slice(0, MAX_QUESTION) }).toString();
  return link.href;
}

/** Opens a conversation that consists of the answer that this page's address hands over, if it does. */
export function continueHere(): void {
  const handedOver = takeHandedOver();
  if (handedOver === null) return;
  const asked = addQuestion(newConversation(Date.now()), null, handedOver.question, [], Date.now());
  const message = emptyMessage(newTurnId(), "assistant");
  const conversation = addAnswer(asked, asked.leaf ?? "", message, Date.now());
  show(conversation);
  void save(conversation);
  readAlong(conversation.id, message.id, handedOver.reference);
}

/** What this page's address hands over; it is taken out, so that no history keeps it. */
function takeHandedOver(): HandedOver | null {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const answer = fragment.get(NAME);
  if (answer === null) return null;
  history.replaceState(null, "", location.pathname);
  const [id, token] = answer.split(".");
  const reference = readReference({ id, token });
  const question = (fragment.get("q") ?? "").slice(0, MAX_QUESTION);
  return reference && { reference, question: question || "Asked on another device" };
}

/** Whether this page's address means another machine on every other device. */
export function isOnlyHere(): boolean {
  return /^(localhost|127\.|\[::1\]|0\.0\.0\.0)/.test(location.hostname);
}
