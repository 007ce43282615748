// An imitation of Safari's WebTransport: a session's credit is never refilled (WebKit bug 319818), so
// that each has to end before its credit does and its answers go on over the next one, and datagrams
// are written where only newer drafts have it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { streamChat } from "../dist/index.js";
import { SESSION_STREAMS } from "../dist/connection.js";
import { insisting, offerWebTransport, question, readAll, readAround, route, routes, sseAnswer, url } from "./page.mjs";
import { FakeServer, answerOf, seeded, textOf } from "./support.mjs";

/** Where Safari 26.5 stands still: bytes both ways, and streams (fewer here, so that the test ends soon). */
const CREDIT = { bytes: 16 << 20, streams: SESSION_STREAMS + 100 };

/** An answer of `mebibytes`. */
function longAnswer(mebibytes) {
  const text = (at) => ({ kind: "text", choice: 0, tokens: 1, text: `${at} `.padEnd(3 << 10, "naïve ") });
  const [open, ...end] = answerOf(seeded(1), 0);
  return [open, ...Array.from({ length: mebibytes * 300 }, (_, at) => text(at)), ...end];
}

/** A peer whose datagrams do not get through, so that everything takes the streams. */
const peerOf = (options) => new FakeServer({ credit: CREDIT, createsWritable: true, datagrams: false, frameBytes: 64 << 10, tick_ms: 0, ...options });

/** Resolves when all sessions of `peer` but the last `count` have ended. */
async function allButLastEnded(peer, count) {
  while (peer.sessions.slice(0, -count || undefined).some(({ isOver }) => !isOver)) await new Promise(setImmediate);
}

test("an answer of more than a session's credit comes whole, each byte once, over several sessions", async () => {
  const deltas = longAnswer(20);
  const peer = peerOf({ deltas });
  offerWebTransport(peer);
  const states = [];
  const answer = streamChat(insisting({ pace: "off", onState: (state) => states.push(state) }));
  assert.deepEqual(await readAll(answer), deltas);
  assert.ok(peer.sessions.length >= 3, `${peer.sessions.length} sessions`);
  assert.equal(peer.questions.length, 1);
  assert.deepEqual(peer.resumed.map(({ known }) => known), peer.sessions.slice(1).map(() => true));
  assert.ok(peer.resumed.every(({ offset }, at) => offset > (peer.resumed[at - 1]?.offset ?? 0)));
  assert.deepEqual(states, ["connecting", "streaming", "ended"], "its reader notices nothing");
  assert.deepEqual(peer.stopped, []);
  await allButLastEnded(peer, 1);
  peer.close();
});

test("several answers move together, and none is asked for again", async () => {
  const deltas = longAnswer(6);
  const peer = peerOf({ deltas });
  offerWebTransport(peer);
  const states = [];
  const onState = (state) => states.push(state);
  const answers = Array.from({ length: 4 }, () => streamChat(insisting({ pace: "off", onState })));
  for (const got of await Promise.all(answers.map(readAll))) assert.equal(textOf(got), textOf(deltas));
  assert.deepEqual([peer.questions.length, states.includes("resuming")], [4, false]);
  await allButLastEnded(peer, 1);
  peer.close();
});

test("a session takes no more questions than it has streams for", async () => {
  const deltas = answerOf(seeded(2), 3);
  const peer = new FakeServer({ deltas, credit: CREDIT, createsWritable: true });
  offerWebTransport(peer);
  const ask = async (count) => {
    for (let at = 0; at < count; at++) assert.deepEqual(await readAll(streamChat(insisting({ pace: "off" }))), deltas);
  };
  await Promise.all(Array.from({ length: 30 }, () => ask(50)));
  assert.equal(peer.questions.length, 1_500);
  assert.equal(peer.sessions.length, 2);
  await allButLastEnded(peer, 1);
  peer.close();
});

test("a question that has no answer yet stays where it was asked until it has one", async () => {
  const deltas = longAnswer(9);
  const peer = peerOf({ deltas });
  offerWebTransport(peer);
  const begun = streamChat(insisting({ pace: "off" }));
  let waiting = null;
  await readAround(begun, 4, () => {
    peer.holds = true; // the second question's ANSWER
    waiting = readAll(streamChat(insisting({ pace: "off" })));
  });
  assert.equal(peer.sessions.length, 2);
  assert.equal(peer.sessions[0].isOver, false, "somebody waits there");
  peer.release();
  assert.equal(textOf(await waiting), textOf(deltas));
  await allButLastEnded(peer, 1);
  peer.close();
});

test("where no further session opens, answers end where they are, and the next question finds its own way", async () => {
  const deltas = longAnswer(9);
  const peer = peerOf({ deltas });
  offerWebTransport(peer);
  const answer = streamChat({ url: url(), body: question, pace: "off" });
  await readAround(answer, 4, () => (peer.refusesSessions = true));
  assert.equal(answer.text, textOf(deltas));
  assert.deepEqual([peer.sessions.length > 1, peer.resumed, answer.transport], [true, [], "webtransport"]);
  routes[route("POST", "v1/chat/completions")] = sseAnswer([" a", " b"]);
  const next = streamChat({ url: url(), body: question });
  assert.equal(await next.finalText(), " a b");
  assert.equal(next.transport, "sse");
  peer.close();
});

test("after answers had come, a second session in a row that brings nothing is the last that is waited for", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(3), 3) });
  offerWebTransport(peer);
  routes[route("POST", "v1/chat/completions")] = sseAnswer([" a", " b"]);
  await readAll(streamChat(insisting()));
  peer.breaksUnanswered = true;
  // As many as it takes: each begins by whichever way is ready.
  const asked = async () => {
    const before = peer.questions.length;
    for (let at = 0; at < 100 && peer.questions.length === before; at++) await streamChat({ url: url(), body: question }).finalText();
    return peer.questions.length - before;
  };
  assert.deepEqual([await asked(), await asked(), await asked()], [1, 1, 0]);
  peer.close();
});

test("a session that opens and brings nothing is not waited for again", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(3), 3), breaksUnanswered: true, createsWritable: true });
  offerWebTransport(peer);
  routes[route("POST", "v1/chat/completions")] = sseAnswer([" a", " b"]);
  for (let at = 0; at < 3; at++) {
    const answer = streamChat({ url: url(), body: question });
    assert.equal(await answer.finalText(), " a b");
    assert.equal(answer.transport, "sse");
  }
  assert.deepEqual([peer.sessions.length, peer.questions.length], [1, 1]);
  peer.close();
});
