// The live laboratory in Chromium: `loquent demo` serves it, and both panes end with the same text after
// packets were lost on the way, over the relay and, where there is root, over kernel TCP.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import puppeteer from "puppeteer-core";

import { ready, serve } from "./server.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** A short answer in weather that is sure to lose some of it. */
const SHORT = ["--no-open", "--max-tokens", "80", "--tokens-per-s", "40", "--rtt-ms", "60", "--loss", "30%"];

let browser;

before(async () => {
  browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
});

after(() => browser?.close());

/** A demonstration, and its URL; or why there is none. */
function demo(t, ...args) {
  const child = spawn(process.env.LOQUENT_BIN, ["demo", ...SHORT, ...args], { stdio: ["ignore", "pipe", "pipe"] });
  const ended = new Promise((resolve) => child.on("exit", resolve));
  process.on("exit", () => child.kill());
  t.after(async () => {
    child.kill();
    await ended;
  });
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
  const context = await browser.newContext({ viewport: { width: 1280, height: 1000 }, ...options });
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  t.after(async () => {
    await context.close();
    assert.deepEqual(errors, []);
  });
  await page.goto(address);
  return page;
}

const texts = (page) => page.locator(".live .lab-shown").allTextContents();
const figures = (page, name) => page.locator(`.live [data-figure="${name}"]`).allTextContents();
const told = (page) => page.locator(".live").getByRole("status");

async function checkRun(page) {
  const result = page.locator(".live-over");
  await result.or(page.locator(".live-failed")).waitFor({ timeout: 90_000 });
  assert.match(await told(page).textContent(), /^TCP .*\. Loquent .*\.$/);
  const [tcp, loquent] = await texts(page);
  assert.ok(tcp.length > 150, tcp);
  assert.equal(tcp, loquent);
  for (const packets of await figures(page, "packets")) {
    const [, sent, lost] = /^(\d+) \((\d+) lost\)$/.exec(packets) ?? assert.fail(packets);
    assert.ok(Number(sent) > 20 && Number(lost) > 0, packets);
  }
}

test("both panes end with the same text over the relay, and again over another weather", async (t) => {
  const { url } = await demo(t, "--network", "modelled");
  const page = await open(t, `${url}/lab?live`);
  await checkRun(page);
  assert.match(await page.locator(".live").textContent(), /TCP is modelled/);
  const seed = await page.locator(".live-seed").textContent();
  await page.getByRole("button", { name: "Other losses" }).click();
  assert.notEqual(await page.locator(".live-seed").textContent(), seed);
  await page.getByLabel("Round trip").first().fill("20");
  await page.getByRole("button", { name: "Run again" }).click();
  await page.getByRole("button", { name: "Stop" }).waitFor();
  await checkRun(page);
});

test("kernel TCP and QUIC cross the link where there is root", async (t) => {
  const { url, refused } = await demo(t, "--network", "kernel");
  if (refused !== undefined) {
    assert.match(refused, /need root/);
    return t.skip(refused);
  }
  const page = await open(t, `${url}/lab?live`);
  await checkRun(page);
});

test("a run waits to be started, can be stopped, and starts again", async (t) => {
  const { url } = await demo(t, "--network", "modelled", "--max-tokens", "400", "--tokens-per-s", "20");
  const page = await open(t, `${url}/lab`);
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator(".live .lab-shown").nth(1).filter({ hasText: /.{20}/ }).waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.locator(".live-failed", { hasText: "Stopped." }).waitFor();
  await page.getByRole("button", { name: "Run again" }).click();
  await page.locator(".live .lab-shown").nth(0).filter({ hasText: /.{20}/ }).waitFor();
});

for (const options of [{ colorScheme: "light" }, { colorScheme: "dark", viewport: { width: 390, height: 844 } }]) {
  test(`axe finds nothing (${options.colorScheme}), and nothing is wider than the screen`, async (t) => {
    const { url } = await demo(t, "--network", "modelled");
    const page = await open(t, `${url}/lab?live`, options);
    await page.locator(".live-over").waitFor({ timeout: 90_000 });
    await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => globalThis.axe.run(".live"));
    assert.deepEqual(violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)]), []);
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(overflow <= 0, `${overflow} px`);
  });
}

test("a browser without WebTransport is told so", async (t) => {
  const { url } = await demo(t, "--network", "modelled");
  const context = await browser.newContext();
  t.after(() => context.close());
  await context.addInitScript(() => delete globalThis.WebTransport);
  const page = await context.newPage();
  await page.goto(`${url}/lab?live`);
  await told(page).filter({ hasText: "no WebTransport" }).waitFor();
  assert.ok(await page.getByRole("button", { name: "Run", exact: true }).isDisabled());
});

test("an ordinary server has nothing live to show", async (t) => {
  const { url } = await serve();
  await ready(url);
  assert.equal((await fetch(`${url}/v1/lab/live`)).status, 204);
  const page = await open(t, `${url}/lab`);
  await page.getByRole("heading", { name: "Laboratory" }).waitFor();
  assert.equal(await page.locator(".live").count(), 0);
});

const FIREFOX = ["/usr/bin/firefox", "/usr/bin/firefox-esr"].find(existsSync);

test("Firefox shows it too", { skip: FIREFOX ? false : "no Firefox is installed" }, async (t) => {
  const { url } = await demo(t, "--network", "modelled");
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
