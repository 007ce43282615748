// What the server embeds is what these sources build, byte for byte, and the chat page is small.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const COMMITTED = here("../../page");

/** What a first visit of the chat page may take, gzipped, bytes. By the processor, zlib's output differs by some dozens. */
const BUDGET = 60_000;

const fresh = mkdtempSync(join(tmpdir(), "loquent-page-"));
after(() => rmSync(fresh, { recursive: true }));
execFileSync(process.execPath, [here("../build.mjs"), fresh]);

function files(folder) {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true });
  const paths = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
  return paths.map((path) => path.slice(folder.length + 1)).sort();
}

/** The files that `page` names, itself, and the worker that the client starts. */
function firstLoad(page) {
  const named = [...readFileSync(join(COMMITTED, page), "utf8").matchAll(/(?:src|href)="([^"]+)"/g)];
  const worker = files(COMMITTED).filter((path) => /loquent-worker/.test(path));
  return [page, ...named.map(([, path]) => path), ...worker];
}

function gzipped(path) {
  return gzipSync(readFileSync(join(COMMITTED, path)), { level: 9 }).length;
}

test("web/page is a fresh build", () => {
  const again = "run `make web` and commit what it writes";
  assert.deepEqual(files(COMMITTED), files(fresh), again);
  for (const path of files(fresh)) {
    assert.ok(readFileSync(join(COMMITTED, path)).equals(readFileSync(join(fresh, path))), `${path}: ${again}`);
  }
});

test("the chat page's first load is within its budget", (context) => {
  const sizes = firstLoad("index.html").map((path) => [path, gzipped(path)]);
  for (const [path, size] of sizes) context.diagnostic(`${path}: ${size} bytes gzipped`);
  const total = sizes.reduce((sum, [, size]) => sum + size, 0);
  context.diagnostic(`together: ${total} of ${BUDGET} bytes`);
  assert.ok(total <= BUDGET, `${total} bytes gzipped, ${BUDGET} are allowed`);
});

test("no page holds a script, a style or an address of another origin in its HTML", () => {
  for (const path of files(COMMITTED).filter((path) => path.endsWith(".html"))) {
    const text = readFileSync(join(COMMITTED, path), "utf8");
    assert.doesNotMatch(text, /<script(?![^>]* src=)|<style|style=|https?:\/\//, path);
  }
});
