// How a program reads an answer: once, and as its text as often as it likes; how it leaves, comes
// back, reads along, and learns why nothing comes.
import assert from "node:assert/strict";
import { test } from "node:test";
import { AlreadyReadError, LoquentError, forgetChat, prepare, resumeChat, streamChat } from "../dist/index.js";
import { ID, TOKEN, insisting, nextServer, offerWebTransport, question, readAll, readAround, requests, route, routes, sseAnswer, url } from "./page.mjs";
import { FakeServer, answerOf, seeded, textOf } from "./support.mjs";

const words = Array.from({ length: 40 }, (_, at) => ` word${at}`);
const text = words.join("");
const bySse = (options = {}) => streamChat({ url: url(), body: question, transport: "sse", ...options });
/** Requests to this test's server: one before may still be hearing from its answers. */
const sent = (method) =>
  requests.filter((request) => request.method === method && request.url.startsWith(url("").pathname));
/** Whatever was sent before has come by then. */
const settled = () => fetch(url("v1/models")).then((response) => response.text());

test("one question is asked once, however its answer is read", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  const answer = bySse();
  const deltas = await readAll(answer);
  assert.equal(deltas.at(-1).kind, "done");
  assert.equal(await answer.finalText(), text);
  assert.throws(() => answer[Symbol.asyncIterator](), AlreadyReadError);
  await assert.rejects(readAll(answer.chunks()), AlreadyReadError);
  await assert.rejects(readAll(answer), { name: "AlreadyReadError", message: /finalText/ });
  assert.equal(sent("POST").length, 1);
});

test("two who want the text share one answer, and one who iterates does not disturb a third", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  const answer = bySse();
  assert.deepEqual(await Promise.all([answer.finalText(), answer.finalText()]), [text, text]);
  await assert.rejects(readAll(answer), AlreadyReadError);
  const other = bySse();
  const [deltas, whole] = await Promise.all([readAll(other), other.finalText()]);
  assert.deepEqual([textOf(deltas), whole], [text, text]);
  assert.equal(sent("POST").length, 2);
});

test("the text of an answer that failed, or was left, is not given as whole", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { breakAt: 5, resumable: false });
  const answer = bySse();
  await assert.rejects(readAll(answer), { kind: "broken" });
  await assert.rejects(answer.finalText(), { kind: "broken" });
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  const left = bySse();
  for await (const _ of left) break;
  await assert.rejects(left.finalText(), { name: "AbortError" });
});

for (const transport of ["webtransport", "sse"]) {
  test(`detach leaves without ending the generation, by ${transport}`, async () => {
    const deltas = answerOf(seeded(2), 200);
    const peer = new FakeServer({ deltas });
    offerWebTransport(peer);
    routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { pauseAt: 10 });
    const answer = streamChat({ url: url(), body: question, transport, remember: "chat" });
    const reading = readAround(answer, 8, () => answer.detach());
    await assert.rejects(reading, (error) => error instanceof LoquentError && error.kind === "detached");
    assert.equal(answer.state, "ended");
    await settled();
    assert.deepEqual([peer.stopped, sent("DELETE")], [[], []]);
    const again = resumeChat({ remember: "chat", transport });
    assert.equal(again.text, answer.text);
    assert.deepEqual(again.reference, answer.reference);
    again.cancel(); // one that nobody reads can be ended, too
    await settled();
    assert.equal(sent("DELETE").length, 1);
    assert.equal(resumeChat({ remember: "chat" }), null);
    peer.close();
  });
}

test("what is given up before the server has begun is given up there too", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(2), 200), silent: true });
  offerWebTransport(peer);
  const answer = streamChat(insisting());
  const reading = readAll(answer);
  while (peer.questions.length === 0) await new Promise(setImmediate);
  answer.cancel();
  await assert.rejects(reading, { name: "AbortError" });
  while (peer.stopped.length === 0) await new Promise(setImmediate);
  peer.close();
});

test("only what somebody here wanted ends an answer that others may read", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { breakAt: 5 });
  const answer = bySse(); // its resume is answered with 404
  await assert.rejects(readAll(answer), { kind: "gone" });
  await settled();
  assert.equal(sent("DELETE").length, 0);
});

test("a reload right after the question asks it again with the same key", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = () => {}; // the server takes its time
  const page = bySse({ remember: "chat", extraBody: { top_a: 0.5 }, apiKey: "k" });
  const asking = readAll(page);
  asking.catch(() => {});
  while (sent("POST").length === 0) await new Promise(setImmediate);
  assert.ok(!JSON.stringify(sessionStorage.getItem("loquent:answer:chat")).includes('"k"'), "keys are not kept");
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  const answer = resumeChat({ remember: "chat", transport: "sse", apiKey: () => Promise.resolve("k") });
  assert.deepEqual([answer.state, answer.text], ["connecting", ""]);
  assert.equal(await answer.finalText(), text);
  const [first, second] = sent("POST");
  assert.match(first.headers["idempotency-key"], /^[0-9a-f]{32}$/);
  assert.equal(first.headers["idempotency-key"], second.headers["idempotency-key"]);
  assert.deepEqual([first.body, first.headers.authorization], [second.body, second.headers.authorization]);
  assert.equal(JSON.parse(second.body).top_a, 0.5);
  page.detach();
});

test("what is kept is checked before it is used, and a question only for a minute", () => {
  const keep = (value) => sessionStorage.setItem("loquent:answer:chat", typeof value === "string" ? value : JSON.stringify(value));
  const begun = { is: "begun", url: "http://x/v1/chat/completions", reference: { id: ID, token: TOKEN }, offset: 3, meta: "{}", text: "a", reasoning: "", toolCalls: [{ index: 0, id: "a", name: "look", arguments: "{" }], finish: null, usage: null };
  const asked = { is: "asked", url: "http://x/v1/chat/completions", body: {}, key: ID, asked_ms: Date.now() };
  for (const [kept, isUsable] of [
    [begun, true],
    [{ ...begun, url: "javascript:0" }, false],
    [{ ...begun, url: "no url" }, false],
    [{ ...begun, reference: { id: "../x", token: TOKEN } }, false],
    [{ ...begun, offset: 0.5 }, false],
    [{ ...begun, toolCalls: [null] }, false],
    [asked, true],
    [{ ...asked, asked_ms: Date.now() - 61_000 }, false],
    [{ ...asked, body: "{}" }, false],
    [{ ...asked, key: "k\nk" }, false],
    ["{", false],
    ["null", false],
  ]) {
    keep(kept);
    assert.equal(resumeChat({ remember: "chat" }) !== null, isUsable, JSON.stringify(kept));
  }
});

test("an answer is read by its reference, from any offset, wherever it was asked", async () => {
  nextServer();
  routes[route("GET", `v1/streams/${ID}`)] = async (response, { url: asked }) =>
    sseAnswer(words, { from: Number(asked.searchParams.get("from")) })(response);
  const reference = { id: ID, token: TOKEN };
  const whole = resumeChat({ url: url().href, reference, transport: "sse" });
  assert.equal(await whole.finalText(), text);
  const rest = resumeChat({ url: url(), reference, offset: 30, transport: "sse" });
  assert.equal(await rest.finalText(), words.slice(30).join(""));
  assert.equal(sent("GET").at(-1).headers["x-loquent-stream-token"], TOKEN);
  for (const wrong of [{ reference: { id: "1/../2", token: TOKEN } }, { reference, offset: -1 }, { reference, offset: 0.5 }]) {
    assert.throws(() => resumeChat({ url: url(), ...wrong }), TypeError);
  }
});

test("any storage remembers, and an answer forgets only itself there", async () => {
  nextServer();
  delete globalThis.sessionStorage; // as in Node
  const kept = new Map();
  const storage = { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => void kept.set(key, value), removeItem: (key) => void kept.delete(key) };
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  const first = bySse({ remember: "chat", storage });
  const steps = first[Symbol.asyncIterator]();
  await steps.next();
  assert.equal(kept.size, 1);
  const second = bySse({ remember: "chat", storage });
  const others = second[Symbol.asyncIterator]();
  await others.next();
  const ofSecond = [...kept.values()].join();
  for (let step = await steps.next(); !step.done; ) step = await steps.next();
  assert.equal([...kept.values()].join(), ofSecond, "the first took only its own away");
  for (let step = await others.next(); !step.done; ) step = await others.next();
  assert.equal(kept.size, 0);
  await assert.doesNotReject(async () => forgetChat("chat", { storage }));
  assert.equal(resumeChat({ remember: "chat" }), null);
});

test("requests are made as the app wants them", async () => {
  const peer = new FakeServer({ deltas: answerOf(seeded(2), 5) });
  offerWebTransport(peer);
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { breakAt: 5 });
  routes[route("GET", `v1/streams/${ID}`)] = (response, { url: asked }) =>
    sseAnswer(words, { from: Number(asked.searchParams.get("from")), pauseAt: 8 })(response);
  const seen = [];
  const own = (address, init) => {
    seen.push([init.method, init.credentials]);
    return fetch(address, init);
  };
  const options = { fetch: own, headers: { "X-Csrf": "7", Authorization: "Basic x" }, credentials: "include", apiKey: "k" };
  assert.equal(await prepare(url(), options), "sse", "a session of WebTransport has no cookies");
  const answer = streamChat({ url: url(), body: question, ...options });
  await assert.rejects(readAround(answer, 8, () => answer.cancel()), { name: "AbortError" });
  while (sent("DELETE").length === 0) await settled();
  assert.deepEqual(seen, [["POST", "include"], ["GET", "include"], ["DELETE", "include"]]);
  for (const { method, headers } of [...sent("POST"), ...sent("GET"), ...sent("DELETE")].filter((one) => !one.url.endsWith("/models"))) {
    assert.equal(headers["x-csrf"], "7");
    assert.equal(headers.authorization, method === "POST" ? "Bearer k" : "Basic x");
  }
  const plain = streamChat(insisting({ headers: { "X-Csrf": "8" } }));
  await plain.finalText();
  assert.equal(peer.questions[0].head.headers["x-csrf"], "8");
  peer.close();
});

test("a fetch without streams is an error that says so, at once", async () => {
  nextServer();
  let asked = 0;
  const bodyless = async () => {
    asked += 1;
    return { ok: true, status: 200, headers: new Headers({ "x-loquent-stream-id": ID, "x-loquent-stream-token": TOKEN }), text: async () => "", json: async () => ({}) };
  };
  await assert.rejects(readAll(bySse({ fetch: bodyless })), { kind: "unsupported", message: /expo\/fetch/ });
  assert.equal(asked, 1);
});

test("what was behind an error is its cause, and CORS is named where it may be the reason", async () => {
  const unreachable = "http://127.0.0.1:1/v1/chat/completions";
  const reading = () => readAll(streamChat({ url: unreachable, body: question, transport: "sse" }));
  await assert.rejects(reading(), (error) => error.kind === "broken" && error.cause instanceof TypeError && !/CORS/.test(error.message));
  globalThis.location = { origin: "http://app.example" };
  try {
    await assert.rejects(reading(), { kind: "broken", message: /--cors-origin http:\/\/app\.example/ });
  } finally {
    delete globalThis.location;
  }
});

test("a question is asked again when the server wants that, as often as the program does", async () => {
  nextServer();
  let refusals = 2;
  routes[route("POST", "v1/chat/completions")] = (response) =>
    refusals-- > 0 ? void response.writeHead(429, { "retry-after": "0.01" }).end("{}") : sseAnswer(words)(response);
  const causes = [];
  const answer = bySse({ retries: 2, onPause: (pause) => causes.push(pause?.cause ?? null) });
  assert.equal(await answer.finalText(), text);
  assert.deepEqual(causes.slice(0, 5), ["connecting", "retrying", "connecting", "retrying", "connecting"]);
  const keys = new Set(sent("POST").map(({ headers }) => headers["idempotency-key"]));
  assert.deepEqual([sent("POST").length, keys.size], [3, 1]);
  refusals = 2;
  await assert.rejects(readAll(bySse({ retries: 1 })), { kind: "refused", status: 429 });
  refusals = 1;
  routes[route("POST", "v1/chat/completions")] = (response) => void response.writeHead(429, { "retry-after": "3600" }).end("{}");
  await assert.rejects(readAll(bySse({ retries: 5 })), { retryAfter_s: 3600 }, "nobody waits for an hour");
  routes[route("POST", "v1/chat/completions")] = (response) => void response.writeHead(400).end("{}");
  const before = sent("POST").length;
  await assert.rejects(readAll(bySse({ retries: 5 })), { status: 400 });
  assert.equal(sent("POST").length, before + 1);
});

test("a listener that throws is no end of the answer", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  const reported = [];
  globalThis.reportError = (error) => reported.push(error.message);
  try {
    const failing = () => {
      throw new Error("mine");
    };
    assert.equal(await bySse({ onState: failing, onTransport: failing, onPause: failing }).finalText(), text);
  } finally {
    delete globalThis.reportError;
  }
  assert.ok(reported.length >= 4 && reported.every((message) => message === "mine"));
});

test("the signal's own reason is thrown, and nothing keeps the process alive", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { pauseAt: 5 });
  const stop = new AbortController();
  const mine = new Error("mine");
  await assert.rejects(readAround(bySse({ signal: stop.signal }), 5, () => stop.abort(mine)), mine);
  const timersOf = () => process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
  const before = timersOf();
  await assert.rejects(readAll(streamChat({ url: url(), body: question, transport: "webtransport" })), { kind: "broken" });
  assert.equal(timersOf(), before);
});

test("a lost path is a pause whose cause is the network, and says what was wrong", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { breakAt: 5 });
  routes[route("GET", `v1/streams/${ID}`)] = (response, { url: asked }) =>
    sseAnswer(words, { from: Number(asked.searchParams.get("from")) })(response);
  const pauses = [];
  const answer = bySse({ onPause: (pause) => pauses.push(pause) });
  assert.equal(await answer.finalText(), text);
  const lost = pauses.find((pause) => pause?.cause === "network");
  assert.equal(lost.attempts, 0);
  assert.ok(lost.why.length > 0 && lost.since_ms <= Date.now());
  assert.equal(pauses.at(-1), null);
  assert.equal(answer.pause, null);
});
