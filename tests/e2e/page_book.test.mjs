// The book in Chromium: every page without an error on its console (the content security policy's
// among them), search, theme, copied code, and phones.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { assertAccessible, chromiumPath, launch, open } from "./chromium.mjs";
import { ready, serve } from "./server.mjs";

const PHONE = { viewport: { width: 390, height: 844 }, hasTouch: true };

let url;
let browser;

before(async () => {
  ({ url } = await serve());
  await ready(url);
});

after(() => browser?.close());

/** A page of the book in a context of its own; the test fails if anything is logged as an error. */
async function openBook(t, { path = "/docs", ...context } = {}) {
  browser ??= await launch();
  const page = await open(browser, url + path, context);
  t.after(async () => {
    await page.context().close();
    assert.deepEqual(page.problems, []);
  });
  return page;
}

describe("the book", { skip: chromiumPath() === null && "no Chromium is installed" }, () => {
  test("every chapter is there, without an error, with all its pictures and none wider than a phone", async (t) => {
    const page = await openBook(t, PHONE);
    const paths = await page.locator("#chapters a").evaluateAll((links) => links.map(({ href }) => href));
    assert.ok(paths.length > 15);
    for (const path of paths) {
      await page.goto(path);
      await page.locator("article h1").first().waitFor();
      const pictures = page.locator("article img");
      for (let at = 0; at < (await pictures.count()); at++) await pictures.nth(at).scrollIntoViewIfNeeded();
      await page.waitForFunction(() => [...document.images].every(({ complete }) => complete));
      const broken = await pictures.evaluateAll((all) => all.filter(({ naturalWidth }) => naturalWidth === 0).map(({ src }) => src));
      assert.deepEqual(broken, [], path);
      const [scrollWidth, clientWidth] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
      assert.ok(scrollWidth <= clientWidth, `${path} is ${scrollWidth} wide`);
    }
  });

  test("the search finds a section, by keyboard alone, and goes there", async (t) => {
    const page = await openBook(t);
    await page.keyboard.press("/");
    await page.keyboard.type("grace period systemd");
    await page.locator("#found").getByText("Nothing found.").waitFor();
    await page.getByLabel("Search the book").fill("nginx buffer");
    await page.locator("#found a").first().waitFor();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.waitForURL(/deploy#/);
  });

  test("the theme is chosen once for all pages of the server", async (t) => {
    const page = await openBook(t, { colorScheme: "light" });
    const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await paper();
    await page.getByRole("button", { name: "Theme: system" }).click();
    await page.getByRole("button", { name: "Theme: light" }).click();
    await page.getByRole("button", { name: "Theme: dark" }).waitFor();
    assert.notEqual(await paper(), light);
    await page.goto(`${url}/docs/keys`);
    await page.getByRole("button", { name: "Theme: dark" }).waitFor();
    await page.goto(`${url}/lab`);
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  });

  test("code is copied as it stands", async (t) => {
    const page = await openBook(t, { permissions: ["clipboard-read", "clipboard-write"] });
    const block = page.locator(".code").first();
    await block.getByRole("button", { name: "Copy" }).click();
    await block.getByRole("button", { name: "Copied" }).waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), await block.locator("code").textContent());
  });

  test("on a phone the chapters are behind a button", async (t) => {
    const page = await openBook(t, PHONE);
    await page.locator("#chapters").waitFor({ state: "hidden" });
    await page.getByRole("button", { name: "Chapters" }).click();
    await page.locator("#chapters").getByRole("link", { name: "Deploy" }).click();
    await page.waitForURL(/deploy$/);
    await page.locator("#chapters").waitFor({ state: "hidden" });
  });

  test("it can be read without scripts", async (t) => {
    const page = await openBook(t, { ...PHONE, javaScriptEnabled: false });
    await page.locator("#chapters").getByRole("link", { name: "Deploy" }).click();
    await page.waitForURL(/deploy$/);
  });

  for (const colorScheme of ["light", "dark"]) {
    test(`axe finds nothing in ${colorScheme}`, async (t) => {
      const page = await openBook(t, { colorScheme, path: "/docs/deploy" });
      await assertAccessible(page, colorScheme);
      await page.goto(`${url}/docs/api-reference`);
      await assertAccessible(page, `${colorScheme}, tables`);
    });
  }
});
