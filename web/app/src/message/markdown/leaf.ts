// Running text on the page while it grows: what is settled stays, and only the few nodes behind
// the last open mark are made anew.

import { type Inline, plainText, readInline } from "./inline.js";
import { element, withText } from "./elements.js";
import { linkTo } from "./links.js";
import type { References } from "./references.js";
import { showMath } from "./math.js";
import { isBetweenWords } from "../word_end.js";

/** Marks that have not found their other half within so many units have none. */
const LONGEST_OPEN = 2_000;

/** Units after which text goes on in a box of its own, so that appending never lays out more than that. */
const LONGEST_BOX = 6_000;

/** Counts what a message puts onto the page. */
export interface Budget {
  /** `count` more elements, by default one; `false` once there are too many. */
  spend(count?: number): boolean;
}

/** What the texts of a message share. */
export interface Shared extends Budget {
  readonly references: References;
}

/** The text of one paragraph, heading or cell. */
export class Leaf {
  #box: Element;
  #boxed = 0;
  #open = "";
  #openNodes: Node[] = [];
  #before = "";
  /** Marks that wait for the text in front of them to settle. */
  #marks: Element[] = [];

  constructor(
    readonly element: Element,
    readonly shared: Shared,
  ) {
    this.#box = element;
  }

  append(piece: string): void {
    this.#open += piece;
  }

  /** Puts what has come onto the page; `final`: no more comes. */
  flush(final: boolean): void {
    if (this.#open === "" && this.#openNodes.length === 0) return;
    const isTooLong = this.#open.length > LONGEST_OPEN;
    const { settled, length, open } = readInline(this.#open, this.#before, final || isTooLong);
    for (const node of [...this.#openNodes, ...this.#marks]) node.parentNode?.removeChild(node);
    this.#settle(settled, length);
    this.#openNodes = open.map((inline) => this.#build(inline, false));
    this.#box.append(...this.#openNodes);
    this.#placeMarks();
  }

  /** Inserts `mark` where the settled text ends; if that is inside a word, where it ends next. */
  mark(mark: Element): void {
    this.#marks.push(mark);
    this.#placeMarks();
  }

  #placeMarks(): void {
    if (this.#marks.length === 0) return;
    const right = String.fromCodePoint(this.#open.codePointAt(0) ?? 32);
    const isHere = this.#open === "" || isBetweenWords(this.#before, right);
    const [first] = this.#openNodes;
    // Until then behind everything, where the next text takes its place.
    if (isHere && first?.parentNode) first.parentNode.insertBefore(fragmentOf(this.#marks), first);
    else this.#box.append(...this.#marks);
    if (isHere) this.#marks = [];
  }

  #settle(nodes: readonly Inline[], length: number): void {
    if (length === 0) return;
    this.#before = this.#open[length - 1] ?? "";
    this.#open = this.#open.slice(length);
    for (const inline of nodes) {
      const last = this.#box.lastChild;
      if (inline.is === "text" && last instanceof Text) last.appendData(inline.text);
      else this.#box.append(this.#build(inline, true));
    }
    this.#boxed += length;
    if (this.#boxed > LONGEST_BOX) this.#nextBox();
  }

  #nextBox(): void {
    this.#box = element("span", "box");
    this.#boxed = 0;
    this.element.append(this.#box);
  }

  /** Formulas that are not `settled` are made anew too often to be set. */
  #build(inline: Inline, settled: boolean): Node {
    if (inline.is === "text" || !this.shared.spend()) return document.createTextNode(plainText([inline]));
    switch (inline.is) {
      case "code":
        return withText(element("code"), inline.text);
      case "math":
        return this.#math(inline, settled);
      case "break":
        return element("br");
      case "emphasis":
        return this.#fill(element("em"), inline.children, settled);
      case "strong":
        return this.#fill(element("strong"), inline.children, settled);
      case "strike":
        return this.#fill(element("s"), inline.children, settled);
      case "link":
        return this.#fill(linkTo(inline.href) ?? element("span", "no-link"), inline.children, settled);
      case "reference": {
        const text = this.#fill(element("span"), inline.children, settled);
        return this.shared.references.reference(inline.label, text, inline.tail, settled);
      }
      case "note":
        return this.shared.references.mark(inline.label, settled);
      case "image":
        // Nothing is loaded from elsewhere: who looks would tell that he reads.
        return withText(linkTo(inline.href) ?? element("span", "no-link"), `Image: ${inline.alt || "without a description"}`);
    }
  }

  #fill<E extends Element>(parent: E, children: readonly Inline[], settled: boolean): E {
    for (const child of children) parent.append(this.#build(child, settled));
    return parent;
  }

  #math({ text, display }: Extract<Inline, { is: "math" }>, settled: boolean): Element {
    const target = withText(element("span", display ? "math display" : "math"), text);
    if (settled) showMath(target, text, display);
    return target;
  }
}

function fragmentOf(nodes: readonly Node[]): DocumentFragment {
  const fragment = document.createDocumentFragment();
  fragment.append(...nodes);
  return fragment;
}
