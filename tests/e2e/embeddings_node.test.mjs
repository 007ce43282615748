// openai-node's embeddings, unmodified, against the real server.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, test } from "node:test";
import OpenAI from "openai";

let server;
let client;

before(async () => {
  server = spawn(process.env.LOQUENT_BIN, ["serve", "--port", "0", "--embeddings", "mean"], {
    stdio: ["ignore", "ignore", "pipe"],
  });
  const url = await new Promise((resolve, reject) => {
    let log = "";
    server.stderr.on("data", (data) => {
      log += data;
      const found = /on (http:\/\/\S+)/.exec(log);
      if (found) resolve(found[1]);
    });
    server.on("exit", () => reject(new Error(log)));
  });
  client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 3 });
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
