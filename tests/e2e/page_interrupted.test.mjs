// The chat page in Chromium: answers that are stopped, left, cut off, lost, and read in several tabs.
import assert from "node:assert/strict";
import { connect, createServer } from "node:net";
import { once } from "node:events";
import { after, before, describe, test } from "node:test";
import { chromiumPath, launch, open } from "./chromium.mjs";
import { answerOf, answers, ask, ends, finished, greedy, keptAnswerOf, shown, start, written } from "./chat_page.mjs";
import { gate, standIn } from "./stand_in.mjs";

let browser;

/** The text of an answer that is stopped after its first words. */
async function stoppedAnswer(page) {
  await ask(page, "Go on for ever.");
  await shown(page, 60);
  await page.keyboard.press("Escape");
  return finished(page);
}

describe("an answer at the chat page", { skip: chromiumPath() === null && "no Chromium is installed" }, () => {
  before(async () => {
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    for (const end of ends) end();
  });

  test("two tabs on one conversation show and keep what each of them asks", async () => {
    const { url } = await start();
    const page = await open(browser, url, { settings: greedy });
    await ask(page, "What is TTFT?");
    await finished(page);
    const other = await page.context().newPage();
    await other.goto(url);
    await other.click(".history .title");
    await keptAnswerOf(other);
    await ask(other, "What is token streaming?");
    const second = await finished(other);
    await page.locator("article.assistant").nth(1).filter({ hasText: second.slice(0, 40) }).waitFor();
    await ask(page, "What is a KV cache?");
    await finished(page);
    await other.locator("article.user").nth(2).filter({ hasText: "What is a KV cache?" }).waitFor();
    assert.deepEqual(page.problems, []);
  });

  test("what goes on in one tab, and its new title, are not undone by what another tab asks", async () => {
    const { url } = await start("--simulate", "40");
    const page = await open(browser, url, { settings: { parameters: { temperature: 0, max_tokens: 100 } } });
    const stopped = await stoppedAnswer(page);
    await written(page, stopped.slice(-20));
    const other = await page.context().newPage();
    await other.goto(url);
    await other.click(".history .title");
    await answers(other, stopped);
    await page.getByRole("button", { name: "Continue" }).click();
    await shown(page, stopped.length + 60);
    const whole = await finished(page);
    await answers(other, whole);
    await page.locator(".history li").hover();
    await page.getByLabel("Rename").click();
    await page.fill(".history [aria-label=Title]", "For ever");
    await page.press(".history [aria-label=Title]", "Enter");
    // The list has it some milliseconds before the conversation. The old title has the words too, in other letters.
    await other.locator("h1").filter({ hasText: /^For ever$/ }).waitFor({ state: "attached" });
    await ask(other, "And now?");
    await finished(other);
    await page.reload();
    await page.locator("article.assistant.finished").nth(1).waitFor();
    await page.waitForFunction((whole) => document.querySelector("article.assistant .text")?.textContent.trim() === whole, whole);
    assert.equal(await page.locator(".history .title").textContent(), "For ever");
    assert.deepEqual(page.problems, []);
  });

  test("an answer that another tab waits for is not taken for lost", async () => {
    const begins = gate();
    const upstream = await standIn({ "Wait.": [begins.step, { content: "It came." }] });
    ends.push(upstream.close);
    const { url } = await start("--upstream", upstream.url);
    const page = await open(browser, url, { settings: { delivery: "sse" } });
    await page.locator(".dot.ready").waitFor();
    await ask(page, "Wait.");
    await written(page, "Wait.");
    const other = await page.context().newPage();
    await other.goto(url);
    await other.click(".history .title");
    await other.locator("article.assistant").waitFor();
    // Longer than it waits for a word of the first tab.
    await other.waitForTimeout(1_500);
    assert.equal(await other.locator("article.failed").count(), 0);
    begins.open();
    await Promise.all([answers(page, "It came."), answers(other, "It came.")]);
    assert.deepEqual(page.problems, []);
  });

  test("an answer that the server has forgotten stays as far as it was kept", async () => {
    const { url } = await start("--simulate", "40");
    const page = await open(browser, url, { settings: { delivery: "sse", parameters: { temperature: 0, max_tokens: 400 } } });
    await ask(page, "Go on for ever.");
    await shown(page, 60);
    const begun = (await answerOf(page)).slice(0, 20);
    await written(page, begun);
    const other = await page.context().newPage();
    await page.close();
    await other.route("**/v1/streams/**", (route) => route.fulfill({ status: 404, json: { error: { message: "unknown" } } }));
    await other.goto(url);
    await other.click(".history .title");
    await other.locator("article.failed").getByText("not kept any more").waitFor();
    const kept = await keptAnswerOf(other);
    assert.ok(kept.startsWith(begun), kept);
    await written(other, "not kept any more");
    await other.reload();
    assert.equal(await keptAnswerOf(other), kept);
  });

  test("stops when told, and keeps what came", async () => {
    const { url } = await start("--simulate", "40");
    const page = await open(browser, url);
    await ask(page, "Go on for ever.");
    await shown(page, 20);
    await page.keyboard.press("Escape");
    const stopped = await finished(page);
    assert.ok(stopped.length > 20);
    await written(page, stopped.slice(-20));
    await page.reload();
    assert.equal(await keptAnswerOf(page), stopped);
  });

  test("goes on with a stopped answer where it ends, also after a reload", async () => {
    const { url } = await start("--simulate", "40");
    const page = await open(browser, url, { settings: { parameters: { temperature: 0, max_tokens: 100 } } });
    const stopped = await stoppedAnswer(page);
    await page.getByRole("button", { name: "Continue" }).click();
    await shown(page, stopped.length + 60);
    await page.reload();
    await page.locator("article.assistant.finished").waitFor();
    const whole = await keptAnswerOf(page);
    assert.ok(whole.startsWith(stopped) && whole.length > stopped.length + 100, `${stopped} | ${whole}`);
    assert.equal(await page.locator("article").count(), 2, "it is the same answer");
    assert.deepEqual(page.problems, []);
  });

  test("goes on after a reload in the middle of an answer", async () => {
    const { url } = await start("--simulate", "40");
    const page = await open(browser, url, { settings: { parameters: { temperature: 0, max_tokens: 160 } } });
    await ask(page, "Tell me something long.");
    await shown(page, 100);
    await page.reload();
    await page.locator("article.assistant.finished").waitFor();
    const answer = await keptAnswerOf(page);
    await page.reload();
    assert.equal(await keptAnswerOf(page), answer);
    // At its end.
    await page.waitForFunction(() => scrollY + innerHeight >= document.documentElement.scrollHeight - 1);
    assert.deepEqual(page.problems, []);
  });

  test("goes on after a lost connection", async () => {
    const { url } = await start("--simulate", "30");
    const relay = await startRelay(new URL(url).port);
    const page = await open(browser, relay.url, { settings: { delivery: "sse", parameters: { temperature: 0, max_tokens: 120 } } });
    await ask(page, "Does it survive?");
    await shown(page, 60);
    relay.cut();
    await page.locator("article.assistant.paused").waitFor();
    relay.mend();
    const answer = await finished(page);
    const clean = await open(browser, url, { settings: { parameters: { temperature: 0, max_tokens: 120 } } });
    await ask(clean, "Does it survive?");
    assert.equal(await finished(clean), answer);
  });

  test("says so when the server is gone", async () => {
    const { server, url } = await start("--simulate", "30");
    const page = await open(browser, url);
    await page.locator(".dot.ready").waitFor();
    server.kill();
    await page.getByText("the server does not answer").waitFor();
    await page.locator("#transport.gone").waitFor();
  });

  test("is continued on a second device", async () => {
    const { url } = await start("--simulate", "30");
    const page = await open(browser, url, { settings: { parameters: { max_tokens: 200 } } });
    await ask(page, "Who else reads this?");
    await shown(page, 60);
    await page.click("#device");
    const link = await page.locator(".device pre").textContent();
    assert.ok(new URL(link).search === "" && link.includes("#answer="), "the token is in the fragment alone");
    await page.getByText("which on another device means that device").waitFor();
    assert.equal(await page.locator(".qr").count(), 0, "no code for an address that is another machine elsewhere");
    await page.keyboard.press("Escape");
    const phone = await open(browser, link, { viewport: { width: 390, height: 844 }, hasTouch: true });
    await shown(phone, 60);
    assert.ok(!phone.url().includes("#"), "no history keeps the token");
    const [here, there] = await Promise.all([finished(page), finished(phone)]);
    assert.equal(there, here);
    assert.ok(here.length > 200);
    assert.deepEqual([...page.problems, ...phone.problems], []);
  });
});

/** A relay to `port` of this machine that can be cut. */
async function startRelay(port) {
  const sockets = new Set();
  let isCut = false;
  const server = createServer((socket) => {
    if (isCut) return socket.destroy();
    const onward = connect(port, "127.0.0.1");
    for (const one of [socket, onward]) {
      sockets.add(one);
      one.on("error", () => {});
      one.on("close", () => (socket.destroy(), onward.destroy(), sockets.delete(one)));
    }
    socket.pipe(onward).pipe(socket);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const cut = () => {
    isCut = true;
    for (const socket of sockets) socket.destroy();
  };
  ends.push(() => (cut(), server.close()));
  return { url: `http://127.0.0.1:${server.address().port}`, cut, mend: () => (isCut = false) };
}
