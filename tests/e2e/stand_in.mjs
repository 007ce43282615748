// A stand-in for an OpenAI-compatible server behind `--upstream`: answers each question with the
// steps that a test has written for it.
import { once } from "node:events";
import { createServer } from "node:http";

/**
 * Starts it. `answers` maps a question to the steps of its answer, each of them the delta of a chunk
 * such as `{ content: "Hello" }`, `{ chunk }` for a whole chunk, or a function that is awaited.
 */
export async function standIn(answers) {
  const server = createServer((request, response) => void answer(answers, request, response));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${server.address().port}`, close };
}

async function answer(answers, request, response) {
  if (request.method !== "POST") {
    return sendJson(response, { object: "list", data: [{ id: "stand-in", object: "model" }] });
  }
  if (request.url.endsWith("/tokenize")) {
    // The page asks where typing takes long. A browser writes each 404 into its console, which tests read.
    const { prompt } = await bodyOf(request);
    return sendJson(response, { count: prompt.split(" ").length });
  }
  if (!request.url.endsWith("/chat/completions")) {
    response.statusCode = 404;
    return response.end();
  }
  const { messages } = await bodyOf(request);
  const steps = answers[messages.at(-1).content] ?? [{ content: "Nothing is written for this question." }];
  response.setHeader("content-type", "text/event-stream");
  for (const step of steps) {
    if (response.destroyed) return;
    if (typeof step === "function") await step();
    else if (!response.write(event(step.chunk ?? { choices: [{ index: 0, delta: step, finish_reason: null }] }))) await drained(response);
  }
  const hasCalls = steps.some((step) => "tool_calls" in step);
  response.write(event({ choices: [{ index: 0, delta: {}, finish_reason: hasCalls ? "tool_calls" : "stop" }] }));
  response.end("data: [DONE]\n\n");
}

function sendJson(response, value) {
  response.setHeader("content-type", "application/json");
  response.end(JSON.stringify(value));
}

async function bodyOf(request) {
  let body = "";
  for await (const piece of request) body += piece;
  return JSON.parse(body);
}

function event(chunk) {
  const whole = { id: "chatcmpl-1", object: "chat.completion.chunk", created: 1, model: "stand-in", ...chunk };
  return `data: ${JSON.stringify(whole)}\n\n`;
}

function drained(response) {
  return new Promise((resolve) => {
    const done = () => {
      response.off("drain", done).off("close", done);
      resolve();
    };
    response.on("drain", done).on("close", done);
  });
}

/** `text` as deltas of `length` characters each. */
export function inPieces(text, length) {
  const characters = [...text];
  const pieces = [];
  for (let at = 0; at < characters.length; at += length) pieces.push({ content: characters.slice(at, at + length).join("") });
  return pieces;
}

/** A step at which the answer waits until `open` is called. */
export function gate() {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return { step: () => opened, open };
}
