// How many tokens a conversation has, as far as anybody has counted them.

import type { Message } from "../message/model.js";

/** Characters of a token, about, where nobody counts. */
export const CHARACTERS_PER_TOKEN = 4;

/**
 * Tokens of the messages of a conversation, first to last. The last answer whose prompt the server
 * has counted tells those up to its end; what comes after it is estimated by its length, such as an
 * answer that was stopped before its counts came. 0 if nothing was answered yet.
 */
export function conversationTokens(messages: readonly Message[]): number {
  const counted = messages.findLastIndex(({ facts }) => facts.promptTokens !== null);
  const { tokens, promptTokens } = messages[counted]?.facts ?? { tokens: 0, promptTokens: 0 };
  const rest = messages.slice(counted + 1);
  if (!messages.some(({ role }) => role === "assistant")) return 0;
  return rest.reduce((sum, message) => sum + estimated(message), (promptTokens ?? 0) + tokens);
}

function estimated({ text, reasoning, facts }: Message): number {
  return Math.max(facts.tokens, Math.ceil((text.length + reasoning.length) / CHARACTERS_PER_TOKEN));
}
