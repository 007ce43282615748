// spec/vectors/session.json: a receiver to which the server's datagrams arrive sends just what the
// client sends there, and shows the whole log.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { MessageReader, Receiver, decodeFrame } from "../dist/protocol.js";

const { cases } = JSON.parse(readFileSync(new URL("../../../spec/vectors/session.json", import.meta.url)));
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
const hex = (data) => Buffer.from(data).toString("hex");

for (const { name, channel, padding_step, log, steps } of cases) {
  const datagrams = (from) => steps.filter((step) => step.from === from && step.on === "datagram");

  test(`session: the receiver of ${name}`, () => {
    const receiver = new Receiver(0, channel, 0);
    const sent = [];
    const events = [];
    const advance = (now) => {
      receiver.handleTimeout(now);
      for (let event; (event = receiver.pollEvent()); ) events.push(event);
      for (let frame; (frame = receiver.pollTransmit(now)); ) sent.push({ at_ms: now / 1000, hex: hex(frame) });
    };
    const due = (until) => {
      for (let at; (at = receiver.pollTimeout()) !== null && at < until; ) advance(at);
    };
    for (const { arrives_ms, hex: datagram } of datagrams("server").filter((step) => step.arrives_ms !== null)) {
      due(arrives_ms * 1000);
      assert.equal(receiver.handleDatagram(arrives_ms * 1000, bytes(datagram)), null);
      advance(arrives_ms * 1000);
    }
    due(steps.at(-1).at_ms * 1000);
    assert.deepEqual(sent, datagrams("client").map(({ at_ms, hex: frame }) => ({ at_ms, hex: frame })));
    assert.equal(receiver.cumulative, log.length / 2);
    assert.equal(events.at(-1).event, "complete");
  });

  test(`session: the bytes of ${name}`, () => {
    for (const { hex: datagram } of datagrams("server")) {
      assert.equal(bytes(datagram).length % padding_step, 0);
      const frame = decodeFrame(bytes(datagram));
      assert.equal(hex(frame.bytes), log.slice(2 * frame.offset, 2 * (frame.offset + frame.bytes.length)));
    }
    for (const { hex: message, message: expected } of steps.filter((step) => step.message)) {
      const [{ payload }] = new MessageReader(65536).push(bytes(message));
      const text = Buffer.from(payload).toString();
      assert.deepEqual(text === "" ? null : JSON.parse(text), expected.payload);
    }
  });
}
