// Histories of the world of replicas without a page.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const { readHistory } = await load("lab/world/history.ts");

const TEXT = `make: Entering directory
  0.100 answer 0 is asked for at C
  0.100 reader 0 of answer 0 reads on from 0 of epoch 0 at C by datagrams
  0.120 C writes 947b6f running fence 1 at 0+113: stored
  0.125 answer 0 is 947b6f
  0.130 chat 0 is that of answer 0: chatcmpl-12
  0.200 response 0 is asked for as resp_00000000000000000000010050edcd29 at A
  0.300 store: Slow
  0.400 B: Kill
  0.450 C writes 947b6f running fence 1 at 113+18: stored
  0.500 A stores resp_00000000000000000000010050edcd29 ended fence 1 of 711 bytes: 1
  0.600 store: evicts loquent:1:a:1
  0.700 client 3 of response 0: read at B
  0.800 B: no Kill any more
  0.900 store: works
 12.000 reader 0 leaves
 12.005 C stores chatcmpl-12 ended fence 1 of 99 bytes: 1
seed 7: 8 whole, 1 excused

broken: chat 0 has lost its annotation
`;

test("a history is read with its places, faults and subjects", () => {
  const { events, subjects, outcome, isCut } = readHistory(TEXT);
  const of = (at) => events.find((event) => event.at === at);
  assert.equal(events.length, 16);
  assert.deepEqual(subjects, ["answer 0", "response 0"]);
  assert.deepEqual([of(120).from, of(120).to, of(120).subjects], ["C", "store", []], "the id is not known yet");
  assert.deepEqual(of(450).subjects, ["answer 0"]);
  assert.deepEqual([of(12_005).from, of(12_005).subjects], ["C", ["answer 0"]]);
  assert.deepEqual([of(12_000).from, of(12_000).to, of(12_000).subjects], ["clients", "clients", ["answer 0"]]);
  assert.deepEqual([of(700).from, of(700).to, of(700).subjects], ["clients", "B", ["response 0"]]);
  assert.deepEqual(of(500).faulty, ["store", "B"]);
  assert.deepEqual([of(600).fault, of(600).from, of(600).faulty], [null, "store", ["store", "B"]]);
  assert.deepEqual([of(400).fault, of(800).fault, of(900).faulty], ["begins", "ends", []]);
  assert.deepEqual(outcome, ["seed 7: 8 whole, 1 excused", "broken: chat 0 has lost its annotation"]);
  assert.equal(isCut, false);
});

test("what is no history is not one, and a long one is cut at its beginning", () => {
  assert.equal(readHistory(""), null);
  assert.equal(readHistory("{}\n1.5 seconds\n"), null);
  const long = Array.from({ length: 6_000 }, (_, at) => `${at}.000 answer ${at} ${"x".repeat(1_000)}`).join("\n");
  const { events, isCut, outcome } = readHistory(`${long}\n${"y".repeat(1_000)}`);
  assert.deepEqual([events.length, isCut, events.at(-1).at], [5_000, true, 5_999_000]);
  assert.ok(events[0].text.length <= 301 && outcome[0].length <= 300);
});
