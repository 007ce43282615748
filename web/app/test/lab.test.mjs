// The laboratory without a page: links, lanes, lines from the server, and the playhead.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const { DEFAULTS, PRESETS, checked, read, write } = await load("lab/parameters.ts");
const { Lane } = await load("lab/lane.ts");
const { Recording } = await load("lab/decode.ts");
const { Playhead } = await load("lab/playhead.ts");
const { describePacket } = await load("lab/describe.ts");

test("a link gives back what was written into it", () => {
  for (const { parameters } of PRESETS) {
    assert.deepEqual(read(`#${write(parameters)}`), { parameters, ignored: [] });
  }
});

test("a link cannot set what is out of bounds or unknown", () => {
  const { parameters, ignored } = read("#rtt_ms=1001&loss_percent=NaN&seed=-1&tokens=1e2&x=1&constructor=1&copies=%00");
  assert.deepEqual(parameters, DEFAULTS);
  assert.deepEqual(ignored, ["rtt_ms", "loss_percent", "seed", "tokens", "x", "constructor", "copies"]);
  assert.deepEqual(read(`#rtt_ms=100&${"y".repeat(2_000)}`).parameters, DEFAULTS);
});

test("values are rounded to what a slider can show", () => {
  assert.equal(checked("loss_percent", 12.3), 12.5);
  assert.equal(checked("padding_bytes", 25), 24);
  assert.equal(checked("rtt_ms", Number.NaN), null);
});

/** A lane in which packet 0 brings the first of three tokens, 1 is lost, and 2 repeats and ends the wait. */
function sample() {
  const lane = new Lane("Sample");
  const events = [
    { kind: "token", at: 0, text: "a" },
    { kind: "sent", at: 0, packet: 0, way: "down", bytes: 70, carried: [{ first: 0, count: 1 }] },
    { kind: "arrived", at: 50, packet: 0 },
    { kind: "shown", at: 50, text: "a", tokens: 1 },
    { kind: "token", at: 100, text: " b" },
    { kind: "sent", at: 100, packet: 1, way: "down", bytes: 70, carried: [{ first: 1, count: 1 }] },
    { kind: "lost", at: 100, packet: 1 },
    { kind: "token", at: 200, text: " c" },
    { kind: "stalled", at: 250, since: 50 },
    { kind: "sent", at: 300, packet: 2, way: "down", bytes: 75, carried: [{ first: 1, count: 2 }] },
    { kind: "sent", at: 301, packet: 3, way: "down", bytes: 75, carried: [{ first: 1, count: 2 }] },
    { kind: "arrived", at: 350, packet: 2 },
    { kind: "resumed", at: 350 },
    { kind: "shown", at: 350, text: " b c", tokens: 2 },
    { kind: "ended", at: 350, complete: true },
    { kind: "sent", at: 350, packet: 4, way: "up", bytes: 64, carried: [] },
  ];
  for (const event of events) lane.add(event);
  return lane;
}

test("a lane can be looked at in any moment", () => {
  const lane = sample();
  const at = (time) => lane.moment(time);
  assert.deepEqual([at(49).shownTokens, at(50).shownTokens, at(350).shownTokens], [0, 1, 3]);
  assert.deepEqual([at(99).generatedChars, at(100).generatedChars], [1, 3]);
  assert.deepEqual([at(249).stalls, at(250).stalls, at(300).stalledMs, at(400).stalledMs], [0, 1, 250, 300]);
  assert.deepEqual([at(249).isStalled, at(250).isStalled, at(350).isStalled], [false, true, false]);
  assert.deepEqual([at(100).bytesDown, at(400).bytesDown, at(400).bytesUp], [140, 290, 64]);
  assert.deepEqual([at(99).lost, at(100).lost, at(400).packets], [0, 1, 4]);
  assert.equal(at(400).delayMs, (50 + 250 + 150) / 3);
  assert.deepEqual([at(349).isComplete, at(350).isComplete], [false, true]);
  assert.deepEqual(lane.packets.map(({ isNews }) => isNews), [true, true, true, false, false]);
});

test("steps find the neighbouring events", () => {
  const lane = sample();
  assert.deepEqual([lane.nextAfter(100), lane.nextAfter(350)], [200, Number.POSITIVE_INFINITY]);
  assert.deepEqual([lane.lastBefore(100), lane.lastBefore(0)], [50, Number.NEGATIVE_INFINITY]);
});

test("a packet says what it carried", () => {
  const lane = sample();
  assert.equal(
    describePacket(lane.packets[2], lane, 400),
    "Packet with new text 2, 75 bytes, sent at 0.30 s, arrived at 0.35 s. Tokens 2–3: “b c”",
  );
  assert.match(describePacket(lane.packets[1], lane, 400), /, lost\. Token 2: “b”$/);
  assert.match(describePacket(lane.packets[3], lane, 400), /^Repetition 3, .* on its way/);
});

const RUN = { kind: "run", lanes: [{ name: "TCP", scheme: "tcp" }], weather: [[0, 0], [500000, 0.9]], settings: {} };
const SUMMARY = { kind: "summary", ended_us: 9, cut: false, lanes: [{ full: 0, delay_ms: 1, bytes: 0, packets: 0, complete: true }] };

function record(...events) {
  const recording = new Recording();
  for (const event of events) recording.accept(JSON.stringify(event));
  return recording;
}

test("lines become lanes", () => {
  const recording = record(
    RUN,
    { kind: "token", at_us: 0, text: "a" },
    { kind: "token", at_us: 1000, text: "b" },
    { lane: 0, at_us: 1000, kind: "sent", packet: 0, way: "down", bytes: 90, carried: [[0, 2]] },
    { lane: 0, at_us: 2000, kind: "shown", tokens: 2 },
    { lane: 0, at_us: 2000, kind: "complete" },
    { lane: 0, at_us: 90000, kind: "arrived", packet: 0 },
    SUMMARY,
  );
  const [{ lane }] = recording.lanes;
  assert.deepEqual([lane.text, recording.end, recording.isWhole, recording.isCut], ["ab", 2, true, false]);
  assert.deepEqual(recording.weather, [{ from: 0, to: 500, loss: 0 }, { from: 500, to: Number.POSITIVE_INFINITY, loss: 0.9 }]);
});

test("lines that are not as they should be are refused", () => {
  const bad = [
    { lane: 1, at_us: 0, kind: "resumed" },
    { lane: 0, at_us: -1, kind: "resumed" },
    { lane: 0, at_us: 1e15, kind: "resumed" },
    { lane: 0, at_us: 0, kind: "shown", tokens: 1 },
    { lane: 0, at_us: 0, kind: "sent", packet: 0, way: "left", bytes: 1, carried: [] },
    { lane: 0, at_us: 0, kind: "sent", packet: 0, way: "up", bytes: 1, carried: Array(65).fill([0, 1]) },
    { kind: "token", at_us: 0, text: 5 },
    { kind: "token", at_us: 0, text: "x".repeat(201) },
    { lane: 0, at_us: 0, kind: "toString" },
    { ...SUMMARY, lanes: [] },
    [],
    null,
    RUN,
  ];
  for (const line of bad) assert.throws(() => record(RUN, line), { name: "LabError" }, JSON.stringify(line));
  assert.throws(() => record(RUN).accept("{"), { name: "LabError" });
});

/** Frames that come when the test says so. */
function fakeFrames() {
  let waiting = null;
  return {
    request: (callback) => ((waiting = callback), 1),
    cancel: () => (waiting = null),
    pass(now) {
      const callback = waiting;
      waiting = null;
      callback?.(now);
    },
  };
}

test("the playhead plays at its speed, stands, and stops at the end", () => {
  const frames = fakeFrames();
  const playhead = new Playhead(frames);
  playhead.end = 100;
  assert.equal(playhead.state, "paused");
  playhead.play();
  frames.pass(1_000);
  frames.pass(1_016);
  assert.equal(playhead.time, 16);
  playhead.speed = 2;
  frames.pass(1_026);
  assert.equal(playhead.time, 36);
  playhead.pause();
  frames.pass(2_000);
  assert.deepEqual([playhead.time, playhead.state], [36, "paused"]);
  playhead.play();
  frames.pass(3_000);
  frames.pass(9_000);
  assert.deepEqual([playhead.time, playhead.state], [100, "ended"]);
  playhead.play();
  assert.deepEqual([playhead.time, playhead.state], [0, "playing"]);
  playhead.seek(70);
  playhead.end = 50;
  assert.equal(playhead.time, 50);
});
