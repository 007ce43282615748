// What the page makes of the server's word on where a model is.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const { readCard } = await load("chat/server.ts");
const { presenceText, wishFor } = await load("chat/presence.ts");

const card = (status) => readCard({ id: "m", status });

test("each state of a model has its words, and what can be asked for", () => {
  const said = (status) => [presenceText(card(status)), wishFor(card(status))];
  assert.deepEqual(said({ value: "loaded" }), ["loaded", "unload"]);
  assert.deepEqual(said({ value: "loaded", permanent: true }), ["always loaded", null]);
  assert.deepEqual(said({ value: "loading", progress: 0.439 }), ["loading, 43 %", null]);
  assert.deepEqual(said({ value: "loading" }), ["loading", null]);
  assert.deepEqual(said({ value: "unloading" }), ["being unloaded, once its answers have ended", null]);
  assert.deepEqual(said({ value: "unloaded" }), ["not loaded; a question to it loads it", "load"]);
  assert.deepEqual(said({ value: "unloaded", failed: true }), ["could not be loaded: the server’s log says why", "load"]);
});

test("other servers' words, and none, are no state", () => {
  for (const status of [undefined, null, 7, "loaded", { value: "sleeping" }, { value: { is: "loaded" } }]) {
    assert.equal(card(status).presence, null);
    assert.equal(presenceText(card(status)), "");
    assert.equal(wishFor(card(status)), null);
  }
  assert.equal(card({ value: "loading", progress: "half" }).loadedShare, null);
  assert.equal(card({ value: "loading", progress: 7 }).loadedShare, 1);
});
