// openai-node, unmodified, against the real server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { serve } from "./server.mjs";

const messages = [{ role: "user", content: "What is token streaming?" }];
let server;
let client;

before(async () => {
  const started = await serve();
  server = started.server;
  client = new OpenAI({ baseURL: `${started.url}/v1`, apiKey: "none", maxRetries: 3 });
});

after(() => server.kill());

test("streamed and whole answers agree", async () => {
  const request = { model: "loquent-tiny", messages, temperature: 0 };
  const whole = await client.chat.completions.create(request);
  const stream = await client.chat.completions.create({
    ...request,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let finish;
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    finish = chunk.choices[0]?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(finish, "stop");
  assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);
});

test("a request that is too large is told so", async () => {
  const content = "x".repeat(40 << 20);
  const request = { model: "loquent-tiny", messages: [{ role: "user", content }] };
  const refused = client.chat.completions.create(request, { maxRetries: 0 });
  await assert.rejects(refused, (error) => error.status === 413 && error.code === "request_too_large");
});

test("padding of chunks changes nothing", async () => {
  const request = { model: "x", messages, temperature: 0, max_tokens: 30 };
  const whole = await client.chat.completions.create(request);
  const stream = await client.chat.completions.create({
    ...request,
    stream: true,
    stream_options: { include_obfuscation: true },
  });
  let text = "";
  let padded = 0;
  for await (const chunk of stream) {
    text += chunk.choices[0].delta.content ?? "";
    padded += "obfuscation" in chunk;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.ok(padded > 0);
});

test("sixteen streams at once each get their tokens", async () => {
  const one = async () => {
    const stream = await client.chat.completions.create({
      model: "x",
      messages,
      max_tokens: 50,
      ignore_eos: true,
      stream: true,
      stream_options: { include_usage: true },
    });
    let tokens;
    for await (const chunk of stream) tokens = chunk.usage?.completion_tokens ?? tokens;
    return tokens;
  };
  const counts = await Promise.all(Array.from({ length: 16 }, one));
  assert.deepEqual(counts, Array(16).fill(50));
});

test("errors are typed", async () => {
  await assert.rejects(
    client.chat.completions.create({ model: "x", messages, temperature: 9 }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
  );
});

test("an aborted stream stops", async () => {
  const stream = await client.chat.completions.create({
    model: "x",
    messages,
    max_tokens: 2000,
    ignore_eos: true,
    stream: true,
  });
  let chunks = 0;
  for await (const _ of stream) if (++chunks === 5) break;
  assert.equal(chunks, 5);
});
