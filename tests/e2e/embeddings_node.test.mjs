// openai-node's embeddings, unmodified, against the real server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { serve } from "./server.mjs";

let server;
let client;

before(async () => {
  const started = await serve("--embeddings", "mean");
  server = started.server;
  client = new OpenAI({ baseURL: `${started.url}/v1`, apiKey: "none", maxRetries: 3 });
});

after(() => server.kill());

const length = (vector) => Math.hypot(...vector);

test("vectors come in the order of the inputs, by default in base64", async () => {
  const input = ["token streaming", "a slow reader"];
  const both = await client.embeddings.create({ model: "any", input });
  const one = await client.embeddings.create({ model: "any", input: input[1], encoding_format: "float" });
  const [first, second] = both.data.map((item) => Array.from(item.embedding));
  assert.ok(Math.abs(length(first) - 1) < 1e-5);
  assert.equal(second.length, one.data[0].embedding.length);
  second.forEach((x, at) => assert.ok(Math.abs(x - one.data[0].embedding[at]) < 1e-3));
  assert.equal(both.usage.prompt_tokens, both.usage.total_tokens);
});

test("dimensions shorten a vector, and too many are refused", async () => {
  const few = await client.embeddings.create({ model: "any", input: "a", dimensions: 8 });
  assert.equal(few.data[0].embedding.length, 8);
  assert.ok(Math.abs(length(Array.from(few.data[0].embedding)) - 1) < 1e-5);
  const many = client.embeddings.create({ model: "any", input: "a", dimensions: 100000 });
  await assert.rejects(many, { status: 400, param: "dimensions" });
});
