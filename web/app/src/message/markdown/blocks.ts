// The blocks of a Markdown text while it comes, piece by piece.
//
// A line is held back only until its beginning says what it is; from there on its text passes
// through as it comes. No line is read twice. The rules are CommonMark's with GitHub's tables and
// task lists, and formulas; as answers of models are what is read, the differences are: indented
// text is no code, HTML is text, and sub-lists need only two spaces.

import { labelOf } from "./inline.js";

/** A block that opens. */
export type Block =
  | { readonly is: "paragraph" | "quote" | "math" | "row" }
  | { readonly is: "heading"; readonly level: number }
  /** The text of the footnote `label`. */
  | { readonly is: "note"; readonly label: string }
  | { readonly is: "list"; readonly start: number | null }
  | { readonly is: "item"; readonly checked: boolean | null }
  | { readonly is: "code"; readonly language: string }
  | { readonly is: "table" }
  | { readonly is: "cell"; readonly head: boolean; readonly align: Align };

export type Align = "left" | "center" | "right" | null;

/** What is told of the blocks: they open and close like brackets. */
export interface BlockSink {
  open(block: Block): void;
  /** The innermost block is over. `math` is false for a formula that turned out to be none. */
  close(math?: boolean): void;
  /** Text of the innermost block. In code and formulas as it is, elsewhere with inline Markdown. */
  text(piece: string): void;
  rule(): void;
  /** References to `label` lead to `href`, wherever they stand. */
  define(label: string, href: string): void;
  /** The paragraph that is open is a heading. */
  becomeHeading(level: number): void;
  /** The paragraph that is open never was: its text comes again. */
  drop(): void;
  /** An empty line stands between the items of the innermost list. */
  loosen(): void;
}

type Container =
  | { readonly is: "quote" }
  | { readonly is: "list"; readonly marker: string }
  /** `least`: columns that make a line part of the item; `content`: where its text begins. */
  | { readonly is: "item"; readonly least: number; readonly content: number };

type Leaf =
  /** `first`: its only line so far, which may be the head of a table. */
  | { readonly is: "paragraph"; first: string | null; readonly isNote?: true }
  /** A line that looks like a head of a table, and is not shown before the next one tells. */
  | { readonly is: "held"; readonly line: string }
  | { readonly is: "heading" }
  | { readonly is: "code"; readonly fence: string; readonly indent: number }
  | { readonly is: "math"; readonly end: string; tail: string; lines: number }
  | { readonly is: "table"; readonly aligns: readonly Align[]; column: number; inCell: boolean; escape: string };

/** What the beginning of a line leads to. */
type Begun = { readonly used: number } | "wait";

/** A line's beginning is understood after so many units, complete or not. */
const LONGEST_BEGINNING = 1_000;

/** Quotes and lists nested deeper are text. */
const DEEPEST = 16;

/** Columns of a table, which browsers lay out in much more than linear time. */
const MOST_COLUMNS = 50;

/** Lines of a formula: one that never ends must not swallow the answer. */
const MOST_MATH_LINES = 60;

const FENCE = /^(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const RULE = /^(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const MAYBE_RULE = /^(?:(?:\*[ \t]*)+|(?:-[ \t]*)+|(?:_[ \t]*)+)$/;
const ITEM = /^(?:([-*+])|(\d{1,9})([.)]))(?=[ \t]|$)/;
const MAYBE_ITEM = /^(?:[-*+]|\d{1,9}[.)]?)$/;
const TASK = /^\[([ xX])\][ \t]/;
const MAYBE_TASK = /^\[(?:[ xX](?:\][ \t]?)?)?$/;
const HEADING = /^(#{1,6})(?:[ \t]+|$)/;
const DELIMITERS = /^\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const MAYBE_DELIMITERS = /^[ \t|:-]+$/;

/** A line that says where references lead, and the beginning of one that holds a footnote. */
const DEFINITION = /^\[([^[\]\n]{1,200})\]:[ \t]*(?:<([^<>\s]*)>|(\S+))(?:[ \t]+(?:"[^"]*"|'[^']*'|\([^()]*\)))?[ \t]*$/;
const NOTE = /^\[(\^[^[\]\s]{1,200})\]:[ \t]*/;
const MAYBE_DEFINITION = /^\[[^[\]\n]{0,200}(?:\](?::.*)?)?$/;
const MAYBE_NOTE = /^\[(?:\^(?:[^[\]\s]{0,200}(?:\](?::[ \t]*)?)?)?)?$/;

/** Reads a text and tells a sink of its blocks. */
export class BlockReader {
  readonly #sink: BlockSink;
  #containers: Container[] = [];
  #leaf: Leaf | null = null;
  /** What of the line has come and is not understood. */
  #rest = "";
  /** The line's beginning is understood: what comes is text. */
  #isInLine = false;
  /** The line before was empty. */
  #wasBlank = false;
  /** The line opens a block, and its end is not part of that block's text. */
  #isOpening = false;

  constructor(sink: BlockSink) {
    this.#sink = sink;
  }

  /** Takes in the next piece. */
  write(piece: string): void {
    this.#rest += piece.replaceAll("\r", "").replaceAll("\0", "\ufffd");
    this.#read(false);
  }

  /** Nothing more comes. */
  end(): void {
    this.#read(true);
    if (this.#isInLine) this.#endLine();
    this.#closeTo(0);
  }

  #read(isLast: boolean): void {
    while (this.#rest !== "") {
      if (this.#isInLine) {
        this.#passText();
        continue;
      }
      const newline = this.#rest.indexOf("\n");
      const line = newline < 0 ? this.#rest : this.#rest.slice(0, newline);
      const isWhole = newline >= 0 || isLast || line.length > LONGEST_BEGINNING;
      const begun = this.#begin(line, isWhole);
      if (begun === "wait") return;
      this.#rest = this.#rest.slice(begun.used);
      this.#isInLine = true;
      if (isLast && this.#rest === "") return;
    }
  }

  /** Text up to the end of the line, or to the end of what has come. */
  #passText(): void {
    const newline = this.#rest.indexOf("\n");
    const text = newline < 0 ? this.#rest : this.#rest.slice(0, newline);
    this.#rest = newline < 0 ? "" : this.#rest.slice(newline + 1);
    if (text !== "") this.#text(text);
    if (newline >= 0) this.#endLine();
  }

  #endLine(): void {
    this.#isInLine = false;
    const [leaf, isOpening] = [this.#leaf, this.#isOpening];
    this.#isOpening = false;
    if (leaf?.is === "heading") this.#closeLeaf();
    if (isOpening) return;
    if (leaf?.is === "code") this.#sink.text("\n");
    if (leaf?.is === "table") this.#endRow(leaf);
    if (leaf?.is === "math") this.#mathText(leaf, "\n");
  }

  #text(text: string): void {
    const leaf = this.#leaf;
    if (leaf === null) {
      if (text.trim() !== "") this.#openParagraph(text.trimStart());
    } else if (leaf.is === "table") {
      this.#rowText(leaf, text);
    } else if (leaf.is === "math") {
      this.#mathText(leaf, text);
    } else if (leaf.is === "held") {
      this.#openParagraph(leaf.line + text);
    } else {
      if (leaf.is === "paragraph" && leaf.first !== null) leaf.first = bounded(leaf.first + text);
      this.#sink.text(text);
    }
  }

  /** Understands the beginning of `line`; `isWhole`: nothing more of it comes. */
  #begin(line: string, isWhole: boolean): Begun {
    const matched = this.#match(line, isWhole);
    if (matched === "wait") return "wait";
    const isAllMatched = matched.count === this.#containers.length;
    const leaf = this.#leaf;
    if (isAllMatched && leaf?.is === "code") return this.#codeLine(leaf, line, matched.at, isWhole);
    if (isAllMatched && leaf?.is === "math") return this.#mathLine(leaf, line, matched.at, isWhole);
    const rest = line.slice(matched.at);
    if (rest.trim() === "") return isWhole ? this.#blankLine(line, matched.count) : "wait";
    const begun = new LineStart(this, line, matched.at, matched.count, isWhole).read();
    if (begun !== "wait") this.#wasBlank = false;
    return begun;
  }

  /** How many containers the line goes on with, and where they end in it. */
  #match(line: string, isWhole: boolean): { count: number; at: number } | "wait" {
    let [at, count] = [0, 0];
    for (; count < this.#containers.length; count += 1) {
      const container = this.#containers[count];
      const indent = indentAt(line, at);
      const isBlank = at + indent.length === line.length;
      if (container?.is === "list") continue;
      if (isBlank && !isWhole) return "wait";
      if (container?.is === "quote") {
        if (indent.columns > 3 || line[at + indent.length] !== ">") break;
        at += indent.length + 1;
        if (line[at] === " ") at += 1;
      } else if (container?.is === "item") {
        if (isBlank) continue;
        if (indent.columns < container.least) break;
        at += skipColumns(line, at, container.content);
      }
    }
    // A list goes on only with an item, or inside one.
    if (count > 0 && count < this.#containers.length && this.#containers[count - 1]?.is === "list") count -= 1;
    return { count, at };
  }

  #blankLine(line: string, matched: number): Begun {
    const leaf = this.#leaf;
    if (leaf !== null) this.#closeLeaf();
    const isQuoteLeft = this.#containers.findIndex((container, at) => at >= matched && container.is === "quote");
    if (isQuoteLeft >= 0) this.#closeTo(isQuoteLeft);
    this.#wasBlank = true;
    return { used: line.length };
  }

  #codeLine(leaf: Extract<Leaf, { is: "code" }>, line: string, at: number, isWhole: boolean): Begun {
    const rest = line.slice(at);
    const mark = leaf.fence[0] ?? "`";
    const trimmed = rest.trim();
    const isMarks = trimmed !== "" && trimmed === mark.repeat(trimmed.length) && indentAt(rest, 0).columns <= 3;
    if (isMarks && isWhole && trimmed.length >= leaf.fence.length) {
      this.#closeLeaf();
      return { used: line.length };
    }
    if (!isWhole && (isMarks || trimmed === "")) return "wait";
    return { used: at + skipColumns(line, at, leaf.indent) };
  }

  #mathLine(leaf: Extract<Leaf, { is: "math" }>, line: string, at: number, isWhole: boolean): Begun {
    const isBlank = line.slice(at).trim() === "";
    if (isBlank && !isWhole) return "wait";
    leaf.lines += 1;
    if (!isBlank && leaf.lines <= MOST_MATH_LINES) return { used: at };
    this.#closeLeaf();
    return { used: isBlank ? line.length : at };
  }

  /** Text of a formula, up to the mark that ends it. */
  #mathText(leaf: Extract<Leaf, { is: "math" }>, text: string): void {
    const all = leaf.tail + text;
    const end = all.indexOf(leaf.end);
    if (end < 0) {
      // The mark may come in two pieces.
      const kept = all.endsWith(leaf.end[0] ?? "$") ? 1 : 0;
      this.#sink.text(all.slice(0, all.length - kept));
      leaf.tail = all.slice(all.length - kept);
      return;
    }
    this.#sink.text(all.slice(0, end));
    this.#leaf = null;
    this.#sink.close(true);
    const after = all.slice(end + leaf.end.length);
    if (after !== "") this.#text(after);
  }

  #rowText(leaf: Extract<Leaf, { is: "table" }>, text: string): void {
    const all = leaf.escape + text;
    // A backslash at the end may be that of a pipe.
    leaf.escape = all.endsWith("\\") ? "\\" : "";
    for (const part of all.slice(0, all.length - leaf.escape.length).split(/(\\?\|)/)) {
      if (part === "|" && leaf.column < MOST_COLUMNS) {
        this.#endCell(leaf);
      } else if (part !== "") {
        const unescaped = part === "\\|" ? "|" : part;
        const shown = leaf.inCell ? unescaped : unescaped.trimStart();
        if (shown === "") continue;
        if (!leaf.inCell) this.#openCell(leaf, false);
        this.#sink.text(shown);
      }
    }
  }

  #openCell(leaf: Extract<Leaf, { is: "table" }>, head: boolean): void {
    this.#sink.open({ is: "cell", head, align: leaf.aligns[leaf.column] ?? null });
    leaf.inCell = true;
  }

  #endCell(leaf: Extract<Leaf, { is: "table" }>): void {
    if (!leaf.inCell) this.#openCell(leaf, false);
    this.#sink.close();
    leaf.inCell = false;
    leaf.column += 1;
  }

  #endRow(leaf: Extract<Leaf, { is: "table" }>): void {
    if (leaf.inCell) this.#endCell(leaf);
    this.#sink.close();
    leaf.column = 0;
    leaf.escape = "";
  }

  #openParagraph(text: string): void {
    this.#leaf = { is: "paragraph", first: bounded(text) };
    this.#sink.open({ is: "paragraph" });
    this.#sink.text(text);
  }

  #closeLeaf(): void {
    const leaf = this.#leaf;
    this.#leaf = null;
    if (leaf?.is === "held") {
      this.#openParagraph(leaf.line);
      this.#leaf = null;
    }
    if (leaf?.is === "math" && leaf.tail !== "") this.#sink.text(leaf.tail);
    if (leaf !== null) this.#sink.close(leaf.is !== "math");
  }

  #closeTo(count: number): void {
    if (this.#leaf !== null) this.#closeLeaf();
    while (this.#containers.length > count) {
      this.#containers.pop();
      this.#sink.close();
    }
  }

  // What LineStart does to its reader.

  get containers(): readonly Container[] {
    return this.#containers;
  }

  get leaf(): Leaf | null {
    return this.#leaf;
  }

  closeTo(count: number): void {
    this.#closeTo(count);
  }

  openQuote(matched: number): void {
    this.#closeTo(matched);
    this.#containers.push({ is: "quote" });
    this.#sink.open({ is: "quote" });
  }

  openItem(matched: number, marker: string, start: number | null, item: Extract<Container, { is: "item" }>): void {
    const list = this.#containers[matched];
    const goesOn = list?.is === "list" && list.marker === marker;
    this.#closeTo(goesOn ? matched + 1 : matched);
    if (goesOn && this.#wasBlank) this.#sink.loosen();
    if (!goesOn) {
      this.#containers.push({ is: "list", marker });
      this.#sink.open({ is: "list", start });
    }
    this.#containers.push(item);
  }

  /** The item that was pushed last is shown; only now it is known whether it is a task. */
  showItem(checked: boolean | null): void {
    this.#sink.open({ is: "item", checked });
  }

  openLeaf(matched: number, leaf: Leaf, block: Block): void {
    this.#closeTo(matched);
    this.#leaf = leaf;
    this.#isOpening = leaf.is === "code";
    this.#sink.open(block);
  }

  rule(matched: number): void {
    this.#closeTo(matched);
    this.#sink.rule();
  }

  define(matched: number, label: string, href: string): void {
    this.#closeTo(matched);
    this.#sink.define(label, href);
  }

  becomeHeading(level: number): void {
    this.#sink.becomeHeading(level);
    this.#leaf = { is: "heading" };
  }

  hold(matched: number, line: string): void {
    this.#closeTo(matched);
    this.#leaf = { is: "held", line };
  }

  /** The next line of the paragraph that is open, or of a new one. */
  goOn(matched: number): void {
    const leaf = this.#leaf;
    if (leaf?.is === "held") this.#openParagraph(leaf.line);
    if (this.#leaf?.is === "paragraph") {
      this.#leaf.first = null;
      this.#sink.text("\n");
      return;
    }
    this.openLeaf(matched, { is: "paragraph", first: "" }, { is: "paragraph" });
  }

  /** The line that was shown or held is the head of a table. */
  openTable(head: string, aligns: readonly Align[]): void {
    if (this.#leaf?.is === "paragraph") this.#sink.drop();
    this.#leaf = { is: "table", aligns, column: 0, inCell: false, escape: "" };
    this.#isOpening = true;
    this.#sink.open({ is: "table" });
    this.#sink.open({ is: "row" });
    for (const [column, cell] of cellsOf(head).entries()) {
      this.#sink.open({ is: "cell", head: true, align: aligns[column] ?? null });
      this.#sink.text(cell);
      this.#sink.close();
    }
    this.#sink.close();
  }

  openRow(): void {
    this.#sink.open({ is: "row" });
  }
}

/** Understands what a line begins, block by block. Nothing is told before all is understood. */
class LineStart {
  /** What to do once nothing has to be waited for. */
  readonly #steps: (() => void)[] = [];
  /** Containers that are open once the steps are done. */
  #depth: number;

  constructor(
    readonly reader: BlockReader,
    readonly line: string,
    private at: number,
    readonly matched: number,
    readonly isWhole: boolean,
  ) {
    this.#depth = matched;
  }

  read(): Begun {
    for (;;) {
      const found = this.#next();
      if (found === "wait") return "wait";
      if (found === "more") continue;
      for (const step of this.#steps) step();
      return { used: this.at };
    }
  }

  /** `more`: a container has opened, and something begins in it. */
  #next(): "wait" | "more" | "done" {
    const indent = indentAt(this.line, this.at);
    const start = this.at + indent.length;
    const rest = this.line.slice(start);
    if (rest === "") return this.isWhole ? this.#done(start) : "wait";
    if (indent.columns < 4 || this.#isNew) {
      const found = this.#marked(rest, start, indent.columns);
      if (found !== null) return found;
    }
    return this.#plain(rest, start);
  }

  /** Whether the line has opened a container already: then nothing of before goes on. */
  get #isNew(): boolean {
    return this.#steps.length > 0;
  }

  get #leaf(): Leaf | null {
    return this.#isNew ? null : this.reader.leaf;
  }

  /** Whether all that was open goes on. */
  get #goesOn(): boolean {
    return !this.#isNew && this.matched === this.reader.containers.length;
  }

  /** Whether text here would be part of a paragraph. */
  get #isInParagraph(): boolean {
    const leaf = this.#leaf;
    return leaf?.is === "paragraph" || leaf?.is === "held";
  }

  #marked(rest: string, start: number, columns: number): "wait" | "more" | "done" | null {
    return (
      this.#table(rest, start) ??
      this.#underline(rest, start) ??
      this.#quote(rest, start) ??
      this.#heading(rest, start) ??
      this.#definition(rest, start) ??
      this.#fence(rest, columns) ??
      this.#math(rest, start) ??
      this.#rule(rest, start) ??
      this.#item(rest, start, columns)
    );
  }

  #table(rest: string, start: number): "wait" | "done" | null {
    const leaf = this.#leaf;
    if (leaf?.is === "table" && this.#goesOn) return this.#row(rest, start);
    const head = leaf?.is === "held" ? leaf.line : leaf?.is === "paragraph" ? leaf.first : null;
    if (head === null || !head.includes("|") || !this.#goesOn || !/^[|:-]/.test(rest)) return null;
    if (!this.isWhole && MAYBE_DELIMITERS.test(rest)) return "wait";
    if (!this.isWhole || !DELIMITERS.test(rest)) return null;
    const aligns = cellsOf(rest).map(alignOf);
    if (aligns.length !== cellsOf(head).length || aligns.length > MOST_COLUMNS) return null;
    this.#steps.push(() => this.reader.openTable(head, aligns));
    // The line is used up; no row begins with it.
    return this.#done(this.line.length);
  }

  #row(rest: string, start: number): "wait" | "done" | null {
    if (!rest.startsWith("|")) {
      if (!this.isWhole) return "wait";
      if (!rest.includes("|")) return null;
    }
    this.#steps.push(() => this.reader.openRow());
    return this.#done(rest.startsWith("|") ? start + 1 : start);
  }

  /** A line under a paragraph that makes it a heading. */
  #underline(rest: string, start: number): "wait" | "done" | null {
    if (this.#leaf?.is !== "paragraph" || !this.#goesOn) return null;
    if (!this.isWhole && /^(?:=+|-+)[ \t]*$/.test(rest)) return "wait";
    if (!this.isWhole || !/^(?:=+|-{2,})[ \t]*$/.test(rest)) return null;
    this.#steps.push(() => this.reader.becomeHeading(rest.startsWith("=") ? 1 : 2));
    return this.#done(start + rest.length);
  }

  #quote(rest: string, start: number): "more" | null {
    if (!rest.startsWith(">") || this.#depth >= DEEPEST) return null;
    const matched = this.#depth;
    this.#steps.push(() => this.reader.openQuote(matched));
    this.#depth += 1;
    this.at = start + (rest[1] === " " ? 2 : 1);
    return "more";
  }

  #heading(rest: string, start: number): "wait" | "done" | null {
    if (!rest.startsWith("#")) return null;
    if (!this.isWhole && /^#{1,6}[ \t]*$/.test(rest)) return "wait";
    const found = HEADING.exec(rest);
    if (!found) return null;
    const [matched, level] = [this.#depth, found[1]?.length ?? 1];
    this.#steps.push(() => this.reader.openLeaf(matched, { is: "heading" }, { is: "heading", level }));
    return this.#done(start + found[0].length);
  }

  /** A footnote, or where references lead; neither interrupts a paragraph. */
  #definition(rest: string, start: number): "wait" | "done" | null {
    const leaf = this.#leaf;
    const isNote = leaf?.is === "paragraph" && leaf.isNote === true;
    if (!rest.startsWith("[") || (this.#isInParagraph && !isNote)) return null;
    if (!this.isWhole && MAYBE_NOTE.test(rest)) return "wait";
    const [matched, note] = [this.#depth, NOTE.exec(rest)];
    const label = note && labelOf(note[1] ?? "");
    if (note && label !== null) {
      this.#steps.push(() => this.reader.openLeaf(matched, { is: "paragraph", first: null, isNote: true }, { is: "note", label }));
      return this.#done(start + note[0].length);
    }
    if (!this.isWhole) return MAYBE_DEFINITION.test(rest) ? "wait" : null;
    const found = DEFINITION.exec(rest);
    const name = found && labelOf(found[1] ?? "");
    if (!found || name === null) return null;
    this.#steps.push(() => this.reader.define(matched, name, found[2] ?? found[3] ?? ""));
    return this.#done(this.line.length);
  }

  #fence(rest: string, indent: number): "wait" | "done" | null {
    if (!/^(?:``?$|~~?$|```|~~~)/.test(rest)) return null;
    if (!this.isWhole && /^(?:`+[^`]*|~+.*)$/.test(rest)) return "wait";
    const found = FENCE.exec(rest);
    if (!found || !this.isWhole) return null;
    const [matched, fence = "```", language = ""] = [this.#depth, found[1], found[2]];
    const block: Block = { is: "code", language: language.slice(0, 40) };
    this.#steps.push(() => this.reader.openLeaf(matched, { is: "code", fence, indent }, block));
    return this.#done(this.line.length);
  }

  #math(rest: string, start: number): "wait" | "done" | null {
    if (!this.isWhole && (rest === "$" || rest === "\\")) return "wait";
    const mark = rest.startsWith("$$") ? "$$" : rest.startsWith("\\[") ? "\\[" : null;
    if (mark === null) return null;
    const [matched, end] = [this.#depth, mark === "$$" ? "$$" : "\\]"];
    const leaf: Leaf = { is: "math", end, tail: "", lines: 1 };
    this.#steps.push(() => this.reader.openLeaf(matched, leaf, { is: "math" }));
    return this.#done(start + 2);
  }

  #rule(rest: string, start: number): "wait" | "done" | null {
    if (!this.isWhole) return MAYBE_RULE.test(rest) ? "wait" : null;
    if (!RULE.test(rest)) return null;
    const matched = this.#depth;
    this.#steps.push(() => this.reader.rule(matched));
    return this.#done(start + rest.length);
  }

  #item(rest: string, start: number, columns: number): "wait" | "more" | "done" | null {
    if (!this.isWhole && MAYBE_ITEM.test(rest)) return "wait";
    const found = ITEM.exec(rest);
    if (!found || this.#depth + 2 > DEEPEST) return null;
    const number = found[2] === undefined ? null : Number.parseInt(found[2], 10);
    const after = rest.slice(found[0].length);
    const isEmpty = after.trim() === "";
    if (isEmpty && !this.isWhole) return "wait";
    // A year at the beginning of a line is no list (CommonMark 5.3).
    const isSibling = !this.#isNew && this.reader.containers[this.#depth]?.is === "list";
    if (this.#isInParagraph && !isSibling && (isEmpty || (number !== null && number !== 1))) return null;
    const task = TASK.exec(after.trimStart());
    if (!this.isWhole && MAYBE_TASK.test(after.trimStart())) return "wait";
    this.#pushItem(found, columns, number, task ? task[1] !== " " : null);
    const space = indentAt(after, 0);
    const used = space.columns > 4 ? 1 : space.length;
    this.at = start + found[0].length + (task ? space.length + task[0].length : used);
    return isEmpty ? this.#done(this.line.length) : "more";
  }

  #pushItem(found: RegExpExecArray, columns: number, number: number | null, checked: boolean | null): void {
    const [depth, width] = [this.#depth, found[0].length];
    const marker = found[1] ?? found[3] ?? ".";
    const item = { is: "item", least: columns + 2, content: columns + width + 1 } as const;
    this.#steps.push(() => {
      this.reader.openItem(depth, marker, number, item);
      this.reader.showItem(checked);
    });
    this.#depth += 2;
  }

  /** Text that nothing marks. */
  #plain(rest: string, start: number): "wait" | "done" {
    const isTableHead = rest.startsWith("|") && !this.#isInParagraph;
    if (isTableHead) {
      if (!this.isWhole) return "wait";
      const matched = this.#depth;
      this.#steps.push(() => this.reader.hold(matched, rest));
      return this.#done(this.line.length);
    }
    // Text goes on with the paragraph before it, even where containers do not (CommonMark 5.1).
    const matched = this.#depth;
    this.#steps.push(() => this.reader.goOn(matched));
    return this.#done(start);
  }

  #done(at: number): "done" {
    this.at = at;
    return "done";
  }
}

function bounded(first: string): string | null {
  return first.length <= LONGEST_BEGINNING ? first : null;
}

/** White space at `at`: its units, and the columns that it takes. */
function indentAt(line: string, at: number): { length: number; columns: number } {
  let [length, columns] = [0, 0];
  for (; line[at + length] === " " || line[at + length] === "\t"; length += 1) {
    columns += line[at + length] === "\t" ? 4 : 1;
  }
  return { length, columns };
}

/** Units of white space at `at` that take up to `most` columns. */
function skipColumns(line: string, at: number, most: number): number {
  let [length, columns] = [0, 0];
  while (columns < most && (line[at + length] === " " || line[at + length] === "\t")) {
    columns += line[at + length] === "\t" ? 4 : 1;
    length += 1;
  }
  return length;
}

function cellsOf(line: string): string[] {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function alignOf(cell: string): Align {
  const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
  if (left && right) return "center";
  return right ? "right" : left ? "left" : null;
}
