// What a page's main thread does while a long answer of Markdown streams, part by part.
import { gate } from "./stand_in.mjs";

/** Tokens of a part, and how many parts there are: 4,000 tokens. */
export const PART_TOKENS = 500;
export const PARTS = 8;

/** Markdown of all kinds, the same in each part, so that only the length of what stands above differs. */
const SAMPLE = `## Part of an answer

A paragraph with **bold**, *emphasis*, \`code\` and [a link](https://example.org/), long enough to be wrapped
in a few lines, as models write them when somebody asks them to explain in detail how a thing works.

1. First, the scheduler plans a step.
2. Then the batch is decoded:
   - each row has one token,
   - prompts come in parts.
3. At last the tokens leave.

\`\`\`python
def plan(rows, budget):
    """Who gets a token in this step."""
    chosen = []
    for row in sorted(rows, key=lambda row: row.waited):
        if row.cost <= budget:
            budget -= row.cost
            chosen.append(row)
    return chosen
\`\`\`

| scheme | stalls | bytes |
| --- | ---: | ---: |
| TCP | 12.4 % | 41 |
| Loquent | 0.4 % | 58 |

> What is lost is repaired before anybody notices, most of the time.

`;

/** The tokens of part `number`, about four characters each as models' tokens are. */
function partTokens(number) {
  const end = `\n\n${endOf(number)}\n\n`;
  const text = SAMPLE.repeat(Math.ceil((PART_TOKENS * 4) / SAMPLE.length)).slice(0, (PART_TOKENS - 8) * 4);
  // An open fence would take the rest of the part in.
  const fence = text.split("```").length % 2 === 0 ? "\n```" : "";
  return [...text.match(/[\s\S]{1,4}/g), fence, end].filter((token) => token !== "");
}

function endOf(number) {
  return `End of part ${number}.`;
}

/** Steps of an answer of all parts, each behind a gate, `perSecond` tokens a second or at once. */
export function longAnswer(perSecond = Infinity) {
  const gates = Array.from({ length: PARTS }, gate);
  const steps = gates.flatMap(({ step }, number) => [step, ...paced(partTokens(number), perSecond)]);
  return { gates, steps };
}

function paced(tokens, perSecond) {
  let begun = null;
  return tokens.flatMap((content, number) => [
    ...(perSecond === Infinity ? [] : [() => until((begun ??= performance.now()) + (number * 1000) / perSecond)]),
    { content },
  ]);
}

function until(time) {
  const wait = time - performance.now();
  return wait > 0 ? new Promise((resolve) => setTimeout(resolve, wait)) : null;
}

/** Counts, in the page, changes of the document and its long tasks. */
export function watch(page) {
  return page.evaluate(() => {
    window.counted = { changes: 0, longest: 0 };
    const changed = (records) => (window.counted.changes += records.reduce((sum, { addedNodes, removedNodes }) => sum + 1 + addedNodes.length + removedNodes.length, 0));
    new MutationObserver(changed).observe(document.querySelector("#log"), { subtree: true, childList: true, characterData: true });
    new PerformanceObserver((list) => list.getEntries().forEach(({ duration }) => (window.counted.longest = Math.max(window.counted.longest, duration)))).observe({ type: "longtask" });
  });
}

/**
 * What each part cost: changes of the document, and the main thread's processor time in ms. The
 * parts' gates are opened one after another, each when all of the one before is shown.
 */
export async function measureParts(page, gates) {
  const debug = await page.context().newCDPSession(page);
  await debug.send("Performance.enable");
  const costs = [];
  for (const [number, { open }] of gates.entries()) {
    const before = await readings(page, debug);
    open();
    await page.waitForFunction(isShown, endOf(number), { polling: 100 });
    const after = await readings(page, debug);
    costs.push({ changes: after.changes - before.changes, ms: after.ms - before.ms });
  }
  return costs;
}

/** Whether `end` is the last line; only that is looked at, as looking costs the page time too. */
function isShown(end) {
  return [...document.querySelectorAll("article.assistant .text")].at(-1).lastElementChild?.lastElementChild?.textContent === end;
}

async function readings(page, debug) {
  const changes = await page.evaluate(() => window.counted.changes);
  const { metrics } = await debug.send("Performance.getMetrics");
  return { changes, ms: 1000 * metrics.find(({ name }) => name === "ThreadTime").value };
}
