// What is kept of an answer while a page is used, left, and come back to.
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { ProgressStore, recall } from "../dist/progress_store.js";

const question = { is: "asked", url: "http://127.0.0.1/", body: {}, key: "0".repeat(32), asked_ms: Date.now() };

/** The page's events, which Node lacks. */
let page;
let storage;

beforeEach(() => {
  page = new EventTarget();
  globalThis.addEventListener = page.addEventListener.bind(page);
  globalThis.removeEventListener = page.removeEventListener.bind(page);
  const kept = new Map();
  storage = {
    getItem: (name) => kept.get(name) ?? null,
    setItem: (name, text) => kept.set(name, text),
    removeItem: (name) => kept.delete(name),
  };
});

afterEach(() => {
  delete globalThis.addEventListener;
  delete globalThis.removeEventListener;
});

function stored() {
  return recall("chat", storage)?.key ?? null;
}

test("an answer that is over is forgotten", () => {
  const store = new ProgressStore("chat", storage, () => question);
  store.save();
  assert.equal(stored(), question.key);
  store.clear();
  assert.equal(stored(), null);
});

test("a reload that cuts the connection forgets no question", () => {
  const store = new ProgressStore("chat", storage, () => question);
  page.dispatchEvent(new Event("pagehide"));
  store.clear();
  assert.equal(stored(), question.key);
});

test("a page that is come back to forgets as before", () => {
  const store = new ProgressStore("chat", storage, () => question);
  page.dispatchEvent(new Event("pagehide"));
  page.dispatchEvent(new Event("pageshow"));
  store.clear();
  assert.equal(stored(), null);
});

test("an answer that somebody else goes on with is left to them", () => {
  const store = new ProgressStore("chat", storage, () => question);
  store.release();
  page.dispatchEvent(new Event("pagehide"));
  const other = new ProgressStore("chat", storage, () => ({ ...question, key: "1".repeat(32) }));
  other.save();
  store.clear();
  assert.equal(stored(), "1".repeat(32));
});
