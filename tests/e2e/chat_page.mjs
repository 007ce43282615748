// What somebody does at the chat page, and what the page then shows, for its tests.
import assert from "node:assert/strict";
import { ready, serve } from "./server.mjs";

/** Settings of a model that answers the same question always alike. */
export const greedy = { parameters: { temperature: 0 } };

/** What has to end with the tests: processes, servers, relays. */
export const ends = [];

/** A server with `args`, ready. */
export async function start(...args) {
  const started = await serve(...args);
  ends.push(() => started.server.kill());
  await ready(started.url);
  return started;
}

/** Asks `question`, and returns the last answer. */
export async function ask(page, question) {
  await page.fill("#prompt", question);
  await page.press("#prompt", "Enter");
  return page.locator("article.assistant").last();
}

/** The text of the last answer. */
export async function answerOf(page) {
  return (await page.locator("article.assistant .text").last().textContent()).trim();
}

/** The answer of a conversation that is opened again, which shows its turns before their text, and the last words last. */
export async function keptAnswerOf(page) {
  await page.locator("article.assistant[aria-busy=false] .text").last().filter({ hasText: /\S/ }).waitFor();
  return answerOf(page);
}

/** Waits until the last answer is `text`. */
export function answers(page, text) {
  const isShown = (text) => [...document.querySelectorAll("article.assistant .text")].at(-1)?.textContent.trim() === text;
  return page.waitForFunction(isShown, text);
}

/** Waits until the page's database holds `text`: what is written when a page is left may be lost. */
export async function written(page, text) {
  // Not by `waitForFunction`, which takes the promise of an answer for the answer.
  const isThere = async (text) => {
    const asked = (request) => new Promise((done) => (request.onsuccess = () => done(request.result)));
    const database = await asked(indexedDB.open("loquent"));
    const bodies = await asked(database.transaction("bodies").objectStore("bodies").getAll());
    database.close();
    return JSON.stringify(bodies).includes(JSON.stringify(text).slice(1, -1));
  };
  const limit = Date.now() + 30_000;
  while (!(await page.evaluate(isThere, text))) {
    assert.ok(Date.now() < limit, `the database has no ${JSON.stringify(text)}`);
    await page.waitForTimeout(20);
  }
}

/** Waits for the end of what is being answered: the button to send stands there also before the answer begins. */
export async function finished(page) {
  await page.waitForFunction(() => {
    const answer = [...document.querySelectorAll("article.assistant")].at(-1);
    if (answer?.ariaBusy !== "false") return false;
    return answer.classList.contains("failed") || answer.querySelector(".text").textContent.trim() !== "";
  });
  await page.locator("#send").waitFor();
  return answerOf(page);
}

/** Waits until more than `count` characters of the last answer are there. */
export function shown(page, count) {
  const isThere = (count) => ([...document.querySelectorAll("article.assistant .text")].at(-1)?.textContent.length ?? 0) > count;
  return page.waitForFunction(isThere, count);
}
