// The TypeScript client against the real server where there is no browser: server-sent
// events, resumed through connections that break, and the README's example.
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { LoquentError, cachedToken, resumeChat, streamChat } from "../../web/client/dist/index.js";
import { announced, ready, serve } from "./server.mjs";

const example = (name) => fileURLToPath(new URL(`../../web/client/examples/${name}.mjs`, import.meta.url));
const messages = [{ role: "user", content: "What is token streaming?" }];
let server;
let url;
let port;

before(async () => {
  const started = await serve("--simulate", "200");
  server = started.server;
  url = `${started.url}/v1/chat/completions`;
  port = Number(new URL(started.url).port);
  await ready(started.url);
});

after(() => server.kill());

async function wholeAnswer(body) {
  const response = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  return (await response.json()).choices[0].message.content;
}

/** A TCP relay that breaks each connection after so many bytes from the server. */
async function brittle(bytesEach) {
  const sockets = new Set();
  const relay = createServer((client) => {
    const upstream = connect(port, "127.0.0.1");
    sockets.add(client).add(upstream);
    let left = bytesEach;
    upstream.on("data", (data) => {
      client.write(data.subarray(0, left));
      left -= data.length;
      if (left <= 0) for (const socket of [client, upstream]) socket.destroySoon();
    });
    client.on("data", (data) => upstream.write(data));
    for (const socket of [client, upstream]) socket.on("error", () => {}).on("close", () => [client, upstream].forEach((each) => each.destroy()));
  });
  await new Promise((resolve) => relay.listen(0, "127.0.0.1", resolve));
  const close = () => {
    relay.close();
    for (const socket of sockets) socket.destroy();
  };
  return { url: `http://127.0.0.1:${relay.address().port}/v1/chat/completions`, close };
}

test("an answer is whole, counted, and that of a request without streaming", async () => {
  const body = { messages, temperature: 0, max_tokens: 80, stream_options: { include_usage: true } };
  const answer = streamChat({ url, body });
  const text = await answer.finalText();
  assert.equal(text, await wholeAnswer({ ...body, stream_options: undefined }));
  assert.equal(answer.transport, "sse");
  assert.equal(answer.usage.completion, 80);
  assert.equal(answer.finish, "length");
});

test("through connections that break every few kilobytes the text is the same", async () => {
  const body = { messages, temperature: 0, max_tokens: 200 };
  const path = await brittle(12_000);
  try {
    let resumes = 0;
    const answer = streamChat({ url: path.url, body, onState: (state) => (resumes += state === "resuming") });
    assert.equal(await answer.finalText(), await wholeAnswer(body));
    assert.ok(resumes >= 2, `${resumes} resumes`);
  } finally {
    path.close();
  }
});

test("a refusal keeps the server's words", async () => {
  const reading = streamChat({ url, body: { messages, temperature: 9 } }).finalText();
  await assert.rejects(reading, (error) => {
    assert.ok(error instanceof LoquentError);
    assert.deepEqual([error.kind, error.status], ["refused", 400]);
    return /temperature/.test(error.message);
  });
});

test("the README's example runs", async () => {
  const { stdout } = await promisify(execFile)(process.execPath, [example("terminal"), url, "Hello?"]);
  assert.ok(stdout.length > 20);
});

test("several readers share one answer, from the beginning and from where another stands", async () => {
  const body = { messages, temperature: 0, max_tokens: 200 };
  const whole = await wholeAnswer(body);
  const answer = streamChat({ url, body });
  let others = null;
  for await (const delta of answer) {
    if (delta.kind !== "text" || others !== null) continue;
    const { reference, offset, text } = answer;
    const along = resumeChat({ url, reference, offset });
    others = Promise.all([resumeChat({ url, reference }).finalText(), along.finalText().then((rest) => text + rest)]);
    const leaving = resumeChat({ url, reference });
    const left = leaving.finalText();
    leaving.detach();
    await assert.rejects(left, { kind: "detached" });
  }
  assert.equal(answer.text, whole);
  assert.deepEqual(await others, [whole, whole]);
});

test("the example of resume goes on where it was interrupted", async () => {
  const folder = await mkdtemp(join(tmpdir(), "loquent-resume-"));
  const env = { ...process.env, ANSWER_FILE: join(folder, "answer.json") };
  try {
    const first = spawn(process.execPath, [example("resume"), url], { env, stdio: ["ignore", "pipe", "inherit"] });
    let before = "";
    first.stdout.setEncoding("utf8").on("data", (data) => {
      if (before.length <= 20 && before.length + data.length > 20) first.kill("SIGINT");
      before += data;
    });
    const code = await new Promise((resolve) => first.on("close", resolve));
    assert.equal(code, 0);
    assert.match(before, /\n\(The server goes on\. Run this again\.\)\n$/);
    const { stdout } = await promisify(execFile)(process.execPath, [example("resume"), url], { env });
    const begun = before.slice(0, before.lastIndexOf("\n("));
    assert.ok(stdout.startsWith(begun) && stdout.length > begun.length, `${begun} | ${stdout}`);
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("a browser's token, by the example of an app's server, asks and does nothing else", async () => {
  const { server: guarded, url: base } = await serve("--simulate", "200", "--api-key", "sk-e2e-secret");
  await ready(base);
  const env = { ...process.env, LOQUENT_API_KEY: "sk-e2e-secret" };
  const app = spawn(process.execPath, [example("token_server"), base, "0"], { env, stdio: ["ignore", "ignore", "pipe"] });
  try {
    const address = await announced(app, /on (http:\/\/\S+)/);
    assert.equal((await fetch(`${address}/api/token`, { method: "POST" })).status, 401);
    let fetched = 0;
    const apiKey = cachedToken(async () => {
      fetched += 1;
      return (await fetch(`${address}/api/token`, { method: "POST", headers: { "x-demo-user": "ann" } })).json();
    });
    const ask = (key) => streamChat({ url: `${base}/v1/chat/completions`, body: { messages, max_tokens: 20 }, apiKey: key }).finalText();
    const texts = await Promise.all([ask(apiKey), ask(apiKey)]);
    assert.ok(texts.every((text) => text.length > 0));
    assert.equal(fetched, 1);
    const token = await apiKey();
    await assert.rejects(ask(`${token}x`), { status: 401 });
    const headers = { authorization: `Bearer ${token}` };
    for (const [method, path] of [["POST", "/v1/tokens"], ["GET", "/v1/chat/completions"]]) {
      assert.equal((await fetch(base + path, { method, headers, ...(method === "POST" && { body: "{}" }) })).status, 403, path);
    }
  } finally {
    app.kill();
    guarded.kill();
  }
});
