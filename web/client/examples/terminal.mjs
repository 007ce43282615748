// Streams one answer to the terminal: node terminal.mjs [ENDPOINT] [QUESTION]
import { streamChat } from "@loquent/client";

const [url = "http://127.0.0.1:8080/v1/chat/completions", question = "What is token streaming?"] = process.argv.slice(2);
const answer = streamChat({ url, body: { messages: [{ role: "user", content: question }], max_tokens: 100 } });
for await (const delta of answer) {
  if (delta.kind === "text") process.stdout.write(delta.text);
}
process.stdout.write(`\n(${answer.transport}, ${answer.finish})\n`);
