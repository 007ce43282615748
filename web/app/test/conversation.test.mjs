// The tree of turns: versions, what is sent, what is forgotten.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const tree = await load("chat/conversation.ts");
const { forgetOldest } = await load("chat/shorter.ts");
const { emptyMessage } = await load("message/model.ts");

const answered = (id, text) => ({ ...emptyMessage(id, "assistant"), text, state: { is: "finished", reason: "stop" } });
const refused = (id) => ({ ...emptyMessage(id, "assistant"), state: { is: "failed", error: "no", retry: true } });

/** A conversation of questions and answers: `["q1", "a1", …]`; `null` is a refused answer. */
function conversation(...texts) {
  let made = tree.newConversation(1);
  texts.forEach((text, at) => {
    if (at % 2 === 0) made = tree.addQuestion(made, made.leaf, text, [], 2);
    else made = tree.addAnswer(made, made.leaf, text === null ? refused(`r${at}`) : answered(`a${at}`, text), 3);
  });
  return made;
}

const sent = (made, system = "") => tree.requestMessages(made, made.leaf, system).map(({ role, content }) => `${role}: ${content}`);
const shown = (made) => tree.shownPath(made).map(({ message }) => message.text);

test("questions and answers are sent in turn, after the system prompt", () => {
  const made = tree.addQuestion(conversation("one", "first"), "a1", "two", [], 4);
  assert.deepEqual(sent(made, " be brief "), ["system: be brief", "user: one", "assistant: first", "user: two"]);
});

test("a refused question leaves the conversation with the next one", () => {
  const made = tree.withoutUnanswered(conversation("one", "first", "refused", null));
  assert.deepEqual(shown(made), ["one", "first"]);
  assert.deepEqual(sent(tree.addQuestion(made, made.leaf, "two", [], 5)), ["user: one", "assistant: first", "user: two"]);
});

test("two questions are never sent in a row", () => {
  const made = conversation("one", null, "two", "second", "three", null);
  const roles = sent(tree.addQuestion(made, made.leaf, "four", [], 5)).map((line) => line.split(":")[0]);
  assert.deepEqual(roles, ["user", "assistant", "user"]);
});

test("an answer that failed after some words stays", () => {
  const made = conversation("one", "first");
  const broken = tree.withMessage(made, { ...refused("a1"), text: "fir" }, null, 4);
  assert.equal(tree.withoutUnanswered(broken), broken);
});

test("an edited question is a version beside the first, and each has its own answers", () => {
  const first = conversation("one", "first", "two", "second");
  const [question] = tree.shownPath(first);
  const edited = tree.addQuestion(first, question.parent, "one, but shorter", [], 5);
  assert.deepEqual(shown(edited), ["one, but shorter"]);
  const versions = tree.versionsOf(edited, tree.turnOf(edited, edited.leaf));
  assert.deepEqual(versions.map(({ message }) => message.text), ["one", "one, but shorter"]);
  assert.deepEqual(shown(tree.showVersion(edited, question.id)), ["one", "first", "two", "second"]);
});

test("another answer is a version of the same question", () => {
  const made = conversation("one", "first");
  const question = tree.shownPath(made)[0].id;
  const again = tree.addAnswer(made, question, answered("b", "other"), 4);
  assert.deepEqual(shown(again), ["one", "other"]);
  assert.equal(tree.versionsOf(again, tree.turnOf(again, "b")).length, 2);
  assert.deepEqual(shown(tree.withoutTurn(again, "b")), ["one"]);
});

test("the oldest turns are left out, and never the last question", () => {
  const made = conversation("x".repeat(400), "y".repeat(400), "short", "answer", "last", null);
  const shorter = forgetOldest(made, 0.5);
  assert.deepEqual(sent({ ...shorter, leaf: tree.shownPath(shorter).at(-2).id }), ["user: short", "assistant: answer", "user: last"]);
  const shortest = forgetOldest(shorter, 0.1);
  assert.equal(tree.turnOf(shortest, shortest.seenFrom).message.text, "last");
  assert.equal(forgetOldest(shortest, 0.5), null);
});

test("pictures go before the text, which has the files that are text", () => {
  const image = "data:image/png;base64,AA==";
  const files = [{ name: "a.txt", text: "b" }, { name: "p.png", image }];
  const made = tree.addQuestion(tree.newConversation(1), null, "What?", files, 2);
  const picture = { type: "image_url", image_url: { url: image } };
  const [{ content }] = tree.requestMessages(made, made.leaf, "");
  assert.deepEqual(content, [picture, { type: "text", text: "a.txt:\n```\nb\n```\n\nWhat?" }]);
  const bare = tree.addQuestion(tree.newConversation(1), null, "", files.slice(1), 2);
  assert.deepEqual(tree.requestMessages(bare, bare.leaf, "")[0].content, [picture]);
});

test("two tabs on one conversation lose nothing of each other", () => {
  const base = conversation("one", "first");
  const ours = tree.addQuestion(base, "a1", "ours", [], 10);
  const theirs = tree.addAnswer(tree.addQuestion(base, "a1", "theirs", [], 11), null, answered("x", "other"), 12);
  const whole = tree.merged(ours, theirs);
  assert.deepEqual(shown(whole), ["one", "first", "ours"], "what is shown here stays");
  assert.equal(tree.versionsOf(whole, tree.turnOf(whole, whole.leaf)).length, 2);
  assert.equal(whole.updatedAt, 12);
});

test("of two presets the one that was chosen last stays", () => {
  const base = conversation("one", "first");
  const preset = { name: "Poet", system: "In verse.", parameters: {} };
  const [older, newer] = [{ ...base, updatedAt: 10 }, { ...base, updatedAt: 11, preset }];
  assert.deepEqual([tree.merged(older, newer).preset, tree.merged(newer, older).preset], [preset, preset]);
});

test("a title or preset that was chosen in one tab stays, though an answer in another tab makes its copy the newer one", () => {
  const asked = conversation("one");
  const base = tree.addAnswer(asked, asked.leaf, { ...emptyMessage("a", "assistant"), text: "fi" }, 3);
  const preset = { name: "Poet", system: "In verse.", parameters: {} };
  const chosen = tree.withPreset(tree.withTitle(base, "New", 4), preset, 5);
  const streaming = tree.withMessage(base, answered("a", "first"), null, 6);
  for (const whole of [tree.merged(chosen, streaming), tree.merged(streaming, chosen)]) {
    assert.deepEqual([whole.title, whole.preset, whole.updatedAt], ["New", preset, 6]);
    assert.deepEqual(shown(whole), ["one", "first"]);
  }
  const again = tree.withTitle(chosen, "Newer", 7);
  for (const whole of [tree.merged(again, chosen), tree.merged(chosen, again)]) assert.equal(whole.title, "Newer");
});

test("a title that was chosen in one tab stays, though another tab chooses a preset, in either order", () => {
  const base = conversation("one", "first");
  const preset = { name: "Poet", system: "In verse.", parameters: {} };
  for (const [titleAt, presetAt] of [[4, 5], [5, 4]]) {
    const [titled, instructed] = [tree.withTitle(base, "New", titleAt), tree.withPreset(base, preset, presetAt)];
    for (const whole of [tree.merged(titled, instructed), tree.merged(instructed, titled)]) {
      assert.deepEqual([whole.title, whole.preset, whole.titleAt, whole.presetAt], ["New", preset, titleAt, presetAt]);
    }
  }
});

test("what one tab has left out stays out, though another tab's copy is newer and has left out less", () => {
  const base = conversation("one", "first", "two", "second", "three", "third");
  const seenFrom = (at, updatedAt) => ({ ...base, seenFrom: base.turns[at]?.id ?? null, updatedAt });
  for (const newer of [seenFrom(-1, 9), seenFrom(2, 9)]) {
    const older = seenFrom(4, 8);
    for (const whole of [tree.merged(older, newer), tree.merged(newer, older)]) {
      assert.equal(whole.seenFrom, base.turns[4].id);
    }
  }
  const elsewhere = tree.addQuestion(base, "a1", "other", [], 10);
  const there = { ...elsewhere, seenFrom: elsewhere.leaf };
  assert.equal(tree.merged(seenFrom(2, 8), there).seenFrom, base.turns[2].id, "the other one is on no path that is shown here");
});

test("by what an answer on its way can be read stays known, though another tab with as much of it does not know", () => {
  const asked = conversation("one");
  const message = emptyMessage("a", "assistant");
  const theirs = tree.addAnswer(asked, asked.leaf, message, 3);
  const reference = { id: "a".repeat(32), token: "b".repeat(32) };
  const ours = tree.withMessage(theirs, message, reference, 4);
  const newer = { ...theirs, updatedAt: 5 };
  for (const whole of [tree.merged(ours, newer), tree.merged(newer, ours)]) {
    assert.deepEqual(tree.turnOf(whole, "a").reference, reference);
  }
});

test("what another tab goes on with is shown, with the whole answer", () => {
  const asked = conversation("one");
  const open = (text) => ({ ...emptyMessage("a", "assistant"), text });
  const ours = tree.addAnswer(asked, asked.leaf, open("fi"), 3);
  const theirs = tree.addQuestion(tree.withMessage(ours, answered("a", "first"), null, 4), "a", "two", [], 5);
  assert.deepEqual(shown(tree.merged(ours, theirs)), ["one", "first", "two"]);
  assert.deepEqual(shown(tree.merged(theirs, ours)), ["one", "first", "two"], "never less than what is here");
});

test("an answer that went on in another tab after it was stopped here is taken whole", () => {
  const stopped = { ...answered("a", "fir"), state: { is: "finished", reason: "stopped" } };
  const asked = conversation("one");
  const base = tree.addAnswer(asked, asked.leaf, stopped, 3);
  const theirs = tree.withMessage(base, answered("a", "first, whole"), null, 4);
  const ours = tree.addQuestion(base, "a", "two", [], 5);
  assert.deepEqual(shown(tree.merged(ours, theirs)), ["one", "first, whole", "two"], "though ours is newer");
  assert.deepEqual(shown(tree.merged(theirs, base)), ["one", "first, whole"], "what they have is less");
  const lost = { ...stopped, state: { is: "failed", error: "The page was closed.", retry: true } };
  assert.equal(tree.merged(tree.withMessage(base, lost, null, 6), base).turns[1].message, stopped, "it was not lost");
});

test("the title and the oldest turn that the model sees are those that were chosen last", () => {
  const base = conversation("one", "first", "two", "second");
  const renamed = { ...base, title: "New", seenFrom: base.turns[2].id, updatedAt: 9 };
  for (const whole of [tree.merged(base, renamed), tree.merged(renamed, base)]) {
    assert.deepEqual([whole.title, whole.seenFrom], ["New", base.turns[2].id]);
  }
});

test("an answer that is read again from its beginning never has less than was kept of it", () => {
  const kept = { ...emptyMessage("a", "assistant"), text: "more than half", state: { is: "streaming" } };
  const again = (text, state) => tree.fuller(kept, { ...kept, text, state });
  const failed = { is: "failed", error: "gone", retry: false };
  assert.deepEqual(again("", failed), { ...kept, state: failed });
  assert.equal(again("more", { is: "streaming" }).text, kept.text);
  assert.equal(again("more", { is: "finished", reason: "stopped" }).text, kept.text);
  assert.equal(again("more than half of it", failed).text, "more than half of it");
  assert.equal(again("whole", { is: "finished", reason: "stop" }).text, "whole");
});

test("what was taken out here does not bring back what hung on it", () => {
  const base = conversation("one", null);
  const theirs = tree.addQuestion(base, "r1", "two", [], 9);
  const ours = tree.withoutTurn(base, base.turns[0].id);
  const whole = tree.merged({ ...ours, turns: [] }, { ...theirs, turns: theirs.turns.slice(1) });
  assert.deepEqual(whole.turns, []);
});

test("files are fenced so that they cannot end their fence", () => {
  const made = tree.addQuestion(tree.newConversation(1), null, "What is this?", [{ name: "a.md", text: "````\nx\n````\n" }], 2);
  assert.deepEqual(sent(made), ["user: a.md:\n`````\n````\nx\n````\n`````\n\nWhat is this?"]);
});

test("a title is a question's first line, cut at a word", () => {
  assert.equal(tree.titleOf("  How?\nAnd why?"), "How?");
  const title = tree.titleOf("word ".repeat(40));
  assert.ok(title.length <= 61 && title.endsWith("word…"), title);
});
