// Goes on with its answer when it is started again: node resume.mjs [ENDPOINT] [QUESTION]
// Press Ctrl-C in mid-answer and run it once more.
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { resumeChat, streamChat } from "@loquent/client";

const FILE = process.env.ANSWER_FILE ?? "answer.json";
const storage = {
  getItem: () => {
    try {
      return readFileSync(FILE, "utf8");
    } catch {
      return null;
    }
  },
  setItem: (_, value) => writeFileSync(FILE, value, { mode: 0o600 }), // who has it can read on
  removeItem: () => rmSync(FILE, { force: true }),
};

const [url = "http://127.0.0.1:8080/v1/chat/completions", question = "Tell me a long story."] = process.argv.slice(2);
const options = { remember: "answer", storage };
const body = { messages: [{ role: "user", content: question }], max_tokens: 400 };
const answer = resumeChat(options) ?? streamChat({ ...options, url, body });
process.on("SIGINT", () => answer.detach());
process.stdout.write(answer.text);
try {
  for await (const delta of answer) if (delta.kind === "text") process.stdout.write(delta.text);
  process.stdout.write("\n");
} catch (error) {
  if (error.kind !== "detached") throw error;
  process.stdout.write("\n(The server goes on. Run this again.)\n");
}
