// Stored chat completions with openai-node, unmodified, against the real server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { serve } from "./server.mjs";

const messages = [{ role: "user", content: "What is token streaming?" }];
const request = { model: "any", messages, store: true, max_tokens: 12 };
let server;
let client;

before(async () => {
  const started = await serve();
  server = started.server;
  client = new OpenAI({ baseURL: `${started.url}/v1`, apiKey: "none", maxRetries: 3 });
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
