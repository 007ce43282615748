// OpenAI's Responses API through openai-node, unmodified.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { serve } from "./server.mjs";

let server;
let client;

before(async () => {
  const started = await serve("--simulate", "500");
  server = started.server;
  client = new OpenAI({ baseURL: `${started.url}/v1`, apiKey: "none", maxRetries: 3 });
});

after(() => server.kill());

test("a response and its stream agree", async () => {
  const whole = await client.responses.create({ model: "x", input: "tokens=40" });
  const stream = client.responses.stream({ model: "x", input: "tokens=40" });
  let text = "";
  stream.on("response.output_text.delta", (event) => (text += event.delta));
  const final = await stream.finalResponse();
  assert.equal(text, whole.output_text);
  assert.equal(final.output[0].content[0].text, whole.output_text);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
});

test("a background response is resumed after a broken connection, every event once", async () => {
  const begun = await client.responses.create({
    model: "x",
    input: "tokens=400",
    background: true,
    stream: true,
  });
  const seen = [];
  for await (const event of begun) {
    seen.push(event);
    if (seen.length === 15) break;
  }
  const { id } = seen[0].response;
  const rest = await client.responses.retrieve(id, {
    stream: true,
    starting_after: seen.at(-1).sequence_number,
  });
  for await (const event of rest) seen.push(event);
  assert.deepEqual(
    seen.map((event) => event.sequence_number),
    seen.map((_, index) => index),
  );
  const text = seen.map((event) => (event.type === "response.output_text.delta" ? event.delta : "")).join("");
  const done = await client.responses.retrieve(id);
  assert.equal(done.status, "completed");
  assert.equal(done.output_text, text);
});

test("functions make a round trip, and a conversation goes on", async () => {
  const tools = [{ type: "function", name: "time", parameters: { type: "object", properties: {} }, strict: false }];
  const input = 'say=<tool_call>{"name": "time", "arguments": {}}</tool_call>';
  const first = await client.responses.create({ model: "x", input, tools });
  const call = first.output.find((item) => item.type === "function_call");
  assert.equal(call.name, "time");
  const second = await client.responses.create({
    model: "x",
    tools,
    previous_response_id: first.id,
    input: [
      { type: "function_call_output", call_id: call.call_id, output: "noon" },
      { role: "user", content: "say=It is noon." },
    ],
  });
  assert.equal(second.output_text, "It is noon.");
  const items = [];
  for await (const item of client.responses.inputItems.list(second.id)) items.push(item.type);
  assert.deepEqual(items, ["message", "function_call_output", "function_call", "message"]);
  await client.responses.delete(second.id);
  await assert.rejects(client.responses.retrieve(second.id), OpenAI.NotFoundError);
});

test("a background response is cancelled", async () => {
  const begun = await client.responses.create({ model: "x", input: "tokens=100000", background: true });
  const cancelled = await client.responses.cancel(begun.id);
  assert.equal(cancelled.status, "cancelled");
});
