// Reads Markdown as the page does, and writes down what would be shown, for tests.

import { load } from "./module.mjs";

const { BlockReader } = await load("message/markdown/blocks.ts");
const { readInline } = await load("message/markdown/inline.ts");

/** Writes blocks as brackets and running text as HTML-like tags. */
export class Outline {
  #stack = [{ name: "", parts: [] }];

  open(block) {
    this.#stack.push({ name: nameOf(block), isVerbatim: block.is === "code" || block.is === "math", parts: [], text: "" });
  }

  close(isMath = true) {
    const { name, parts, text, isVerbatim } = this.#stack.pop();
    const inner = isVerbatim ? text : parts.join("") + inline(text);
    this.#stack.at(-1).parts.push(`${isMath ? name : "plain"}(${inner})`);
  }

  text(piece) {
    this.#stack.at(-1).text += piece;
  }

  rule() {
    this.#stack.at(-1).parts.push("rule()");
  }

  define(label, href) {
    this.#stack.at(-1).parts.push(`define(${label} ${href})`);
  }

  becomeHeading(level) {
    this.#stack.at(-1).name = `h${level}`;
  }

  drop() {
    this.#stack.pop();
  }

  loosen() {
    this.#stack.at(-1).name += "~";
  }

  get whole() {
    if (this.#stack.length !== 1) throw new Error(`${this.#stack.length - 1} blocks are open`);
    return this.#stack[0].parts.join(" ");
  }
}

function nameOf(block) {
  switch (block.is) {
    case "paragraph":
      return "p";
    case "heading":
      return `h${block.level}`;
    case "list":
      return block.start === null ? "ul" : `ol${block.start}`;
    case "item":
      return block.checked === null ? "li" : block.checked ? "done" : "todo";
    case "note":
      return `note:${block.label}`;
    case "code":
      return `code:${block.language}`;
    case "cell":
      return `${block.head ? "th" : "td"}${block.align ? `:${block.align}` : ""}`;
    default:
      return block.is;
  }
}

/** Running text, read in one go. */
export function inline(text) {
  const { settled, length, open } = readInline(text, "", true);
  if (length !== text.length || open.length > 0) throw new Error("the end left something open");
  return shown(settled);
}

/** Nodes of running text as tags. */
export function shown(nodes) {
  return nodes.map(tag).join("");
}

function tag(node) {
  switch (node.is) {
    case "text":
      return node.text;
    case "code":
      return `<code>${node.text}</code>`;
    case "math":
      return `<${node.display ? "display" : "math"}>${node.text}</>`;
    case "break":
      return "<br>";
    case "link":
      return `<a ${node.href}>${shown(node.children)}</a>`;
    case "reference":
      return `<ref ${node.label}>[${shown(node.children)}]${node.tail}</>`;
    case "note":
      return `<note ${node.label}>`;
    case "image":
      return `<img ${node.href} ${node.alt}>`;
    default:
      return `<${{ emphasis: "em", strong: "b", strike: "s" }[node.is]}>${shown(node.children)}</>`;
  }
}

/** `pieces` of Markdown, as they come. */
export function outline(...pieces) {
  const sink = new Outline();
  const reader = new BlockReader(sink);
  for (const piece of pieces) reader.write(piece);
  reader.end();
  return sink.whole;
}

/** What a leaf shows that is fed piece by piece: text settles as it does on the page. */
export function inlineInPieces(pieces) {
  let [open, before] = ["", ""];
  const settled = [];
  for (const [index, piece] of [...pieces, ""].entries()) {
    open += piece;
    const reading = readInline(open, before, index === pieces.length);
    settled.push(...reading.settled);
    if (reading.length > 0) before = open[reading.length - 1];
    open = open.slice(reading.length);
  }
  return shown(settled);
}
