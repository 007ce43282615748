// A message while it changes: its states and facts, why it paused, and how that is said.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const { LiveMessage } = await load("message/live.ts");
const { emptyMessage, wholeMessage } = await load("message/model.ts");
const { PauseWatch } = await load("message/pauses.ts");
const { whyEventStream } = await load("message/why_sse.ts");
const { wordEnd } = await load("message/word_end.ts");
const { failureOf } = await load("message/failure.ts");
const { duration, factsOf, standing } = await load("message/words.ts");
const { gapsOf, momentAt, nearest, rangeOf, ticks } = await load("message/strip.ts");

const text = (piece, tokens = 1) => ({ kind: "text", choice: 0, tokens, text: piece });

/** A steady answer up to `end`: a token each 50 ms. */
function steady(watch, end) {
  for (let at = 0; at <= end; at += 50) watch.handleTokens(at, 1);
}

/** What the watch makes of a pause from 1 s to 4 s, after which a token comes each `gap` ms. */
function pauseFollowedBy(gap, signs = {}, atOnce = 1) {
  const watch = new PauseWatch();
  steady(watch, 1_000);
  watch.handleSigns(signs);
  const pause = watch.handleTokens(4_000, atOnce);
  for (let at = 4_000 + gap; at < 6_000; at += gap) watch.handleTokens(at, 1);
  watch.decide(6_000);
  return pause;
}

test("a model that made nothing goes on at its own speed", () => {
  const { cause, from, to } = pauseFollowedBy(50);
  assert.deepEqual([cause, from, to], ["engine", 1_000, 4_000]);
});

test("what was made meanwhile comes at once, or faster than before", () => {
  assert.equal(pauseFollowedBy(50, {}, 60).cause, "network");
  assert.equal(pauseFollowedBy(25).cause, "network");
});

test("signs say more than speed", () => {
  assert.equal(pauseFollowedBy(50, { isHidden: true }).cause, "hidden");
  assert.equal(pauseFollowedBy(50, { isLost: true }).cause, "network");
  assert.equal(pauseFollowedBy(25, { told: "engine" }).cause, "engine");
});

test("signs of before the pause do not count", () => {
  const watch = new PauseWatch();
  watch.handleSigns({ isLost: true });
  watch.handleSigns({ isLost: false });
  steady(watch, 1_000);
  assert.equal(watch.handleTokens(3_000, 1).cause, "unknown");
});

test("a pause is told while it lasts", () => {
  const watch = new PauseWatch();
  assert.equal(watch.current(5_000), null, "nothing has come: that is a wait");
  steady(watch, 1_000);
  assert.equal(watch.current(1_500), null);
  assert.deepEqual(watch.current(2_000), { cause: "unknown", since: 1_000, ms: 1_000 });
  watch.handleSigns({ isLost: true });
  assert.deepEqual(watch.current(2_500), { cause: "network", since: 1_000, ms: 1_500 });
});

test("a model's own gaps are no pauses, however long they are", () => {
  for (const gap of [120, 830, 4_000]) {
    const watch = new PauseWatch();
    let [now, last] = [0, 0];
    for (let count = 0; count < 60; count += 1, now += gap * (count % 2 === 0 ? 0.7 : 1.3)) {
      const known = count > 3;
      if (known || gap < 2_000) assert.equal(watch.current(now), null, `${gap} ms, token ${count}`);
      const ended = watch.handleTokens(now, 1);
      if (known || gap < 2_000) assert.equal(ended, null, `${gap} ms, token ${count}`);
      last = now;
    }
    assert.equal(watch.handleTokens(last + Math.max(750, 6 * gap), 1)?.from, last, `${gap} ms: a silence of several gaps is one`);
  }
});

test("a silence counts sooner when its reason is known", () => {
  const watch = new PauseWatch();
  watch.handleTokens(0, 1);
  assert.equal(watch.current(1_500), null, "one token tells no pace");
  watch.handleSigns({ isAnnounced: true });
  assert.equal(watch.current(1_500)?.ms, 1_500);
  watch.handleTokens(1_600, 1);
  assert.equal(watch.current(3_000), null, "what was announced is over");
  watch.handleSigns({ isLost: true });
  assert.equal(watch.current(3_000)?.cause, "network");
});

test("a word has an end", () => {
  const cases = [
    ["four", "teen days", 4],
    ["four ", "teen", 0],
    ["four", " teen", 0],
    ["4", "8", null],
    ["", "word", 0],
    ["un", "broken ", 6],
    ["half", "", null],
    ["漢", "字", 0],
    ["漢", "a字 b", 2],
    ["👩", "\u200d💻 x", 3],
    ["3.", "14\n", 2],
  ];
  for (const [before, piece, end] of cases) assert.equal(wordEnd(before, piece), end, JSON.stringify([before, piece]));
});

test("a pause inside a word is marked behind it", (context) => {
  context.mock.timers.enable({ apis: ["setInterval"] });
  let now = 0;
  context.mock.method(performance, "now", () => now);
  const told = [];
  const live = new LiveMessage(emptyMessage("1", "assistant"));
  live.subscribe((change) => told.push(change.piece ?? change.is));
  const come = (piece, ms) => {
    now += ms;
    live.handleDelta(text(piece));
  };
  for (const piece of ["It", " is", " all", " about"]) come(piece, 50);
  come(" strea", 50);
  come("ming", 2_000);
  come(", I", 2_000);
  come(" say", 50);
  come(" a", 50);
  come("men", 3_000);
  live.handleEnd(null);
  const pauses = live.message.facts.pauses.map(({ at, ms }) => [live.message.text.slice(0, at), ms]);
  assert.deepEqual(pauses, [
    ["It is all about streaming,", 2_000],
    ["It is all about streaming,", 2_000],
    ["It is all about streaming, I say amen", 3_000],
  ]);
  assert.deepEqual(told.slice(told.indexOf(" strea")).filter((one) => one !== "facts" && one !== "state" && one !== "cause"), [
    ...[" strea", "ming", ",", "pause", "pause", " I", " say", " a", "men", "pause"],
  ]);
});

test("a message goes from the queue to its end", () => {
  const live = new LiveMessage(emptyMessage("1", "assistant"));
  const told = [];
  live.subscribe(({ is }) => told.push(is));
  const progress = { kind: "progress", queued: 2, eta_ms: 900, total: 10, cached: 0, processed: 0, elapsed_ms: 1 };
  live.onTransport("sse");
  live.handleDelta(progress);
  assert.deepEqual(live.message.state, { is: "waiting", queue: 2, etaMs: 900 });
  live.handleDelta({ ...progress, queued: 0, processed: 4 });
  assert.deepEqual(live.message.state, { is: "prompt", done: 4, total: 10, etaMs: 900 });
  live.handleDelta({ kind: "reasoning", choice: 0, tokens: 2, text: "Well" });
  live.handleDelta(text("Hello"));
  live.handleDelta({ ...text("not shown"), choice: 1 });
  assert.equal(live.message.state.is, "streaming");
  live.handleDelta({ kind: "usage", prompt: 10, completion: 3, cached: 4, reasoning: 2 });
  live.handleDelta({ kind: "finish", choice: 0, reason: "length" });
  live.handleEnd(null);
  const { state, facts, reasoning, reasoningMs } = live.message;
  assert.deepEqual(state, { is: "finished", reason: "length" });
  assert.deepEqual([live.message.text, reasoning, facts.tokens, facts.promptTokens, facts.cachedTokens], ["Hello", "Well", 3, 10, 4]);
  assert.ok(reasoningMs !== null && facts.ttftMs !== null);
  assert.equal(facts.times.length, 4, "two moments and their tokens");
  assert.ok(told.includes("text") && told.includes("reasoning") && told.at(-1) === "state");
});

test("what the server says of a pause is shown while it lasts", (context) => {
  context.mock.timers.enable({ apis: ["setInterval"] });
  let now = 0;
  context.mock.method(performance, "now", () => now);
  const live = new LiveMessage(emptyMessage("1", "assistant"));
  const shown = (ms) => {
    now += ms;
    context.mock.timers.tick(1_000);
    return standing(live.message.state)?.text ?? null;
  };
  live.onState("streaming");
  live.handleDelta({ kind: "pause", why: "the engine was lost; wait" });
  assert.equal(shown(1_000), "The engine was lost; wait…");
  for (const piece of ["Hello", ",", " how", " are"]) live.handleDelta(text(piece));
  live.onPause({ cause: "engine", since_ms: 0 });
  assert.match(shown(1_000), /^The model makes nothing just now/);
  live.handleDelta({ kind: "pause", why: "x".repeat(1_000) });
  assert.equal(shown(1_000), `X${"x".repeat(199)}… 2.0 s`);
  live.handleDelta(text(" again"));
  assert.equal(shown(100), null);
  live.handleEnd(null);
});

test("calls of tools are put together, and bounded", () => {
  const live = new LiveMessage(emptyMessage("1", "assistant"));
  const call = { kind: "tool_call", choice: 0, tokens: 1, index: 0, id: "", name: "", arguments: "" };
  live.handleDelta({ ...call, id: "c", name: "f" });
  live.handleDelta({ ...call, arguments: '{"a":' });
  live.handleDelta({ ...call, arguments: "1}" });
  live.handleDelta({ ...call, index: 1_000_000, name: "far" });
  live.setToolResult("c", "2");
  live.handleEnd(null);
  assert.deepEqual(live.message.toolCalls, [{ id: "c", name: "f", arguments: '{"a":1}', result: "2" }]);
});

test("an answer that goes on after a reload has no time to its first token", () => {
  const begun = { ...emptyMessage("1", "assistant"), text: "Half an", state: { is: "streaming" } };
  const live = new LiveMessage(begun);
  live.handleDelta(text(" answer"));
  live.handleEnd(null);
  assert.equal(live.message.text, "Half an answer");
  assert.equal(live.message.facts.ttftMs, null);
});

test("an end is whole, stopped, or a failure that may pass", () => {
  const refused = (status) => Object.assign(new Error("No."), { status });
  assert.deepEqual(failureOf(null), { is: "none" });
  assert.deepEqual(failureOf(new DOMException("stop", "AbortError")), { is: "stopped" });
  assert.deepEqual(failureOf(refused(429)), { is: "failed", error: "No.", retry: true });
  assert.deepEqual(failureOf(refused(400)), { is: "failed", error: "No.", retry: false });
  assert.equal(failureOf(new Error("x".repeat(5_000))).error.length, 1_000);
});

test("facts and waits are said in words", () => {
  const message = wholeMessage("1", "assistant", "Hello");
  const pauses = [{ cause: "network", ms: 1_200, part: "text", at: 2, from: 100 }];
  const facts = { ...message.facts, transport: "webtransport", ttftMs: 210, tokens: 1_234, tokensPerSecond: 38.4, resumes: 1, pauses };
  const said = factsOf({ ...message, facts, state: { is: "finished", reason: "stopped" } }).map(({ text }) => text);
  assert.deepEqual(said, ["WebTransport", "first token 210 ms", "38 tokens/s", "1,234 tokens", "resumed", "1 pause, 1.2 s", "stopped"]);
  assert.equal(standing({ is: "waiting", queue: 3, etaMs: 2_500 }).text, "Number 3 in the queue, about 2.5 s to go");
  assert.deepEqual(standing({ is: "prompt", done: 50, total: 200, etaMs: null }), { text: "Reading the prompt: 50 of 200 tokens", share: 0.25 });
  assert.equal(standing({ is: "streaming" }), null);
  assert.equal(duration(125_000), "2 min 5 s");
});

test("the strip finds moments, gaps and round marks", () => {
  const times = [100, 1, 150, 2, 900, 1];
  assert.deepEqual(nearest(times, 140), { at: 150, tokens: 2, gap: 50, total: 3 });
  assert.equal(nearest(times, 5_000).at, 900);
  assert.equal(nearest([], 5), null);
  assert.equal(momentAt(times, 3), null);
  assert.deepEqual(gapsOf(times), { median: 750, p95: 750, longest: 750 });
  assert.deepEqual(ticks(0, 1_000, 5), [0, 200, 400, 600, 800, 1_000]);
  assert.ok(ticks(0, 12_000, 6).length <= 7);
  assert.deepEqual(rangeOf({ times, pauses: [], now: 20_000 }), { from: 8_000, to: 20_000 });
});

test("a continued answer counts all of its tokens, and the prompt without them", () => {
  const stopped = { ...wholeMessage("1", "assistant", "Half"), continuedAt: 4 };
  const live = new LiveMessage({ ...stopped, state: { is: "streaming" }, facts: { ...stopped.facts, tokens: 7 } });
  live.handleDelta(text(" an answer", 3));
  live.handleDelta({ kind: "usage", prompt: 27, completion: 3, cached: 0, reasoning: 0 });
  live.handleEnd(null);
  const { text: whole, continuedAt, facts } = live.message;
  assert.deepEqual([whole, continuedAt, facts.tokens, facts.promptTokens], ["Half an answer", 4, 10, 20]);
});

test("an event stream has a reason, and a way out of it", () => {
  const best = { isSecure: true, hasWebTransport: true, isChosen: false };
  assert.match(whyEventStream(best), /UDP/);
  assert.match(whyEventStream({ ...best, isChosen: true, isSecure: false }), /settings/);
  assert.match(whyEventStream({ ...best, isSecure: false, hasWebTransport: false }), /--tls-cert.*https:/);
  assert.match(whyEventStream({ ...best, hasWebTransport: false }), /no WebTransport/);
});
