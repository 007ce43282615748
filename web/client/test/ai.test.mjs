// The AI SDK's transport: what it asks, and the chunks that it gives for what comes.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { LoquentChatTransport } from "../dist/ai.js";
import { chatMessages } from "../dist/ui_messages.js";
import { ID, chunk, nextServer, requests, route, routes, sseAnswer, url } from "./page.mjs";

const words = Array.from({ length: 12 }, (_, at) => ` word${at}`);
const ask = { chatId: "c", messages: [{ id: "1", role: "user", parts: [{ type: "text", text: "hi" }] }], abortSignal: undefined };
const transportTo = (options = {}) => new LoquentChatTransport({ url: url(), transport: "sse", ...options });

async function all(stream) {
  const chunks = [];
  for await (const one of stream) chunks.push(one);
  return chunks;
}

const written = (chunks) => chunks.map(({ delta = "" }) => delta).join("");

/** Answers with `deltas` of choice 0, the last of which ends it for `reason`. */
const answering = (deltas, reason = "stop") => (response) => {
  response.writeHead(200, { "content-type": "text/event-stream" });
  for (const delta of deltas) response.write(`data: ${JSON.stringify(chunk(delta))}\n\n`);
  response.end(`data: ${JSON.stringify(chunk({}, reason))}\n\ndata: [DONE]\n\n`);
};

test("an answer is one text part between its start and its finish", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  const transport = transportTo({ body: { model: "m", temperature: 0 }, headers: { "x-a": "1" }, apiKey: "k" });
  const chunks = await all(await transport.sendMessages({ ...ask, body: { top_k: 3 }, headers: new Headers({ "x-b": "2" }) }));
  const kinds = chunks.map(({ type }) => type).filter((type) => type !== "text-delta");
  assert.deepEqual(kinds, ["start", "start-step", "text-start", "text-end", "finish-step", "finish"]);
  assert.equal(written(chunks), words.join(""));
  assert.equal(chunks.at(-1).finishReason, "stop");
  const [{ body, headers }] = requests;
  const { messages, model, temperature, top_k } = JSON.parse(body);
  assert.deepEqual({ messages, model, temperature, top_k }, { messages: [{ role: "user", content: "hi" }], model: "m", temperature: 0, top_k: 3 });
  assert.deepEqual([headers["x-a"], headers["x-b"], headers.authorization], ["1", "2", "Bearer k"]);
});

const call = (index, more, args) => ({ tool_calls: [{ index, ...more, function: { ...more.function, arguments: args } }] });

test("reasoning, text and calls of tools are parts of their own", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = answering(
    [
      { reasoning_content: "so" },
      { content: "Let me see." },
      call(0, { id: "a", type: "function", function: { name: "look" } }, '{"at":'),
      call(0, {}, "1}"),
      call(1, { id: "b", type: "function", function: { name: "look" } }, "{broken"),
    ],
    "tool_calls",
  );
  const chunks = (await all(await transportTo().sendMessages(ask))).filter(({ type }) => type !== "start" && type !== "start-step");
  assert.deepEqual(chunks, [
    { type: "reasoning-start", id: "reasoning-0" },
    { type: "reasoning-delta", id: "reasoning-0", delta: "so" },
    { type: "reasoning-end", id: "reasoning-0" },
    { type: "text-start", id: "text-1" },
    { type: "text-delta", id: "text-1", delta: "Let me see." },
    { type: "text-end", id: "text-1" },
    { type: "tool-input-start", toolCallId: "a", toolName: "look" },
    { type: "tool-input-delta", toolCallId: "a", inputTextDelta: '{"at":' },
    { type: "tool-input-delta", toolCallId: "a", inputTextDelta: "1}" },
    { type: "tool-input-start", toolCallId: "b", toolName: "look" },
    { type: "tool-input-delta", toolCallId: "b", inputTextDelta: "{broken" },
    { type: "tool-input-available", toolCallId: "a", toolName: "look", input: { at: 1 } },
    { type: "tool-input-error", toolCallId: "b", toolName: "look", input: "{broken", errorText: "The arguments are not JSON." },
    { type: "finish-step" },
    { type: "finish", finishReason: "tool-calls" },
  ]);
});

test("stop ends the generation, closing leaves it, and a reload goes on from the beginning of the message", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { pauseAt: 6 });
  const stop = new AbortController();
  const stopped = (await transportTo().sendMessages({ ...ask, abortSignal: stop.signal })).getReader();
  const chunks = [];
  while (written(chunks) !== words.slice(0, 6).join("")) chunks.push((await stopped.read()).value);
  stop.abort();
  for (let next = await stopped.read(); !next.done; next = await stopped.read()) chunks.push(next.value);
  assert.deepEqual(chunks.slice(-2).map(({ type }) => type), ["text-end", "abort"]);
  while (!requests.some(({ method }) => method === "DELETE")) await new Promise(setImmediate);
  assert.equal(await transportTo().reconnectToStream({ chatId: "c" }), null);

  requests.length = 0;
  const left = (await transportTo().sendMessages(ask)).getReader();
  chunks.length = 0;
  while (written(chunks) !== words.slice(0, 6).join("")) chunks.push((await left.read()).value);
  await left.cancel();
  routes[route("GET", `v1/streams/${ID}`)] = (response, { url: asked }) =>
    sseAnswer(words, { from: Number(asked.searchParams.get("from")) })(response);
  const again = await all(await transportTo().reconnectToStream({ chatId: "c" }));
  assert.equal(written(again), words.join(""));
  assert.equal(requests.filter(({ method }) => method === "DELETE").length, 0);
});

test("after a reload a call comes whole, whether the reload cut its arguments or followed them", async () => {
  const deltas = ["Let me see.", call(0, { id: "a", type: "function", function: { name: "look" } }, '{"at":'), call(0, {}, "1}")];
  for (const pauseAt of [2, 3]) {
    nextServer();
    routes[route("POST", "v1/chat/completions")] = sseAnswer(deltas, { pauseAt });
    const left = (await transportTo().sendMessages(ask)).getReader();
    for (let pieces = 1; pieces < pauseAt; ) pieces += (await left.read()).value.type === "tool-input-delta" ? 1 : 0;
    await left.cancel();
    while (JSON.parse(sessionStorage.getItem("loquent:answer:ai:c")).offset < pauseAt) await new Promise(setImmediate);
    routes[route("GET", `v1/streams/${ID}`)] = (response, { url: asked }) =>
      sseAnswer(deltas, { from: Number(asked.searchParams.get("from")), reason: "tool_calls" })(response);
    const chunks = await all(await transportTo().reconnectToStream({ chatId: "c" }));
    assert.equal(requests.at(-1).url.split("?")[1], `from=${pauseAt}`);
    assert.deepEqual(chunks.filter(({ type }) => type !== "tool-input-delta"), [
      { type: "start" },
      { type: "start-step" },
      { type: "text-start", id: "text-0" },
      { type: "text-delta", id: "text-0", delta: "Let me see." },
      { type: "text-end", id: "text-0" },
      { type: "tool-input-start", toolCallId: "a", toolName: "look" },
      { type: "tool-input-available", toolCallId: "a", toolName: "look", input: { at: 1 } },
      { type: "finish-step" },
      { type: "finish", finishReason: "tool-calls" },
    ]);
    assert.equal(chunks.map(({ inputTextDelta = "" }) => inputTextDelta).join(""), '{"at":1}');
  }
});

test("a failure is the stream's last word", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = (response) =>
    void response.writeHead(400).end(JSON.stringify({ error: { message: "'temperature' is too high." } }));
  const chunks = await all(await transportTo().sendMessages(ask));
  assert.deepEqual(chunks.at(-1), { type: "error", errorText: "'temperature' is too high." });
});

test("messages become OpenAI's: pictures, steps, calls and what they returned", () => {
  const tool = (state, more) => ({ type: "tool-look", toolCallId: "a", state, input: { at: 1 }, ...more });
  const messages = chatMessages([
    { id: "1", role: "system", parts: [{ type: "text", text: "Be brief." }] },
    {
      id: "2",
      role: "user",
      parts: [{ type: "text", text: "What is this?" }, { type: "file", mediaType: "image/png", url: "data:image/png;base64,AA==" }],
    },
    {
      id: "3",
      role: "assistant",
      parts: [
        { type: "step-start" },
        { type: "reasoning", text: "hm" },
        { type: "text", text: "Let me see." },
        tool("output-available", { output: { seen: true } }),
        { type: "dynamic-tool", toolName: "ask", toolCallId: "b", state: "output-error", input: {}, errorText: "no" },
        { type: "text", text: "It is a dot." },
      ],
    },
    { id: "4", role: "assistant", parts: [tool("input-streaming")] },
  ]);
  const call = (id, name, args) => ({ id, type: "function", function: { name, arguments: args } });
  assert.deepEqual(messages, [
    { role: "system", content: "Be brief." },
    {
      role: "user",
      content: [
        { type: "text", text: "What is this?" },
        { type: "image_url", image_url: { url: "data:image/png;base64,AA==" } },
      ],
    },
    { role: "assistant", content: "Let me see.", reasoning_content: "hm", tool_calls: [call("a", "look", '{"at":1}'), call("b", "ask", "{}")] },
    { role: "tool", tool_call_id: "a", content: '{"seen":true}' },
    { role: "tool", tool_call_id: "b", content: "no" },
    { role: "assistant", content: "It is a dot." },
  ]);
});

const { cases } = JSON.parse(readFileSync(new URL("../../../crates/dialects/src/ui_stream/messages.json", import.meta.url)));
for (const { about, ui, chat } of cases) {
  test(`messages, as the server reads them: ${about}`, () => assert.deepEqual(chatMessages(ui), chat));
}
