// The dashboard in Chromium: its figures follow the load, administrators alone see it where there
// are keys, and it says when the server is gone.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { assertAccessible, chromiumPath, launch, open } from "./chromium.mjs";
import { ready, serve } from "./server.mjs";

const EVENTS = "/v1/dashboard/events";
/** In prompts, and nowhere else. */
const SECRET = "xylograph";
/** What a busy machine may need, ms. */
const PATIENCE_MS = 60_000;

let browser;
let folder;

/** Asks until `stop` is called; each answer is read to its end. */
function load(url, headers = {}) {
  let isOver = false;
  const asked = (async () => {
    while (!isOver) {
      const body = { messages: [{ role: "user", content: `${SECRET}: count to one hundred` }], max_tokens: 200, stream: true };
      const response = await fetch(`${url}/v1/chat/completions`, {
        method: "POST",
        headers: { "content-type": "application/json", ...headers },
        body: JSON.stringify(body),
      });
      await response.text();
    }
  })();
  return async () => {
    isOver = true;
    await asked;
  };
}

/** The figure of a tile as a number; 0 for a dash. */
function figure(page, name) {
  return page.locator(`[data-figure="${name}"]`).innerText().then((text) => Number.parseFloat(text.replace(/,/g, "")) || 0);
}

async function until(what, holds) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!(await holds())) {
    assert.ok(Date.now() < deadline, `never: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

describe("the dashboard", { skip: chromiumPath() === null && "no Chromium is installed" }, () => {
  before(async () => {
    browser = await launch();
    folder = mkdtempSync(join(tmpdir(), "loquent-dashboard-"));
  });
  after(async () => {
    await browser?.close();
    rmSync(folder, { recursive: true });
  });

  test("figures follow the load, in both themes and on a phone, without a complaint", async () => {
    const { server, url } = await serve();
    await ready(url);
    const page = await open(browser, `${url}/dashboard`);
    await page.locator(".idle").getByText("Ask something in the chat").waitFor();
    await assertAccessible(page, "nothing to show");
    const stop = load(url);
    await page.locator(".idle").waitFor({ state: "detached" });
    await until("tokens are counted", async () => (await figure(page, "tokens_per_s")) > 0);
    await until("a percentile is there", async () => (await figure(page, "itl_p99_ms")) > 0);
    const names = await page.locator(".canvas").evaluateAll((charts) => charts.map((chart) => chart.getAttribute("aria-label")));
    assert.ok(names.length >= 10 && names.every((name) => / minutes?: /.test(name)), names.join("\n"));
    assert.ok(names.some((name) => /^Tokens per second.*answers: [1-9]/.test(name)), names.join("\n"));
    assert.ok(!(await page.content()).includes(SECRET), "a prompt is on the page");
    const drawn = () => page.locator("canvas").first().evaluate((canvas) => canvas.toDataURL());
    const before = await drawn();
    await until("the chart moves", async () => (await drawn()) !== before);
    await stop();
    await until("nothing is running", async () => (await figure(page, "running")) === 0);
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await assertAccessible(page, colorScheme);
    }
    await page.setViewportSize({ width: 390, height: 844 });
    const overflow = () => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    await until("it fits a phone", async () => (await overflow()) <= 0);
    assert.deepEqual(page.problems, []);
    server.kill();
    await page.getByText("The server does not answer").waitFor();
    await page.context().close();
  });

  test("the time to the first token is there before a long answer ends", async () => {
    const { server, url } = await serve("--simulate", "5");
    await ready(url);
    const page = await open(browser, `${url}/dashboard`);
    const body = { messages: [{ role: "user", content: "Count." }], max_tokens: 2000, ignore_eos: true, stream: true };
    const left = new AbortController();
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal: left.signal,
    });
    assert.equal(response.status, 200);
    await until("a TTFT is there", async () => (await figure(page, "ttft_p50_ms")) > 0);
    assert.equal(await figure(page, "running"), 1, "the answer goes on");
    left.abort();
    await page.context().close();
    server.kill();
  });

  test("a page that comes later sees the minutes before", async () => {
    const { server, url } = await serve();
    await ready(url);
    const first = await open(browser, `${url}/dashboard`);
    const stop = load(url);
    await until("tokens are counted", async () => (await figure(first, "tokens_per_s")) > 0);
    await stop();
    await first.context().close();
    const page = await open(browser, `${url}/dashboard`);
    const tokens = page.getByRole("img", { name: /^Tokens per second.*answers: .* to [1-9]/ });
    await tokens.waitFor();
    await page.context().close();
    server.kill();
  });

  test("where there are keys, only those of administrators show it", async () => {
    const keys = join(folder, "keys.toml");
    writeFileSync(keys, '[[key]]\nname = "ops"\nkey = "sk-ops"\nadmin = true\n\n[[key]]\nname = "alice"\nkey = "sk-alice"\n', { mode: 0o600 });
    const { server, url } = await serve("--api-key-file", keys);
    await ready(url);
    const status = async (key) => {
      const headers = key === null ? {} : { authorization: `Bearer ${key}` };
      const response = await fetch(url + EVENTS, { headers });
      await response.body.cancel();
      return response.status;
    };
    assert.deepEqual([await status(null), await status("sk-wrong"), await status("sk-alice"), await status("sk-ops")], [401, 401, 403, 200]);

    const page = await open(browser, `${url}/dashboard`);
    const enter = async (key) => {
      await page.getByLabel("API key of an administrator").fill(key);
      await page.getByRole("button", { name: "Show the dashboard" }).click();
    };
    await page.getByText("the dashboard is for those of its administrators").waitFor();
    await assertAccessible(page, "asked for a key");
    assert.ok(await page.locator('.pages a[href="docs"]').isVisible(), "the book is a click away");
    await enter("sk-alice");
    await page.getByRole("status").getByText("This key may not see the dashboard").waitFor();
    await page.getByText("it is not an administrator’s").waitFor();
    assert.equal(await page.locator(".chart").count(), 0);
    await enter("sk-ops");
    await page.locator(".chart").first().waitFor();
    const stop = load(url, { authorization: "Bearer sk-alice" });
    const row = page.getByRole("row").filter({ has: page.getByRole("rowheader", { name: "alice", exact: true }) });
    const requests = () => row.getByRole("cell").nth(2).innerText();
    await until("alice's requests are counted", async () => Number((await requests()).replace(/,/g, "")) > 0);
    await stop();
    assert.ok(!(await page.content()).includes("sk-alice"), "a key is on the page");
    // The key outlives a reload of the tab.
    await page.reload();
    await page.locator(".chart").first().waitFor();
    await page.context().close();
    server.kill();
  });
});
