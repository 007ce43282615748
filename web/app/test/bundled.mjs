// Modules of the app for tests in Node, which reads no TypeScript by itself.

import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const SOURCES = join(dirname(fileURLToPath(import.meta.url)), "../src");

/** The module `path` of the sources, with everything that it imports. */
export async function bundled(path) {
  const options = { bundle: true, write: false, format: "esm", platform: "neutral", target: "es2022", logLevel: "warning" };
  const { outputFiles } = await esbuild.build({ ...options, entryPoints: [join(SOURCES, path)] });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
}
