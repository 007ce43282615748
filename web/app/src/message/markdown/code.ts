// A block of code: its language, a button that copies it, and its lines, each a box of its own, so
// that another line never lays out those before. Colours come later, from a worker (highlight.ts).

import { copyText } from "../../shell/clipboard.js";
import { element, withText } from "./elements.js";
import { type Colouring, type LineColours, colour } from "./highlight.js";
import { languageOf } from "./languages.js";
import type { Budget } from "./leaf.js";

/** A line goes on in another box after so many units; such code is no work of hands, and stays plain. */
const LONGEST_LINE = 4_000;

/** Longer code stays plain. */
const LONGEST_COLOURED = 150_000;

/** How long the button says that it has copied, ms. */
const THANKS_MS = 1_600;

/** Names of the classes that markdown.css gives colours, by their number in {@link LineColours}. */
const CLASSES = ["", "keyword", "string", "number", "comment", "title", "type", "meta", "added", "removed"];

/** One block of code. */
export class CodeBlock {
  readonly element = element("figure", "code");
  readonly #code = element("code");
  readonly #pieces: string[] = [];
  #lines: { readonly box: HTMLElement; text: string }[] = [];
  #length = 0;
  /** Line ends that have come and are not shown before something follows. */
  #newlines = 0;
  #pending = "";
  /** Marks, and behind how many units of which line they stand. */
  readonly #marks: { readonly mark: Element; readonly box: HTMLElement; readonly at: number }[] = [];
  #colouring: Colouring | null = null;

  constructor(
    language: string,
    readonly budget: Budget,
  ) {
    const known = languageOf(language);
    const pre = element("pre");
    pre.tabIndex = 0;
    pre.setAttribute("role", "group");
    pre.setAttribute("aria-label", known ? `Code, ${known.name}` : "Code");
    pre.dir = "ltr";
    pre.append(this.#code);
    this.element.append(this.#caption(known?.name ?? language), pre);
    if (known?.id) this.#colouring = colour(known.id, (index, colours) => this.#paint(index, colours));
  }

  append(text: string): void {
    this.#pieces.push(text);
    this.#length += text.length;
    this.#pending += text;
  }

  /** Shows what has come. */
  flush(): void {
    if (this.#pending === "") return;
    const text = this.#pending;
    this.#pending = "";
    for (const [index, part] of text.split("\n").entries()) {
      if (index > 0) this.#newlines += 1;
      if (part !== "") this.#addToLine(part);
    }
    if (this.#length > LONGEST_COLOURED) this.#stayPlain();
    this.#colouring?.append(text);
  }

  /** No more comes. */
  end(): void {
    this.flush();
    this.#colouring?.end();
  }

  /** Inserts `mark` at the end of the last line. */
  mark(mark: Element): void {
    const last = this.#lines.at(-1);
    if (last) this.#marks.push({ mark, box: last.box, at: last.text.length });
    (last?.box ?? this.#code).append(mark);
  }

  /** All of it, without the line end before the fence. */
  get source(): string {
    return this.#pieces.join("").replace(/\n$/, "");
  }

  #caption(name: string): HTMLElement {
    const caption = element("figcaption");
    const button = withText(element("button", "copy"), "Copy") as HTMLButtonElement;
    button.type = "button";
    button.addEventListener("click", () => void this.#copy(button));
    caption.append(withText(element("span", "language"), name || "text"), button);
    return caption;
  }

  async #copy(button: HTMLButtonElement): Promise<void> {
    button.textContent = (await copyText(this.source)) ? "Copied" : "Could not copy";
    setTimeout(() => (button.textContent = "Copy"), THANKS_MS);
  }

  #addToLine(text: string): void {
    for (; this.#newlines > 0; this.#newlines -= 1) this.#newLine("line");
    let last = this.#lines.at(-1) ?? this.#newLine("line");
    for (let rest = text; rest !== ""; ) {
      const room = LONGEST_LINE - last.text.length;
      if (room <= 0) {
        this.#stayPlain();
        last = this.#newLine("line more");
        continue;
      }
      const part = rest.slice(0, room);
      rest = rest.slice(room);
      last.text += part;
      const tail = last.box.lastChild;
      if (tail instanceof Text) tail.appendData(part);
      else last.box.append(part);
    }
  }

  #newLine(className: string): { readonly box: HTMLElement; text: string } {
    const last = this.#lines.at(-1);
    // Beyond what a message may put onto the page, lines share a box.
    if (last && !this.budget.spend() && last.text.length < LONGEST_LINE) {
      last.text += "\n";
      last.box.append("\n");
      return last;
    }
    const line = { box: element("span", className), text: "" };
    this.#lines.push(line);
    this.#code.append(line.box);
    return line;
  }

  #stayPlain(): void {
    this.#colouring?.end();
    this.#colouring = null;
  }

  /** Gives a line its colours; text that came since stays plain until the next. */
  #paint(index: number, colours: LineColours): void {
    const line = this.#lines[index];
    if (line === undefined || this.#colouring === null) return;
    const parts: (Node | string)[] = [];
    let at = 0;
    for (let next = 0; next + 2 < colours.length; next += 3) {
      const [from = 0, to = 0, kind = 0] = colours.slice(next, next + 3);
      if (from > at) parts.push(line.text.slice(at, from));
      parts.push(withText(element("span", CLASSES[kind] ?? ""), line.text.slice(from, to)));
      at = to;
    }
    line.box.replaceChildren(...parts, line.text.slice(at));
    for (const { mark, box, at } of this.#marks) if (box === line.box) insertAt(box, at, mark);
  }
}

/** Puts `mark` behind the first `at` units of the text of `box`, or behind the word that stands there. */
function insertAt(box: HTMLElement, at: number, mark: Element): void {
  let left = at;
  for (const node of [...box.childNodes]) {
    const length = node.textContent?.length ?? 0;
    if (left <= length) {
      const isInside = node instanceof Text && left < length;
      box.insertBefore(mark, isInside ? node.splitText(left) : node.nextSibling);
      return;
    }
    left -= length;
  }
  box.append(mark);
}
