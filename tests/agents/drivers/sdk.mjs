// What the drivers of SDKs in JavaScript share. A driver is run as `DRIVER MODE PROMPT`; the docs' code is recipe.mjs
// beside it.
import { readFileSync, writeFileSync } from "node:fs";

const KEPT = "conversation.json";
export const CITY = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
export const PATH = {
  type: "object",
  properties: { path: { type: "string" } },
  required: ["path"],
  additionalProperties: false,
};
export const readWord = ({ path }) => readFileSync(path, "utf8");
export const keep = (value) => writeFileSync(KEPT, JSON.stringify(value));
export const kept = () => JSON.parse(readFileSync(KEPT, "utf8"));

/** Runs the mode. An interrupted stream is aborted; the process then lives until its input ends. */
export async function main({ ask, stream, goOn, schema }) {
  const [mode, prompt] = process.argv.slice(2);
  if (mode !== "stream") {
    console.log(await { ask, continue: goOn, schema }[mode](prompt));
    return;
  }
  const controller = new AbortController();
  // The Agents SDK has set one that ends the process as soon as its traces are sent.
  process.removeAllListeners("SIGINT");
  process.once("SIGINT", () => controller.abort());
  try {
    for await (const piece of stream(prompt, controller.signal)) process.stdout.write(piece);
  } catch (error) {
    if (!controller.signal.aborted) throw error;
  }
  if (controller.signal.aborted) {
    console.log("\n(cancelled)");
    for await (const _ of process.stdin);
  }
}
