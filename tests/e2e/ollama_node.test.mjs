// The `ollama` package for Node, unmodified, against the real server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Ollama } from "ollama";
import { ready, serve } from "./server.mjs";

const messages = [{ role: "user", content: "What is token streaming?" }];
const options = { temperature: 0, num_predict: 1000 };
let server;
let client;

before(async () => {
  const started = await serve("--embeddings", "mean");
  server = started.server;
  await ready(started.url);
  client = new Ollama({ host: started.url });
});

after(() => server.kill());

test("streamed and whole answers agree", async () => {
  const { models } = await client.list();
  assert.equal(models[0].name, "loquent-tiny");
  const request = { model: models[0].name, messages, options };
  const whole = await client.chat(request);
  let text = "";
  let last;
  for await (const part of await client.chat({ ...request, stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert.equal(text, whole.message.content);
  assert.equal(last.done_reason, "stop");
  assert.equal(last.eval_count, whole.eval_count);
  const generated = await client.generate({ model: "x", prompt: messages[0].content, options });
  assert.equal(generated.response, text);
});

test("the model is described", async () => {
  const shown = await client.show({ model: "loquent-tiny" });
  assert.ok(shown.capabilities.includes("completion"));
  assert.equal((await client.ps()).models.length, 1);
});

test("texts are embedded, together or one at a time", async () => {
  const texts = ["token streaming", "a slow reader"];
  const both = await client.embed({ model: "loquent-tiny", input: texts });
  assert.equal(both.embeddings.length, 2);
  for (const vector of both.embeddings) assert.ok(Math.abs(Math.hypot(...vector) - 1) < 1e-5);
  assert.ok(both.prompt_eval_count > 2);
  const old = await client.embeddings({ model: "loquent-tiny", prompt: texts[1] });
  old.embedding.forEach((x, at) => assert.ok(Math.abs(x - both.embeddings[1][at]) < 1e-3));
  const long = await client.embed({ model: "loquent-tiny", input: "a long text ".repeat(20000) });
  assert.equal(long.embeddings.length, 1);
  const refused = client.embed({ model: "x", input: "a long text ".repeat(20000), truncate: false });
  await assert.rejects(refused, (error) => error.message.includes("input[0]"));
});

test("errors have Ollama's shape", async () => {
  await assert.rejects(
    client.chat({ model: "x", messages, options: { temperature: 9 } }),
    (error) => error.status_code === 400 && error.message.includes("'temperature'"),
  );
});

test("an aborted stream stops", async () => {
  const stream = await client.chat({ model: "x", messages, stream: true });
  stream.abort();
  await assert.rejects(async () => {
    for await (const _ of stream);
  });
});
