// A reader that has more of an answer than the server that takes it over: what comes again is
// compared and left out, however it is cut.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ReadingAgain } from "../dist/reading_again.js";
import { seeded } from "./support.mjs";

const text = (text, choice = 0) => ({ kind: "text", choice, tokens: 1, text });
const call = (id, name, args) => ({ kind: "tool_call", choice: 0, index: 0, tokens: 1, id, name, arguments: args });
const differs = { name: "LoquentError", kind: "broken", message: /another answer/ };

/** One that has read `deltas`, and reads again. */
function ahead(...deltas) {
  const again = new ReadingAgain(true);
  for (const delta of deltas) assert.equal(again.restOf(delta), delta);
  assert.ok(again.begin());
  return again;
}

/** Cuts `whole` at random. */
function cut(whole, random) {
  const pieces = [];
  while (whole !== "") {
    const length = 1 + Math.floor(random() * 5);
    pieces.push(whole.slice(0, length));
    whole = whole.slice(length);
  }
  return pieces;
}

test("however both servers cut the text, what follows is exactly what lacks", () => {
  const random = seeded(7);
  for (let round = 0; round < 200; round += 1) {
    const whole = "a text that is told twice".slice(0, 1 + Math.floor(random() * 25));
    const read = whole.slice(0, 1 + Math.floor(random() * whole.length));
    const again = ahead(...cut(read, random).map((piece) => text(piece)));
    let all = read;
    for (const piece of cut(whole, random)) all += again.restOf(text(piece))?.text ?? "";
    assert.equal(all, whole);
  }
});

test("another answer is noticed, and one that ends too early", () => {
  assert.throws(() => ahead(text("one")).restOf(text("oh")), differs);
  assert.throws(() => ahead(text("one")).restOf({ kind: "done" }), differs);
  assert.throws(() => ahead(text("one")).restOf({ kind: "finish", choice: 0, reason: "stop" }), differs);
  assert.throws(() => ahead({ kind: "reasoning", choice: 0, tokens: 1, text: "hm" }).restOf(text("So")), differs);
  const other = text("x", 1);
  assert.equal(ahead(text("one")).restOf(other), other);
});

test("a call of a tool goes on under its first id", () => {
  const again = ahead(call("one", "weather", '{"ci'), call("", "", "ty"));
  assert.equal(again.restOf(call("two", "weather", "{")), null);
  assert.deepEqual(again.restOf(call("", "", '"city":')), call("", "", '":'));
  assert.throws(() => ahead(call("one", "weather", "{")).restOf(call("two", "time", "{")), differs);
});

test("what is not known from its beginning is not read again", () => {
  const late = new ReadingAgain(false);
  late.restOf(text("two"));
  assert.equal(late.begin(), false);
  const odd = new ReadingAgain(true);
  odd.restOf({ kind: "logprobs", choice: 0, json: "{}" });
  assert.equal(odd.begin(), false);
  assert.equal(new ReadingAgain(true).begin(), false, "nothing was read");
});
