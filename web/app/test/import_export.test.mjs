// Files of conversations: what is exported comes back, and nothing else gets in.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const { MAX_FILE_BYTES, exportFiles, importText } = await load("chat/import_export.ts");
const { readConversation } = await load("chat/read_conversation.ts");
const { NO_PARAMETERS } = await load("chat/preset.ts");
const tree = await load("chat/conversation.ts");
const { emptyMessage } = await load("message/model.ts");

function sample() {
  const asked = tree.addQuestion(tree.newConversation(1), null, "one", [{ name: "a.txt", text: "b" }], 2);
  const message = { ...emptyMessage("answer", "assistant"), text: "first", state: { is: "finished", reason: "stop" } };
  return tree.addAnswer(asked, asked.leaf, message, 3);
}

/** The text of the only file of `conversations`. */
async function exported(...conversations) {
  const { files, leftOut } = await exportFiles(conversations);
  assert.deepEqual([files.length, leftOut], [1, []]);
  return files[0].text();
}

test("what is exported can be imported", async () => {
  const made = [sample(), sample()];
  assert.deepEqual(importText(await exported(...made)), made);
  assert.deepEqual(await exportFiles([]), { files: [], leftOut: [] });
});

test("times that are still to come count as now", async () => {
  const ahead = Date.now() + 3_600_000;
  const [one] = importText(await exported({ ...sample(), updatedAt: ahead, titleAt: ahead, presetAt: ahead }));
  for (const at of [one.updatedAt, one.titleAt, one.presetAt]) assert.ok(at > 3 && at <= Date.now(), `${at}`);
});

/** A conversation with `count` pictures, each as large as the page makes them. */
function album(count) {
  const [question, answer] = sample().turns;
  const files = [{ name: "large.png", image: `data:image/png;base64,${"A".repeat(1_400_000)}` }];
  const turns = Array.from({ length: count }, (_, at) => ({ ...question, id: `q${at}`, message: { ...question.message, id: `q${at}` }, files }));
  return { ...sample(), turns: [...turns, { ...answer, parent: "q0" }], leaf: answer.id };
}

test("forty pictures come back, be they in one conversation or in many", async () => {
  for (const made of [[album(40)], Array.from({ length: 20 }, () => album(2)), [sample(), album(40), sample()]]) {
    const { files, leftOut } = await exportFiles(made);
    assert.deepEqual(leftOut, []);
    assert.ok(files.every(({ size }) => size <= MAX_FILE_BYTES));
    const imported = [];
    for (const file of files) imported.push(...importText(await file.text()));
    assert.deepEqual(imported, made);
  }
});

test("what is too large for a file is named, and the rest is exported", async () => {
  const { files, leftOut } = await exportFiles([sample(), { ...album(100), title: "Album" }]);
  assert.deepEqual([files.length, leftOut], [1, ["Album"]]);
});

test("no file has more conversations than are read", async () => {
  const [question] = sample().turns;
  const many = Array.from({ length: 2_001 }, (_, at) => ({ ...sample(), id: `c${at}`, turns: [question], leaf: question.id }));
  const { files } = await exportFiles(many);
  const counts = await Promise.all(files.map(async (file) => importText(await file.text()).length));
  assert.deepEqual(counts, [2_000, 1]);
});

test("a picture comes back as it was, and nothing else that calls itself one", async () => {
  const withImage = (image) => {
    const [question, answer] = sample().turns;
    return { ...sample(), turns: [{ ...question, files: [{ name: "p", image }] }, answer] };
  };
  const made = withImage("data:image/webp;base64,UklGRg==");
  assert.deepEqual(importText(await exported(made)), [made]);
  const large = `data:image/png;base64,${"A".repeat(3 << 20)}`;
  for (const other of [null, 7, "", "https://example.com/a.png", "data:image/svg+xml;base64,AA==", "data:image/png;base64,AA==\n", "javascript:0", large]) {
    assert.deepEqual(readConversation(withImage(other)).turns[0].files, [], String(other).slice(0, 60));
  }
});

test("a conversation's preset goes with it into a file, and comes back as far as it is one", async () => {
  const preset = { name: "Poet", system: "In verse.", parameters: { ...NO_PARAMETERS, temperature: 1.2 } };
  const made = { ...sample(), preset };
  assert.deepEqual(importText(await exported(made)), [made]);
  const read = (preset) => readConversation({ ...made, preset }).preset;
  for (const none of [undefined, null, 7, "Poet", [], {}, { name: " " }, { ...preset, name: 7 }]) assert.equal(read(none), null);
  const wrong = { name: "n".repeat(1_000), system: ["x"], parameters: { temperature: "hot", top_k: 4, top_p: Number.NaN, evil: 1 } };
  assert.deepEqual(read(wrong), { name: "n".repeat(60), system: "", parameters: { ...NO_PARAMETERS, top_k: 4 } });
  assert.equal(read({ ...preset, system: "s".repeat(1 << 20) }).system.length, 1 << 17);
});

test("the right to an answer on its way is not exported", async () => {
  const reference = { id: "a".repeat(32), token: "b".repeat(32) };
  const running = tree.withMessage(sample(), emptyMessage("answer", "assistant"), reference, 4);
  assert.ok(!(await exported(running)).includes(reference.token));
  assert.deepEqual(readConversation(running).turns[1].reference, reference);
});

test("other files are refused in words", () => {
  for (const text of ["", "{", "[]", "{}", '{"format":"loquent-conversations","version":2}', '{"format":"loquent-conversations","version":1,"conversations":[]}']) {
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

test("one time at which a title or a preset was chosen, as it was kept once, is that of both", () => {
  const { titleAt, presetAt, ...old } = sample();
  const times = (kept) => [readConversation(kept).titleAt, readConversation(kept).presetAt];
  assert.deepEqual([titleAt, presetAt, ...times(old)], [0, 0, 0, 0]);
  assert.deepEqual(times({ ...old, chosenAt: 7 }), [7, 7]);
  assert.deepEqual(times({ ...old, chosenAt: 7, titleAt: 8, presetAt: "9" }), [8, 0]);
});
