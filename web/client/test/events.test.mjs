// spec/vectors/events.json: the chunks that a log becomes (spec/session.md, section 6), and what a
// reader of them finds.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { ChunkReader, ChunkWriter } from "../dist/chunk.js";
import { decodeRecord } from "../dist/protocol.js";
import { EventReader } from "../dist/sse.js";

const { cases } = JSON.parse(readFileSync(new URL("../../../spec/vectors/events.json", import.meta.url)));

/** The records of a log in hex: the offset of each one's end, and its delta. */
function recordsOf(hex) {
  const log = Uint8Array.from(Buffer.from(hex, "hex"));
  const records = [];
  for (let end = 0; end < log.length; ) {
    const { length, delta } = decodeRecord(log.subarray(end));
    end += length;
    records.push({ end, delta });
  }
  return records;
}

/** What an event's data are here: chunks are those of a reader that has everything before them. */
function eventsOf(records, from) {
  const writer = new ChunkWriter();
  const events = [];
  for (const { end, delta } of records) {
    const chunks = delta === null ? [] : writer.chunks(delta);
    if (end <= from) continue;
    events.push(...chunks);
    if (delta?.kind === "done") events.push("[DONE]");
  }
  return events;
}

/** An event's data as a server pads it, which readers ignore (S-6.6). */
const padded = (data) => JSON.stringify({ ...data, obfuscation: "qjxkz" });

/** Text, reasoning, tool arguments and reasons of every choice. */
function saying(deltas) {
  const said = {};
  for (const { kind, choice, ...rest } of deltas.filter((delta) => delta && "choice" in delta)) {
    const piece = rest.text ?? rest.arguments ?? rest.reason;
    if (piece !== undefined) said[`${kind} ${choice}`] = (said[`${kind} ${choice}`] ?? "") + piece;
  }
  return Object.fromEntries(Object.entries(said).filter(([, pieces]) => pieces !== ""));
}

for (const { name, log, from, records, events } of cases) {
  test(`events: ${name}, from ${from}`, () => {
    assert.deepEqual(recordsOf(log), records);
    // An error is thrown at the reader, so that it is no chunk here.
    const expected = events.map(({ data }) => data).filter((data) => !data.error);
    assert.deepEqual(eventsOf(records, from), expected);
  });

  test(`events: ${name}, read from ${from}`, () => {
    const lines = events.map(({ id, data }) => `${id === null ? "" : `id: ${id}\n`}data: ${data === "[DONE]" ? data : padded(data)}\n\n`);
    const [cutter, reader] = [new EventReader(), new ChunkReader()];
    const found = cutter.push(`: a comment says nothing\n\n${lines.join("")}`);
    assert.deepEqual(found.map(({ id }) => id), events.map(({ id }) => (id === null ? null : String(id))));
    const deltas = found.filter(({ data }) => data !== "[DONE]").flatMap(({ data }) => reader.deltas(JSON.parse(data)));
    const rest = records.filter(({ end }) => end > from).map(({ delta }) => delta);
    assert.deepEqual(saying(deltas), saying(rest));
    assert.equal(found.some(({ data }) => data === "[DONE]"), rest.at(-1)?.kind === "done");
    assert.deepEqual(deltas.find(({ kind }) => kind === "error")?.message, rest.find((delta) => delta?.kind === "error")?.message);
  });
}

test("a comment says why nothing comes for now, wherever it is cut", () => {
  const text = "data: {}\n\n: paused, the engine was lost; wait\n\n: queued 1\n\ndata: [DONE]\n\n";
  const expected = [
    { id: null, data: "{}", paused: null },
    { id: null, data: "", paused: "the engine was lost; wait" },
    { id: null, data: "[DONE]", paused: null },
  ];
  for (let cut = 0; cut <= text.length; cut++) {
    const reader = new EventReader();
    assert.deepEqual([...reader.push(text.slice(0, cut)), ...reader.push(text.slice(cut))], expected);
  }
});
