// Safari's WebTransport, imitated in Chromium against the real server: datagrams are written where
// newer drafts have it, and a session's credit is never refilled (WebKit bug 319818), so that what
// exceeds it waits for ever. No WebKit that runs on Linux has WebTransport.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { chromiumPath, launch } from "./chromium.mjs";
import { ready, serve } from "./server.mjs";

const CLIENT = fileURLToPath(new URL("../../web/client/dist", import.meta.url));
const skip = chromiumPath() === null && "no Chromium is installed";

/** What a session may have, streams not as many as Safari's (7,000), so that the test is short. */
const CREDIT = { bytes: 16 << 20, streams: 1_100 };

/** Questions before the long one, fewer than a session takes, and while it is answered: more than its credit. */
const BEFORE = 950;
const MEANWHILE = 250;
const AT_ONCE = 12;

/** In the worker, before the client's: takes the place of the browser's WebTransport. */
function imitate(credit) {
  const Native = globalThis.WebTransport;
  globalThis.WebTransport = class {
    constructor(url, options) {
      this.native = new Native(url, options);
      this.left = { ...credit };
      console.info("a session");
      this.native.closed.finally(() => console.info("an end")).catch(() => {});
      const { datagrams } = this.native;
      const createWritable = () => datagrams.createWritable?.() ?? datagrams.writable;
      this.datagrams = { readable: datagrams.readable, createWritable };
    }

    get ready() {
      return this.native.ready;
    }

    get closed() {
      return this.native.closed;
    }

    close(info) {
      this.native.close(info);
    }

    async createBidirectionalStream() {
      if (--this.left.streams < 0) return await this.never("a stream");
      const { readable, writable } = await this.native.createBidirectionalStream();
      return { readable: { getReader: () => this.metered(readable.getReader(), "read") }, writable: { getWriter: () => this.metered(writable.getWriter(), "write") } };
    }

    /** `end`, whose `method` waits for ever once the credit is used up. */
    metered(end, method) {
      const spend = (bytes) => (this.left.bytes -= bytes ?? 0) >= 0;
      const act = async (bytes) => {
        if (!spend(bytes?.length)) return await this.never("bytes");
        const next = await end[method](bytes);
        return spend(next?.value?.length) ? next : await this.never("bytes");
      };
      const get = (_, name) => (name === method ? act : typeof end[name] === "function" ? end[name].bind(end) : end[name]);
      return new Proxy(end, { get });
    }

    async never(what) {
      console.info(`no credit for ${what}`);
      return await new Promise(() => {});
    }
  };
}

/** In the page: a long answer in the midst of many questions; the answers, and how they came. */
async function talk({ url, long, before, meanwhile, atOnce }) {
  const { streamChat } = await import("/index.js");
  const ask = (content, max_tokens, onState) => {
    const body = { messages: [{ role: "user", content }], max_tokens, temperature: 0 };
    return streamChat({ url: `${url}/v1/chat/completions`, body, transport: "webtransport", pace: "off", onState });
  };
  const texts = new Set();
  const questions = async (count) => {
    const visitor = async () => {
      while (count-- > 0) texts.add(await ask("Say a word.", 2).finalText());
    };
    await Promise.all(Array.from({ length: atOnce }, visitor));
  };
  await questions(before);
  const states = [];
  const story = ask("Tell me a story.", long, (state) => states.push(state));
  const reading = story.finalText();
  await questions(meanwhile);
  const wasRunning = story.state === "streaming";
  const text = await reading;
  return { text, states, finish: story.finish, wasRunning, texts: [...texts] };
}

let server;
let pages;
let browser;

before(async () => {
  if (skip) return;
  server = await serve("--simulate", "60");
  await ready(server.url);
  pages = createServer(({ url }, response) => {
    if (url === "/") return void response.writeHead(200, { "content-type": "text/html" }).end("<!doctype html><link rel=icon href=data:,>");
    const text = readFileSync(join(CLIENT, url.replaceAll("..", "")), "utf8");
    const before = url === "/loquent-worker.js" ? `(${imitate})(${JSON.stringify(CREDIT)});\n` : "";
    response.writeHead(200, { "content-type": "text/javascript" }).end(before + text);
  });
  await new Promise((resolve) => pages.listen(0, "127.0.0.1", resolve));
  browser = await launch();
});

after(async () => {
  await browser?.close();
  server?.server.kill();
  pages?.close();
});

/** The long answer, not streamed. */
async function wholeAnswer(max_tokens) {
  const body = { messages: [{ role: "user", content: "Tell me a story." }], max_tokens, temperature: 0 };
  const asked = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  return (await (await fetch(`${server.url}/v1/chat/completions`, asked)).json()).choices[0];
}

test("sessions end before their credit, and the answers go on over the next one", { skip }, async () => {
  const page = await browser.newPage();
  const said = [];
  page.on("console", (message) => said.push(message.text()));
  await page.goto(`http://localhost:${pages.address().port}/`);
  const long = 600;
  const talking = page.evaluate(talk, { url: server.url, long, before: BEFORE, meanwhile: MEANWHILE, atOnce: AT_ONCE });
  const [got, whole] = await Promise.all([talking, wholeAnswer(long)]);
  assert.equal(got.text, whole.message.content, "no byte is lost, and none comes twice");
  assert.equal(got.finish, whole.finish_reason);
  assert.ok(got.wasRunning, "it went on while the sessions changed");
  assert.deepEqual(got.states, ["connecting", "streaming", "ended"], "its reader has noticed nothing");
  assert.equal(got.texts.length, 1, "the same question has the same answer");
  assert.deepEqual(said, ["a session", "a session", "an end"], "nothing had to wait for credit");
});
