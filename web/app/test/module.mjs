// Loads modules of the pages into node: `await load("chat/conversation.ts")`.
import { mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import * as esbuild from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

/** The exports of `path` under `src`. */
export async function load(path) {
  const [only] = await loadTogether(path);
  return only;
}

/** The exports of each of `paths` under `src`, which share what they import. */
export async function loadTogether(...paths) {
  // Beside node_modules, so that packages are found.
  const outdir = mkdtempSync(here("../node_modules/.loquent-test-"));
  process.on("exit", () => rmSync(outdir, { recursive: true, force: true }));
  await esbuild.build({
    entryPoints: paths.map((path, at) => ({ in: here(`../src/${path}`), out: `${at}` })),
    outdir,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    splitting: true,
    format: "esm",
    platform: "node",
    target: "es2022",
    packages: "external",
    jsx: "automatic",
    jsxImportSource: "preact",
    alias: { "@loquent/client": here("../../client/src/index.ts") },
    logLevel: "warning",
  });
  return Promise.all(paths.map((_, at) => import(pathToFileURL(join(outdir, `${at}.mjs`)).href)));
}
