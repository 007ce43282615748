// An app as its makers write it (tests/apps/react): @loquent/client from its package, built by
// Vite, in React's StrictMode, with the AI SDK's useChat and with Vue, in Chromium against the
// real server on another origin.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { cp, mkdir, mkdtemp, readFile, readdir, rm, symlink } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { chromiumPath, launch } from "./chromium.mjs";
import { ready, serve } from "./server.mjs";

const run = promisify(execFile);
const folder = (path) => fileURLToPath(new URL(path, import.meta.url));
const CLIENT = folder("../../web/client");
const APP = folder("../apps/react");
const PACKED = ["src", "examples", "package.json", "tsconfig.json", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css" };
const TOKENS = 300;
const BODY = { messages: [{ role: "user", content: "Tell me a story." }], max_tokens: TOKENS, temperature: 0 };

const isInstalled = existsSync(join(APP, "node_modules/vite"));
const skip = chromiumPath() === null ? "no Chromium is installed" : !isInstalled && "tools/setup e2e installs the app's packages";
const check = (name, act) => test(name, { skip }, act);

let work;
let packed;
let pages;
let server;
let unhurried;
let browser;
let story;

before(async () => {
  if (skip) return;
  work = await mkdtemp(join(tmpdir(), "loquent-app-"));
  packed = await pack();
  await install(packed);
  await run(process.execPath, [join(APP, "node_modules/vite/bin/vite.js"), "build", "--outDir", join(work, "dist")], { cwd: APP });
  pages = await served(join(work, "dist"));
  server = await serve("--simulate", "100");
  await ready(server.url);
  // Its answers are under way for a quarter of a minute, for what has to happen in their midst.
  unhurried = await serve("--simulate", "20");
  await ready(unhurried.url);
  story = await wholeAnswer();
  browser = await launch();
});

after(async () => {
  await browser?.close();
  server?.server.kill();
  unhurried?.server.kill();
  pages?.close();
  if (work) await rm(work, { recursive: true, force: true });
});

/** Packs the client in a folder that is not its repository's; returns the tarball and its files. */
async function pack() {
  const copy = join(work, "client");
  await mkdir(copy);
  for (const name of PACKED) await cp(join(CLIENT, name), join(copy, name), { recursive: true });
  await symlink(join(CLIENT, "node_modules"), join(copy, "node_modules"));
  const { stdout } = await run("npm", ["pack", "--json", "--pack-destination", work], { cwd: copy });
  const [{ filename, files }] = JSON.parse(stdout.slice(stdout.indexOf("[\n")));
  return { tarball: join(work, filename), files: files.map(({ path }) => path) };
}

async function install({ tarball }) {
  const place = join(APP, "node_modules/@loquent/client");
  await rm(place, { recursive: true, force: true });
  await mkdir(place, { recursive: true });
  await run("tar", ["xzf", tarball, "--strip-components=1", "-C", place]);
}

/** A server of the files in `root`, on an origin of its own. */
async function served(root) {
  const http = createServer(async (request, response) => {
    const path = new URL(request.url, "http://x").pathname;
    const name = path === "/" ? "/index.html" : path;
    const body = await readFile(join(root, name)).catch(() => null);
    if (body === null) return void response.writeHead(404).end();
    response.writeHead(200, { "content-type": TYPES[extname(name)] ?? "application/octet-stream" }).end(body);
  });
  await new Promise((resolve) => http.listen(0, "127.0.0.1", resolve));
  return http;
}

async function wholeAnswer() {
  const headers = { "content-type": "application/json" };
  const response = await fetch(`${server.url}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(BODY) });
  return (await response.json()).choices[0].message.content;
}

async function metric(name, url = server.url) {
  const text = await (await fetch(`${url}/metrics`)).text();
  const found = text.match(new RegExp(`^\\S*${name}(?:\\{[^}]*\\})? (\\S+)$`, "m"));
  assert.ok(found, name);
  return Number(found[1]);
}

/** A page of the app; what goes wrong in it fails the test. */
async function opened(view, transport, base = server.url) {
  const context = await browser.newContext();
  const problems = [];
  context.on("weberror", (error) => problems.push(String(error.error())));
  const page = await context.newPage();
  const streams = [];
  context.on("request", (request) => request.url().includes("/v1/") && streams.push(`${request.method()} ${request.url()}`));
  const query = new URLSearchParams({ url: `${base}/v1/chat/completions`, transport, view });
  await page.goto(`http://127.0.0.1:${pages.address().port}/?${query}`);
  const close = async () => {
    await context.close();
    assert.deepEqual(problems, []);
  };
  return { page, context, streams, close };
}

const some = (page, selector = "#text", least = 20) =>
  page.waitForFunction(([selector, least]) => (document.querySelector(selector)?.textContent.length ?? 0) > least, [selector, least]);
const status = (page, wanted) => page.locator(`main[data-status=${wanted}]`).waitFor();
const textOf = (page, selector = "#text") => page.locator(selector).last().textContent();

/** How many tokens the server at `url` generates during `act`. */
async function generated(act, url = server.url) {
  const before = await metric("generation_tokens_total", url);
  await act();
  return (await metric("generation_tokens_total", url)) - before;
}

/** Waits until the unhurried server generates nothing. */
async function idle() {
  while ((await metric("num_requests_running", unhurried.url)) > 0) await new Promise((resolve) => setTimeout(resolve, 20));
}

check("the package has what it needs, packed anywhere, and the app's types fit the AI SDK's", async () => {
  for (const path of ["README.md", "LICENSE-MIT", "examples/terminal.mjs", "dist/index.d.ts", "dist/ai.js", "dist/react.js", "dist/loquent-worker.js"]) {
    assert.ok(packed.files.includes(path), path);
  }
  assert.ok(packed.files.every((path) => !/^(src|test)\//.test(path)), "sources and tests stay at home");
  await run(process.execPath, [join(APP, "node_modules/typescript/bin/tsc"), "-p", APP]);
  assert.ok((await readdir(join(work, "dist/assets"))).some((name) => name.startsWith("loquent-worker")), "Vite has found the worker");
});

for (const transport of ["webtransport", "sse"]) {
  check(`useAnswer in StrictMode: two reloads in mid-answer, exactly once, by ${transport}`, async () => {
    const { page, close } = await opened("hook", transport);
    const tokens = await generated(async () => {
      await page.click("text=Ask");
      await some(page);
      await page.reload();
      await some(page, "#text", 60);
      await page.reload();
      await status(page, "done");
    });
    assert.equal(await textOf(page), story);
    assert.equal(await page.getAttribute("main", "data-transport"), transport);
    assert.equal(tokens, TOKENS, "the question was asked once");
    await close();
  });

  check(`a duplicated tab reads along and disturbs nobody, by ${transport}`, async () => {
    const { page, context, streams, close } = await opened("hook", transport);
    await page.click("text=Ask");
    await some(page);
    const [other] = await Promise.all([context.waitForEvent("page"), page.evaluate(() => void window.open(location.href))]);
    await Promise.all([status(page, "done"), status(other, "done")]);
    assert.deepEqual([await textOf(page), await textOf(other)], [story, story]);
    const resumes = streams.filter((one) => one.startsWith("GET")).length;
    assert.ok(resumes <= 2, `${resumes} requests to go on: ${streams}`);
    await close();
  });
}

check("a component that goes and comes back takes its answer up again", async () => {
  const { page, close } = await opened("hook", "auto");
  const tokens = await generated(async () => {
    await page.click("text=Ask");
    await some(page);
    await page.click("text=Hide");
    await page.waitForSelector("main", { state: "detached" });
    await page.click("text=Show");
    await status(page, "done");
  });
  assert.equal(await textOf(page), story);
  assert.equal(tokens, TOKENS);
  await close();
});

for (const transport of ["webtransport", "sse"]) {
  check(`a reload right after the question joins its answer, by ${transport}`, async () => {
    const { page, close } = await opened("hook", transport);
    const tokens = await generated(async () => {
      await page.evaluate(() => [...document.querySelectorAll("button")].find((one) => one.textContent === "Ask").click());
      await page.reload();
      await status(page, "done");
    });
    assert.equal(await textOf(page), story);
    assert.equal(tokens, TOKENS, "the question was asked once");
    await close();
  });

  check(`stop ends the generation and keeps the text, by ${transport}`, async () => {
    const { page, close } = await opened("hook", transport, unhurried.url);
    const tokens = await generated(async () => {
      await page.click("text=Ask");
      await some(page);
      await page.click("text=Stop");
      await status(page, "stopped");
      await idle();
    }, unhurried.url);
    const text = await textOf(page);
    assert.ok(text.length > 20 && text.length < story.length && story.startsWith(text));
    assert.ok(tokens < TOKENS, `${tokens} tokens`);
    await page.reload();
    await status(page, "idle");
    await close();
  });
}

check("useChat: a reload in mid-answer, exactly once, then a second question", async () => {
  const { page, close } = await opened("chat", "auto");
  const tokens = await generated(async () => {
    await page.click("text=Ask");
    await some(page, ".assistant");
    await page.reload();
    await some(page, ".assistant", 40);
    await status(page, "ready");
  });
  assert.equal(await textOf(page, ".assistant"), story);
  assert.equal(tokens, TOKENS);
  assert.equal(await page.locator(".assistant").count(), 1);
  await page.click("text=Ask");
  await page.locator(".assistant").nth(1).waitFor();
  await status(page, "ready");
  assert.equal(await page.locator(".user").count(), 2);
  await close();
});

check("useChat: stop() ends the generation", async () => {
  const { page, close } = await opened("chat", "auto", unhurried.url);
  const tokens = await generated(async () => {
    await page.click("text=Ask");
    await some(page, ".assistant");
    await page.click("text=Stop");
    await status(page, "ready");
    await idle();
  }, unhurried.url);
  assert.ok(tokens < TOKENS, `${tokens} tokens`);
  assert.ok(story.startsWith(await textOf(page, ".assistant")));
  await close();
});

check("Vue: a reload in mid-answer, exactly once", async () => {
  const { page, close } = await opened("vue", "auto");
  await page.click("text=Ask");
  await some(page);
  await page.reload();
  await status(page, "done");
  assert.equal(await textOf(page), story);
  await close();
});

check("a page learns that it is the engine that pauses", async () => {
  const slow = await serve("--simulate", "0.3");
  await ready(slow.url);
  const { page, close } = await opened("hook", "webtransport", slow.url);
  try {
    await page.click("text=Ask");
    await some(page, "#text", 0);
    await page.locator("main[data-pause=engine]").waitFor();
    await page.locator("main[data-pause='']").waitFor();
    await page.click("text=Stop");
    await status(page, "stopped");
  } finally {
    await close();
    slow.server.kill();
  }
});
