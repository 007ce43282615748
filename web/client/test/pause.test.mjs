// Why an answer stands still, told from what is known at each moment of a clock in the test's hands.
import assert from "node:assert/strict";
import { test } from "node:test";
import { PauseWatch } from "../dist/pause.js";

const word = { kind: "text", choice: 0, tokens: 1, text: "a" };
const standing = { kind: "progress", queued: 0, eta_ms: null, total: 100, cached: 0, processed: 0, elapsed_ms: 1 };

/** A watch whose clock and timers the test moves. */
function watched(context) {
  context.mock.timers.enable({ apis: ["setInterval", "Date"] });
  const world = { hidden: false, told: [] };
  world.watch = new PauseWatch((pause) => world.told.push(pause), Date.now, () => world.hidden);
  world.after = (ms) => {
    world.told.length = 0;
    for (let at = 0; at < ms; at += 50) context.mock.timers.tick(50); // the clock moves with them
    return world.told.map((pause) => pause?.cause ?? null);
  };
  return world;
}

test("while words come there is no pause", (context) => {
  const { watch, told, after } = watched(context);
  watch.handlePath({ transport: "sse", heardAt_ms: 0 });
  for (let at = 0; at < 20; at++) {
    watch.handleDelta(word);
    assert.deepEqual(after(300), []);
  }
  watch.handleEnd();
  assert.deepEqual(told, []);
});

test("a server that is heard but has nothing to say: the engine", (context) => {
  const { watch, after } = watched(context);
  const path = { transport: "webtransport", heardAt_ms: 0 };
  watch.handlePath(path);
  watch.handleDelta(word);
  assert.deepEqual(after(1_000), ["unknown"]);
  path.heardAt_ms = 1_000;
  assert.deepEqual(after(500), ["engine"]);
  path.heardAt_ms = 2_000;
  assert.deepEqual(after(1_000), [], "the same cause is told once");
  watch.handleDelta(word);
  assert.deepEqual(after(250), []);
});

test("a server that is not heard: silence over WebTransport, which asks; unknown over events", (context) => {
  const { watch, after } = watched(context);
  watch.handlePath({ transport: "webtransport", heardAt_ms: 0 });
  watch.handleDelta(word);
  assert.deepEqual(after(3_000), ["unknown", "silence"]);
  watch.handlePath({ transport: "sse", heardAt_ms: 0 });
  watch.handleDelta(word);
  assert.deepEqual(after(3_000), ["unknown"]);
});

test("the queue and the prompt are told as they move on", (context) => {
  const { watch, told, after } = watched(context);
  watch.handleConnecting();
  watch.handlePath({ transport: "sse", heardAt_ms: 0 });
  watch.handleDelta({ ...standing, queued: 3, eta_ms: 900 });
  watch.handleDelta({ ...standing, queued: 1 });
  watch.handleDelta({ ...standing, processed: 50 });
  watch.handleDelta(word);
  const seen = told.map((pause) => pause && [pause.cause, pause.position ?? pause.processed]);
  assert.deepEqual(seen, [["connecting", undefined], null, ["queue", 3], ["queue", 1], ["prompt", 50], null]);
  assert.deepEqual(after(300), []);
});

test("what the server says of a pause is told at once, and is over with the answer's next word", (context) => {
  const { watch, told, after } = watched(context);
  const path = { transport: "webtransport", heardAt_ms: 0 };
  watch.handlePath(path);
  watch.handleDelta(word);
  watch.handleDelta({ kind: "pause", why: "the engine was lost" });
  assert.deepEqual(told, [{ cause: "engine", since_ms: 0, why: "the engine was lost" }]);
  path.heardAt_ms = 1_500;
  assert.deepEqual(after(1_500), [], "the same reason is told once");
  watch.handleDelta(word);
  assert.equal(told.at(-1), null);
  path.heardAt_ms = 4_000;
  after(2_000);
  assert.deepEqual(told.at(-1), { cause: "engine", since_ms: 1_500, why: null });
});

test("a lost path counts from its loss, a retry names its time, a hidden page says so", (context) => {
  const world = watched(context);
  const { watch, told, after } = world;
  watch.handleLoss("cut", 0);
  after(1_000);
  watch.handleLoss("refused", 1);
  assert.deepEqual(told, [{ cause: "network", since_ms: 0, why: "refused", attempts: 1 }]);
  watch.handleRetry(5_000);
  assert.deepEqual(told.at(-1), { cause: "retrying", since_ms: 1_000, at_ms: 5_000 });
  world.hidden = true;
  watch.handlePath({ transport: "sse", heardAt_ms: 1_000 });
  watch.handleDelta(word);
  assert.deepEqual(after(1_000), ["hidden"]);
  watch.handleEnd();
  assert.equal(told.at(-1), null);
});
