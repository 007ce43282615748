// Files of conversations: what is exported comes back, and nothing else gets in.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const { exportText, importText } = await load("chat/import_export.ts");
const { readConversation } = await load("chat/read_conversation.ts");
const { NO_PARAMETERS } = await load("chat/preset.ts");
const tree = await load("chat/conversation.ts");
const { emptyMessage } = await load("message/model.ts");

function sample() {
  const asked = tree.addQuestion(tree.newConversation(1), null, "one", [{ name: "a.txt", text: "b" }], 2);
  const message = { ...emptyMessage("answer", "assistant"), text: "first", state: { is: "finished", reason: "stop" } };
  return tree.addAnswer(asked, asked.leaf, message, 3);
}

test("what is exported can be imported", () => {
  const made = sample();
  assert.deepEqual(importText(exportText([made])), [made]);
});

test("a picture comes back as it was, and nothing else that calls itself one", () => {
  const withImage = (image) => {
    const [question, answer] = sample().turns;
    return { ...sample(), turns: [{ ...question, files: [{ name: "p", image }] }, answer] };
  };
  const made = withImage("data:image/webp;base64,UklGRg==");
  assert.deepEqual(importText(exportText([made])), [made]);
  const large = `data:image/png;base64,${"A".repeat(3 << 20)}`;
  for (const other of [null, 7, "", "https://example.com/a.png", "data:image/svg+xml;base64,AA==", "data:image/png;base64,AA==\n", "javascript:0", large]) {
    assert.deepEqual(readConversation(withImage(other)).turns[0].files, [], String(other).slice(0, 60));
  }
});

test("a conversation's preset goes with it into a file, and comes back as far as it is one", () => {
  const preset = { name: "Poet", system: "In verse.", parameters: { ...NO_PARAMETERS, temperature: 1.2 } };
  const made = { ...sample(), preset };
  assert.deepEqual(importText(exportText([made])), [made]);
  const read = (preset) => readConversation({ ...made, preset }).preset;
  for (const none of [undefined, null, 7, "Poet", [], {}, { name: " " }, { ...preset, name: 7 }]) assert.equal(read(none), null);
  const wrong = { name: "n".repeat(1_000), system: ["x"], parameters: { temperature: "hot", top_k: 4, top_p: Number.NaN, evil: 1 } };
  assert.deepEqual(read(wrong), { name: "n".repeat(60), system: "", parameters: { ...NO_PARAMETERS, top_k: 4 } });
  assert.equal(read({ ...preset, system: "s".repeat(1 << 20) }).system.length, 1 << 17);
});

test("the right to an answer on its way is not exported", () => {
  const reference = { id: "a".repeat(32), token: "b".repeat(32) };
  const running = tree.withMessage(sample(), emptyMessage("answer", "assistant"), reference, 4);
  assert.ok(!exportText([running]).includes(reference.token));
  assert.deepEqual(readConversation(running).turns[1].reference, reference);
});

test("other files are refused in words", () => {
  for (const text of ["", "{", "[]", "{}", '{"format":"loquent-conversations","version":2}', exportText([])]) {
    assert.throws(() => importText(text), /file/, text);
  }
});

test("circles, orphans and strangers are left out", () => {
  const [question, answer] = sample().turns;
  const broken = {
    ...sample(),
    turns: [
      { ...answer, id: "orphan", parent: "nobody" },
      { ...question, id: "self", parent: "self" },
      question,
      answer,
      { ...answer },
      { ...answer, id: "../x" },
      { ...answer, id: "tool", message: { ...answer.message, role: "system" } },
      null,
      7,
    ],
    leaf: "nobody",
  };
  const read = readConversation(broken);
  assert.deepEqual(read.turns, [question, answer]);
  assert.equal(read.leaf, answer.id);
});

test("texts, names and numbers are bounded", () => {
  const [question] = sample().turns;
  const message = { ...question.message, text: "x".repeat(3 << 20), facts: { tokens: -1, times: ["1"], pauses: [{ cause: "evil" }] } };
  const read = readConversation({ ...sample(), title: "t".repeat(1000), updatedAt: 1e300, turns: [{ ...question, message }] });
  assert.equal(read.title.length, 300);
  assert.equal(read.turns[0].message.text.length, 2 << 20);
  assert.deepEqual(read.turns[0].message.facts.times, []);
  assert.equal(read.turns[0].message.facts.tokens, 0);
  assert.doesNotThrow(() => new Date(read.updatedAt).toISOString());
});
