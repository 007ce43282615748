// spec/vectors: what this implementation reads and writes is what the files say.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Reader, Receiver, WireError, Writer, crc32c, decodeFrame, decodeRecord, encodeFrame, encodeRecord, encodeUtf8 } from "../dist/protocol.js";

const cases = (name) =>
  JSON.parse(readFileSync(new URL(`../../../spec/vectors/${name}.json`, import.meta.url))).cases;
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
const hex = (data) => Buffer.from(data).toString("hex");
const fault = (name) => (error) => error instanceof WireError && error.fault === name;

/** A frame as the files write it: byte strings in hex. */
function readable(frame) {
  const shown = Object.entries(frame).map(([key, value]) => [key, value instanceof Uint8Array ? hex(value) : value]);
  return Object.fromEntries(shown);
}

function parsed({ ...frame }) {
  for (const key of ["bytes", "id", "token"]) if (key in frame) frame[key] = bytes(frame[key]);
  return frame;
}

test("the checksum's check value", () => assert.equal(crc32c(encodeUtf8("123456789")), 0xe3069283));

for (const { hex: text, value, shortest, error } of cases("ints")) {
  test(`integer ${text || "(nothing)"}`, () => {
    if (error) return assert.throws(() => new Reader(bytes(text)).int(), fault(error));
    const reader = new Reader(bytes(text));
    assert.equal(reader.int(), value);
    reader.end();
    if (shortest) assert.equal(hex(new Writer().int(value).bytes), text);
  });
}

for (const { hex: text, frame, checked, error } of cases("frames")) {
  test(`frame ${text || "(nothing)"}`, () => {
    if (error) return assert.throws(() => decodeFrame(bytes(text)), fault(error));
    assert.deepEqual(readable(decodeFrame(bytes(text), checked)), frame);
    assert.equal(hex(encodeFrame(parsed(frame), checked)), text);
    if (!checked) assert.throws(() => decodeFrame(bytes(text), true), fault("BadChecksum"));
  });
}

for (const { hex: text, delta, len, written, incomplete, error } of cases("records")) {
  test(`record ${text.slice(0, 40) || "(nothing)"}`, () => {
    if (error) return assert.throws(() => decodeRecord(bytes(text)), fault(error));
    if (incomplete) return assert.equal(decodeRecord(bytes(text)), null);
    assert.deepEqual(decodeRecord(bytes(text)), { length: len, delta });
    if (written) assert.equal(hex(encodeRecord(delta)), text);
  });
}

/** Does one step of a session and notes what the files note. */
function play(receiver, { at_ms, do: what, hex: text, hidden }) {
  const now = at_ms * 1000;
  let error = null;
  if (what === "datagram") error = receiver.handleDatagram(now, bytes(text));
  if (what === "hidden") receiver.setHidden(now, hidden);
  receiver.handleTimeout(now);
  const events = [];
  for (let event; (event = receiver.pollEvent()); ) events.push(event);
  const sent = [];
  for (let datagram; (datagram = receiver.pollTransmit(now)); ) sent.push(hex(datagram));
  return { events, sent, cumulative: receiver.cumulative, wake_us: receiver.pollTimeout(), ...(error && { error }) };
}

for (const { name, stream, from, playout, steps } of cases("receiver")) {
  test(`receiver: ${name}`, () => {
    const receiver = new Receiver(0, stream, from, { playout });
    for (const step of steps) {
      const { at_ms, do: what, hex: _hex, hidden: _hidden, ...expected } = step;
      assert.deepEqual(play(receiver, step), expected, `at ${at_ms} ms: ${what}`);
    }
  });
}
