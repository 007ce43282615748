// spec/vectors/events.json: the chunks that a log becomes (spec/session.md, section 6).
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { ChunkWriter } from "../dist/chunk.js";
import { decodeRecord } from "../dist/protocol.js";

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

for (const { name, log, from, records, events } of cases) {
  test(`events: ${name}, from ${from}`, () => {
    assert.deepEqual(recordsOf(log), records);
    // An error is thrown at the reader, so that it is no chunk here.
    const expected = events.map(({ data }) => data).filter((data) => !data.error);
    assert.deepEqual(eventsOf(records, from), expected);
  });
}
