// The receiver under loss, reordering, repetition and malice: what it shows is a prefix of
// what was sent, each delta once, and memory stays bounded.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Assembler, PlayoutClock, Receiver, decodeFrame, encodeFrame, encodeRecord, peekChannel, smoothPlayout } from "../dist/protocol.js";
import { PlainSender, answerOf, logOf, seeded } from "./support.mjs";

/** What a receiver has to show and to send at `now`. */
function drive(receiver, now) {
  receiver.handleTimeout(now);
  const events = [];
  for (let event; (event = receiver.pollEvent()); ) events.push(event);
  const acks = [];
  for (let datagram; (datagram = receiver.pollTransmit(now)); ) acks.push(decodeFrame(datagram));
  return { events, acks };
}

const arbitraryPlayout = (random) => (random() < 0.5 ? {} : { playout: smoothPlayout(Math.floor(random() * 500_000)) });

/** Plays a session over a channel that loses, doubles and reorders; returns what was shown. */
function session(seed) {
  const random = seeded(seed);
  const deltas = answerOf(random, 1 + Math.floor(random() * 120));
  const sender = new PlainSender(5, logOf(deltas));
  const receiver = new Receiver(0, 5, 0, arbitraryPlayout(random));
  const loss = random() * 0.6;
  const shown = [];
  let flying = [];
  let complete = false;
  let acknowledged = 0;
  for (let now = 0; now < 600_000_000 && !(complete && sender.done); now += 5_000) {
    const head = Math.min(sender.log.length, Math.floor(now / 100));
    const from = sender.cumulative + Math.floor(random() * random() * Math.max(0, head - sender.cumulative));
    const frame = sender.data(head, 1 + Math.floor(random() * 300), random() < 0.5 ? sender.cumulative : from);
    for (let copies = random() < 0.1 ? 2 : 1; copies > 0; copies--) {
      if (random() >= loss) flying.push({ at: now + Math.floor(random() * 80_000), frame });
    }
    for (const { frame: due } of flying.filter(({ at }) => at <= now)) assert.equal(receiver.handleDatagram(now, due), null);
    flying = flying.filter(({ at }) => at > now);
    const { events, acks } = drive(receiver, now);
    for (const ack of acks) {
      assert.ok(ack.cumulative >= acknowledged, "acknowledgements never go back");
      acknowledged = ack.cumulative;
      if (random() >= loss) sender.handleAck(ack);
    }
    for (const event of events) {
      if (event.event === "delta") shown.push(event.delta);
      complete ||= event.event === "complete";
      assert.notEqual(event.event, "failed");
    }
    assert.deepEqual(shown.at(-1), deltas[shown.length - 1], "a prefix, each delta once");
  }
  assert.ok(complete, "the answer became whole");
  assert.deepEqual(shown, deltas);
}

test("every delta once and in order, through 200 seeded channels", () => {
  for (let seed = 1; seed <= 200; seed++) session(seed);
});

test("random bytes, and frames with one bit turned, harm nothing and never throw", () => {
  for (let seed = 1; seed <= 60; seed++) {
    const random = seeded(seed);
    const deltas = answerOf(random, 20);
    const data = { kind: "data", channel: 70_000, packet: 0, offset: 0, bytes: logOf(deltas) };
    const receiver = new Receiver(0, data.channel, 0);
    for (let now = 0; now < 400; now++) {
      const noise = Uint8Array.from({ length: Math.floor(random() * 60) }, () => Math.floor(random() * 256));
      if (noise.length > 0 && random() < 0.7) noise[0] = 0x10 | (noise[0] & 7); // a frame of this version
      assert.notEqual(receiver.handleDatagram(now, noise), null);
      assert.notEqual(peekChannel(noise), data.channel);
      const checked = encodeFrame(data, true);
      const bit = 40 + Math.floor(random() * (8 * checked.length - 40));
      checked[bit >> 3] ^= 1 << (bit & 7);
      assert.equal(receiver.handleDatagram(now, checked), "BadChecksum");
    }
    assert.equal(receiver.cumulative, 0);
    assert.equal(receiver.handleDatagram(400, encodeFrame(data)), null);
    const { events } = drive(receiver, 400);
    assert.deepEqual(events.flatMap((event) => event.delta ?? []), deltas);
  }
});

test("hostile records make the log unreadable, once, and ask the sender to stop", () => {
  const receiver = new Receiver(0, 1, 0);
  const bytes = Uint8Array.of(0x02, 0x00, 0x09); // an open record of version 9
  assert.equal(receiver.handleDatagram(0, encodeFrame({ kind: "data", channel: 1, packet: 0, offset: 0, bytes })), null);
  const { events } = drive(receiver, 0);
  assert.deepEqual(events, [{ event: "failed", error: "UnknownVersion" }]);
  assert.deepEqual(drive(receiver, 1).events, []);
  assert.ok(receiver.closed);
});

test("a reader that stops polling makes the sender wait; nothing is lost when it goes on", () => {
  const deltas = answerOf(seeded(3), 20_000);
  const sender = new PlainSender(1, logOf(deltas));
  const receiver = new Receiver(0, 1, 0);
  const offer = () => {
    let before;
    do {
      before = sender.cumulative;
      receiver.handleDatagram(0, sender.data(sender.log.length, 1000));
      for (let datagram; (datagram = receiver.pollTransmit(0)); ) sender.handleAck(decodeFrame(datagram));
    } while (sender.cumulative > before);
  };
  offer();
  assert.ok(sender.cumulative < 400_000 && sender.log.length > 1_000_000, `${sender.cumulative} of ${sender.log.length} bytes taken`);
  const shown = [];
  for (let rounds = 0; shown.length < deltas.length && rounds < 100_000; rounds++) {
    for (let event; (event = receiver.pollEvent()); ) if (event.event === "delta") shown.push(event.delta);
    receiver.handleTimeout(0);
    offer();
  }
  assert.deepEqual(shown, deltas);
});

test("the assembler holds at most its limits, whatever comes, and keeps what came first", () => {
  for (let seed = 1; seed <= 100; seed++) {
    const random = seeded(seed);
    const limits = { maxBytes: 2_000, maxRanges: 4 };
    const assembler = new Assembler(0, limits);
    const log = logOf(answerOf(random, 60));
    for (let step = 0; step < 300; step++) {
      const offset = Math.floor(random() * log.length);
      const bytes = log.subarray(offset, offset + Math.floor(random() * 600));
      try {
        assembler.insert(offset, bytes);
      } catch (error) {
        assert.equal(error.fault, "NoRoom");
      }
      assert.ok(assembler.heldBytes <= limits.maxBytes && assembler.held.length <= limits.maxRanges);
      assert.ok(assembler.cumulative - assembler.cursor <= limits.maxBytes);
      let from = assembler.cumulative;
      for (const [start, end] of assembler.held) {
        assert.ok(start > from && end > start, "ranges are ascending and apart");
        from = end;
      }
      if (random() < 0.3) while (assembler.poll() !== null) continue;
    }
  }
});

test("a late range never replaces what was accepted", () => {
  const assembler = new Assembler(0);
  assembler.insert(3, encodeRecord({ kind: "text", choice: 0, tokens: 1, text: "bb" }));
  assembler.insert(3, encodeRecord({ kind: "text", choice: 0, tokens: 1, text: "xx" }));
  assembler.insert(0, encodeRecord({ kind: "text", choice: 0, tokens: 1, text: "aa" }));
  assert.equal(assembler.poll().delta.text + assembler.poll().delta.text, "aabb");
});

test("a byte order mark is text like any other", () => {
  const assembler = new Assembler(0);
  assembler.insert(0, encodeRecord({ kind: "text", choice: 0, tokens: 1, text: "\ufeffa" }));
  assert.equal(assembler.poll().delta.text, "\ufeffa");
});

test("what has all arrived is shown at the reader's pace without a sender", () => {
  const deltas = answerOf(seeded(9), 200);
  const receiver = new Receiver(0, 1, 0, { playout: { buffer_us: 0, max_tokens_per_s: 10 } });
  receiver.handleDatagram(0, encodeFrame({ kind: "data", channel: 1, packet: 0, offset: 0, bytes: logOf(deltas) }));
  assert.ok(receiver.ended);
  receiver.handleDatagram(1, encodeFrame({ kind: "gone", channel: 1 })); // it has let go of the answer
  const events = [];
  for (let now = 0; now < 25_000_000; now += 50_000) events.push(...drive(receiver, now).events);
  assert.deepEqual(events.flatMap((event) => event.delta ?? []), deltas);
  assert.equal(events.at(-1).event, "complete");
});

test("D-9.4, D-9.6: silence counts from when a reader that was behind needs the sender", () => {
  const receiver = new Receiver(0, 1, 0, { playout: { buffer_us: 0, max_tokens_per_s: 1 } });
  const text = encodeRecord({ kind: "text", choice: 0, tokens: 1, text: " a" });
  const bytes = Buffer.concat(Array(542).fill(text)); // 30 more than it reads ahead
  receiver.handleDatagram(0, encodeFrame({ kind: "data", channel: 1, packet: 0, offset: 0, bytes }));
  const [probes, silences] = [[], []];
  for (let at; (at = receiver.pollTimeout()) <= 40_000_000; ) {
    const { events, acks } = drive(receiver, at);
    if (acks.some(({ probe }) => probe)) probes.push(at / 1e6);
    if (events.some(({ event }) => event === "silent")) silences.push(at / 1e6);
  }
  assert.deepEqual([probes, silences], [[32, 34, 38], [40]]);
});

test("pacing smooths a burst after a gap, and never holds back the first token", () => {
  const clock = new PlayoutClock(smoothPlayout(400_000));
  const shown = [];
  let waiting = 0;
  for (let now = 0; now < 10_000_000; now += 1_000) {
    const arrive = now % 100_000 === 0 && !(now > 4_000_000 && now < 4_300_000);
    const late = now === 4_300_000 ? 3 : arrive ? 1 : 0;
    for (let count = 0; count < late; count++) clock.onArrival(now, 1);
    waiting += late;
    while (waiting > 0 && (clock.nextAt ?? 0) <= now) {
      waiting -= 1;
      clock.onShown(now, 1, waiting);
      shown.push(now);
    }
  }
  assert.equal(shown[0], 0);
  const gaps = shown.slice(1).map((at, index) => at - shown[index]);
  assert.ok(Math.max(...gaps) < 200_000, `a displayed gap of ${Math.max(...gaps)} us`);
});
