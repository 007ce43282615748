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
  const started = await serve();
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
