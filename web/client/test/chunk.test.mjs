// Deltas as OpenAI's chunks (spec/session.md, section 6), where the rules leave a choice.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ChunkWriter } from "../dist/chunk.js";

const open = (usage) => ({ kind: "open", meta: JSON.stringify({ id: "a", object: "text_completion", created: 1, model: "m", system_fingerprint: "f", usage }) });
const text = { kind: "text", choice: 0, tokens: 1, text: "x" };
const counts = (completion) => ({ kind: "usage", prompt: 2, completion, cached: 0, reasoning: 0 });

function chunks(...deltas) {
  const writer = new ChunkWriter();
  return deltas.flatMap((delta) => writer.chunks(delta));
}

test("chunks: counts that a chunk has carried do not come again before the end", () => {
  const shown = chunks(open("counts"), counts(1), text, { kind: "done" });
  assert.deepEqual(shown.map((chunk) => chunk.usage.completion_tokens), [1]);
  const later = chunks(open("counts"), counts(1), text, counts(2), { kind: "done" });
  assert.deepEqual(later.map((chunk) => chunk.usage.completion_tokens), [1, 2]);
  assert.deepEqual(later[1].choices, []);
});

test("chunks: counts of another server stand in the place of ours", () => {
  const own = { kind: "other", choice: 0, json: '{"usage":{"cost":1}}' };
  const all = chunks(open("counts"), counts(1), text, counts(2), own, { kind: "done" });
  assert.deepEqual(all.map((chunk) => chunk.usage), [all[0].usage, { cost: 1 }]);
});

test("chunks: every chunk has the members of the open record", () => {
  const all = chunks(open("none"), text, counts(1), { kind: "done" });
  assert.equal(all.length, 2);
  assert.ok(all.every((chunk) => chunk.system_fingerprint === "f" && chunk.id === "a"));
});
