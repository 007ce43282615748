// Keys that an input method takes for itself.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const { isComposing } = await load("chat/composing.ts");

test("the Enter that ends a composition is no Enter, in Safari neither", () => {
  assert.equal(isComposing({ key: "Enter", isComposing: true, keyCode: 13 }), true);
  assert.equal(isComposing({ key: "Enter", isComposing: false, keyCode: 229 }), true);
  assert.equal(isComposing({ key: "Enter", isComposing: false, keyCode: 13 }), false);
});
