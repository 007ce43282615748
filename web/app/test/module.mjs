// Loads a module of the pages into node: `await load("chat/conversation.ts")`.
import { mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import * as esbuild from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

/** The exports of `path` under `src`. */
export async function load(path) {
  // Beside node_modules, so that packages are found.
  const folder = mkdtempSync(here("../node_modules/.loquent-test-"));
  process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
  const outfile = join(folder, "module.mjs");
  await esbuild.build({
    entryPoints: [here(`../src/${path}`)],
    outfile,
    bundle: true,
    format: "esm",
    platform: "node",
    target: "es2022",
    packages: "external",
    jsx: "automatic",
    jsxImportSource: "preact",
    alias: { "@loquent/client": here("../../client/src/index.ts") },
    logLevel: "warning",
  });
  return import(pathToFileURL(outfile).href);
}
