// Blocks of Markdown as elements. Text is only ever text: nothing here writes HTML.

import type { Block, BlockSink } from "./blocks.js";
import { CodeBlock } from "./code.js";
import { element } from "./elements.js";
import { Leaf, type Shared } from "./leaf.js";
import { showMath } from "./math.js";
import { References } from "./references.js";

/** Elements of one message; what would be more is shown as plain text. */
const MOST_ELEMENTS = 20_000;

/** Blocks that share a box: what is out of sight costs nothing (style sheet), box by box. */
const BLOCKS_OF_PART = 8;

/** What a block of code has besides its lines. */
const ELEMENTS_OF_CODE = 6;

/** What text of the innermost block goes to. */
type Writer =
  | { readonly is: "leaf"; readonly leaf: Leaf }
  | { readonly is: "code"; readonly code: CodeBlock }
  | { readonly is: "math"; readonly element: HTMLElement; source: string };

interface Frame {
  readonly block: Block;
  readonly element: Element;
  readonly writer: Writer | null;
}

/** Builds the blocks inside `root`. */
export class DomSink implements BlockSink, Shared {
  readonly references = new References();
  #frames: Frame[] = [];
  #elements = 0;
  #heading = 2;
  #part: HTMLElement | null = null;
  /** Where text last went: a pause is marked there. */
  #last: Writer | null = null;

  constructor(readonly root: HTMLElement) {}

  /** Too much to go on with elements. */
  get isFull(): boolean {
    return this.#elements >= MOST_ELEMENTS;
  }

  spend(count = 1): boolean {
    this.#elements += count;
    return !this.isFull;
  }

  open(block: Block): void {
    this.spend();
    const parent = this.#parentOf(block);
    const made = this.#make(block);
    parent.append(made.outer);
    const frame = { block, element: made.inner, writer: made.writer };
    this.#frames.push(frame);
    this.#last = frame.writer ?? this.#last;
  }

  close(math = true): void {
    const frame = this.#frames.pop();
    const writer = frame?.writer;
    if (writer?.is === "leaf") writer.leaf.flush(true);
    if (writer?.is === "code") writer.code.end();
    if (writer?.is === "math") {
      if (math) showMath(writer.element, writer.source, true);
      else writer.element.className = "plain";
    }
  }

  text(piece: string): void {
    const writer = this.#frames.at(-1)?.writer;
    if (writer?.is === "leaf") writer.leaf.append(piece);
    if (writer?.is === "code") writer.code.append(piece);
    if (writer?.is === "math") {
      writer.source += piece;
      writer.element.append(piece);
    }
  }

  rule(): void {
    this.spend();
    this.#inner.append(element("hr"));
  }

  define(label: string, href: string): void {
    this.references.define(label, href);
  }

  becomeHeading(level: number): void {
    const frame = this.#frames.pop();
    if (frame === undefined) return;
    if (frame.writer?.is === "leaf") frame.writer.leaf.flush(true);
    const heading = this.#headingElement(level);
    heading.append(...frame.element.childNodes);
    frame.element.replaceWith(heading);
    this.#frames.push({ block: { is: "heading", level }, element: heading, writer: this.#leafIn(heading) });
  }

  drop(): void {
    this.#frames.pop()?.element.remove();
  }

  loosen(): void {
    this.#inner.classList.add("loose");
  }

  /** Shows what has come. */
  flush(): void {
    const writer = this.#frames.at(-1)?.writer;
    if (writer?.is === "leaf") writer.leaf.flush(false);
    if (writer?.is === "code") writer.code.flush();
  }

  /** Inserts `mark` where the text stands. */
  mark(mark: Element): void {
    this.flush();
    const writer = this.#last;
    if (writer?.is === "leaf") writer.leaf.mark(mark);
    else if (writer?.is === "code") writer.code.mark(mark);
    else (writer?.element ?? this.#lastPart()).append(mark);
  }

  get #inner(): Element {
    return this.#frames.at(-1)?.element ?? this.#lastPart();
  }

  /** The box for the next block outside of all others. */
  #lastPart(): HTMLElement {
    if (this.#part === null || this.#part.childElementCount >= BLOCKS_OF_PART) {
      this.#part = element("div", "part");
      this.root.append(this.#part);
    }
    return this.#part;
  }

  #parentOf(block: Block): Element {
    const inner = this.#inner;
    if (block.is !== "row") return inner;
    const isHead = inner.childElementCount === 0;
    const body = inner.lastElementChild;
    if (!isHead && body?.localName === "tbody") return body;
    const part = element(isHead ? "thead" : "tbody");
    inner.append(part);
    return part;
  }

  #make(block: Block): { outer: Element; inner: Element; writer: Writer | null } {
    switch (block.is) {
      case "paragraph":
        // That of a list has the direction of its first words; what had its own would be left out of those.
        return this.#text(this.#frames.at(-1)?.block.is === "item" ? element("p") : readable("p"));
      case "note":
        return this.#note(block.label);
      case "heading":
        return this.#text(this.#headingElement(block.level));
      case "cell":
        return this.#text(cellElement(block));
      case "quote":
        return around(element("blockquote"));
      case "list":
        return around(listElement(block.start));
      case "item":
        return around(itemElement(block.checked));
      case "row":
        return around(element("tr"));
      case "table":
        return tableElements();
      case "code": {
        this.spend(ELEMENTS_OF_CODE);
        const code = new CodeBlock(block.language, this);
        return { outer: code.element, inner: code.element, writer: { is: "code", code } };
      }
      case "math": {
        const math = element("div", "math display");
        return { outer: math, inner: math, writer: { is: "math", element: math, source: "" } };
      }
    }
  }

  #text(made: HTMLElement): { outer: Element; inner: Element; writer: Writer } {
    return { outer: made, inner: made, writer: this.#leafIn(made) };
  }

  /** A footnote, where it is written: its text behind its number. */
  #note(label: string): { outer: Element; inner: Element; writer: Writer } {
    const note = readable("p");
    note.className = "note";
    this.references.defineNote(label, note);
    const text = element("span");
    note.append(text);
    return { outer: note, inner: text, writer: this.#leafIn(text) };
  }

  #leafIn(made: HTMLElement): Writer {
    return { is: "leaf", leaf: new Leaf(made, this) };
  }

  /** Headings of an answer stand below the page's own, and skip no level whatever the model wrote. */
  #headingElement(level: number): HTMLElement {
    this.#heading = Math.min(level + 2, this.#heading + 1, 6);
    const heading = readable(`h${this.#heading}`);
    heading.className = `level-${level}`;
    return heading;
  }
}

function around(made: Element): { outer: Element; inner: Element; writer: null } {
  return { outer: made, inner: made, writer: null };
}

/** An element for text of any language: each block finds its own direction. */
function readable(name: string): HTMLElement {
  const made = element(name);
  made.dir = "auto";
  return made;
}

function listElement(start: number | null): HTMLElement {
  const list = readable(start === null ? "ul" : "ol");
  if (start !== null && start !== 1) list.setAttribute("start", String(start));
  return list;
}

function itemElement(checked: boolean | null): HTMLElement {
  const item = element("li", checked === null ? "" : "task");
  if (checked === null) return item;
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = checked;
  box.disabled = true;
  box.setAttribute("aria-label", checked ? "Done" : "To do");
  item.append(box);
  return item;
}

function cellElement({ head, align }: Extract<Block, { is: "cell" }>): HTMLElement {
  const cell = readable(head ? "th" : "td");
  if (head) cell.setAttribute("scope", "col");
  if (align !== null) cell.className = `align-${align}`;
  return cell;
}

/** A table that is wider than the page scrolls by itself. */
function tableElements(): { outer: Element; inner: Element; writer: null } {
  const outer = element("div", "table");
  const table = element("table");
  outer.tabIndex = 0;
  outer.setAttribute("role", "group");
  outer.setAttribute("aria-label", "Table");
  outer.append(table);
  return { outer, inner: table, writer: null };
}
