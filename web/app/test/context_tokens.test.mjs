// The gauge's count of a conversation, with answers that were stopped.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const { conversationTokens } = await load("chat/context_tokens.ts");
const { emptyMessage } = await load("message/model.ts");

const question = (text) => ({ ...emptyMessage("q", "user"), text });
const answer = (text, facts) => {
  const empty = emptyMessage("a", "assistant");
  return { ...empty, text, facts: { ...empty.facts, ...facts } };
};

test("the last answer tells the whole conversation", () => {
  const first = answer("one", { promptTokens: 10, tokens: 5 });
  const second = answer("two", { promptTokens: 30, tokens: 7 });
  assert.equal(conversationTokens([question("a"), first, question("b"), second]), 37);
  assert.equal(conversationTokens([question("a")]), 0, "a draft is counted elsewhere");
});

test("a stopped answer does not forget what came before it", () => {
  const first = answer("one", { promptTokens: 100, tokens: 50 });
  const stopped = answer("x".repeat(80), { promptTokens: null, tokens: 25 });
  assert.equal(conversationTokens([question("a"), first, question("y".repeat(40)), stopped]), 100 + 50 + 10 + 25);
  assert.equal(conversationTokens([question("y".repeat(40)), stopped]), 10 + 25);
});
