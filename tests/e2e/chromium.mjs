// Opens the pages in Chromium for tests in Node, and notes everything that goes wrong in them.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { extname, join } from "node:path";
import { chromium } from "playwright-core";

/** A name of 127.0.0.1 in the browser, which it does not take for its own machine. */
export const LAN_NAME = "lan.test";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", `--host-resolver-rules=MAP ${LAN_NAME} 127.0.0.1`];
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** A folder whose pages are shown in place of those in the binary: `web/page`, before that is built again. */
const PAGES = process.env.LOQUENT_PAGES;
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };

/** Where Chromium is; `null` where there is none. */
export function chromiumPath() {
  for (const name of ["chromium", "chromium-browser", "google-chrome"]) {
    try {
      return execFileSync("which", [name], { encoding: "utf8" }).trim();
    } catch {
      // The next name.
    }
  }
  return null;
}

/** A browser that ends with the tests. */
export function launch() {
  // A page that comes from no network may not reach this machine without being asked.
  const more = PAGES ? ["--disable-features=LocalNetworkAccessChecks"] : [];
  return chromium.launch({ executablePath: chromiumPath(), args: [...FLAGS, ...more] });
}

/**
 * A page of its own at `url`. `settings` are those of the chat; by default answers are shown as fast
 * as they come. `problems` are the console's errors and the exceptions of the page.
 */
export async function open(browser, url, { settings = {}, ...context } = {}) {
  const own = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...context });
  const kept = JSON.stringify({ readingPace: false, ...settings });
  await own.addInitScript((kept) => sessionStorage.getItem("loquent:settings") ?? sessionStorage.setItem("loquent:settings", kept), kept);
  if (PAGES) await own.route(/^https?:\/\/[^/]+\/(lab|dashboard|assets\/.*)?(?:[?#].*)?$/, fromFolder);
  const page = await own.newPage();
  page.setDefaultTimeout(60_000);
  const problems = [];
  page.on("console", (message) => message.type() === "error" && problems.push(`${message.text()} ${message.location().url}`.trim()));
  page.on("pageerror", (error) => problems.push(String(error)));
  await page.goto(url);
  return Object.assign(page, { problems });
}

/** Answers a request for a file of the pages from their folder, with the headers that the server gives its own. */
async function fromFolder(route) {
  const url = new URL(route.request().url());
  const { pathname } = url;
  // It is fetched outside of the browser, which alone knows the name.
  if (url.hostname === LAN_NAME) url.hostname = "127.0.0.1";
  const isAsset = pathname.startsWith("/assets/");
  const path = isAsset ? pathname.slice(1) : `${pathname === "/" ? "index" : pathname.slice(1)}.html`;
  const headers = isAsset ? {} : (await route.fetch({ url: url.href })).headers();
  for (const name of ["content-length", "content-encoding", "etag"]) delete headers[name];
  await route.fulfill({ body: readFileSync(join(PAGES, path)), headers: { ...headers, "content-type": TYPES[extname(path)] } });
}

/** Fails with what axe finds wrong on `page`. */
export async function assertAccessible(page, where) {
  // Into the page by the debugger: the policy of the pages allows no script of others.
  await page.evaluate(AXE);
  const { violations } = await page.evaluate('axe.run({ rules: { "target-size": { enabled: true } } })');
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
  assert.deepEqual(found, [], where);
}
