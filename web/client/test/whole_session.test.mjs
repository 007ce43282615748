// spec/vectors/session.json: a receiver to which the server's datagrams arrive, and a client to which
// everything arrives, send just what the client sends there, and show the whole log.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { afterEach, mock, test } from "node:test";
import { MessageReader, Receiver, decodeFrame, decodeRecord, padAck } from "../dist/protocol.js";
import { Bench, settled } from "./bench.mjs";

const { cases } = JSON.parse(readFileSync(new URL("../../../spec/vectors/session.json", import.meta.url)));
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
const hex = (data) => Buffer.from(data).toString("hex");

afterEach(() => mock.timers.reset());

function recordsOf(log) {
  const deltas = [];
  for (let at = 0, next; at < log.length && (next = decodeRecord(log.subarray(at))); at += next.length) deltas.push(next.delta);
  return deltas;
}

/** What a step sends, as it is noted of a bench. */
const noted = ({ at_ms, on, hex: text }) => ({ at_ms, on, hex: text });

function arrive(bench, step) {
  if (step.on === "datagram") bench.receive(bytes(step.hex));
  else if (step.fin) bench.server.close();
  else bench.server.enqueue(bytes(step.hex));
}

for (const { name, channel, padding_step, log, steps } of cases) {
  const datagrams = (from) => steps.filter((step) => step.from === from && step.on === "datagram");

  test(`session: the receiver of ${name}`, () => {
    const receiver = new Receiver(0, channel, 0);
    const sent = [];
    const events = [];
    const advance = (now) => {
      receiver.handleTimeout(now);
      for (let event; (event = receiver.pollEvent()); ) events.push(event);
      for (let frame; (frame = receiver.pollTransmit(now)); ) sent.push({ at_ms: now / 1000, hex: hex(padAck(frame)) });
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

  test(`session: the client of ${name}`, async () => {
    const [request, body] = steps.filter(({ message }) => message).map(({ message }) => message.payload);
    const { channel: _, ...head } = request;
    const bench = new Bench(mock.timers, { channel, head, body: JSON.stringify(body) });
    await settled();
    const sent = [];
    const times = steps.flatMap(({ at_ms, arrives_ms }) => [at_ms, arrives_ms ?? at_ms]).sort((a, b) => a - b);
    for (const at_ms of times) {
      await bench.pass(at_ms - bench.now_ms);
      for (const step of steps.filter(({ from, arrives_ms }) => from === "server" && arrives_ms === at_ms)) {
        if (!step.arrived) arrive(bench, step);
        step.arrived = true;
        await settled();
      }
      sent.push(...bench.sent.splice(0).map(({ on, bytes: data }) => ({ at_ms, on, hex: data === null ? "" : hex(data) })));
    }
    assert.deepEqual(sent, steps.filter(({ from }) => from === "client").map(noted));
    const shown = bench.told.flatMap(([news, deltas]) => (news === "deltas" ? deltas.map(([, delta]) => delta) : []));
    assert.deepEqual(shown, recordsOf(bytes(log)));
    assert.deepEqual(bench.told.slice(-2), [["complete"], ["over"]]);
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
