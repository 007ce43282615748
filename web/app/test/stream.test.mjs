// Markdown that leaves the page before its end, with as much of a page as it needs.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const nothing = () => {};

globalThis.Text = class {
  appendData = nothing;
};
class FakeElement {
  #nodes = [];
  setAttribute = nothing;
  addEventListener = nothing;

  append(...nodes) {
    this.#nodes.push(...nodes.map((node) => (typeof node === "string" ? new Text() : node)));
  }

  get lastChild() {
    return this.#nodes.at(-1);
  }

  get childElementCount() {
    return this.#nodes.length;
  }
}

/** What the worker that colours code was told. */
const orders = [];

globalThis.Worker = class {
  postMessage(order) {
    orders.push(order.is);
    // It answers before anybody takes it for one that hangs.
    if (order.is !== "open") this.onmessage({ data: { block: order.block, lines: [], isOver: order.is === "end" } });
  }
};
globalThis.CSSStyleSheet = class {
  replaceSync = nothing;
};
const document = { createElement: () => new FakeElement(), adoptedStyleSheets: [] };
Object.assign(globalThis, { document, requestAnimationFrame: () => 1, cancelAnimationFrame: nothing });

const { TextStream, loadMarkdown } = await load("message/markdown/stream.ts");

test("code that leaves the page half-way is coloured no further, and kept no longer", async () => {
  await loadMarkdown();
  const stream = new TextStream(new FakeElement(), true, nothing);
  stream.write("```js\nlet half");
  stream.showNow();
  assert.deepEqual(orders, ["open", "text"]);
  stream.stop();
  stream.stop();
  assert.equal(orders.indexOf("end"), orders.length - 1, `${orders}`);
});
