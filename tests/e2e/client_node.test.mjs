// The TypeScript client against the real server where there is no browser: server-sent
// events, resumed through connections that break, and the README's example.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { connect, createServer } from "node:net";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { LoquentError, streamChat } from "../../web/client/dist/index.js";
import { ready, serve } from "./server.mjs";

const EXAMPLE = fileURLToPath(new URL("../../web/client/examples/terminal.mjs", import.meta.url));
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
  const { stdout } = await promisify(execFile)(process.execPath, [EXAMPLE, url, "Hello?"]);
  assert.ok(stdout.length > 20);
});
