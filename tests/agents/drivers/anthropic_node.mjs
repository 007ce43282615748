// Anthropic's SDK for JavaScript: the tool runner as it is by default, which begins a thread on the server.
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { client } from "./recipe.mjs";
import { CITY, keep, kept, main, PATH, readWord } from "./sdk.mjs";

const common = { model: "any", max_tokens: 1000 };
const textOf = (message) => message.content.map((block) => block.text ?? "").join("");
const asked = (prompt) => [{ role: "user", content: prompt }];

async function ask(prompt, history = []) {
  const messages = [...history, ...asked(prompt)];
  const tool = betaTool({ name: "read_word", description: "Reads a file", inputSchema: PATH, run: readWord });
  const text = textOf(await client.beta.messages.toolRunner({ ...common, messages, tools: [tool] }));
  keep([...messages, { role: "assistant", content: text }]);
  return text;
}

async function* stream(prompt, signal) {
  const events = client.messages.stream({ ...common, messages: asked(prompt) }, { signal });
  for await (const event of events) if (event.delta?.type === "text_delta") yield event.delta.text;
  signal.throwIfAborted();
}

async function schema(prompt) {
  const output_config = { format: { type: "json_schema", schema: CITY } };
  return JSON.stringify(JSON.parse(textOf(await client.messages.create({ ...common, messages: asked(prompt), output_config }))));
}

await main({ ask, stream, goOn: (prompt) => ask(prompt, kept()), schema });
