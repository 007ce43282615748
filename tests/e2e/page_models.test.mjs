// The chat page's list of models in Chromium: loading, unloading, and who may do that.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { assertAccessible, chromiumPath, launch, open } from "./chromium.mjs";
import { announced, ready, run, serve } from "./server.mjs";

const TINY = fileURLToPath(new URL("../../models/loquent-tiny.gguf", import.meta.url));
const PHONE = { viewport: { width: 390, height: 844 }, hasTouch: true };

let browser;
let folder;

/** What has to end with the tests. */
const ends = [];

/** A server with the models `one` and `two`, neither of which is loaded, and the files of both. */
async function startTwo(...args) {
  const own = mkdtempSync(join(folder, "models-"));
  const files = ["one", "two"].map((name) => join(own, `${name}.gguf`));
  for (const file of files) copyFileSync(TINY, file);
  const { server, url } = await serve("--model", files[0], "--model", files[1], ...args);
  ends.push(() => server.kill());
  await ready(url);
  return { server, url, files };
}

/** The page at `url` with the list of models open. */
async function openModels(url, options) {
  const page = await open(browser, url, options);
  // With the demonstration model, the button offers the way to another one as soon as the page knows the server.
  await page.locator(".ways").getByText(/Models|Use your own model/).click();
  await page.locator("dialog .models li").first().waitFor();
  return page;
}

const row = (page, name) => page.locator("dialog .models li").filter({ has: page.locator(".name").getByText(name, { exact: true }) });
const says = (page, name, text) => row(page, name).getByText(text, { exact: true }).waitFor();

/** A hub with the bundled model as `org/model-GGUF`; half of it comes at once, the rest after `release`. */
async function startHub() {
  const content = readFileSync(TINY);
  const file = { rfilename: "model.gguf", size: content.length, lfs: { sha256: createHash("sha256").update(content).digest("hex"), size: content.length } };
  const hub = { ranges: [], release: () => undefined };
  const released = new Promise((resolve) => (hub.release = resolve));
  hub.server = createServer(async (request, response) => {
    if (request.url.startsWith("/api/")) return response.end(JSON.stringify({ sha: "0123456789abcdef0123456789abcdef01234567", siblings: [file] }));
    const { range = "" } = request.headers;
    hub.ranges.push(range);
    const from = Number(/^bytes=(\d+)-/.exec(range)?.[1] ?? 0);
    const half = Math.max(from, content.length >> 1);
    if (from > 0) response.writeHead(206, { "content-range": `bytes ${from}-${content.length - 1}/${content.length}`, "content-length": content.length - from });
    else response.writeHead(200, { "content-length": content.length });
    response.write(content.subarray(from, half));
    await released;
    response.end(content.subarray(half));
  });
  await new Promise((resolve) => hub.server.listen(0, "127.0.0.1", resolve));
  hub.url = `http://127.0.0.1:${hub.server.address().port}`;
  return hub;
}

describe("the list of models", { skip: chromiumPath() === null && "no Chromium is installed" }, () => {
  before(async () => {
    browser = await launch();
    folder = mkdtempSync(join(tmpdir(), "loquent-models-"));
  });
  after(async () => {
    await browser?.close();
    for (const end of ends) end();
    rmSync(folder, { recursive: true });
  });

  test("loads and unloads models, and shows what others do", async () => {
    const { url } = await startTwo();
    const page = await openModels(url);
    await says(page, "one", "not loaded; a question to it loads it");
    await page.getByRole("button", { name: "Load two" }).click();
    await says(page, "two", "loaded");
    await assertAccessible(page, "models");
    await page.getByRole("button", { name: "Unload two" }).click();
    await says(page, "two", "not loaded; a question to it loads it");
    const asked = { model: "one", messages: [{ role: "user", content: "Hello" }], max_tokens: 1 };
    await fetch(`${url}/v1/chat/completions`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(asked) });
    await says(page, "one", "loaded");
    assert.deepEqual(page.problems, []);
  });

  test("progress is there again when the list is opened anew, also from the settings", async () => {
    const { url } = await startTwo();
    const page = await open(browser, url, PHONE);
    // The bundled model is in memory before anybody can look.
    await page.route("**/v1/models", async (route) => {
      const response = await route.fetch();
      const { data } = await response.json();
      await route.fulfill({ response, json: { data: data.map((card) => (card.id === "two" ? { ...card, status: { value: "loading", progress: 0.43 } } : card)) } });
    });
    // With the demonstration model, the button offers the way to another one as soon as the page knows the server.
  await page.locator(".ways").getByText(/Models|Use your own model/).click();
    await says(page, "two", "loading, 43 %");
    await page.keyboard.press("Escape");
    await page.locator("dialog").waitFor({ state: "detached" });
    await page.click("#settings-button");
    await page.getByRole("button", { name: "Models of this server" }).click();
    await says(page, "two", "loading, 43 %");
    assert.equal(await row(page, "two").getByRole("progressbar").getAttribute("value"), "0.43");
    await assertAccessible(page, "loading");
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(overflow <= 0, `${overflow} px too wide`);
    await page.unrouteAll({ behavior: "wait" });
    await says(page, "two", "not loaded; a question to it loads it");
  });

  test("a key that is not an administrator's is told so, once; an administrator's is not", async () => {
    const keys = join(folder, "keys.toml");
    writeFileSync(keys, '[[key]]\nname = "ops"\nkey = "sk-ops"\nadmin = true\n\n[[key]]\nname = "alice"\nkey = "sk-alice"\n', { mode: 0o600 });
    const { url } = await startTwo("--api-key-file", keys);
    const page = await openModels(url, { settings: { apiKey: "sk-alice" } });
    await page.getByRole("button", { name: "Load one" }).click();
    await page.locator(".refusal").getByText("needs a key with 'admin = true'").waitFor();
    for (const button of await page.locator("dialog .models button").all()) assert.ok(await button.isDisabled());
    await assertAccessible(page, "refused");
    const admin = await openModels(url, { settings: { apiKey: "sk-ops" } });
    await admin.getByRole("button", { name: "Load one" }).click();
    await says(admin, "one", "loaded");
    assert.equal(await admin.locator(".refusal").first().textContent(), "");
    await says(page, "one", "loaded");
  });

  test("a model that cannot be loaded, and a server that is gone, are told in words", async () => {
    const { server, url, files } = await startTwo();
    const page = await openModels(url);
    rmSync(files[1]);
    await page.getByRole("button", { name: "Load two" }).click();
    await says(page, "two", "could not be loaded: the server’s log says why");
    const ended = new Promise((resolve) => server.once("exit", resolve));
    server.kill("SIGKILL");
    await ended;
    await page.getByRole("button", { name: "Load one" }).click();
    await page.locator(".refusal").getByText("The server does not answer.").waitFor();
  });

  test("the only model of a server stays, and the way to others is shown", async () => {
    const { server, url } = await serve();
    ends.push(() => server.kill());
    await ready(url);
    const page = await open(browser, url);
    await page.click("text=Use your own model");
    await says(page, "loquent-tiny", "always loaded");
    assert.equal(await page.locator("dialog .models button").count(), 0);
    await page.locator("dialog pre").getByText("loquent serve qwen3:0.6b", { exact: true }).waitFor();
    assert.deepEqual(page.problems, []);
  });

  test("a model is downloaded with its progress, stopped, continued, and asked", async () => {
    const hub = await startHub();
    const cache = mkdtempSync(join(folder, "cache-"));
    const server = run(["serve", "--port", "0", "--hf-endpoint", hub.url], { HF_HUB_CACHE: cache, HF_HOME: cache });
    const url = await announced(server, /on (http:\/\/\S+)/);
    ends.push(() => server.kill(), () => hub.server.close());
    await ready(url);
    const page = await openModels(url);
    await page.getByLabel("Download a model from Hugging Face").fill("org/model-GGUF");
    await page.getByRole("button", { name: "Download" }).click();
    await page.getByText(/^org\/model-GGUF: .* of .* MB/).waitFor();
    await assertAccessible(page, "downloading");
    await page.getByRole("button", { name: "Stop" }).click();
    hub.release();
    await page.getByText(/^stopped at/).waitFor();
    await page.getByRole("button", { name: "Download" }).click();
    await page.getByText("model is on the server. Your next question goes to it.").waitFor();
    assert.ok(hub.ranges.some((range) => /^bytes=[1-9]/.test(range)), "it was continued");
    await says(page, "model", "not loaded; a question to it loads it");
    await page.keyboard.press("Escape");
    await page.fill("#prompt", "Hello");
    await page.keyboard.press("Enter");
    await page.locator("article.assistant.finished").waitFor();
    await page.click("#settings-button");
    await page.getByRole("button", { name: "Models of this server" }).click();
    await says(page, "model", "loaded");
    await says(page, "loquent-tiny", "always loaded");
    assert.equal(await page.getByRole("button", { name: "Unload" }).count(), 1, "only what was downloaded can go");
    assert.deepEqual(page.problems, []);
  });

  test("a server without a hub, and a reader who is no administrator, have no form", async () => {
    const keys = join(folder, "reader.toml");
    writeFileSync(keys, '[[key]]\nname = "alice"\nkey = "sk-alice"\n', { mode: 0o600 });
    const { url } = await startTwo("--api-key-file", keys);
    const page = await openModels(url, { settings: { apiKey: "sk-alice" } });
    await page.getByText("run this on the server’s machine").waitFor();
    assert.equal(await page.getByLabel("Download a model from Hugging Face").count(), 0);
  });
});
