// The live laboratory in Chromium: `loquent demo` serves it, and both panes end with the same text after
// packets were lost on the way, over the relay and, where there is root, over kernel TCP.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { after, before, test } from "node:test";
import puppeteer from "puppeteer-core";

import * as chromium from "./chromium.mjs";
import { ready, serve } from "./server.mjs";

/** Weather that is sure to lose some of a short answer. */
const WEATHER = ["--rtt-ms", "60", "--loss", "30%"];
const skip = chromium.chromiumPath() ? false : "no Chromium is installed";

let browser;
/** What ends each demonstration. */
const endings = [];

before(async () => {
  if (!skip) browser = await chromium.launch();
});

// After the pages: one whose server is gone would complain.
after(async () => {
  await browser?.close();
  await Promise.all(endings.map((end) => end()));
});

/** A demonstration, and its URL; or why there is none. */
function demo({ network = "modelled", tokens = 80, speed = 40 } = {}) {
  const answer = ["--max-tokens", `${tokens}`, "--tokens-per-s", `${speed}`];
  const args = ["demo", "--no-open", "--network", network, ...answer, ...WEATHER];
  const child = spawn(process.env.LOQUENT_BIN, args, { stdio: ["ignore", "pipe", "pipe"] });
  const ended = new Promise((resolve) => child.on("exit", resolve));
  process.on("exit", () => child.kill());
  endings.push(() => child.kill() && ended);
  return new Promise((resolve) => {
    let out = "";
    let err = "";
    child.stdout.on("data", (data) => {
      out += data;
      const found = /(http:\/\/localhost:\d+)\/lab/.exec(out);
      if (found) resolve({ url: found[1] });
    });
    child.stderr.on("data", (data) => (err += data));
    child.on("exit", () => resolve({ refused: err }));
  });
}

/** A page that fails the test if anything is logged as an error. */
async function open(t, address, options = {}) {
  const page = await chromium.open(browser, address, { viewport: { width: 1280, height: 1000 }, ...options });
  t.after(async () => {
    await page.context().close();
    assert.deepEqual(page.problems, []);
  });
  return page;
}

const texts = (page) => page.locator(".live .lab-shown").allTextContents();
const figures = (page, name) => page.locator(`.live [data-figure="${name}"]`).allTextContents();
const told = (page) => page.locator(".live-told");

async function checkRun(page) {
  const result = page.locator(".live-over");
  await result.or(page.locator(".live-failed")).waitFor({ timeout: 90_000 });
  assert.match(await told(page).textContent(), /^TCP .*\. Loquent .*\.$/);
  const [tcp, loquent] = await texts(page);
  assert.ok(tcp.length > 150, tcp);
  assert.equal(tcp, loquent);
  const sent = (await figures(page, "packets")).map(Number);
  const lost = (await figures(page, "lost")).map(Number);
  assert.ok(sent.every((count) => count > 20) && lost.every((count) => count > 0), `${sent}; lost ${lost}`);
}

test("both panes end with the same text over the relay, and again over another weather", { skip }, async (t) => {
  const { url } = await demo();
  const page = await open(t, `${url}/lab?live`);
  await checkRun(page);
  assert.match(await page.locator(".live").textContent(), /TCP is modelled/);
  const seed = await page.locator(".live-seed").textContent();
  await page.getByRole("button", { name: "Other losses" }).click();
  assert.notEqual(await page.locator(".live-seed").textContent(), seed);
  await page.locator("#live-rtt").press("Home");
  await page.getByRole("button", { name: "Run again" }).click();
  await page.getByRole("button", { name: "Stop" }).waitFor();
  await checkRun(page);
});

test("kernel TCP and QUIC cross the link where there is root", { skip }, async (t) => {
  const { url, refused } = await demo({ network: "kernel" });
  if (refused !== undefined) {
    assert.match(refused, /need root/);
    return t.skip(refused);
  }
  const page = await open(t, `${url}/lab?live`);
  await checkRun(page);
});

test("a run waits to be started, can be stopped, and starts again", { skip }, async (t) => {
  const { url } = await demo({ tokens: 400, speed: 20 });
  const page = await open(t, `${url}/lab`);
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator(".live .lab-shown").nth(1).filter({ hasText: /.{20}/ }).waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.locator(".live-failed", { hasText: "Stopped." }).waitFor();
  await page.getByRole("button", { name: "Run again" }).click();
  await page.locator(".live .lab-shown").nth(0).filter({ hasText: /.{20}/ }).waitFor();
});

for (const options of [{ colorScheme: "light" }, { colorScheme: "dark", viewport: { width: 390, height: 844 } }]) {
  test(`axe finds nothing (${options.colorScheme}), and nothing is wider than the screen`, { skip }, async (t) => {
    const { url } = await demo();
    const page = await open(t, `${url}/lab?live`, options);
    await page.locator(".live-over").waitFor({ timeout: 90_000 });
    await chromium.assertAccessible(page, "the live laboratory");
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(overflow <= 0, `${overflow} px`);
  });
}

test("a browser without WebTransport is told so", { skip }, async (t) => {
  const { url } = await demo();
  const context = await browser.newContext();
  t.after(() => context.close());
  await context.addInitScript(() => delete globalThis.WebTransport);
  const page = await context.newPage();
  await page.goto(`${url}/lab?live`);
  await told(page).filter({ hasText: "no WebTransport" }).waitFor();
  assert.ok(await page.getByRole("button", { name: "Run", exact: true }).isDisabled());
});

test("an ordinary server has nothing live to show", { skip }, async (t) => {
  const { url } = await serve();
  await ready(url);
  assert.equal((await fetch(`${url}/v1/lab/live`)).status, 204);
  const page = await open(t, `${url}/lab`);
  await page.getByRole("heading", { name: "One answer over one bad network" }).waitFor();
  assert.equal(await page.locator(".live").count(), 0);
});

const FIREFOX = ["/usr/bin/firefox", "/usr/bin/firefox-esr"].find(existsSync);

test("Firefox shows it too", { skip: FIREFOX ? false : "no Firefox is installed" }, async (t) => {
  const { url } = await demo();
  const firefox = await puppeteer.launch({ browser: "firefox", executablePath: FIREFOX, headless: true });
  t.after(() => firefox.close());
  const page = await firefox.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(`${url}/lab?live`);
  await page.waitForSelector(".live-over, .live-failed", { timeout: 90_000 });
  assert.match(await page.$eval(".live-told", ({ textContent }) => textContent), /^TCP .*\. Loquent .*\.$/);
  const [tcp, loquent] = await page.$$eval(".live .lab-shown", (all) => all.map(({ textContent }) => textContent));
  assert.ok(tcp.length > 150, tcp);
  assert.equal(tcp, loquent);
  assert.deepEqual(errors, []);
});
