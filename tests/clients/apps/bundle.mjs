// Bundles the page for a browser: `node bundle.mjs FOLDER`.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const [folder] = process.argv.slice(2);
await build({
    entryPoints: [fileURLToPath(new URL("page.mjs", import.meta.url))],
    outfile: join(folder, "page.js"),
    bundle: true,
    format: "esm",
    define: { "process.env.NODE_ENV": '"production"' },
    logLevel: "error",
});
const page = '<!doctype html><meta charset=utf-8><link rel=icon href=data:,><div id=root></div><script type=module src=page.js></script>';
writeFileSync(join(folder, "index.html"), page);
