// What the dashboard makes of a server's events: hostile ones included.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const { readOpening, readSnapshot } = await load("dashboard/events.ts");
const { History } = await load("dashboard/history.ts");
const { shown } = await load("dashboard/figures.ts");

const opening = (rows) => readOpening(JSON.stringify({ columns: ["at_s", "running"], history_s: 600, window_s: 10, rows }));

test("events are checked: what is no figure is none, and what is no event is nothing", () => {
  for (const data of ["", "null", "[]", "{", '{"columns":[1],"rows":[]}', '{"columns":["a"],"rows":{}}']) {
    assert.equal(readOpening(data), null, data);
  }
  assert.deepEqual(opening([[1, "2", 3], "row", null]).rows, [[1, null], [null, null], [null, null]]);
  assert.equal(readSnapshot('{"details":{}}', 2), null);
  const { row, details } = readSnapshot('{"row":[1e999,2,3],"details":{"keys":{"listed":"x","others":[]},"transports":[null],"model":7}}', 2);
  assert.deepEqual(row, [null, 2]);
  assert.deepEqual([details.model, details.keys.listed, details.keys.others, details.stages], [null, [], null, null]);
  assert.equal(details.transports[0].name, "unnamed");
});

test("the history keeps ten minutes, in order, and shows where seconds are missing", () => {
  const history = new History();
  history.open(opening([[1, 4], [2, 5]]), 1_000_002);
  assert.deepEqual(history.times(), [1_000_001, 1_000_002]);
  history.add([2, 9], 1_000_002);
  history.add([1, 9], 1_000_002);
  assert.deepEqual(history.column("running"), [4, 5], "a second comes once");
  history.add([9, 6], 1_000_009);
  assert.deepEqual(history.column("running"), [4, 5, null, 6]);
  assert.equal(history.recent("running", 2), 6);
  for (let at = 10; at < 2_000; at++) history.add([at, at], 1_000_000 + at);
  assert.equal(history.column("running").length, 600);
  assert.deepEqual(history.column("no such"), Array(600).fill(null));
});

test("figures have the digits that their size calls for", () => {
  const cases = [
    [null, "ms", "–"],
    [0, "ms", "0 ms"],
    [0.2137, "ms", "0.21 ms"],
    [33.333, "ms", "33.3 ms"],
    [412.4, "ms", "412 ms"],
    [12_345, "ms", "12.3 s"],
    [0.0123, "share", "1.2 %"],
    [0.345, "share", "35 %"],
    [24_580.4, "rate", "24,580"],
    [7, "count", "7"],
    [90_061, "seconds", "1 d 1 h"],
  ];
  for (const [figure, unit, expected] of cases) assert.equal(shown(figure, unit), expected);
});
