// How a message is shown, in Chromium: Markdown while it streams, whatever a model may write,
// thoughts, tools, and why an answer paused.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { assertAccessible, chromiumPath, launch, open } from "./chromium.mjs";
import { longAnswer, measureParts, watch } from "./long_answer.mjs";
import { ready, serve } from "./server.mjs";
import { gate, inPieces, standIn } from "./stand_in.mjs";

const SAMPLE = `# Title

Text with **bold**, *emphasis*, \`code\`, snake_case_names and [a link](https://example.org/a).
A second line, and https://example.org/bare.

- one
- two
  1. inner

- [x] done
- [ ] to do

> A quote

| left | right |
| --- | ---: |
| \`a\` | 1 |
| b | 2 |

\`\`\`python
def f(x):
    return "é" + x  # no
\`\`\`

Inline $x^2$ costs $5 and $10.

$$
\\frac{1}{2}
$$

End.
`;

const REFERENCES = `See [the docs][d], [Other] and a note[^n], but no [unknown] one.

| [d] | x |
| --- | --- |
| [evil][e] | y |

[d]: https://example.org/docs "Title"
[other]: <https://example.org/other>
[e]: javascript:alert(1)

Again [the docs][D], and [^n].

[^n]: The **note**.
`;

const HOSTILE = `<script>document.title = "hacked"</script>
<img src="https://example.org/x.png" onerror="document.title='hacked'">
![tracked](https://example.org/pixel.png) ![inline](data:image/png;base64,AAAA)
[one](javascript:document.title='hacked') [two](data:text/html,<script>alert(1)</script>) [three](vbscript:x) [four](/lab)
[five]( javascript:alert(1)) [six](JaVaScRiPt:alert(1)) <javascript:alert(1)> [seven](https://example.org/ok)
<style>body { display: none }</style> <svg onload=alert(1)> <iframe src=https://example.org></iframe>

$\\href{javascript:alert(1)}{x}$ $\\class{unseen}{y}$ $\\includegraphics{https://example.org/z.png}$

<div style="position:fixed;inset:0">over everything</div>
`;

/** A quarter of a megabyte: what takes the square of its length would not end. */
const LONG = 1 << 18;
const FLOODS = {
  "one long line": "word ".repeat(LONG / 5),
  "one long word": "x".repeat(LONG),
  backticks: "`".repeat(LONG),
  "pairs of backticks": "`a ".repeat(LONG / 3),
  brackets: "[".repeat(LONG),
  targets: "[a](".repeat(LONG / 4),
  stars: "*a **b ".repeat(LONG / 7),
  underscores: "_a ".repeat(LONG / 3),
  dollars: "$a ".repeat(LONG / 3),
  quotes: ">".repeat(LONG),
  "nested lists": "- ".repeat(LONG / 2),
  rules: "- - -\n".repeat(LONG / 6),
  "cells of a table": `|a|b|\n|-|-|\n${"|x".repeat(LONG / 2)}`,
  "lines of code": `\`\`\`js\n${"a\n".repeat(LONG / 2)}`,
  "a line of code": `\`\`\`js\n${"a(".repeat(LONG / 2)}`,
  fences: "```\n".repeat(LONG / 4),
  headings: "# a\n".repeat(LONG / 4),
  addresses: "http://a.b/".repeat(LONG / 11),
  ampersands: "&".repeat(LONG),
  backslashes: "\\(".repeat(LONG / 2),
  formulas: "$$a$$ ".repeat(LONG / 6),
};

const paused = [gate(), gate()];
const tokens = (words) => words.map((word) => ({ content: `${word} ` }));
const call = (index, more) => ({ tool_calls: [{ index, type: "function", ...more }] });

const ANSWERS = {
  sample: inPieces(SAMPLE, 3),
  "sample, letter by letter": inPieces(SAMPLE, 1),
  "sample at once": [{ content: SAMPLE }],
  references: inPieces(REFERENCES, 3),
  hostile: inPieces(HOSTILE, 7),
  "hostile thoughts": [...inPieces(HOSTILE, 7).map(({ content }) => ({ reasoning_content: content })), { content: "Spoken." }],
  "hostile tools": [
    call(0, { id: HOSTILE, function: { name: HOSTILE, arguments: JSON.stringify({ [HOSTILE]: HOSTILE, __proto__: 1 }) } }),
    call(1, { id: "call_2", function: { name: "__proto__", arguments: `{"constructor":{"prototype":${"[".repeat(5_000)}` } }),
  ],
  "hostile errors": [{ content: "It begins." }, { chunk: { error: { message: HOSTILE, type: HOSTILE, code: HOSTILE } } }],
  thoughts: [...inPieces("First I **think**, then I speak.", 4).map(({ content }) => ({ reasoning_content: content })), paused[1].step, { content: "Spoken." }],
  tools: [
    call(0, { id: "call_1", function: { name: "get_weather", arguments: "" } }),
    call(0, { function: { arguments: '{"city":"Par' } }),
    call(0, { function: { arguments: 'is","days":3}' } }),
    call(1, { id: "call_2", function: { name: "get_time", arguments: "{}" } }),
  ],
  pause: [...tokens(["It", "begins", "and", "then", "it", "waits"]), paused[0].step, ...tokens(["until", "it", "goes", "on"])],
};
for (const [name, text] of Object.entries(FLOODS)) ANSWERS[`flood: ${name}`] = inPieces(text, 16_384);

let browser;
let upstream;
let url;

/** A page on which `question` was asked. */
async function asked(question, context = {}) {
  const page = await open(browser, url, context);
  await page.fill("#prompt", question);
  await page.press("#prompt", "Enter");
  return page;
}

/** A page on which the answer to `question` is complete and shown. */
async function answered(question, context = {}) {
  const page = await asked(question, context);
  await page.locator("article.assistant.finished[aria-busy=false]").waitFor();
  return page;
}

const text = (page) => page.locator("article.assistant .text").first();

describe("a message", { skip: chromiumPath() === null && "no Chromium is installed" }, () => {
  before(async () => {
    browser = await launch();
    upstream = await standIn(ANSWERS);
    ({ url } = await serve("--upstream", upstream.url));
    await ready(url);
  });
  after(async () => {
    await browser?.close();
    upstream?.close();
  });

  test("shows Markdown as elements", async () => {
    const page = await answered("sample");
    const answer = text(page);
    assert.equal(await answer.locator("h3").textContent(), "Title");
    assert.equal(await answer.locator("strong").first().textContent(), "bold");
    assert.match(await answer.locator("p").first().textContent(), /snake_case_names/);
    assert.deepEqual(await answer.locator("ul > li > ol > li").allTextContents(), ["inner"]);
    assert.deepEqual(await answer.locator("li.task input").evaluateAll((boxes) => boxes.map((box) => box.checked)), [true, false]);
    assert.deepEqual(await answer.locator("td").allTextContents(), ["a ", "1 ", "b ", "2 "]);
    assert.deepEqual(await answer.locator("a").evaluateAll((links) => links.map((link) => [link.href, link.rel])), [
      ["https://example.org/a", "noopener noreferrer"],
      ["https://example.org/bare", "noopener noreferrer"],
    ]);
    assert.equal(await answer.locator("figcaption .language").textContent(), "Python");
    assert.deepEqual(page.problems, []);
  });

  test("references and footnotes find their targets, wherever those stand", async () => {
    const page = await answered("references");
    // An answer may be complete before what formats it has come.
    await text(page).locator("a").nth(3).waitFor();
    const links = await text(page).locator("a").evaluateAll((all) => all.map((link) => [link.textContent, link.href]));
    const docs = "https://example.org/docs";
    assert.deepEqual(links, [["the docs", docs], ["Other", "https://example.org/other"], ["d", docs], ["the docs", docs]]);
    assert.match(await text(page).locator("p").first().textContent(), /^See the docs, Other and a note1, but no \[unknown\] one\./);
    assert.equal((await text(page).locator("td").first().textContent()).trim(), "[evil][e]", "nowhere safe to lead to");
    assert.equal(await text(page).locator("p.note").textContent(), "1 The note.");
    assert.deepEqual(await text(page).locator(".note-mark").allTextContents(), ["1", "1"]);
    await assertAccessible(page, "references");
    assert.deepEqual(page.problems, []);
  });

  test("shows Markdown as it was written where the user wants that", async () => {
    const page = await answered("sample", { settings: { markdown: false } });
    assert.equal((await text(page).textContent()).trim(), SAMPLE.trim());
    await page.click("#settings-button");
    await page.check("#markdown");
    await text(page).locator("h3").waitFor();
    assert.deepEqual(page.problems, []);
  });

  test("colours code and sets formulas when their libraries have come", async () => {
    const page = await answered("sample");
    await text(page).locator(".code .keyword", { hasText: "def" }).waitFor();
    await text(page).locator(".code .string", { hasText: '"é"' }).waitFor();
    assert.deepEqual(await text(page).locator(".code .line").allTextContents(), ["def f(x):", '    return "é" + x  # no']);
    await text(page).locator(".math.display.set mfrac").waitFor();
    await text(page).locator("p .math.set msup").waitFor();
    assert.match(await text(page).locator("p", { hasText: "Inline" }).textContent(), /costs \$5 and \$10/);
    assert.deepEqual(page.problems, []);
  });

  test("is the same however its pieces come", async () => {
    const shapes = [];
    for (const question of ["sample", "sample, letter by letter", "sample at once"]) {
      const page = await answered(question);
      await text(page).locator(".code .keyword").first().waitFor();
      await text(page).locator(".math.display.set").waitFor();
      shapes.push(await text(page).evaluate((element) => {
        for (const mark of element.querySelectorAll(".pause")) mark.remove();
        element.normalize();
        return element.innerHTML;
      }));
    }
    assert.equal(shapes[1], shapes[0]);
    assert.equal(shapes[2], shapes[0]);
  });

  test("is never markup, leads nowhere but to web and mail, and loads nothing", async () => {
    const page = await open(browser, url);
    const foreign = [];
    page.on("request", (request) => new URL(request.url()).origin !== new URL(url).origin && foreign.push(request.url()));
    await page.fill("#prompt", "hostile");
    await page.press("#prompt", "Enter");
    await page.locator("article.assistant.finished[aria-busy=false]").waitFor();
    await text(page).locator(".math:is(.set, .unset)").nth(2).waitFor();
    assert.equal(await page.title(), "Loquent");
    assert.equal(await text(page).locator("script, img, style, svg, iframe, [style*=fixed], [onerror], [onload], math a, math [href]").count(), 0);
    const links = await text(page).locator("a").evaluateAll((links) => links.map((link) => link.href));
    for (const href of links) assert.match(href, /^https:\/\/example\.org/);
    for (const page of ["ok", "pixel.png"]) assert.ok(links.includes(`https://example.org/${page}`), `${links}`);
    const shown = await text(page).textContent();
    for (const piece of ["<script>", "onerror=", "<iframe", "over everything"]) assert.ok(shown.includes(piece), `${piece} is text`);
    assert.deepEqual(foreign, []);
    assert.deepEqual(page.problems, []);
  });

  for (const [question, where] of [
    ["hostile thoughts", "details.reasoning"],
    ["hostile tools", "details.tool"],
    ["hostile errors", "[role=alert]"],
  ]) {
    test(`${question} are never markup either`, async () => {
      const page = await open(browser, url);
      const foreign = [];
      page.on("request", (request) => new URL(request.url()).origin !== new URL(url).origin && foreign.push(request.url()));
      await page.fill("#prompt", question);
      await page.press("#prompt", "Enter");
      const parts = page.locator(`article.assistant :is(${where})`);
      await parts.first().waitFor();
      for (const summary of await parts.locator("summary").all()) await summary.click();
      await page.getByText("display: none").first().waitFor();
      assert.equal(await page.title(), "Loquent");
      const markup = "script, img, style, svg:not([aria-hidden]), iframe, [style*=fixed], [onerror], [onload]";
      assert.equal(await page.locator("article.assistant").locator(markup).count(), 0);
      const links = await page.locator("article.assistant a").evaluateAll((links) => links.map((link) => link.href));
      for (const href of links) assert.match(href, /^https:\/\/example\.org/);
      assert.deepEqual(foreign, []);
      // The event stream of an answer that failed never ends cleanly, and the browser may say so.
      const isBrokenOff = (problem) => question === "hostile errors" && problem.includes("ERR_INCOMPLETE_CHUNKED_ENCODING");
      assert.deepEqual(page.problems.filter((problem) => !isBrokenOff(problem)), []);
    });
  }

  for (const name of Object.keys(FLOODS)) {
    test(`survives 256 KiB of ${name}`, async () => {
      const page = await answered(`flood: ${name}`, { settings: { delivery: "sse" } });
      const { elements, depth, width, room } = await text(page).evaluate((root) => {
        let depth = 0;
        for (let deepest = root; deepest; deepest = deepest.firstElementChild) depth += 1;
        const { scrollWidth, clientWidth } = document.documentElement;
        return { elements: root.querySelectorAll("*").length, depth, width: scrollWidth, room: clientWidth };
      });
      assert.ok(elements < 60_000, `${elements} elements`);
      assert.ok(depth < 64, `${depth} elements deep`);
      assert.ok(width <= room, `${width} px wide in ${room}`);
      await page.fill("#prompt", "It still takes input.");
      assert.deepEqual(page.problems, []);
      await page.context().close();
    });
  }

  test("is busy until its last word is on the page", async () => {
    const page = await answered("flood: one long line");
    // All at once: the page may not change between two looks.
    assert.equal(await text(page).evaluate((root) => root.textContent.trim()), FLOODS["one long line"].trim());
    await page.context().close();
  });

  test("copies code without what surrounds it", async () => {
    const page = await answered("sample", { permissions: ["clipboard-read", "clipboard-write"] });
    await text(page).locator("figure .copy").click();
    await text(page).getByText("Copied").waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'def f(x):\n    return "é" + x  # no');
    const selected = await text(page).evaluate((root) => {
      getSelection().selectAllChildren(root.querySelector("pre"));
      return getSelection().toString();
    });
    assert.equal(selected.trim(), 'def f(x):\n    return "é" + x  # no');
  });

  test("folds thoughts, and says how long they took", async () => {
    const page = await asked("thoughts");
    const thoughts = page.locator("article.assistant details.reasoning");
    await thoughts.locator("summary", { hasText: "Thinking…" }).waitFor();
    assert.equal(await thoughts.locator(".text").count(), 0, "they are folded");
    await thoughts.locator("summary").click();
    await thoughts.locator("strong", { hasText: "think" }).waitFor();
    paused[1].open();
    await page.locator("article.assistant.finished[aria-busy=false]").waitFor();
    assert.match(await thoughts.locator("summary").textContent(), /^Thought for/);
    assert.equal(await thoughts.locator(".text").textContent(), "First I think, then I speak.");
    assert.equal(await page.locator("article.assistant > .text").textContent(), "Spoken.");
    await assertAccessible(page, "thoughts");
    assert.deepEqual(page.problems, []);
  });

  test("shows calls of tools as cards", async () => {
    const page = await answered("tools");
    const cards = page.locator("article.assistant details.tool");
    assert.deepEqual(await cards.locator(".tool-name").allTextContents(), ["get_weather", "get_time"]);
    assert.equal(await cards.first().locator("pre").textContent(), '{\n  "city": "Paris",\n  "days": 3\n}');
    await assertAccessible(page, "tools");
    assert.deepEqual(page.problems, []);
  });

  test("runs from right to left where its words do, also in lists, as do questions and the prompt", async () => {
    ANSWERS["שאלה"] = inPieces("פתיחה\n\n- אחת\n- two\n", 3);
    const page = await answered("שאלה");
    await text(page).locator("li").nth(1).waitFor();
    await page.fill("#prompt", "עוד");
    for (const where of ["article.user .plain", "article.assistant p", "article.assistant ul", "article.assistant li", "#prompt"]) {
      const direction = await page.locator(where).first().evaluate((element) => getComputedStyle(element).direction);
      assert.equal(direction, "rtl", where);
    }
    assert.deepEqual(page.problems, []);
  });

  test("says that it pauses, and marks where it paused", async () => {
    const page = await asked("pause");
    await page.locator("article.assistant .standing.paused").waitFor();
    paused[0].open();
    await page.locator("article.assistant.finished[aria-busy=false]").waitFor();
    const mark = page.locator("article.assistant .text .pause");
    assert.match(await mark.getAttribute("aria-label"), /^Paused for [\d.]+ m?s: /);
    const before = await mark.evaluate((element) => element.previousSibling?.textContent);
    assert.equal(before.trim(), "It begins and then it waits");
    assert.equal((await text(page).textContent()).trim(), "It begins and then it waits until it goes on", "a mark is no text");
    assert.match(await page.locator("article.assistant .facts").textContent(), /1 pause, /);
    await page.reload();
    await mark.waitFor();
    assert.equal((await mark.evaluate((element) => element.previousSibling?.textContent)).trim(), "It begins and then it waits");
  });

  test("unfolds when each token was shown", async () => {
    const page = await answered("sample");
    const facts = page.locator("article.assistant details.facts");
    await facts.locator("summary").click();
    const strip = facts.locator("canvas");
    await strip.waitFor();
    assert.match(await strip.getAttribute("aria-label"), /Gaps: half under/);
    await strip.focus();
    await page.keyboard.press("ArrowRight");
    await facts.getByText(/^Tokens? 1/).waitFor();
    await page.keyboard.press("ArrowRight");
    await facts.getByText(/after the one before/).waitFor();
  });

  for (const colorScheme of ["light", "dark"]) {
    test(`leaves axe nothing to find in the ${colorScheme}`, async () => {
      const page = await answered("sample", { colorScheme });
      await text(page).locator(".code .keyword").first().waitFor();
      await text(page).locator(".math.display.set").waitFor();
      await page.locator("article.assistant details.facts summary").click();
      await page.locator("canvas.strip").waitFor();
      await assertAccessible(page, colorScheme);
    });
  }

  test("costs no more at its end than at its beginning", async (context) => {
    const [warm, measured] = [longAnswer(), longAnswer()];
    for (const { open } of warm.gates) open();
    Object.assign(ANSWERS, { warm: warm.steps, measured: measured.steps });
    const page = await answered("warm");
    await page.reload();
    await page.locator("article.assistant.finished[aria-busy=false]").waitFor();
    await page.fill("#prompt", "measured");
    await watch(page);
    await page.press("#prompt", "Enter");
    const costs = await measureParts(page, measured.gates);
    for (const { changes, ms } of costs) context.diagnostic(`500 tokens: ${changes} changes, ${ms.toFixed(0)} ms`);
    // Of three parts each: how many changes a part takes depends on how many frames a busy machine finds for it.
    const median = (three, what) => three.map((cost) => cost[what]).sort((a, b) => a - b)[1];
    const [begins, ends] = [costs.slice(0, 3), costs.slice(-3)];
    assert.ok(median(ends, "changes") <= 2 * median(begins, "changes"), "work on the document grows with the answer");
    // Processor time, which garbage collection adds to at any one place: bench/page.mjs measures it on a quiet machine.
    assert.ok(median(ends, "ms") <= 3 * Math.max(median(begins, "ms"), 20), "processor time grows with the answer");
  });

  test("fits a phone", async () => {
    const page = await answered("sample", { viewport: { width: 390, height: 780 } });
    const { scrollWidth, clientWidth } = await page.evaluate(() => document.documentElement);
    assert.ok((scrollWidth ?? 0) <= (clientWidth ?? 0));
  });
});
