// Anthropic's SDK for Node, unmodified, against the real server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { serve } from "./server.mjs";

const messages = [{ role: "user", content: "What is token streaming?" }];
const schema = {
  type: "object",
  properties: { city: { enum: ["Oslo", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ name: "weather", description: "Tells the weather.", input_schema: schema }];
let server;
let client;

before(async () => {
  const started = await serve();
  server = started.server;
  client = new Anthropic({ baseURL: started.url, apiKey: "none", maxRetries: 3 });
});

after(() => server.kill());

test("streamed and whole answers agree", async () => {
  const request = { model: "loquent-tiny", max_tokens: 1000, messages, temperature: 0 };
  const whole = await client.messages.create(request);
  let text = "";
  const stream = client.messages.stream(request).on("text", (piece) => (text += piece));
  const final = await stream.finalMessage();
  assert.equal(whole.content[0].type, "text");
  assert.equal(text, whole.content[0].text);
  assert.equal(final.content[0].text, text);
  assert.equal(final.stop_reason, "end_turn");
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
  const counted = await client.messages.countTokens({ model: "loquent-tiny", messages });
  const { input_tokens, cache_read_input_tokens } = final.usage;
  assert.equal(counted.input_tokens, input_tokens + cache_read_input_tokens);
});

test("tools make a round trip", async () => {
  const tool_choice = { type: "any", disable_parallel_tool_use: true };
  const request = { model: "x", max_tokens: 200, tools, tool_choice, messages };
  const asked = await client.messages.stream(request).finalMessage();
  assert.equal(asked.stop_reason, "tool_use");
  const call = asked.content.find((block) => block.type === "tool_use");
  assert.equal(call.name, "weather");
  assert.ok(["Oslo", "Rome"].includes(call.input.city));
  const result = { type: "tool_result", tool_use_id: call.id, content: "Rain." };
  const turns = [
    ...messages,
    { role: "assistant", content: asked.content },
    { role: "user", content: [result] },
  ];
  const answer = await client.messages.create({ model: "x", max_tokens: 20, tools, messages: turns });
  assert.ok(answer.content.length > 0);
});

test("errors are typed", async () => {
  await assert.rejects(
    client.messages.create({ model: "x", max_tokens: 5, messages, temperature: 9 }),
    (error) =>
      error instanceof Anthropic.BadRequestError &&
      error.error.error.type === "invalid_request_error" &&
      error.requestID.startsWith("req_"),
  );
});

test("an aborted stream stops", async () => {
  const request = { model: "x", max_tokens: 2000, messages, stream: true, ignore_eos: true };
  let events = 0;
  for await (const _ of await client.messages.create(request)) if (++events === 5) break;
  assert.equal(events, 5);
});
