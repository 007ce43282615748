// streamChat and resumeChat against a server of our own in this process: WebTransport in
// memory, with loss and breaks, and real HTTP beside it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { lastWinner, serverOf } from "../dist/discovery.js";
import { LoquentError, prepare, resumeChat, streamChat } from "../dist/index.js";
import { MessageType, encodeMessage } from "../dist/protocol.js";
import { ID, TOKEN, chunk, eventsOf, insisting, nextServer, offerWebTransport, orderWorker, question, readAll, readAround, reloadPage, requests, route, routes, sseAnswer, url } from "./page.mjs";
import { FakeServer, answerOf, logOf, seeded, textOf } from "./support.mjs";

const words = Array.from({ length: 40 }, (_, at) => ` wörd${at}`);

test("over WebTransport, through loss both ways, every delta once", async () => {
  for (let seed = 1; seed <= 8; seed++) {
    const random = seeded(seed);
    const deltas = answerOf(random, 60);
    const peer = new FakeServer({ deltas, loses: () => random() < 0.3 });
    offerWebTransport(peer);
    const transports = [];
    const answer = streamChat(insisting({ apiKey: "k", onTransport: (name) => transports.push(name) }));
    assert.deepEqual(await readAll(answer), deltas);
    assert.equal(answer.text, textOf(deltas));
    assert.equal(answer.finish, "stop");
    assert.deepEqual(transports, ["webtransport"]);
    const [{ head, body }] = peer.questions;
    const { headers, ...rest } = head;
    assert.deepEqual(rest, { key: "k", method: "POST", path: "/v1/chat/completions", channel: 1 });
    assert.match(headers["idempotency-key"], /^[0-9a-f]{32}$/);
    assert.deepEqual(body, { ...question, stream: true });
    assert.equal(answer.ignoredParameters, null);
    assert.equal(peer.sessions[0].options.serverCertificateHashes[0].value.length, 32);
    assert.ok(peer.sessions[0].datagrams.incomingHighWaterMark > 100);
    peer.close();
  }
});

test("a question whose session died unanswered is asked again with the same key", async () => {
  const peer = new FakeServer({ breaksUnanswered: true });
  offerWebTransport(peer);
  await prepare(url());
  const events = [chunk({ content: "hi" }), chunk({}, "stop")].map((data) => `data: ${JSON.stringify(data)}\n\n`);
  routes[route("POST", "v1/chat/completions")] = (response) =>
    response.writeHead(200, { "x-loquent-ignored-parameters": "tempersture" }).end(`${events.join("")}data: [DONE]\n\n`);
  const answer = streamChat({ url: url(), body: question });
  assert.equal(await answer.finalText(), "hi");
  assert.equal(answer.ignoredParameters, "tempersture");
  const asked = requests.find(({ method }) => method === "POST");
  assert.equal(asked.headers["idempotency-key"], peer.questions[0].head.headers["idempotency-key"]);
  assert.deepEqual(JSON.parse(asked.body), { ...peer.questions[0].body, resumable: true });
  peer.close();
});

test("padded frames mean what the frames within mean", async () => {
  const deltas = answerOf(seeded(1), 60);
  const peer = new FakeServer({ deltas, padding: 64 });
  offerWebTransport(peer);
  assert.deepEqual(await readAll(streamChat(insisting())), deltas);
  peer.close();
});

test("messages and frames of later extensions are skipped", async () => {
  const deltas = answerOf(seeded(1), 30);
  const frame = Uint8Array.of(0x17, 0x40, 0x58, 0x01); // kind 88 behind kind 7, of channel 1
  const extras = [() => encodeMessage(64, frame), () => encodeMessage(255, new Uint8Array(70_000)), () => encodeMessage(MessageType.Frame, frame)];
  const peer = new FakeServer({ deltas, extras });
  offerWebTransport(peer);
  assert.deepEqual(await readAll(streamChat(insisting())), deltas);
  assert.deepEqual(peer.resumed, []);
  peer.close();
});

test("a message of an unknown type below 64 ends the path with code 1; the question goes another way", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(1), 30), extras: [() => encodeMessage(63, new Uint8Array(2))] });
  offerWebTransport(peer);
  globalThis.WebTransportError = class extends Error {
    constructor(message, { streamErrorCode }) {
      super(message);
      this.streamErrorCode = streamErrorCode;
    }
  };
  await prepare(url());
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  const answer = streamChat({ url: url(), body: question });
  assert.equal(await answer.finalText(), words.join(""));
  assert.equal(answer.transport, "sse");
  assert.deepEqual(peer.resets.map(({ streamErrorCode }) => streamErrorCode), [1]);
  await assert.rejects(readAll(streamChat(insisting())), { kind: "broken" });
  peer.close();
});

test("an answer whose place another reader took ends here, and is not stopped", async () => {
  const deltas = answerOf(seeded(2), 200);
  const peer = new FakeServer({ deltas });
  offerWebTransport(peer);
  const answer = streamChat(insisting({ remember: "chat" }));
  const superseded = { kind: "superseded", message: "Another reader has taken this one's place." };
  await assert.rejects(readAround(answer, 20, () => peer.resetAnswers(4)), superseded);
  assert.deepEqual([peer.resumed, peer.stopped], [[], []]);
  assert.equal(resumeChat({ remember: "chat" }), null, "a reload does not take it back");
  assert.ok(answer.text.length > 0 && textOf(deltas).startsWith(answer.text));
  peer.close();
});

test("a resume whose place another reader takes ends in the same way", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(2), 200) });
  offerWebTransport(peer);
  peer.onResume = (stream) => stream.reset(4);
  const answer = streamChat(insisting());
  await assert.rejects(readAround(answer, 20, () => peer.breakSessions()), { kind: "superseded" });
  assert.equal(peer.resumed.length, 1);
  await fetch(url("v1/models")); // whatever was sent before it has come by then
  assert.ok(!requests.some(({ method }) => method === "DELETE"), "the other readers' answer is not ended");
  peer.close();
});

for (const [code, message] of [[3, "The answer was stopped."], [5, "The answer was stopped."], [6, "The server is shutting down. Ask again."]]) {
  test(`an answer that is reset with code ${code} is gone: nothing resumes it`, async () => {
    const peer = new FakeServer({ deltas: answerOf(seeded(2), 200) });
    offerWebTransport(peer);
    await assert.rejects(readAround(streamChat(insisting()), 20, () => peer.resetAnswers(code)), { kind: "gone", message });
    assert.deepEqual(peer.resumed, []);
    peer.close();
  });
}

for (const code of [0, 2, 7, 4_000_000_000]) {
  test(`an answer that is reset with code ${code} is resumed`, async () => {
    const deltas = answerOf(seeded(2), 120);
    const peer = new FakeServer({ deltas });
    offerWebTransport(peer);
    await readAround(streamChat(insisting()), 20, () => peer.resetAnswers(code));
    assert.equal(peer.resumed.length, 1);
    peer.close();
  });
}

test("an answer that is reset with code 1 goes on by another transport", async () => {
  const deltas = answerOf(seeded(3), 100);
  const peer = new FakeServer({ deltas });
  offerWebTransport(peer);
  routes[route("GET", `v1/streams/${"1".padStart(32, "0")}`)] = eventsOf(peer);
  await prepare(url());
  const answer = streamChat({ url: url(), body: question });
  await readAround(answer, 20, () => peer.resetAnswers(1));
  assert.equal(answer.text, textOf(deltas));
  assert.deepEqual([answer.transport, peer.resumed], ["sse", []]);
  peer.close();
});

test("a session that the shutting down server closes is not resumed", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(2), 200) });
  offerWebTransport(peer);
  const reading = readAround(streamChat(insisting()), 20, () => peer.closeSessions(6));
  await assert.rejects(reading, { kind: "gone", message: "The server is shutting down. Ask again." });
  assert.deepEqual(peer.resumed, []);
  peer.close();
});

for (const [what, onResume] of [
  ["ends as a resume reaches it", (stream) => stream.server.closeSessions(6)],
  ["resets every resume while its session lives", (stream) => stream.reset(2)],
]) {
  test(`an answer that was handed over goes on by HTTP where the server ${what}`, async () => {
    const deltas = answerOf(seeded(3), 100);
    const peer = new FakeServer({ deltas, onResume });
    offerWebTransport(peer);
    const rest = [];
    routes[route("GET", `v1/streams/${"1".padStart(32, "0")}`)] = eventsOf(peer, rest);
    await prepare(url());
    const answer = streamChat({ url: url(), body: question });
    await readAround(answer, 20, () => {
      peer.mute = true; // no new session will open
      peer.resetAnswers(2);
    });
    assert.equal(answer.text, textOf(deltas));
    assert.deepEqual([answer.transport, peer.resumed.length], ["sse", 1]);
    assert.ok(rest.length < deltas.length - 15, "it is not read again from its beginning");
    peer.close();
  });
}

test("a question to a server that is shutting down goes another way", async () => {
  const peer = new FakeServer({ shutsDown: true });
  offerWebTransport(peer);
  await prepare(url());
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  assert.equal(await streamChat({ url: url(), body: question }).finalText(), words.join(""));
  assert.equal(peer.questions.length, 1);
  peer.close();
});

test("some answers carry what a server must skip, the others do not", async () => {
  const deltas = answerOf(seeded(1), 30);
  for (const [draw, isGreased] of [[0.1, true], [0.9, false]]) {
    const peer = new FakeServer({ deltas, breakAt: [15] });
    offerWebTransport(peer, () => draw);
    assert.deepEqual(await readAll(streamChat(insisting())), deltas);
    assert.equal("grease" in peer.questions[0].head, isGreased);
    // After the request and each resume, of which a slow machine may need more than one.
    const greased = peer.types.filter((type) => type === 89).length;
    assert.ok(isGreased ? greased >= 2 : greased === 0, `${greased} messages to skip`);
    assert.ok(peer.types.every((type) => type <= MessageType.Frame || type === 89));
    assert.ok(peer.flags.length > 0 && peer.flags.every((flags) => (flags & 0x80) === (isGreased ? 0x80 : 0)));
    peer.close();
  }
});

test("where only the client's datagrams are lost, it acknowledges on the stream", async () => {
  const deltas = answerOf(seeded(4), 200);
  const peer = new FakeServer({ deltas, loses: (_, way) => way === "up", frames: "too" });
  offerWebTransport(peer);
  assert.deepEqual(await readAll(streamChat(insisting())), deltas);
  assert.ok(peer.acks.length > 0 && peer.acks.every((ack) => ack.byStream));
  peer.close();
});

test("a certificate that was renewed meanwhile is asked for once more", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(1), 10), certificate: 0xcd });
  offerWebTransport(peer);
  const document = { version: 1, port: 4433, path: "/loquent/1" };
  let asked = 0;
  routes[route("GET", ".well-known/loquent")] = (response) => {
    asked += 1;
    response.end(JSON.stringify({ ...document, certificate_sha256: (asked === 1 ? "ab" : "cd").repeat(32) }));
  };
  assert.equal(await prepare(url()), "webtransport");
  assert.equal(asked, 2);
  peer.close();
  nextServer();
  peer.certificate = 0xef; // one that no document names
  offerWebTransport(peer);
  assert.equal(await prepare(url()), "sse", "then the client does without QUIC");
  peer.close();
});

test("parameters without effect are named", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(1), 3), ignored: "tempersture" });
  offerWebTransport(peer);
  const answer = streamChat(insisting());
  await readAll(answer);
  assert.equal(answer.ignoredParameters, "tempersture");
  peer.close();
});

test("where no datagram gets through, the stream carries the log and its acknowledgements", async () => {
  const deltas = answerOf(seeded(1), 30);
  const peer = new FakeServer({ deltas, datagrams: false });
  offerWebTransport(peer);
  assert.deepEqual(await readAll(streamChat(insisting())), deltas);
  assert.ok(peer.acks.length > 0 && peer.acks.every((ack) => ack.byStream));
  peer.close();
});

test("a session that breaks is resumed in another, from what had arrived", async () => {
  const deltas = answerOf(seeded(2), 120);
  const peer = new FakeServer({ deltas, breakAt: [30, 70] });
  offerWebTransport(peer);
  const states = [];
  const answer = streamChat(insisting({ onState: (state) => states.push(state) }));
  assert.deepEqual(await readAll(answer), deltas);
  assert.equal(peer.resumed.length, 2);
  assert.ok(peer.resumed.every(({ known, offset }) => known && offset > 0));
  assert.deepEqual(states, ["connecting", "streaming", "resuming", "streaming", "resuming", "streaming", "ended"]);
  peer.close();
});

test("paths that bring nothing are tried ever less often", async () => {
  const deltas = answerOf(seeded(2), 60);
  const peer = new FakeServer({ deltas, breakAt: [30, 30, 30] });
  offerWebTransport(peer);
  const begun = performance.now();
  // Shown at once: what a slower pace still holds would be progress of the next path.
  assert.deepEqual(await readAll(streamChat(insisting({ pace: "off" }))), deltas);
  assert.equal(peer.resumed.length, 3);
  assert.ok(performance.now() - begun > 700, "250 ms, then 500 ms, were waited");
  peer.close();
});

test("a client that loses WebTransport for good finishes over server-sent events", async () => {
  const deltas = answerOf(seeded(3), 100);
  const peer = new FakeServer({ deltas });
  offerWebTransport(peer);
  const rest = [];
  routes[route("GET", `v1/streams/${"1".padStart(32, "0")}`)] = eventsOf(peer, rest);
  const transports = [];
  assert.equal(await prepare(url()), "webtransport");
  const answer = streamChat({ url: url(), body: question, onTransport: (name) => transports.push(name) });
  for await (const _ of answer) {
    if (answer.offset > peer.ends[20] && !peer.mute) {
      peer.mute = true; // no new session will open
      peer.breakSessions();
    }
  }
  assert.equal(answer.text, textOf(deltas));
  assert.ok(rest.length > 0 && rest.length < deltas.length - 20);
  assert.deepEqual(transports, ["webtransport", "sse"]);
  peer.close();
});

test("after an answer that went on over server-sent events, a later one comes over WebTransport again", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(3), 100) });
  offerWebTransport(peer);
  routes[route("GET", `v1/streams/${"1".padStart(32, "0")}`)] = eventsOf(peer);
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  assert.equal(await prepare(url()), "webtransport");
  const cut = streamChat({ url: url(), body: question });
  await readAround(cut, 20, () => ((peer.refusesSessions = true), peer.breakSessions()));
  assert.equal(cut.transport, "sse");
  peer.refusesSessions = false;
  const transports = [];
  // Nobody waits for WebTransport now; it is connected for the next one that asks.
  for (let at = 0; at < 100 && transports.at(-1) !== "webtransport"; at++) {
    const answer = streamChat({ url: url(), body: question });
    await answer.finalText();
    transports.push(answer.transport);
  }
  assert.equal(transports.at(-1), "webtransport");
  peer.close();
});

test("a server that is not reached by WebTransport within 500 ms answers over SSE", async () => {
  const peer = new FakeServer({ mute: true });
  offerWebTransport(peer);
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  const begun = performance.now();
  const answer = streamChat({ url: url(), body: question });
  assert.equal(await answer.finalText(), words.join(""));
  assert.equal(answer.transport, "sse");
  const first = performance.now() - begun;
  assert.ok(first >= 490 && first < 10_000, `${first} ms`);
  assert.equal(lastWinner(serverOf(url())), "sse", "the loser is not waited for again");
});

test("a refusal is an error with its status, code and time to retry", async () => {
  const body = JSON.stringify({ error: { message: "Too many requests wait.", code: "overloaded" } });
  const peer = new FakeServer({ refuse: { status: 429, headers: { "Retry-After": "7" }, body } });
  offerWebTransport(peer);
  const expected = { kind: "refused", status: 429, code: "overloaded", retryAfter_s: 7, message: "Too many requests wait." };
  const isExpected = (error) => {
    assert.ok(error instanceof LoquentError);
    for (const [key, value] of Object.entries(expected)) assert.equal(error[key], value);
    return true;
  };
  await assert.rejects(readAll(streamChat(insisting())), isExpected);
  routes[route("POST", "v1/chat/completions")] = (response) =>
    response.writeHead(429, { "retry-after": "7" }).end(body);
  await assert.rejects(readAll(streamChat({ url: url(), body: question, transport: "sse" })), isExpected);
  peer.close();
});

test("a question that is refused with 503 over WebTransport is asked once more by HTTP, with the same key", async () => {
  const refuse = { status: 503, headers: { "Retry-After": "7" }, body: "{}" };
  for (const [respond, expected] of [
    [sseAnswer(words), null],
    [(response) => void response.writeHead(429, { "retry-after": "9" }).end("{}"), { kind: "refused", status: 429, retryAfter_s: 9 }],
  ]) {
    const peer = new FakeServer({ refuse });
    offerWebTransport(peer);
    await prepare(url());
    routes[route("POST", "v1/chat/completions")] = respond;
    requests.length = 0;
    const answer = streamChat({ url: url(), body: question });
    if (expected === null) assert.equal(await answer.finalText(), words.join(""));
    else await assert.rejects(readAll(answer), expected);
    const keys = [...peer.questions.map(({ head }) => head), ...requests].map(({ headers }) => headers["idempotency-key"]);
    assert.ok(keys.length === 2 && keys[0] === keys[1], `${keys}`);
    await assert.rejects(readAll(streamChat(insisting())), { kind: "refused", status: 503, retryAfter_s: 7 });
    peer.close();
  }
});

test("cancelling tells the server, whichever the transport", async () => {
  const deltas = answerOf(seeded(4), 500);
  const peer = new FakeServer({ deltas });
  offerWebTransport(peer);
  const stop = new AbortController();
  const reading = readAll(streamChat(insisting({ signal: stop.signal, onState: (state) => state === "streaming" && stop.abort() })));
  await assert.rejects(reading, { name: "AbortError" });
  for await (const delta of streamChat(insisting())) if (delta.kind === "text") break;
  while (peer.stopped.length < 2) await new Promise((resolve) => setTimeout(resolve, 1));
  const deleted = new Promise((resolve) => (routes[route("DELETE", `v1/streams/${ID}`)] = (response) => resolve(response.writeHead(204).end())));
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  for await (const delta of streamChat({ url: url(), body: question, transport: "sse" })) if (delta.kind === "text") break;
  await deleted;
  assert.equal(requests.at(-1).headers["x-loquent-stream-token"], TOKEN);
  peer.close();
});

test("a hidden page says so in its acknowledgements", async () => {
  const deltas = answerOf(seeded(5), 80);
  const peer = new FakeServer({ deltas });
  offerWebTransport(peer);
  let count = 0;
  for await (const _ of streamChat(insisting())) {
    if (++count === 20) setSharedLinkHidden(true);
    if (count === 50) setSharedLinkHidden(false);
  }
  const states = peer.acks.map((ack) => ack.hidden);
  assert.deepEqual([states[0], states.includes(true), states.at(-1)], [false, true, false]);
  peer.close();
});

const setSharedLinkHidden = (hidden) => orderWorker({ type: "hidden", hidden });

test("over SSE a broken connection is resumed where it ended", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { breakAt: 13 });
  const asked = [];
  routes[route("GET", `v1/streams/${ID}`)] = (response, { url: asks }) => {
    asked.push(asks.searchParams.get("from"));
    return sseAnswer(words, { from: Number(asked.at(-1)), breakAt: asked.length === 1 ? 20 : Infinity })(response);
  };
  const answer = streamChat({ url: url(), body: question });
  assert.equal(await answer.finalText(), words.join(""));
  assert.deepEqual(asked, ["13", "20"]);
  assert.equal(JSON.parse(requests.find(({ method }) => method === "POST").body).resumable, true);
});

test("an answer that was silent for more than a minute is resumed when its path is lost", async (t) => {
  nextServer();
  let response;
  routes[route("POST", "v1/chat/completions")] = (begun) => {
    response = begun;
    return sseAnswer(words, { pauseAt: 13 })(begun);
  };
  routes[route("GET", `v1/streams/${ID}`)] = sseAnswer(words, { from: 13 });
  const answer = streamChat({ url: url(), body: question, transport: "sse" });
  const now = Date.now;
  await readAround(answer, 14, () => {
    t.mock.method(Date, "now", () => now() + 61_000);
    response.destroy();
  });
  assert.equal(answer.text, words.join(""));
});

test("a resume that is refused for now is tried again, after the time that the server asks for", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { breakAt: 13 });
  const refusals = [[429, "0.01"], [503, "0.7"]];
  const asked_ms = [];
  routes[route("GET", `v1/streams/${ID}`)] = (response) => {
    asked_ms.push(performance.now());
    const [status, retry] = refusals.shift() ?? [];
    if (status === undefined) return sseAnswer(words, { from: 13 })(response);
    response.writeHead(status, { "retry-after": retry }).end("{}");
  };
  assert.equal(await streamChat({ url: url(), body: question, transport: "sse" }).finalText(), words.join(""));
  const waits = asked_ms.slice(1).map((at, before) => at - asked_ms[before]);
  assert.ok(waits.length === 2 && waits[0] > 240 && waits[1] > 690, `${waits} ms`);
});

test("a resume that is refused for good, or for longer than answers are kept, ends the answer at once", async () => {
  for (const [status, expected] of [
    [403, (error) => error.kind === "refused" && error.status === 403],
    [503, (error) => error.kind === "broken" && error.cause.status === 503],
  ]) {
    nextServer();
    routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { breakAt: 13 });
    routes[route("GET", `v1/streams/${ID}`)] = (response) => void response.writeHead(status, { "retry-after": "61" }).end("{}");
    await assert.rejects(readAll(streamChat({ url: url(), body: question, transport: "sse" })), expected);
  }
});

test("a resume that is refused for now over WebTransport is tried again there", async () => {
  const deltas = answerOf(seeded(2), 60);
  const peer = new FakeServer({ deltas, breakAt: [30], refuseResumes: [{ status: 503, headers: { "Retry-After": "0" }, body: "{}" }] });
  offerWebTransport(peer);
  assert.deepEqual(await readAll(streamChat(insisting())), deltas);
  assert.equal(peer.resumed.length, 2);
  peer.close();
});

/** A server that has ended, and another one that has its answer from the beginning alone, as `pieces`. */
function takenOver(pieces, asked) {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { breakAt: 13 });
  routes[route("GET", `v1/streams/${ID}`)] = (response, { url: asks }) => {
    asked.push(asks.searchParams.get("from"));
    if (asked.at(-1) === "0") return sseAnswer(pieces)(response);
    response.writeHead(404).end("{}");
  };
}

test("a reader ahead of the next server reads again and shows nothing twice", async () => {
  const asked = [];
  takenOver([words.slice(0, 5).join(""), words.slice(5, 20).join(""), ...words.slice(20)], asked);
  const answer = streamChat({ url: url(), body: question });
  assert.equal(await answer.finalText(), words.join(""));
  assert.deepEqual(asked, ["13", "0"]);
});

test("a reader of another answer than the next server's is told", async () => {
  takenOver([words[0], "something else", ...words.slice(2)], []);
  const answer = streamChat({ url: url(), body: question });
  await assert.rejects(readAll(answer), { kind: "broken", message: /another answer/ });
  assert.equal(answer.text, words.slice(0, 13).join(""));
});

test("a reader of another answer over WebTransport leaves its path", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(3), 2_000) });
  offerWebTransport(peer);
  peer.onResume = (stream, { channel, offset }) => {
    if (offset > 0) return stream.gone(channel);
    peer.log = logOf(answerOf(seeded(4), 2_000));
    stream.begin(peer.answers.get("1".padStart(32, "0")), channel, 0);
  };
  const answer = streamChat(insisting({ pace: "off" }));
  const reading = readAround(answer, 20, () => peer.resetAnswers(2));
  await assert.rejects(reading, { kind: "broken", message: /another answer/ });
  // The path that was reset, and the one with the other answer.
  while (peer.resets.length < 2) await new Promise((resolve) => setTimeout(resolve, 1));
  peer.close();
});

test("a reader that was behind reads again what it was shown last as well, and shows nothing twice", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(3), 120) });
  offerWebTransport(peer);
  const offsets = [];
  peer.onResume = (stream, { channel, offset }) => {
    offsets.push(offset);
    if (offset > 0) return stream.gone(channel);
    stream.begin(peer.answers.get("1".padStart(32, "0")), channel, 0);
  };
  const answer = streamChat(insisting({ pace: { buffer_us: 0, max_tokens_per_s: 100 } }));
  await readAround(answer, 10, () => peer.resetAnswers(2));
  assert.ok(offsets.length === 2 && offsets[0] > 0 && offsets[1] === 0, `${offsets}`);
  assert.equal(answer.text, textOf(peer.deltas));
  peer.close();
});

test("without resume a broken connection is an error, never an end", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { breakAt: 13, resumable: false });
  const answer = streamChat({ url: url(), body: question });
  await assert.rejects(readAll(answer), (error) => error instanceof LoquentError && error.kind === "broken");
  assert.equal(answer.text, words.slice(0, 13).join(""));
});

test("a server that is not there is an error that says so", async () => {
  const nowhere = "http://127.0.0.1:1/v1/chat/completions";
  const expected = { kind: "broken", message: "The server does not answer." };
  await assert.rejects(readAll(streamChat({ url: nowhere, body: question })), expected);
});

test("an answer that the server forgot is gone", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(6), 200) });
  offerWebTransport(peer);
  const answer = streamChat(insisting());
  const reading = (async () => {
    for await (const _ of answer) {
      if (answer.text.length > 100 && peer.answers.size > 0) {
        peer.answers.clear();
        peer.breakSessions();
      }
    }
  })();
  await assert.rejects(reading, (error) => error instanceof LoquentError && error.kind === "gone");
  peer.close();
});

for (const [how, end] of [
  ["says so", (peer) => peer.sessions[0].open.forEach((stream) => stream.gone(stream.sender.channel))],
  ["says so when asked to go on", (peer) => (peer.answers.clear(), peer.resetAnswers(2))],
  ["has stopped it", (peer) => peer.resetAnswers(5)],
  ["is reached by HTTP alone", (peer) => ((peer.refusesSessions = true), peer.breakSessions())],
]) {
  test(`all that came of an answer is read before the error, where the server no longer has it and ${how}`, async () => {
    const peer = new FakeServer({ deltas: answerOf(seeded(6), 2_000) });
    offerWebTransport(peer);
    await prepare(url());
    const answer = streamChat({ url: url(), body: question, pace: { buffer_us: 0, max_tokens_per_s: 20 } });
    const came = () => textOf(peer.deltas.filter((_, at) => peer.ends[at] <= Math.max(...peer.acks.map(({ cumulative }) => cumulative))));
    let had = null;
    const reading = async () => {
      for await (const _ of answer) {
        if (had !== null || answer.text === "") continue;
        while (came().length < 10 * answer.text.length) await new Promise((resolve) => setTimeout(resolve, 1));
        had = came();
        end(peer);
      }
    };
    await assert.rejects(reading(), { kind: "gone" });
    assert.ok(answer.text.startsWith(had) && textOf(peer.deltas).startsWith(answer.text));
    peer.close();
  });
}

test("an answer that fails says why, after what came of it", async () => {
  const deltas = [...answerOf(seeded(7), 5).slice(0, -3), { kind: "error", code: "engine_failed", message: "The engine stopped." }];
  const peer = new FakeServer({ deltas });
  offerWebTransport(peer);
  const answer = streamChat(insisting());
  await assert.rejects(readAll(answer), { kind: "failed", code: "engine_failed", message: "The engine stopped." });
  assert.equal(answer.text, textOf(deltas));
  peer.close();
});

test("after a reload the answer goes on from what was kept, exactly once", async () => {
  const deltas = answerOf(seeded(8), 120);
  const peer = new FakeServer({ deltas, tick_ms: 5 });
  offerWebTransport(peer);
  const kept = () => JSON.parse(sessionStorage.getItem("loquent:answer:chat"))?.text ?? "";
  const page = streamChat(insisting({ remember: "chat" }))[Symbol.asyncIterator]();
  while (kept().length === 0) await page.next();
  // The page is gone, with its worker and what they held: nothing of it is called again.
  reloadPage();
  offerWebTransport(peer);
  const answer = resumeChat({ remember: "chat", transport: "webtransport" });
  assert.ok(answer.text === kept() && textOf(deltas).startsWith(answer.text));
  assert.ok(answer.text.length < textOf(deltas).length / 2 + 1_000);
  assert.equal(await answer.finalText(), textOf(deltas));
  assert.equal(answer.finish, "stop");
  assert.equal(answer.usage.completion, 120);
  assert.equal(resumeChat({ remember: "chat" }), null, "a finished answer is not kept");
  peer.close();
});

test("chunks are OpenAI's, alike over both transports", async () => {
  const deltas = [
    { kind: "open", meta: JSON.stringify({ id: "c1", object: "chat.completion.chunk", created: 7, model: "m" }) },
    ...words.map((text) => ({ kind: "text", choice: 0, tokens: 1, text })),
    { kind: "finish", choice: 0, reason: "stop" },
    { kind: "done" },
  ];
  const peer = new FakeServer({ deltas });
  offerWebTransport(peer);
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  const [first, ...rest] = await collect(streamChat(insisting()).chunks());
  assert.deepEqual(first, chunk({ role: "assistant", content: "" }));
  assert.deepEqual(rest, [...words.map((content) => chunk({ content })), chunk({}, "stop")]);
  const bySse = await collect(streamChat({ url: url(), body: question, transport: "sse" }).chunks());
  assert.deepEqual(bySse, [first, ...rest]);
  peer.close();
});

const collect = async (items) => {
  const all = [];
  for await (const item of items) all.push(item);
  return all;
};
