// Vercel's AI SDK with its provider for compatible servers.
import { generateText, isStepCount, jsonSchema, Output, streamText, tool } from "ai";
import { client as model } from "./recipe.mjs";
import { CITY, keep, kept, main, PATH, readWord } from "./sdk.mjs";

const tools = { read_word: tool({ description: "Reads a file", inputSchema: jsonSchema(PATH), execute: readWord }) };

async function ask(prompt, history = []) {
  const messages = [...history, { role: "user", content: prompt }];
  const result = await generateText({ model, messages, tools, stopWhen: isStepCount(5) });
  keep([...messages, ...result.response.messages]);
  return result.text;
}

async function* stream(prompt, abortSignal) {
  const result = streamText({ model, prompt, abortSignal });
  for await (const part of result.fullStream) {
    if (part.type === "text-delta") yield part.text;
    if (part.type === "error") throw part.error;
  }
  abortSignal.throwIfAborted();
}

async function schema(prompt) {
  const result = await generateText({ model, prompt, output: Output.object({ schema: jsonSchema(CITY) }) });
  return JSON.stringify(result.output);
}

await main({ ask, stream, goOn: (prompt) => ask(prompt, kept()), schema });
