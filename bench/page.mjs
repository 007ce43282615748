// What the chat page's main thread does while 4,000 tokens of Markdown come at 200 tokens/s: the
// processor time of each 500 tokens, and the longest task. `taskset -c 0 node bench/page.mjs [RUNS]`
// (one core for browser, server and stand-in alike), with the packages of tests/e2e installed and
// the binary of LOQUENT_BIN.
import { once } from "node:events";
import { cpus } from "node:os";
import { launch, open } from "../tests/e2e/chromium.mjs";
import { PART_TOKENS, longAnswer, measureParts, watch } from "../tests/e2e/long_answer.mjs";
import { ready, serve } from "../tests/e2e/server.mjs";
import { standIn } from "../tests/e2e/stand_in.mjs";

const TOKENS_PER_S = 200;
const runs = Number(process.argv[2] ?? 3);

const answers = {};
const upstream = await standIn(answers);
const { server, url } = await serve("--upstream", upstream.url);
await ready(url);
const browser = await launch();
console.log(`${cpus()[0].model}, ${cpus().length} cores visible; ${browser.browserType().name()} ${browser.version()}`);
console.log(`${TOKENS_PER_S} tokens/s; main thread's processor time for each ${PART_TOKENS} tokens, ms`);
const columns = ["run", "each 500 tokens, ms", "last / first", "target", "longest task above 50 ms, ms", "target"];
console.log(`\n| ${columns.join(" | ")} |\n|${" --- |".repeat(columns.length)}`);
for (let run = 1; run <= runs; run += 1) await measure(run);
await browser.close();
upstream.close();
const ended = once(server, "exit");
server.ref();
server.kill();
await ended;

async function measure(run) {
  // What is loaded with the first answer, and compiled, is there before the measured one.
  const [warm, measured] = [longAnswer(), longAnswer(TOKENS_PER_S)];
  for (const { open } of warm.gates) open();
  Object.assign(answers, { warm: warm.steps, measured: measured.steps });
  const page = await open(browser, url);
  await ask(page, "warm");
  await page.locator("article.assistant.finished").waitFor();
  await page.click("#new, [aria-label='New chat']");
  await page.locator("article").first().waitFor({ state: "detached" });
  await watch(page);
  await ask(page, "measured");
  const costs = await measureParts(page, measured.gates);
  const { longest } = await page.evaluate(() => window.counted);
  const ratio = costs.at(-1).ms / costs[0].ms;
  const parts = costs.map(({ ms }) => ms.toFixed(0)).join(" ");
  console.log(`| ${run} | ${parts} | ${ratio.toFixed(2)} | <= 1.2 | ${longest.toFixed(0)} | <= 50 |`);
  console.log(`runs: ${JSON.stringify({ [`run ${run}`]: { parts_ms: costs.map(({ ms }) => ms), longest_ms: longest } })}`);
  await page.context().close();
}

async function ask(page, question) {
  await page.fill("#prompt", question);
  await page.press("#prompt", "Enter");
}
