// openai-node, unmodified, through `loquent connect` over a lossy path.
import assert from "node:assert/strict";
import dgram from "node:dgram";
import { EventEmitter } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { announced, run } from "./server.mjs";

// Another loopback address with the server's port, so that what it says of its ports holds.
const LOSSY = "127.0.0.2";
const children = [];
let state;
let path;
let direct;
let proxied;
let metrics;

function start(args) {
  const child = run(args);
  children.push(child);
  return child;
}

// Numbers in [0, 1) by a seed (mulberry32).
function seeded(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

async function lossyPath(port, loss) {
  const random = seeded(1);
  const open = new Set();
  const lossy = { dropped: 0 };
  const lost = () => {
    const is = random() < loss;
    lossy.dropped += is;
    return is;
  };
  const tcp = net.createServer({ noDelay: true }, (client) => {
    const server = net.connect({ port, host: "127.0.0.1", noDelay: true });
    for (const socket of [client, server]) {
      open.add(socket);
      socket.on("error", () => {}).on("close", () => (client.destroy(), server.destroy()));
    }
    client.pipe(server).pipe(client);
  });
  const udp = dgram.createSocket("udp4");
  const ups = new Map();
  udp.on("message", (packet, client) => {
    const name = `${client.address}:${client.port}`;
    if (!ups.has(name)) {
      const up = dgram.createSocket("udp4").on("error", () => {});
      up.on("message", (back) => lost() || udp.send(back, client.port, client.address));
      ups.set(name, up);
    }
    if (!lost()) ups.get(name).send(packet, port, "127.0.0.1");
  });
  await new Promise((resolve) => tcp.listen(port, LOSSY, resolve));
  await new Promise((resolve) => udp.bind(port, LOSSY, resolve));
  lossy.close = () => {
    tcp.close();
    for (const socket of open) socket.destroy();
    udp.close();
    for (const up of ups.values()) up.close();
  };
  return lossy;
}

before(async () => {
  const server = start(["serve", "--simulate", "200", "--port", "0"]);
  const url = await announced(server, /on (http:\/\/\S+)/);
  const port = Number(new URL(url).port);
  metrics = `${url}/metrics`;
  path = await lossyPath(port, 0.2);
  state = mkdtempSync(join(tmpdir(), "loquent-connect-"));
  const args = ["--url", `http://${LOSSY}:${port}`, "--listen", "127.0.0.1:0", "--state-dir", state];
  const proxy = start(["connect", ...args, "--head-start-ms", "5000"]);
  const [local, way] = await Promise.all([
    announced(proxy, /on (http:\/\/\S+)/),
    announced(proxy, /Answers come over (\w+)/),
  ]);
  assert.equal(way, "QUIC");
  direct = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 3 });
  proxied = new OpenAI({ baseURL: `${local}/v1`, apiKey: "none", maxRetries: 0 });
});

after(() => {
  for (const child of children) child.kill("SIGKILL");
  path?.close();
  if (state) rmSync(state, { recursive: true });
});

async function answer(client, n) {
  const messages = [{ role: "user", content: `Question ${n}: tokens=40` }];
  const stream = await client.chat.completions.create({
    model: "x",
    messages,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let finish;
  let tokens;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    finish = chunk.choices[0]?.finish_reason ?? finish;
    tokens = chunk.usage?.completion_tokens ?? tokens;
  }
  return { text, finish, tokens };
}

test("answers over a lossy path are those of a clean one", { timeout: 60_000 }, async () => {
  for (let first = 0; first < 100; first += 20) {
    const numbers = Array.from({ length: 20 }, (_, n) => first + n);
    const expected = await Promise.all(numbers.map((n) => answer(direct, n)));
    assert.deepEqual(await Promise.all(numbers.map((n) => answer(proxied, n))), expected);
    assert.equal(expected[0].finish, "stop");
  }
  assert.ok(path.dropped > 100, `only ${path.dropped} packets were lost`);
});

test("errors are typed, and everything else passes", async () => {
  await assert.rejects(
    proxied.chat.completions.create({ model: "x", messages: [], stream: true }),
    OpenAI.BadRequestError,
  );
  assert.equal((await proxied.models.list()).data.length, 1);
});

test("an aborted stream stops, at the server too", { timeout: 50_000 }, async () => {
  const messages = [{ role: "user", content: "tokens=12000" }];
  const stream = await proxied.chat.completions.create({ model: "x", messages, stream: true });
  let chunks = 0;
  for await (const _ of stream) if (++chunks === 5) break;
  assert.equal(chunks, 5);
  // It would go on for a minute.
  const running = async () => (await fetch(metrics)).text();
  while (!(await running()).includes("num_requests_running 0"));
});

test("an address that a process announces is read from a whole line", async () => {
  const stderr = Object.assign(new EventEmitter(), { unref() {}, resume() {} });
  const child = Object.assign(new EventEmitter(), { stderr, unref() {} });
  const found = announced(child, /on (http:\/\/\S+)/);
  for (const piece of ["API on http://127", ".0.0.1:80", "80\n", "more"]) stderr.emit("data", piece);
  assert.equal(await found, "http://127.0.0.1:8080");
});
