// OpenAI's Agents SDK for JavaScript.
import { Agent, run, tool } from "@openai/agents";
import { z } from "zod";
import { agent } from "./recipe.mjs";
import { keep, kept, main, readWord } from "./sdk.mjs";

const readTool = tool({ name: "read_word", description: "Reads a file", parameters: z.object({ path: z.string() }), execute: readWord });

async function ask(prompt, history = []) {
  const result = await run(agent.clone({ tools: [readTool] }), [...history, { role: "user", content: prompt }]);
  keep(result.history);
  return result.finalOutput;
}

async function* stream(prompt, signal) {
  const result = await run(agent, prompt, { stream: true, signal });
  for await (const piece of result.toTextStream()) yield piece;
  await result.completed;
}

async function schema(prompt) {
  const filling = new Agent({ name: "Filler", model: agent.model, outputType: z.object({ city: z.string() }) });
  return JSON.stringify((await run(filling, prompt)).finalOutput);
}

await main({ ask, stream, goOn: (prompt) => ask(prompt, kept()), schema });
