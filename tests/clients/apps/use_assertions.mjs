// Lets imports of vitest find assertions.mjs: `node --import ./use_assertions.mjs …`.
import { register } from "node:module";

const url = JSON.stringify(new URL("assertions.mjs", import.meta.url).href);
const hook = `export async function resolve(name, context, next) {
    return name === "vitest" ? { url: ${url}, shortCircuit: true } : next(name, context);
}`;
register(`data:text/javascript,${encodeURIComponent(hook)}`);
