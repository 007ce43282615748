// The chat page in Chromium: what it offers.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { LAN_NAME, assertAccessible, chromiumPath, launch, open } from "./chromium.mjs";
import { answers, ask, ends, finished, greedy, keptAnswerOf, shown, start, written } from "./chat_page.mjs";
import { announced, run } from "./server.mjs";

const STORY = "Tell me a long story.";

let browser;
let url;

/** A PDF of one page, which `contents` draw. */
function pdfOf(contents) {
  const objects = [
    "<< /Type /Catalog /Pages 2 0 R >>",
    "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 120] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
    `<< /Length ${contents.length} >>\nstream\n${contents}\nendstream`,
    "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
  ];
  return `%PDF-1.4\n${objects.map((text, at) => `${at + 1} 0 obj\n${text}\nendobj\n`).join("")}trailer\n<< /Root 1 0 R >>\n`;
}

/** A PNG of noise, which no compression makes small. */
async function pictureOf(page, width, height) {
  const draw = async ([width, height]) => {
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d");
    const pixels = context.createImageData(width, height);
    let noise = 1;
    pixels.data.forEach((_, at) => {
      noise = (noise * 16_807) % 2_147_483_647;
      pixels.data[at] = at % 4 === 3 ? 255 : (noise >> 8) & 255;
    });
    context.putImageData(pixels, 0, 0);
    const bytes = new Uint8Array(await (await canvas.convertToBlob()).arrayBuffer());
    return Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  };
  return Buffer.from(await page.evaluate(draw, [width, height]), "latin1");
}

describe("the chat page", { skip: chromiumPath() === null && "no Chromium is installed" }, () => {
  before(async () => {
    browser = await launch();
    ({ url } = await start());
  });
  after(async () => {
    await browser?.close();
    for (const end of ends) end();
  });

  test("introduces itself, answers, and keeps the conversation", async (context) => {
    const page = await open(browser, url);
    assert.ok(await page.locator('.pages a[href="docs"]').isVisible(), "the book is a click away");
    await page.getByText("a 2.6 MB demonstration model").waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.id), "prompt", "one can type at once");
    const usable = await page.evaluate(() => performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd);
    context.diagnostic(`one can type after ${Math.round(usable)} ms`);
    await page.click("text=What is token streaming?");
    const answer = await finished(page);
    assert.ok(answer.length > 20, answer);
    assert.match(await page.locator("#context").textContent(), /^[\d,]+ of 2,048 tokens$/);
    assert.equal(await page.locator(".history .title").textContent(), "What is token streaming?");
    const other = await page.context().newPage();
    await other.goto(url);
    await other.click(".history .title");
    assert.equal(await keptAnswerOf(other), answer);
    assert.deepEqual(page.problems, []);
  });

  test("shows the demonstration model at reading speed", async () => {
    const page = await open(browser, url, { settings: { readingPace: true } });
    await page.evaluate(() => {
      window.steps = 0;
      new MutationObserver(() => (window.steps += 1)).observe(document.getElementById("log"), { subtree: true, childList: true, characterData: true });
    });
    await ask(page, STORY);
    await shown(page, 200);
    const steps = await page.evaluate(() => window.steps);
    assert.ok(steps > 15, `200 characters came in ${steps} steps`);
    await page.click("#stop");
    await page.click("#settings-button");
    await page.uncheck("#reading-pace");
    assert.equal(await page.evaluate(() => JSON.parse(sessionStorage.getItem("loquent:settings")).readingPace), false);
  });

  test("the Enter that ends an input method's composition sends nothing, and ends no new title", async () => {
    const page = await open(browser, url, { settings: greedy });
    const enter = (where, keyCode) => page.dispatchEvent(where, "keydown", { key: "Enter", keyCode, bubbles: true, cancelable: true });
    await page.fill("#prompt", "とは");
    await enter("#prompt", 229);
    assert.equal(await page.inputValue("#prompt"), "とは");
    assert.equal(await page.locator("article").count(), 0);
    await enter("#prompt", 13);
    await finished(page);
    await page.locator(".history li").hover();
    await page.getByLabel("Rename").click();
    await page.fill(".history [aria-label=Title]", "題");
    await enter(".history [aria-label=Title]", 229);
    assert.equal(await page.inputValue(".history [aria-label=Title]"), "題");
    await enter(".history [aria-label=Title]", 13);
    await page.locator(".history .title").getByText("題", { exact: true }).waitFor();
    assert.deepEqual(page.problems, []);
  });

  test("says so where the browser keeps no conversations", async () => {
    const page = await open(browser, url, { settings: greedy });
    await page.addInitScript(() => {
      indexedDB.open = () => {
        throw new DOMException("blocked", "SecurityError");
      };
    });
    await page.reload();
    await page.getByText("This browser keeps nothing for the page").waitFor();
    await ask(page, "What is TTFT?");
    assert.ok((await finished(page)).length > 0);
    assert.equal(await page.getByText("Conversations are kept here").count(), 0);
    assert.deepEqual(page.problems, []);
  });

  test("counts the conversation while somebody types, also after a stopped answer", async () => {
    const page = await open(browser, url, { settings: { readingPace: true } });
    await ask(page, STORY);
    await shown(page, 200);
    await page.keyboard.press("Escape");
    const stopped = await finished(page);
    await page.fill("#prompt", "Why?");
    const used = () => page.locator("#context").textContent().then((text) => Number(text.split(" ")[0].replace(/,/g, "")));
    const least = stopped.length / 8;
    assert.ok((await used()) > least, `${await used()} tokens for ${stopped.length} characters`);
    await page.waitForResponse((response) => response.url().endsWith("/tokenize") && response.ok());
    assert.ok((await used()) > least, `${await used()} tokens for ${stopped.length} characters`);
  });

  test("says in the strip and beside the code why it reads an event stream", async () => {
    const page = await open(browser, (await start("--simulate", "40")).url, { settings: { delivery: "sse", parameters: { max_tokens: 200 } } });
    await ask(page, "Why so?");
    await shown(page, 60);
    await page.click("#device");
    await page.locator("dialog").getByText("a secure context").waitFor();
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    await finished(page);
    await page.locator("details.facts summary").click();
    await page.locator(".timing-why").getByText("because the settings ask for it").waitFor();
  });

  test("edits a question, answers again, and goes between the versions", async () => {
    const page = await open(browser, url, { settings: greedy });
    await ask(page, "What is token streaming?");
    const first = await finished(page);
    await page.press("#prompt", "ArrowUp");
    await page.fill(".editor textarea", "What is head-of-line blocking?");
    await page.press(".editor textarea", "Enter");
    await page.getByText("2/2").first().waitFor();
    const second = await finished(page);
    assert.notEqual(second, first);
    await page.locator("article.user").hover();
    await page.getByLabel("Previous version").first().click();
    await answers(page, first);
    await page.getByLabel("Answer again").click();
    await page.locator(".turn.assistant").getByText("2/2").waitFor();
    assert.equal(await finished(page), first, "at temperature 0 it is the same answer");
    assert.deepEqual(page.problems, []);
  });

  test("shows a QR code where other devices can open the link, and why they read an event stream", async () => {
    const { url } = await start("--simulate", "30", "--allowed-host", LAN_NAME);
    const page = await open(browser, `http://${LAN_NAME}:${new URL(url).port}`, { settings: { parameters: { max_tokens: 200 } } });
    await ask(page, "Who else reads this?");
    await shown(page, 60);
    await page.click("#device");
    await page.waitForFunction(() => (document.querySelector(".qr path")?.getAttribute("d") ?? "").length > 500);
    await page.getByText("--tls-self-signed").waitFor();
    assert.equal(await page.locator("dialog .notice").count(), 0);
    await assertAccessible(page, "QR code");
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    await finished(page);
    assert.equal(await page.locator("#transport.sse").count(), 1);
  });

  test("gets WebTransport from another machine's address over --tls-self-signed", async (context) => {
    const folder = mkdtempSync(join(tmpdir(), "loquent-tls-"));
    context.after(() => rmSync(folder, { recursive: true }));
    const server = run(["serve", "--port", "0", "--simulate", "30", "--tls-self-signed", "--tls-dir", folder, "--allowed-host", LAN_NAME]);
    ends.push(() => server.kill());
    const fingerprint = announced(server, /SHA-256 ([0-9A-F:]{95})/);
    const { port } = new URL(await announced(server, /on (https:\/\/\S+)/));
    // What somebody does who has compared the fingerprint.
    const page = await open(browser, `https://${LAN_NAME}:${port}`, { ignoreHTTPSErrors: true, settings: { parameters: { max_tokens: 200 } } });
    await page.locator(".dot.ready").waitFor();
    await ask(page, "How does this come?");
    await shown(page, 60);
    await page.locator("#transport.webtransport").waitFor();
    await page.click("#device");
    await page.locator(".qr").waitFor();
    await page.getByText(await fingerprint).waitFor();
    assert.equal(await page.getByText("event stream").count(), 0);
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    await finished(page);
    assert.deepEqual(page.problems, []);
  });

  test("says what to do about a question that comes before the end of the answer", async () => {
    const { url } = await start("--simulate", "30");
    const page = await open(browser, url, { settings: { parameters: { max_tokens: 200 } } });
    await ask(page, "Go on.");
    await shown(page, 40);
    await page.fill("#prompt", "And then?");
    await page.press("#prompt", "Enter");
    await page.locator(".toast").getByText("wait for it, or stop it with Escape").waitFor();
    const middle = (one) => page.locator(one).boundingBox().then(({ x, width }) => x + width / 2);
    assert.ok(Math.abs((await middle(".toast")) - (await middle("#composer"))) < 2, "above the middle of the prompt");
    assert.equal(await page.inputValue("#prompt"), "And then?");
    await page.keyboard.press("Escape");
    await finished(page);
  });

  test("offers ways on when the conversation has outgrown the context", async () => {
    const { url } = await start("--context", "512");
    const page = await open(browser, url, { settings: { parameters: { max_tokens: 8 } } });
    const long = "What is token streaming? ".repeat(30);
    let questions = 0;
    while (!(await page.locator(".notice").isVisible())) {
      assert.ok((questions += 1) < 12, "the context of 512 tokens is full by now");
      await ask(page, long);
      await finished(page);
    }
    await page.click("text=Leave out the oldest turns");
    await page.getByText("The model no longer sees what is above.").waitFor();
    await page.locator(".notice").waitFor({ state: "detached" });
    assert.ok((await finished(page)).length > 0);
    await ask(page, "Hi");
    assert.ok((await finished(page)).length > 0);
  });

  test("sends the model's name, and never two questions in a row", async () => {
    const upstream = await startUpstream();
    const { url } = await start("--upstream", upstream.url);
    const page = await open(browser, url, { settings: { delivery: "sse" } });
    await ask(page, "refuse this");
    await page.locator("article.failed").waitFor();
    await ask(page, "and now?");
    await page.locator("article.assistant .text").getByText("fine").waitFor();
    const { model, messages } = upstream.requests.at(-1);
    assert.equal(model, "stand-in");
    assert.deepEqual(messages.map(({ role, content }) => `${role}: ${content}`), ["user: and now?"]);
  });

  test("gives up an answer that never comes, in words, and asks again when told", async () => {
    const upstream = await startUpstream();
    const { url } = await start("--upstream", upstream.url);
    const page = await open(browser, url, { settings: { delivery: "sse", patience_s: 2 } });
    await ask(page, "hang once");
    await page.locator("article.failed").getByText("Nothing came for 2 s").waitFor();
    await page.click(".failed .retry");
    await page.locator("article.assistant .text").getByText("fine").waitFor();
    assert.equal(await page.locator("article").count(), 2, "the answer takes the place of the failed one");
  });

  test("finds, deletes, restores, exports and imports conversations", async () => {
    const page = await open(browser, url);
    for (const question of ["What is token streaming?", "What is head-of-line blocking?"]) {
      await page.click(".new-chat");
      await ask(page, question);
      await finished(page);
    }
    await page.fill("#search", "head-of-line");
    await page.locator(".history li").nth(1).waitFor({ state: "detached" });
    assert.equal(await page.locator(".history .title").textContent(), "What is head-of-line blocking?");
    await page.fill("#search", "");
    await page.locator(".history li").nth(1).waitFor();
    await page.locator(".history li").first().hover();
    await page.locator(".history li").first().getByLabel("Delete").click();
    await page.locator(".history li").nth(1).waitFor({ state: "detached" });
    await page.click("text=Undo");
    await page.locator(".history li").nth(1).waitFor();
    const [download] = await Promise.all([page.waitForEvent("download"), page.click("text=Export")]);
    const other = await open(browser, url);
    await other.setInputFiles('input[accept*="json"]', await download.path());
    await other.getByText("Imported 2 conversations.").waitFor();
    await other.click(".history .title");
    assert.ok((await keptAnswerOf(other)).length > 20);
    await other.setInputFiles('input[accept*="json"]', { name: "x.json", mimeType: "application/json", buffer: Buffer.from("{}") });
    await other.getByText("This is no file of conversations").waitFor();
    assert.deepEqual([...page.problems, ...other.problems], []);
  });

  test("has presets, which belong to a conversation and go with it into a file", async () => {
    const page = await open(browser, url, { settings: { delivery: "sse" } });
    /** The system prompt and the longest answer that the question `text` is sent with. */
    const sentWith = async (text) => {
      const [request] = await Promise.all([page.waitForRequest("**/chat/completions"), ask(page, text)]);
      await finished(page);
      const { messages, max_tokens } = request.postDataJSON();
      return [messages[0].role === "system" ? messages[0].content : null, max_tokens];
    };
    const tell = async (system, max_tokens) => {
      await page.fill("#system", system);
      await page.fill("#max-tokens", `${max_tokens}`);
    };
    await page.click("#settings-button");
    await tell("Be brief.", 7);
    await page.fill("#preset-name", "Brief");
    await page.click("#save-preset");
    await page.fill("#max-tokens", "3");
    await page.getByText("until it is saved").waitFor();
    assert.deepEqual(await sentWith("What is token streaming?"), ["Be brief.", 3]);
    await page.click(".new-chat");
    await tell("Be kind.", 5);
    assert.deepEqual(await sentWith("What is head-of-line blocking?"), ["Be kind.", 5]);
    await page.selectOption("#preset", "Brief");
    assert.deepEqual(await sentWith("And then?"), ["Be brief.", 7], "as it was saved");
    await page.click(".history li:last-child .title");
    await page.waitForFunction(() => document.getElementById("max-tokens").value === "3", null);
    await assertAccessible(page, "presets");
    const [download] = await Promise.all([page.waitForEvent("download"), page.click("text=Export")]);
    const other = await open(browser, url);
    await other.setInputFiles('input[accept*="json"]', await download.path());
    await other.waitForFunction(() => document.querySelectorAll(".history li .title").length === 2);
    await other.click(".history li:last-child .title");
    await other.click("#settings-button");
    const shown = async (of) => [await of.inputValue("#preset"), await of.inputValue("#system"), await of.inputValue("#max-tokens")];
    await other.waitForFunction(() => document.getElementById("preset")?.value === "Brief");
    assert.deepEqual(await shown(other), ["Brief", "Be brief.", "3"]);
    await page.getByLabel("Delete the preset").click();
    await page.waitForFunction(() => document.getElementById("preset").options.length === 1);
    assert.deepEqual(await shown(page), ["", "Be kind.", "5"], "what the tab's settings are");
    assert.deepEqual([...page.problems, ...other.problems], []);
  });

  test("takes text files and PDFs, and says what it does not take", async () => {
    const page = await open(browser, url, { settings: { delivery: "sse", parameters: { max_tokens: 4 } } });
    const file = (name, contents) => ({ name, mimeType: "application/octet-stream", buffer: Buffer.from(contents) });
    const refuses = async (one, why) => {
      await page.setInputFiles("#files", [one]);
      await page.getByText(`${one.name} ${why}.`).waitFor();
    };
    await refuses(file("image.png", [0x89, 0x50, 0, 0xff]), "is neither text nor a PDF nor a picture");
    await refuses(file("photo.png", await pictureOf(page, 8, 8)), "is a picture, and loquent-tiny reads text only");
    await refuses(file("scan.pdf", pdfOf("")), "has no text: its pages are pictures");
    await refuses(file("torn.pdf", pdfOf("BT (x) Tj ET").slice(0, 40)), "cannot be read as a PDF");
    await page.setInputFiles("#files", [file("notes.md", "# Notes"), file("paper.pdf", pdfOf("BT /F1 12 Tf 20 90 Td (Tokens on a train) Tj 0 -20 Td (arrive) Tj ET"))]);
    await page.locator(".attached li").nth(1).waitFor();
    const [request] = await Promise.all([page.waitForRequest("**/chat/completions"), ask(page, "What is in it?")]);
    const fenced = "notes.md:\n```\n# Notes\n```\n\npaper.pdf:\n```\nTokens on a train\narrive\n```\n\nWhat is in it?";
    assert.equal(request.postDataJSON().messages.at(-1).content, fenced);
    await finished(page);
    assert.deepEqual(await page.locator(".files summary").allTextContents(), ["notes.md", "paper.pdf"]);
    assert.deepEqual(page.problems, []);
  });

  test("sends pictures to another server's model, large ones made smaller", async () => {
    const upstream = await startUpstream();
    const { url } = await start("--upstream", upstream.url);
    const page = await open(browser, url, { settings: { delivery: "sse" } });
    await page.locator(".dot.ready").waitFor();
    const [small, large] = [await pictureOf(page, 8, 8), await pictureOf(page, 3000, 300)];
    const named = (name, buffer) => ({ name, mimeType: "image/png", buffer });
    await page.setInputFiles("#files", [named("small.png", small), named("large.png", large)]);
    await page.locator(".attached li").nth(1).waitFor();
    await ask(page, "What is on them?");
    await page.locator("article.assistant .text").getByText("fine").waitFor();
    const { content } = upstream.requests.at(-1).messages.at(-1);
    assert.deepEqual(content.map(({ type }) => type), ["image_url", "image_url", "text"]);
    assert.equal(content[0].image_url.url, `data:image/png;base64,${small.toString("base64")}`);
    assert.ok(content[1].image_url.url.startsWith("data:image/jpeg;base64,"));
    assert.ok(large.length > 1 << 20 && content[1].image_url.url.length < 1_400_000);
    const shown = page.locator(".files img");
    assert.deepEqual(await shown.evaluateAll((all) => all.map(({ alt, naturalWidth }) => [alt, naturalWidth])), [["small.png", 8], ["large.png", 1568]]);
    await assertAccessible(page, "pictures");
    await written(page, "large.png");
    await page.reload();
    await page.locator(".files img").nth(1).waitFor();
    assert.deepEqual(page.problems, []);
  });

  test("keeps settings on the device only where that is wanted", async () => {
    const page = await open(browser, url);
    await page.click("#settings-button");
    await page.fill("#temperature", "0.3");
    await page.fill("#api-key", "secret");
    await page.reload();
    await page.click("#settings-button");
    assert.equal(await page.inputValue("#temperature"), "0.3", "a reload keeps them");
    assert.equal(await page.evaluate(() => localStorage.getItem("loquent:settings")), null);
    await page.check("#keep");
    const other = await page.context().newPage();
    await other.addInitScript(() => sessionStorage.clear());
    await other.goto(url);
    await other.click("#settings-button");
    assert.equal(await other.inputValue("#api-key"), "secret");
    await page.uncheck("#keep");
    assert.equal(await page.evaluate(() => localStorage.getItem("loquent:settings")), null);
  });

  test("asks for the key once, before the first question", async () => {
    const { url } = await start("--api-key", "secret");
    const page = await open(browser, url, { settings: { parameters: { max_tokens: 4 } } });
    await page.getByText("answers only with an API key").waitFor();
    assert.equal(await page.locator("#starters").count(), 0, "nothing is offered that would be refused");
    await page.fill("#prompt", "Hi");
    await page.press("#prompt", "Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "wanted-key");
    assert.equal(await page.locator("article").count(), 0, "the question waits");
    await page.fill("#wanted-key", "wrong");
    await page.click("text=Use it");
    await page.getByText("does not take the API key").waitFor();
    await assertAccessible(page, "key");
    await page.fill("#wanted-key", "secret");
    await page.click("text=Use it");
    await page.locator(".key-notice").waitFor({ state: "detached" });
    await page.press("#prompt", "Enter");
    assert.ok((await finished(page)).length > 0);
    assert.equal(await page.locator(".notice").count(), 0);
    await page.reload();
    await page.locator("article.assistant.finished").waitFor();
  });

  test("explains how to connect an app, and lists its shortcuts", async () => {
    const page = await open(browser, url);
    await page.click("text=Connect an app");
    await page.locator("dialog").getByText(`${url}/v1`, { exact: true }).waitFor();
    for (const language of ["Python", "JavaScript", "curl"]) {
      await page.locator("dialog .tabs").getByText(language).click();
      assert.ok((await page.locator("dialog pre").last().textContent()).includes(`${url}/v1`), language);
    }
    await assertAccessible(page, "connect");
    await page.keyboard.press("Escape");
    await page.keyboard.press("Tab");
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press("?");
    await page.getByText("New chat", { exact: true }).last().waitFor();
    await assertAccessible(page, "shortcuts");
    assert.deepEqual(page.problems, []);
  });

  for (const colorScheme of ["light", "dark"]) {
    for (const [device, viewport] of [["desk", { width: 1280, height: 800 }], ["phone", { width: 390, height: 844 }]]) {
      test(`is accessible, ${colorScheme}, on a ${device}`, async () => {
        const page = await open(browser, url, { viewport, colorScheme, hasTouch: device === "phone", reducedMotion: "reduce" });
        await page.getByText("a 2.6 MB demonstration model").waitFor();
        await assertAccessible(page, "welcome");
        await ask(page, "What is token streaming?");
        await finished(page);
        await assertAccessible(page, "conversation");
        await page.click("#settings-button");
        await assertAccessible(page, "settings");
        await page.click('[aria-label="Close settings"]');
        await page.evaluate(() => document.getElementById("conversations")?.click());
        await page.locator(".new-chat").waitFor();
        await assertAccessible(page, "history");
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(overflow <= 0, `${overflow} px too wide`);
        assert.deepEqual(page.problems, []);
      });
    }
  }

  test("a chosen theme is there before the first paint, and stays", async () => {
    const page = await open(browser, url, { colorScheme: "light" });
    await page.click(".theme");
    await page.click(".theme");
    await page.reload();
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
    const scripts = await page.evaluate(() => [...document.scripts].map(({ type, async, defer }) => [type, async, defer]));
    assert.deepEqual(scripts[0], ["", false, false], "it runs before anything is painted");
  });
});

/** An upstream server that insists on a model, refuses "refuse", and never answers "hang". */
async function startUpstream() {
  const requests = [];
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (data) => (body += data));
    request.on("end", () => answerAs(request, response, body, requests));
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  ends.push(() => (server.close(), server.closeAllConnections()));
  return { requests, url: `http://127.0.0.1:${server.address().port}` };
}

function answerAs(request, response, body, requests) {
  const json = (status, value) => response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
  if (request.method === "GET") return json(200, { object: "list", data: [{ id: "stand-in", object: "model" }] });
  if (!request.url.endsWith("/chat/completions")) return json(404, { error: { message: "not here" } });
  const asked = JSON.parse(body);
  requests.push(asked);
  if (!asked.model) return json(400, { error: { message: "model is required", type: "invalid_request_error" } });
  const { content } = asked.messages.at(-1);
  const text = typeof content === "string" ? content : content.at(-1).text;
  if (text.startsWith("refuse")) return json(400, { error: { message: "refused", type: "invalid_request_error" } });
  if (text === "hang once" && requests.length === 1) return undefined;
  const chunk = (delta, finish_reason = null) => `data: ${JSON.stringify({ id: "1", object: "chat.completion.chunk", created: 1, model: "stand-in", choices: [{ index: 0, delta, finish_reason }] })}\n\n`;
  response.writeHead(200, { "content-type": "text/event-stream" });
  return response.end(`${chunk({ role: "assistant", content: "fine" })}${chunk({}, "stop")}data: [DONE]\n\n`);
}
