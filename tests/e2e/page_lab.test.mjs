// The laboratory in Chromium: plays, stands, steps, is shared by its link, and is fit for keyboards,
// screen readers and phones.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import puppeteer from "puppeteer-core";
import { assertAccessible, chromiumPath, launch, open } from "./chromium.mjs";
import { ready, serve } from "./server.mjs";

/** A short run with every kind of event in it. */
const SHORT = "rtt_ms=60&loss_percent=20&burst_ms=120&tokens_per_s=100&tokens=263&padding_bytes=24&copies=3&buffer_ms=0&seed=2";

let url;
let browser;

before(async () => {
  ({ url } = await serve());
  await ready(url);
});

after(() => browser?.close());

/** The laboratory in a context of its own; the test fails if anything is logged as an error. */
async function openLab(t, { fragment = SHORT, base = url, ...context } = {}) {
  browser ??= await launch();
  const page = await open(browser, `${base}/lab#${fragment}`, { reducedMotion: "reduce", ...context });
  t.after(async () => {
    await page.context().close();
    assert.deepEqual(page.problems.filter((problem) => !problem.includes("401")), []);
  });
  return page;
}

const playable = (page) => page.getByRole("button", { name: "Play" }).and(page.locator(":enabled")).waitFor();

/** The page once its run has come. It stands at the beginning, as it does for all who want no motion. */
async function openReady(t, options) {
  const page = await openLab(t, options);
  await playable(page);
  return page;
}

const shown = (page) => page.locator(".lab-shown").allTextContents();

/** Moves the scrubber, as its user does. */
const seek = (page, ms) =>
  page.getByLabel("Moment").evaluate((input, to) => {
    input.value = String(Math.min(to, Number(input.max)));
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }, ms);

/** What the server tells of a run. */
async function lines(query) {
  const text = await (await fetch(`${url}/v1/lab/run?${query}`)).text();
  return text.trim().split("\n").map((line) => JSON.parse(line));
}

describe("the laboratory", { skip: chromiumPath() === null && "no Chromium is installed" }, () => {
  for (const [device, viewport] of [["laptop", { width: 1280, height: 800 }], ["phone", { width: 390, height: 844 }]]) {
    test(`it opens with two panes that play and count, all in view on a ${device}`, async (t) => {
      const page = await openLab(t, { fragment: "", reducedMotion: "no-preference", viewport, hasTouch: device === "phone" });
      const sentence = page.locator(".lab-sentence");
      await sentence.filter({ hasText: /^TCP stood still \d+ times, [\d.]+ s in all\. Loquent / }).waitFor({ timeout: 10_000 });
      assert.deepEqual(await page.locator(".lab-pane h2").allTextContents(), ["TCP", "Loquent"]);
      const counted = () => page.locator('[data-figure="stalled"]').first().textContent().then(Number.parseFloat);
      const before = await counted();
      assert.ok(before > 0);
      await page.waitForFunction((before) => Number.parseFloat(document.querySelector('[data-figure="stalled"]').textContent) > before, before);
      const { bottoms, wide, tall } = await page.evaluate(() => ({
        bottoms: [...document.querySelectorAll(".lab-pane, .lab-sentence")].map((one) => one.getBoundingClientRect().bottom),
        wide: document.scrollingElement.scrollWidth - innerWidth,
        tall: innerHeight,
      }));
      assert.ok(bottoms.every((bottom) => bottom <= tall), `${bottoms} of ${tall} px`);
      assert.ok(wide <= 0, `${wide} px too wide`);
      assert.ok(!(await page.getByLabel("Round trip").isVisible()), "the sliders are behind Details");
      await assertAccessible(page, device);
      await page.locator("summary", { hasText: "Details" }).click();
      await page.getByLabel("Round trip").waitFor();
      await page.getByRole("button", { name: "All four ways" }).click();
      await page.locator(".lab-pane").nth(3).waitFor();
      assert.match(new URL(page.url()).hash, /rtt_ms=160/);
    });
  }

  test("it plays to the end, where all panes have the same text and the simulator's figures", async (t) => {
    const page = await openReady(t);
    assert.deepEqual(await shown(page), ["", "", "", ""]);
    await page.getByLabel("Speed").selectOption("4");
    await page.getByRole("button", { name: "Play" }).click();
    await page.getByRole("button", { name: "Play again" }).waitFor();
    const run = await lines(SHORT);
    const answer = run.filter(({ kind }) => kind === "token").map(({ text }) => text).join("");
    assert.ok(answer.length > 100);
    assert.deepEqual(await shown(page), Array(4).fill(answer));
    const { lanes } = run.at(-1);
    const delays = await page.locator('[data-figure="delay"]').allTextContents();
    assert.deepEqual(delays, lanes.map(({ delay_ms }) => `${Math.round(delay_ms)} ms`));
    const stalls = lanes.map((_, lane) => run.filter((line) => line.lane === lane && line.kind === "stalled").length);
    assert.deepEqual((await page.locator('[data-figure="stalls"]').allTextContents()).map(Number), stalls);
    assert.ok(stalls[0] > stalls[3], `TCP stalls more often: ${stalls}`);
  });

  test("it plays by itself, stands still when paused, and goes on", async (t) => {
    const page = await openLab(t, { reducedMotion: "no-preference", fragment: SHORT.replace("tokens_per_s=100", "tokens_per_s=10") });
    await page.waitForFunction(() => document.querySelector(".lab-shown")?.textContent !== "");
    await page.getByRole("button", { name: "Pause" }).click();
    const [time, texts] = [await page.locator(".lab-time").textContent(), await shown(page)];
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    assert.deepEqual([await page.locator(".lab-time").textContent(), await shown(page)], [time, texts]);
    await page.getByRole("button", { name: "Play" }).click();
    await page.waitForFunction((before) => document.querySelector(".lab-time").textContent !== before, time);
  });

  test("steps go from event to event and back, and are told to those who listen", async (t) => {
    const page = await openReady(t);
    await seek(page, 300);
    const told = async () => page.getByRole("status").textContent();
    const at = async () => page.locator(".lab-time").textContent();
    const start = await at();
    const seen = new Set([start]);
    for (let count = 0; count < 8; count++) {
      await page.getByRole("button", { name: "Step", exact: true }).click();
      seen.add(await at());
    }
    assert.ok(seen.size > 2, [...seen].join(", "));
    assert.match(await told(), /^At \d+\.\d\d s\. TCP: .*(sends|shows|acknowledges)/);
    for (let count = 0; count < 9; count++) await page.getByRole("button", { name: "Step back" }).click();
    assert.ok(Number.parseFloat(await at()) <= 0.3);
  });

  test("moving back in time takes text away again", async (t) => {
    const page = await openReady(t);
    await seek(page, 1e9);
    const whole = await shown(page);
    assert.ok(whole.every((text) => text.length > 100));
    await seek(page, 400);
    const early = await shown(page);
    for (const [lane, text] of early.entries()) assert.ok(whole[lane].startsWith(text) && text.length < whole[lane].length);
  });

  test("a link restores what is set, and a hostile one sets nothing", async (t) => {
    const page = await openReady(t);
    await page.getByLabel("Loss").fill("30");
    await page.getByLabel("Round trip").fill("250");
    await page.getByLabel("Weather no.").fill("99");
    await page.getByLabel("Weather no.").press("Enter");
    await page.waitForFunction(() => location.hash.includes("seed=99"));
    const link = new URL(page.url());
    const other = await openReady(t, { fragment: link.hash.slice(1) });
    for (const [label, value] of [["Loss", "30"], ["Round trip", "250"], ["Weather no.", "99"], ["Token rate", "100"]]) {
      assert.equal(await other.getByLabel(label).inputValue(), value, label);
    }
    const hostile = await openReady(t, { fragment: "rtt_ms=1e9&loss_percent=-1&tokens=<b>&__proto__=1&seed=4" });
    assert.equal(await hostile.getByLabel("Weather no.").inputValue(), "4");
    assert.match(await hostile.locator(".lab-note").textContent(), /rtt_ms, loss_percent, tokens, __proto__/);
    assert.equal(await hostile.getByLabel("Round trip").inputValue(), "160");
  });

  test("presets set everything, and another weather is another seed", async (t) => {
    const page = await openReady(t);
    await page.getByRole("button", { name: "The paper’s settings" }).click();
    await page.waitForFunction(() => location.hash.includes("rtt_ms=400"));
    assert.equal(await page.getByRole("button", { name: "The paper’s settings" }).getAttribute("aria-pressed"), "true");
    assert.match(new URL(page.url()).hash, /loss_percent=15&burst_ms=200&tokens_per_s=10&buffer_ms=0&padding_bytes=0&copies=5&.*seed=2$/);
    await page.getByRole("button", { name: "Another weather" }).click();
    await page.waitForFunction(() => !location.hash.endsWith("seed=2"));
  });

  test("the server takes every slider's ends", async (t) => {
    const page = await openReady(t);
    const sliders = await page.locator(".lab-sliders input").evaluateAll((inputs) =>
      inputs.map(({ id, min, max }) => ({ name: id.replace(/^lab-/, ""), ends: [min, max] })),
    );
    assert.equal(sliders.length, 9);
    for (const { name, ends } of sliders) {
      for (const end of ends) {
        const response = await fetch(`${url}/v1/lab/run?tokens=24&${name === "tokens" ? "seed=1" : `${name}=${end}`}`);
        // To its end: a run that is given up keeps its place until the server notices.
        await response.arrayBuffer();
        assert.equal(response.status, 200, `${name}=${end}`);
      }
    }
  });

  test("a packet tells what it carried, by pointer and by keyboard", async (t) => {
    const page = await openReady(t, { fragment: SHORT.replace("loss_percent=20", "loss_percent=0") });
    await seek(page, 500);
    const loquent = page.getByRole("region", { name: "Loquent", exact: true });
    const timeline = loquent.getByRole("img");
    await timeline.focus();
    await page.keyboard.press("ArrowLeft");
    const tip = loquent.locator(".lab-tip");
    assert.match(await tip.textContent(), /, \d+ bytes, sent at \d\.\d\d s, /);
    const first = await tip.textContent();
    await page.keyboard.press("ArrowLeft");
    assert.notEqual(await tip.textContent(), first);
    await timeline.blur();
    await timeline.scrollIntoViewIfNeeded();
    const { x, y, width, height } = await timeline.boundingBox();
    let told = "";
    for (let back = 0; back < 60 && !told.includes("“"); back += 1) {
      await page.mouse.move(x + width * 0.9 - back * 2, y + height * 0.3);
      told = await tip.textContent();
    }
    assert.match(told, /Packet with new text \d+, \d+ bytes, .* Tokens? [\d–]+: “/);
  });

  test("a server with keys asks for one, and the page uses it", async (t) => {
    const { url: base } = await serve("--api-key", "sk-lab");
    await ready(base);
    const page = await openLab(t, { base });
    await page.getByLabel("API key").fill("sk-lab");
    await page.getByRole("button", { name: "Use it" }).click();
    await playable(page);
    assert.equal(await page.locator(".lab-pane").count(), 4);
  });

  test("it opens a history of the world of replicas, shows one answer of it, and goes back", async (t) => {
    const page = await openReady(t);
    const choose = (text) => page.getByLabel("Open a history").setInputFiles({ name: "seed-7.txt", mimeType: "text/plain", buffer: Buffer.from(text) });
    await choose("no history");
    await page.getByText("seed-7.txt has no history: it is what make world SEED=N prints.").waitFor();
    const lines = [
      "0.100 answer 0 is asked for at C",
      "0.120 answer 0 is 947b6f",
      "0.300 B: Pause",
      "0.400 C writes 947b6f running fence 1 at 0+113: stored",
      "0.500 answer 1 is asked for at A",
      "0.600 B: no Pause any more",
      "broken: answer 0 has two bytes between 251 and 254 of epoch 0",
    ];
    await choose(lines.join("\n"));
    await page.getByRole("heading", { name: "A world of replicas: seed-7.txt" }).waitFor();
    await page.getByText(lines.at(-1)).waitFor();
    const events = () => page.locator(".world-text").allTextContents();
    assert.equal((await events()).length, 6);
    await page.getByLabel("Show").selectOption("answer 1");
    assert.deepEqual(await events(), ["B: Pause", "answer 1 is asked for at A", "B: no Pause any more"]);
    assert.equal(await page.locator(".world-faulty").count(), 2);
    await assertAccessible(page, "a history");
    await page.getByRole("button", { name: "Back to the laboratory" }).click();
    await playable(page);
  });

  for (const colorScheme of ["light", "dark"]) {
    test(`axe finds nothing (${colorScheme})`, async (t) => {
      const page = await openReady(t, { colorScheme });
      await seek(page, 500);
      await assertAccessible(page, colorScheme);
    });
  }

  test("a phone shows all of it without moving sideways", async (t) => {
    const page = await openReady(t, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
    await seek(page, 800);
    const { wide, panes } = await page.evaluate(() => ({
      wide: document.scrollingElement.scrollWidth,
      panes: [...document.querySelectorAll(".lab-pane")].map((pane) => pane.getBoundingClientRect().right),
    }));
    assert.ok(wide <= 390, `${wide} px`);
    assert.ok(panes.length === 4 && panes.every((right) => right <= 390), String(panes));
    await page.getByRole("button", { name: "Step", exact: true }).tap();
  });
});

const FIREFOX = ["/usr/bin/firefox", "/usr/bin/firefox-esr"].find(existsSync);

test("Firefox plays it too", { skip: FIREFOX ? false : "no Firefox is installed" }, async (t) => {
  const firefox = await puppeteer.launch({ browser: "firefox", executablePath: FIREFOX, headless: true });
  t.after(() => firefox.close());
  const page = await firefox.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(`${url}/lab#${SHORT}`);
  // It may be playing already, and be at its end before anybody can look.
  await page.waitForFunction(() => document.querySelector(".lab-player .primary")?.textContent === "Play again");
  const texts = await page.$$eval(".lab-shown", (all) => all.map(({ textContent }) => textContent));
  assert.ok(texts[0].length > 100);
  assert.deepEqual(texts, Array(4).fill(texts[0]));
  const colours = await page.$$eval(".lab-timeline", (all) =>
    all.map((canvas) => new Set(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data).size),
  );
  assert.ok(colours.every((count) => count > 10), `pictures are drawn: ${colours}`);
  assert.deepEqual(errors, []);
});
