// OpenAI's SDK for JavaScript, by chat completions and its runner of tools.
import { client } from "./recipe.mjs";
import { CITY, keep, kept, main, PATH, readWord } from "./sdk.mjs";

const tool = { name: "read_word", parameters: PATH, parse: JSON.parse, function: readWord, description: "Reads a file" };

async function ask(prompt, history = []) {
  const messages = [...history, { role: "user", content: prompt }];
  const runner = client.chat.completions.runTools({ model: "any", messages, tools: [{ type: "function", function: tool }] });
  const text = await runner.finalContent();
  keep(runner.messages);
  return text;
}

async function* stream(prompt, signal) {
  const messages = [{ role: "user", content: prompt }];
  const chunks = await client.chat.completions.create({ model: "any", messages, stream: true }, { signal });
  for await (const chunk of chunks) yield chunk.choices[0]?.delta.content ?? "";
  signal.throwIfAborted();
}

async function schema(prompt) {
  const response_format = { type: "json_schema", json_schema: { name: "city", schema: CITY, strict: true } };
  const messages = [{ role: "user", content: prompt }];
  const completion = await client.chat.completions.parse({ model: "any", messages, response_format });
  return JSON.stringify(JSON.parse(completion.choices[0].message.content));
}

await main({ ask, stream, goOn: (prompt) => ask(prompt, kept()), schema });
