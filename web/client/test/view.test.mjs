// An answer as something to show: what the hooks and stores of the frameworks are made of.
import assert from "node:assert/strict";
import { test } from "node:test";
import { AnswerView } from "../dist/answer_view.js";
import { answerStore } from "../dist/svelte.js";
import { ID, nextServer, question, requests, route, routes, sseAnswer, url } from "./page.mjs";

const words = Array.from({ length: 12 }, (_, at) => ` word${at}`);
const options = (more = {}) => ({ url: url(), transport: "sse", ...more });
const count = (method) => requests.filter((one) => one.method === method && one.url.startsWith(url("").pathname)).length;

/** Resolves when `view` shows what `isWanted` wants. */
const shown = (view, isWanted) =>
  new Promise((resolve) => {
    const look = () => isWanted(view.getSnapshot()) && resolve(stop());
    const stop = view.subscribe(look);
    look();
  });
const later = () => new Promise((resolve) => setTimeout(resolve, 5));

test("a view shows an answer from the question to its end", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  const view = new AnswerView(options({ remember: "a" }));
  const seen = [];
  const unsubscribe = view.subscribe(() => seen.push(view.getSnapshot().status));
  assert.equal(view.getSnapshot().status, "idle");
  view.ask(question);
  await shown(view, ({ status }) => status === "done");
  assert.equal(seen[0], "connecting");
  assert.deepEqual([view.getSnapshot().text, view.getSnapshot().finish], [words.join(""), "stop"]);
  assert.equal(view.getSnapshot(), view.getSnapshot(), "nothing has changed");
  unsubscribe();
});

test("who unsubscribes and subscribes at once has not left; who leaves comes back to the answer", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { pauseAt: 6 });
  routes[route("GET", `v1/streams/${ID}`)] = (response, { url: asked }) =>
    sseAnswer(words, { from: Number(asked.searchParams.get("from")) })(response);
  const view = new AnswerView(options({ remember: "a" }));
  let unsubscribe = view.subscribe(() => {});
  view.ask(question);
  await shown(view, ({ text }) => text === words.slice(0, 6).join(""));
  unsubscribe();
  unsubscribe = view.subscribe(() => {}); // as StrictMode does
  await later();
  assert.deepEqual([count("GET"), count("DELETE")], [0, 0]);
  unsubscribe();
  await later();
  unsubscribe = view.subscribe(() => {});
  await shown(view, ({ status }) => status === "done");
  assert.equal(view.getSnapshot().text, words.join(""));
  assert.deepEqual([count("POST"), count("GET"), count("DELETE")], [1, 1, 0]);
  unsubscribe();
});

test("without a name an answer ends with its last listener", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { pauseAt: 6 });
  const view = new AnswerView(options());
  const unsubscribe = view.subscribe(() => {});
  view.ask(question);
  await shown(view, ({ text }) => text !== "");
  unsubscribe();
  while (count("DELETE") === 0) await later();
});

test("stop keeps the text, a failure keeps its error, another question takes the place of the first", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words, { pauseAt: 6 });
  const view = new AnswerView(options());
  const unsubscribe = view.subscribe(() => {});
  view.ask(question);
  await shown(view, ({ text }) => text === words.slice(0, 6).join(""));
  view.ask(question);
  await shown(view, ({ status, text }) => status === "streaming" && text === words.slice(0, 6).join("") && count("POST") === 2);
  view.stop();
  await shown(view, ({ status }) => status === "stopped");
  assert.deepEqual([view.getSnapshot().text, view.getSnapshot().error], [words.slice(0, 6).join(""), null]);
  routes[route("POST", "v1/chat/completions")] = (response) => void response.writeHead(401).end("{}");
  view.ask(question);
  await shown(view, ({ status }) => status === "failed");
  assert.equal(view.getSnapshot().error.status, 401);
  unsubscribe();
});

test("Svelte's store calls at once, and after every change", async () => {
  nextServer();
  routes[route("POST", "v1/chat/completions")] = sseAnswer(words);
  const store = answerStore(options());
  const seen = [];
  const unsubscribe = store.subscribe((snapshot) => seen.push(snapshot));
  assert.deepEqual(seen.map(({ status }) => status), ["idle"]);
  store.ask(question);
  while (seen.at(-1).status !== "done") await later();
  assert.equal(seen.at(-1).text, words.join(""));
  unsubscribe();
});
