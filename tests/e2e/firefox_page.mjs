// Asks one question on the chat page in Firefox, over WebDriver BiDi, and prints what came as
// JSON: `node firefox_page.mjs FIREFOX PAGE_URL QUESTION MAX_TOKENS`.
import puppeteer from "puppeteer-core";

const [executablePath, url, question, maxTokens] = process.argv.slice(2);
const browser = await puppeteer.launch({ browser: "firefox", executablePath, headless: true });
try {
  const page = await browser.newPage();
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  await page.goto(url);
  await page.waitForSelector("#transport.webtransport", { timeout: 60_000 });
  await page.click("#settings-button");
  await page.waitForSelector("#temperature");
  await page.type("#temperature", "0");
  await page.type("#max-tokens", maxTokens);
  await page.type("#prompt", question);
  await page.keyboard.press("Enter");
  const facts = "article.assistant[aria-busy=false] .facts:not(:empty)";
  await page.waitForSelector(facts, { timeout: 60_000 });
  const text = await page.$eval("article.assistant .text", (element) => element.textContent);
  const footer = await page.$eval(facts, (element) => element.textContent);
  console.log(JSON.stringify({ text, footer, problems }));
} finally {
  await browser.close();
}
