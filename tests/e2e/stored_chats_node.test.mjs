// Stored chat completions with openai-node, unmodified, against the real server.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, test } from "node:test";
import OpenAI from "openai";

const messages = [{ role: "user", content: "What is token streaming?" }];
const request = { model: "any", messages, store: true, max_tokens: 12 };
let server;
let client;

before(async () => {
  server = spawn(process.env.LOQUENT_BIN, ["serve", "--port", "0"], {
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

test("a stored completion is read, changed and deleted", async () => {
  const answer = await client.chat.completions.create({ ...request, metadata: { topic: "a" } });
  const stored = await client.chat.completions.retrieve(answer.id);
  assert.deepEqual(stored.choices, answer.choices);
  const changed = await client.chat.completions.update(answer.id, { metadata: { topic: "b" } });
  assert.deepEqual(changed.metadata, { topic: "b" });
  const asked = [];
  for await (const message of client.chat.completions.messages.list(answer.id)) asked.push(message);
  assert.deepEqual([asked[0].role, asked[0].content], ["user", messages[0].content]);
  assert.equal((await client.chat.completions.delete(answer.id)).deleted, true);
  await assert.rejects(client.chat.completions.retrieve(answer.id), OpenAI.NotFoundError);
});

test("streamed completions are stored, and lists are followed over their pages", async () => {
  const streamed = [];
  for (const topic of ["x", "y", "x"]) {
    const stream = await client.chat.completions.create({
      ...request,
      metadata: { topic },
      stream: true,
    });
    let [id, text] = [null, ""];
    for await (const chunk of stream) {
      id = chunk.id;
      text += chunk.choices[0]?.delta?.content ?? "";
    }
    streamed.push([id, text]);
  }
  const listed = [];
  for await (const one of client.chat.completions.list({ limit: 1 })) {
    listed.push([one.id, one.choices[0].message.content]);
  }
  assert.deepEqual(listed, streamed);
  const chosen = await client.chat.completions.list({ metadata: { topic: "x" }, order: "desc" });
  assert.deepEqual(
    chosen.data.map((one) => one.id),
    [streamed[2][0], streamed[0][0]],
  );
});
