// spec/vectors: what this implementation reads and writes is what the files say.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { targetOf } from "../dist/discovery.js";
import {
  Code,
  MessageReader,
  MessageType,
  Reader,
  Receiver,
  WireError,
  Writer,
  codeOf,
  crc32c,
  decodeAnswerHead,
  decodeFrame,
  decodeRecord,
  decodeResponseHead,
  encodeFrame,
  encodeMessage,
  encodePaddedFrame,
  encodeRecord,
  encodeUtf8,
  peekChannel,
} from "../dist/protocol.js";

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

for (const { hex: text, frame, checked, written, padded_to, error } of cases("frames")) {
  test(`frame ${text || "(nothing)"}${checked ? ", checked" : ""}`, () => {
    if (error) return assert.throws(() => decodeFrame(bytes(text), checked), fault(error));
    assert.deepEqual(readable(decodeFrame(bytes(text), checked)), frame);
    assert.equal(peekChannel(bytes(text)), frame.channel);
    const made = padded_to === undefined ? encodeFrame(parsed(frame), checked) : encodePaddedFrame(parsed(frame), padded_to, checked);
    if (written) assert.equal(hex(made), text);
    if (!checked) assert.throws(() => decodeFrame(bytes(text), true), fault("BadChecksum"));
  });
}

test("frames of kinds that belong to no answer have no channel", () => {
  for (const text of ["171b01", "1601", "1502171b00", "", "2301"]) assert.equal(peekChannel(bytes(text)), null, text);
});

for (const { hex: text, delta, len, written, incomplete, error } of cases("records")) {
  test(`record ${text.slice(0, 40) || "(nothing)"}`, () => {
    if (error) return assert.throws(() => decodeRecord(bytes(text)), fault(error));
    if (incomplete) return assert.equal(decodeRecord(bytes(text)), null);
    assert.deepEqual(decodeRecord(bytes(text)), { length: len, delta });
    if (written) assert.equal(hex(encodeRecord(delta)), text);
  });
}

test("a record that says why nothing comes for now", () => {
  const delta = { kind: "pause", why: "wait" };
  assert.equal(hex(encodeRecord(delta)), "050e77616974");
  assert.deepEqual(decodeRecord(bytes("050e77616974")), { length: 6, delta });
  assert.throws(() => decodeRecord(bytes("020eff")), WireError);
});

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

for (const { name, channel, from, playout, steps } of cases("receiver")) {
  test(`receiver: ${name}`, () => {
    const receiver = new Receiver(0, channel, from, { playout });
    for (const step of steps) {
      const { at_ms, do: what, hex: _hex, hidden: _hidden, ...expected } = step;
      assert.deepEqual(play(receiver, step), expected, `at ${at_ms} ms: ${what}`);
    }
  });
}

const messages = cases("messages");
const capital = (name) => name.replace(/(?:^| )(.)/g, (_, letter) => letter.toUpperCase());
const typeNamed = (name) => MessageType[capital(name.toLowerCase())];

/** Everything that a reader finds in `pieces`, and its error. */
function readMessages(pieces, limit) {
  const reader = new MessageReader(limit);
  const found = [];
  try {
    for (const piece of pieces) for (const message of reader.push(piece)) found.push(message);
  } catch (error) {
    assert.ok(error instanceof WireError);
    return { found, failed: true };
  }
  return { found, failed: reader.partial };
}

for (const { about, hex: text, limit, messages: expected, written, error } of messages.filter((one) => "hex" in one)) {
  test(`messages: ${about}`, () => {
    const wanted = expected.map(({ type, payload }) => ({ type: typeNamed(type), payload }));
    const whole = bytes(text);
    for (const pieces of [[whole], Array.from(whole, (byte) => Uint8Array.of(byte))]) {
      const { found, failed } = readMessages(pieces, limit);
      assert.deepEqual(found.map(({ type, payload }) => ({ type, payload: hex(payload) })), wanted);
      assert.equal(failed, error !== undefined);
    }
    const encoded = wanted.map(({ type, payload }) => hex(encodeMessage(type, bytes(payload))));
    if (written) assert.equal(encoded.join(""), text);
  });
}

const HEADS = { ANSWER: decodeAnswerHead, RESPONSE: decodeResponseHead };
for (const { head, json, value, error } of messages.filter(({ head }) => head in HEADS)) {
  test(`head of ${head}: ${json}`, () => {
    if (error) return assert.throws(() => HEADS[head](encodeUtf8(json)), WireError);
    assert.deepEqual(HEADS[head](encodeUtf8(json)), value);
  });
}

for (const { json, value, error } of messages.filter(({ head }) => head === "DISCOVERY")) {
  test(`discovery: ${json}`, () => {
    const document = json === "" ? null : JSON.parse(json);
    const target = targetOf(new URL("http://server.test/"), document);
    if (error) return assert.equal(target, null);
    const { port, certificate_sha256 } = value;
    assert.deepEqual(target, { urls: [`https://server.test:${port}/loquent/1`], certificate_sha256 });
  });
}

for (const { code, means } of messages.filter((one) => "code" in one)) {
  test(`code ${code}`, () => assert.equal(codeOf(code), Code[capital(means)]));
}

test("a version in the document's list is taken where the client knows it", () => {
  const offer = { version: 1, port: 2, certificate_sha256: null, path: "/loquent/1" };
  const document = { ...offer, version: 2, path: "/loquent/2", versions: [null, 7, { ...offer, version: 3 }, offer] };
  assert.deepEqual(targetOf(new URL("http://s.test/"), document)?.urls, ["https://s.test:2/loquent/1"]);
});
