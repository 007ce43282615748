// A page's surroundings for tests: an HTTP server with routes, a WebTransport in memory beside
// it, and a tab's storage.
import { createServer } from "node:http";
import { after, afterEach, before, beforeEach } from "node:test";
import { serve } from "../dist/service.js";
import { Link, setSharedLink } from "../dist/worker_link.js";

const HASH = "ab".repeat(32);
export const ID = "1".repeat(32);
export const TOKEN = "2".repeat(32);
export const question = { model: "m", messages: [{ role: "user", content: "hi" }] };

let http;
/** Of the test that runs: what answers `METHOD /path`, and every request that came. */
export let routes;
export let requests;
let ports;

/** Tells the worker of this page what the page tells it, beside the library. */
export const orderWorker = (order) => ports[0].postMessage(order);

before(async () => {
  http = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    requests.push({ method: request.method, url: request.url, headers: request.headers, body });
    const route = routes[`${request.method} ${request.url.split("?")[0]}`];
    if (!route) return void response.writeHead(404).end("{}");
    await route(response, { url: new URL(request.url, "http://x"), body });
  });
  await new Promise((resolve) => http.listen(0, "127.0.0.1", resolve));
});

after(() => {
  http.closeAllConnections();
  http.close();
});

beforeEach(() => {
  [routes, requests, ports] = [{}, [], []];
  const stored = new Map();
  globalThis.sessionStorage = {
    getItem: (key) => stored.get(key) ?? null,
    setItem: (key, value) => void stored.set(key, value),
    removeItem: (key) => void stored.delete(key),
  };
});

afterEach(() => {
  delete globalThis.WebTransport;
  delete globalThis.WebTransportError;
  delete globalThis.sessionStorage;
  setSharedLink(null);
  for (const port of ports) port.close();
});

let servers = 0;
/** The endpoint; each test's has a path of its own, so that nothing is remembered. */
export const url = (path = "v1/chat/completions") => new URL(`/s${servers}/${path}`, `http://127.0.0.1:${http.address().port}`);

/** A question by WebTransport and nothing else, however slow this machine may be. */
export const insisting = (options = {}) => ({ url: url(), body: question, transport: "webtransport", ...options });

/** What follows belongs to another server, of which nothing is known. */
export function nextServer() {
  servers += 1;
}

/** The next WebTransport belongs to the server before: the page was loaded again. */
export function reloadPage() {
  servers -= 1;
}

/** The path of a route of this test's server. */
export const route = (method, path) => `${method} /s${servers}/${path}`;

/** Gives the client a WebTransport to `peer` through a message channel, as a worker would. */
export function offerWebTransport(peer, draws = () => 0.9) {
  servers += 1;
  const { port1, port2 } = new MessageChannel();
  ports.push(port1, port2);
  serve(port2, peer.WebTransport, undefined, draws);
  setSharedLink(new Link(port1));
  globalThis.WebTransport = peer.WebTransport;
  const delivery = { version: 1, port: 4433, certificate_sha256: HASH, path: "/loquent/1" };
  routes[`GET /s${servers}/.well-known/loquent`] = (response) => response.end(JSON.stringify(delivery));
}

export const chunk = (delta, finish_reason = null) => ({
  id: "c1",
  object: "chat.completion.chunk",
  created: 7,
  model: "m",
  choices: [{ index: 0, delta, logprobs: null, finish_reason }],
});

/**
 * An answer's words, or other deltas, as events whose ids are offsets, from `from` on; breaks after
 * `breakAt`, stands still for ever after `pauseAt`, ends for `reason`.
 */
export function sseAnswer(words, { breakAt = Infinity, pauseAt = Infinity, from = 0, id = ID, resumable = true, reason = "stop" } = {}) {
  return async (response) => {
    const named = { "x-loquent-stream-id": id, "x-loquent-stream-token": TOKEN };
    response.writeHead(200, { "content-type": "text/event-stream", ...(resumable && named) });
    response.write(": begun\n\n");
    for (let at = from; at < words.length; at++) {
      if (at === breakAt) return void response.destroy();
      if (at === pauseAt) return;
      const delta = typeof words[at] === "string" ? { content: words[at] } : words[at];
      response.write(`id: ${at + 1}\ndata: ${JSON.stringify(chunk(delta))}\n\n`);
      await new Promise((resolve) => setImmediate(resolve));
    }
    response.write(`id: ${words.length + 1}\r\ndata: ${JSON.stringify(chunk({}, reason))}\r\n\r\n`);
    response.end(`id: ${words.length + 2}\ndata: [DONE]\n\n`);
  };
}

/** What a peer's answer is from some offset on, as events; `rest` gets the deltas. */
export function eventsOf(peer, rest = []) {
  return async (response, { url: asked }) => {
    const from = peer.ends.indexOf(Number(asked.searchParams.get("from"))) + 1;
    rest.push(...peer.deltas.slice(from));
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (const [at, delta] of peer.deltas.entries()) {
      if (at >= from && delta.kind === "text") {
        response.write(`id: ${peer.ends[at]}\ndata: ${JSON.stringify(chunk({ content: delta.text }))}\n\n`);
      }
    }
    response.end("data: [DONE]\n\n");
  };
}

/** Reads until `deltas` have come, then does `act`, then reads on. */
export async function readAround(answer, deltas, act) {
  let count = 0;
  for await (const _ of answer) if (++count === deltas) act();
}

export async function readAll(answer) {
  const deltas = [];
  for await (const delta of answer) deltas.push(delta);
  return deltas;
}

