// What the server's page loads is what these sources build, byte for byte.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

for (const name of ["loquent-client.js", "loquent-worker.js"]) {
  test(`web/page/${name} is a fresh build`, () => {
    const folder = mkdtempSync(join(tmpdir(), "loquent-bundle-"));
    try {
      execFileSync(process.execPath, [here("../bundle.mjs"), folder]);
      const [fresh, committed] = [join(folder, name), here(`../../page/${name}`)].map((path) => readFileSync(path, "utf8"));
      assert.ok(fresh === committed, "run `npm run build` in web/client and commit what it writes");
      assert.ok(fresh.length < 64 * 1024, "a page that is for bad networks stays small");
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
}
