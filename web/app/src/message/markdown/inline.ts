// Markdown inside one paragraph, heading or cell, while it grows.
//
// The rules are CommonMark's, with GitHub's strikethrough and bare addresses, and with formulas.
// What cannot change any more, however the text goes on, is told apart from the rest, so that only
// the few characters behind the last open mark are ever read twice.

/** A piece of running text. */
export type Inline =
  | { readonly is: "text"; readonly text: string }
  | { readonly is: "code"; readonly text: string }
  | { readonly is: "math"; readonly text: string; readonly display: boolean }
  | { readonly is: "break" }
  | { readonly is: "emphasis" | "strong" | "strike"; readonly children: readonly Inline[] }
  | { readonly is: "link"; readonly href: string; readonly children: readonly Inline[] }
  | { readonly is: "image"; readonly href: string; readonly alt: string }
  /** A link if `label` is defined somewhere in the text; otherwise the brackets, as they stand: `tail` is what follows the first pair. */
  | { readonly is: "reference"; readonly label: string; readonly children: readonly Inline[]; readonly tail: string }
  /** A footnote if `label` is defined; otherwise its brackets. */
  | { readonly is: "note"; readonly label: string };

/** What was read from a text that may go on. */
export interface Reading {
  /** Final, whatever follows. */
  readonly settled: readonly Inline[];
  /** How many UTF-16 units `settled` covers. */
  readonly length: number;
  /** The rest as it looks by now. */
  readonly open: readonly Inline[];
}

/** Elements nested deeper than this are shown with their marks. */
const DEEPEST = 12;

/** An open mark is shown as if it were closed for so many units: then it probably is none. */
const HOPE = 300;

/** A delimiter run, as CommonMark calls it. */
interface Run {
  readonly is: "run";
  readonly at: number;
  readonly char: "*" | "_" | "~";
  readonly length: number;
  readonly opens: boolean;
  readonly closes: boolean;
  /** Characters that are not part of a pair. */
  left: number;
}

interface Bracket {
  readonly is: "bracket";
  readonly at: number;
  readonly image: boolean;
  /** No link may hold another. */
  active: boolean;
}

interface Whole {
  readonly is: "whole";
  readonly at: number;
  readonly end: number;
  readonly node: Inline;
  readonly depth: number;
}

type Item = Run | Bracket | Whole;

/** Reads `source`; `before` is the character in front of it. With `final` nothing stays open. */
export function readInline(source: string, before: string, final: boolean): Reading {
  const reader = new InlineReader(source, before, final);
  reader.read();
  return reader.reading();
}

const PLAIN = /(?:(?!https?:\/\/|www\.)[^\\`$*_~!\[\]<&\n])+/y;
/** Addresses end where ASCII does: what follows without a space is another language's sentence. */
const BARE_URL = /(?:https?:\/\/|www\.)[!#-;=?-[\]-_a-~]*/y;
const BARE_URL_BEGINS = /(?:^|[^A-Za-z0-9])(?:h|ht|htt|https?:?\/?|w|ww|www)$/;
const ANGLE_URL = /<((?:https?:\/\/|mailto:)[^\s<>]*)>/y;
const BREAK = /<br ?\/?>/iy;
const ANGLE_BEGINS = /<[^\s<>]*$/y;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,8}));/y;
const ENTITY_BEGINS = /&#?[a-zA-Z0-9]{0,8}$/y;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ASCII_PUNCTUATION = /[!-/:-@[-`{-~]/;
/** Behind `]`: the target of a link, with one level of parentheses, and a title that is not used. */
const TARGET = /\(\s*(?:<([^<>\n]*)>|((?:[^\s()<>\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?\s*\)/y;
const NO_TARGET = /\n|^\(\s*\S+\s+[^"'(\s]/;

/** Behind `]`: the label of a link's target. */
const LABEL = /\[([^[\]\n]{0,200})\]/y;
const LABEL_BEGINS = /^\[[^[\]\n]{0,200}$/;
const LONGEST_LABEL = 200;

/** The longest target that is waited for. */
const LONGEST_TARGET = 2_000;

const ENTITIES: Readonly<Record<string, string>> = {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  apos: "'",
  nbsp: "\u00a0",
  ndash: "–",
  mdash: "—",
  hellip: "…",
  copy: "©",
  times: "×",
  rarr: "→",
  larr: "←",
  le: "≤",
  ge: "≥",
  ne: "≠",
  deg: "°",
};

class InlineReader {
  #at = 0;
  #items: Item[] = [];
  /** From here on the text may turn out to mean something else. */
  #openAt: number;
  /** Marks that are known to have no end in the rest of the text. */
  readonly #endless = new Set<string>();

  constructor(
    readonly source: string,
    readonly before: string,
    readonly final: boolean,
  ) {
    this.#openAt = source.length;
  }

  read(): void {
    while (this.#at < this.source.length) this.#step();
    // Links bind tighter than emphasis: a pair around an open bracket may still come apart.
    this.#openFrom(({ is }) => is === "bracket");
    pairRuns(this.#items, 0);
    this.#openFrom((item) => item.is === "run" && item.opens && item.left > 0);
  }

  reading(): Reading {
    // Nothing is cut in two: what reaches beyond the open mark is open as a whole. From the end
    // on, as what is opened so may cut what stands before it: they share a run.
    for (const item of this.#items.toReversed()) {
      if (item.is === "whole" && item.at < this.#openAt && item.end > this.#openAt) this.#openAt = item.at;
    }
    const split = this.#items.findIndex(({ at }) => at >= this.#openAt);
    const settled = split < 0 ? this.#items : this.#items.slice(0, split);
    const open = split < 0 ? [] : this.#items.slice(split);
    const shown = hopeful(open, this.source.length);
    return { settled: nodesOf(settled), length: this.#openAt, open: nodesOf(shown) };
  }

  #step(): void {
    switch (this.source[this.#at]) {
      case "\\":
        return this.#readEscape();
      case "`":
        return this.#readCode();
      case "$":
        return this.#readDollars();
      case "*":
      case "_":
      case "~":
        return this.#readRun(this.source[this.#at] as Run["char"]);
      case "!":
        if (this.source[this.#at + 1] === "[") return this.#pushBracket(true);
        if (this.#at + 1 === this.source.length) this.#open(this.#at);
        return this.#text(1);
      case "[":
        return this.#pushBracket(false);
      case "]":
        return this.#closeBracket();
      case "<":
        return this.#readAngle();
      case "&":
        return this.#readEntity();
      case "\n":
        return this.#text(1);
      default:
        return this.#readPlain();
    }
  }

  #readPlain(): void {
    const plain = this.#match(PLAIN);
    if (plain) {
      this.#text(plain[0].length);
      const begun = BARE_URL_BEGINS.exec(plain[0]);
      if (begun && this.#at === this.source.length) this.#open(this.#at - begun[0].length);
      return;
    }
    const left = this.source[this.#at - 1] ?? this.before;
    if (/[A-Za-z0-9]/.test(left)) return this.#text(1);
    const found = this.#match(BARE_URL)?.[0] ?? "";
    if (this.#at + found.length === this.source.length) this.#open(this.#at);
    const length = urlLength(found);
    if (length === 0) return this.#text(1);
    const address = found.slice(0, length);
    const href = address.startsWith("www.") ? `https://${address}` : address;
    this.#push({ is: "link", href, children: [{ is: "text", text: address }] }, length);
  }

  #readEscape(): void {
    const next = this.source[this.#at + 1];
    if (next === undefined) {
      this.#open(this.#at);
      return this.#text(1);
    }
    if (next === "(") return this.#readMath("\\(", "\\)", false);
    if (next === "[") return this.#readMath("\\[", "\\]", true);
    if (!ASCII_PUNCTUATION.test(next)) return this.#text(1);
    this.#push({ is: "text", text: next }, 2);
  }

  #readMath(mark: string, end: string, display: boolean): void {
    const found = this.#endless.has(mark) ? -1 : this.source.indexOf(end, this.#at + 2);
    if (found >= 0) {
      const text = this.source.slice(this.#at + 2, found);
      return this.#push({ is: "math", text, display }, found + 2 - this.#at);
    }
    this.#endless.add(mark);
    this.#open(this.#at);
    this.#text(2);
  }

  #readDollars(): void {
    if (this.source.startsWith("$$", this.#at)) return this.#readMath("$$", "$$", true);
    const found = this.#endless.has("$") ? null : this.#closingDollar();
    if (found !== null) {
      const text = this.source.slice(this.#at + 1, found);
      return this.#push({ is: "math", text, display: false }, found + 1 - this.#at);
    }
    if (!/[\s$]/.test(this.source[this.#at + 1] ?? "x")) this.#open(this.#at);
    this.#text(1);
  }

  /** Where the formula ends that begins here; prices are none. */
  #closingDollar(): number | null {
    if (/[\s]/.test(this.source[this.#at + 1] ?? " ")) return null;
    for (let at = this.#at + 2; (at = this.source.indexOf("$", at)) >= 0; at += 1) {
      const [left, right] = [this.source[at - 1] ?? "", this.source[at + 1] ?? ""];
      if (right === "" && !this.final) return null;
      if (!/[\s\\$]/.test(left) && !/[\d$]/.test(right)) return at;
    }
    if (this.final) this.#endless.add("$");
    return null;
  }

  #readCode(): void {
    const mark = this.#match(/`+/y)?.[0] ?? "`";
    const found = this.#closingTicks(mark);
    if (found !== null) {
      const text = trimCode(this.source.slice(this.#at + mark.length, found));
      return this.#push({ is: "code", text }, found + mark.length - this.#at);
    }
    if (this.final) return this.#text(mark.length);
    // Until it turns out otherwise, what follows is code.
    this.#open(this.#at);
    const text = this.source.slice(this.#at + mark.length).replace(/`+$/, "");
    this.#push(text === "" ? { is: "text", text } : { is: "code", text }, this.source.length - this.#at);
  }

  #closingTicks(mark: string): number | null {
    if (this.#endless.has(mark)) return null;
    const runs = /`+/g;
    runs.lastIndex = this.#at + mark.length;
    for (let run = runs.exec(this.source); run; run = runs.exec(this.source)) {
      const mayGrow = !this.final && runs.lastIndex === this.source.length;
      if (run[0].length === mark.length && !mayGrow) return run.index;
    }
    if (this.final) this.#endless.add(mark);
    return null;
  }

  #readRun(char: Run["char"]): void {
    const start = this.#at;
    let end = start;
    while (this.source[end] === char) end += 1;
    const left = start === 0 ? this.before : (this.source[start - 1] ?? "");
    const { opens, closes } = flanks(char, left, this.source[end] ?? "");
    if (end === this.source.length) this.#open(start);
    const length = end - start;
    if (char === "~" && length !== 2) return this.#text(length);
    this.#items.push({ is: "run", at: start, char, length, opens, closes, left: length });
    this.#at = end;
  }

  #pushBracket(image: boolean): void {
    this.#items.push({ is: "bracket", at: this.#at, image, active: true });
    this.#at += image ? 2 : 1;
  }

  #closeBracket(): void {
    let opener = this.#items.length - 1;
    while (opener >= 0 && this.#items[opener]?.is !== "bracket") opener -= 1;
    const bracket = this.#items[opener];
    if (bracket?.is !== "bracket") return this.#text(1);
    if (!bracket.active) {
      this.#items[opener] = bracketItem(bracket);
      return this.#text(1);
    }
    this.#at += 1;
    const target = this.#match(TARGET);
    if (target) return this.#link(bracket, opener, target);
    if (!this.final && this.#mayBecomeTarget()) return this.#linkInPart(bracket, opener);
    if (!bracket.image && this.#reference(bracket, opener)) return;
    this.#items[opener] = bracketItem(bracket);
    this.#items.push(textItem(this.#at - 1, "]"));
  }

  /** Takes brackets as a reference, if they may be one. */
  #reference(bracket: Bracket, opener: number): boolean {
    const inner = this.source.slice(bracket.at + 1, this.#at - 1);
    const labelled = this.#match(LABEL);
    const label = labelOf(labelled?.[1]?.trim() ? labelled[1] : inner);
    if (label === null) return false;
    const tail = labelled?.[0] ?? "";
    this.#at += tail.length;
    if (tail === "" && label.startsWith("^")) {
      this.#items.splice(opener);
      this.#items.push({ is: "whole", at: bracket.at, end: this.#at, node: { is: "note", label }, depth: 0 });
      return true;
    }
    this.#wrapIn(bracket, opener, (children) => ({ is: "reference", label, children, tail }));
    return true;
  }

  /** Whether what is left of the text may be the beginning of a link's target. */
  #mayBecomeTarget(): boolean {
    const rest = this.source.slice(this.#at);
    if (rest === "" || LABEL_BEGINS.test(rest)) return true;
    return rest.startsWith("(") && rest.length <= LONGEST_TARGET && !NO_TARGET.test(rest) && isOpenTarget(rest);
  }

  #link(bracket: Bracket, opener: number, target: RegExpExecArray): void {
    const href = withoutEscapes(target[1] ?? target[2] ?? "");
    this.#at += target[0].length;
    this.#wrap(bracket, opener, href);
    if (bracket.image) return;
    for (const item of this.#items) if (item.is === "bracket" && !item.image) item.active = false;
  }

  /** Its target is still coming: shown as a link that leads nowhere yet. */
  #linkInPart(bracket: Bracket, opener: number): void {
    this.#open(bracket.at);
    const isPlain = this.#at === this.source.length;
    this.#at = this.source.length;
    if (!isPlain) return this.#wrap(bracket, opener, "");
    this.#items[opener] = bracketItem(bracket);
    this.#items.push(textItem(this.#at - 1, "]"));
  }

  #wrap(bracket: Bracket, opener: number, href: string): void {
    this.#wrapIn(bracket, opener, (children) => (bracket.image ? { is: "image", href, alt: plainText(children) } : { is: "link", href, children }));
  }

  /** What stands behind `bracket` becomes the content of one node. */
  #wrapIn({ at }: Bracket, opener: number, make: (children: readonly Inline[]) => Inline): void {
    pairRuns(this.#items, opener + 1);
    const inside = this.#items.splice(opener).slice(1);
    const node = make(nodesOf(inside));
    this.#items.push({ is: "whole", at, end: this.#at, node, depth: 1 + deepest(inside) });
  }

  #readAngle(): void {
    const url = this.#match(ANGLE_URL);
    if (url?.[1] !== undefined) {
      const text = url[1].replace(/^mailto:/, "");
      return this.#push({ is: "link", href: url[1], children: [{ is: "text", text }] }, url[0].length);
    }
    const br = this.#match(BREAK);
    if (br) return this.#push({ is: "break" }, br[0].length);
    if (this.#match(ANGLE_BEGINS)) this.#open(this.#at);
    this.#text(1);
  }

  #readEntity(): void {
    const found = this.#match(ENTITY);
    const text = found && entityText(found);
    if (found && text !== null) return this.#push({ is: "text", text }, found[0].length);
    if (this.#match(ENTITY_BEGINS)) this.#open(this.#at);
    this.#text(1);
  }

  /** The first item that `waits` for its other half is open, and all behind it. */
  #openFrom(waits: (item: Item) => boolean): void {
    const first = this.#items.find(waits);
    if (first) this.#open(first.at);
  }

  #open(at: number): void {
    if (!this.final) this.#openAt = Math.min(this.#openAt, at);
  }

  #match(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.#at;
    return pattern.exec(this.source);
  }

  #text(length: number): void {
    this.#push({ is: "text", text: this.source.slice(this.#at, this.#at + length) }, length);
  }

  #push(node: Inline, length: number): void {
    this.#items.push({ is: "whole", at: this.#at, end: this.#at + length, node, depth: 0 });
    this.#at += length;
  }
}

function textItem(at: number, text: string): Whole {
  return { is: "whole", at, end: at + text.length, node: { is: "text", text }, depth: 0 };
}

function bracketItem(bracket: Bracket): Whole {
  return textItem(bracket.at, bracketText(bracket));
}

function bracketText({ image }: Bracket): string {
  return image ? "![" : "[";
}

/** Which ends of emphasis a run between `left` and `right` may be. */
function flanks(char: Run["char"], left: string, right: string): { opens: boolean; closes: boolean } {
  const [space, nextSpace] = [left === "" || /\s/.test(left), right === "" || /\s/.test(right)];
  const [mark, nextMark] = [PUNCTUATION.test(left), PUNCTUATION.test(right)];
  const leftFlanking = !nextSpace && (!nextMark || space || mark);
  const rightFlanking = !space && (!mark || nextSpace || nextMark);
  if (char !== "_") return { opens: leftFlanking, closes: rightFlanking };
  return { opens: leftFlanking && (!rightFlanking || mark), closes: rightFlanking && (!leftFlanking || nextMark) };
}

/** Joins runs from `bottom` on into emphasis (CommonMark's "process emphasis"). */
function pairRuns(items: Item[], bottom: number): void {
  /** For each kind of closer: no opener stands below this index. */
  const bottoms = new Map<string, number>();
  for (let at = bottom; at < items.length; ) {
    const closer = items[at];
    if (closer?.is !== "run" || !closer.closes || closer.left === 0) {
      at += 1;
      continue;
    }
    const kind = `${closer.char}${closer.opens}${closer.length % 3}`;
    const opener = openerOf(items, closer, at, bottoms.get(kind) ?? bottom);
    if (opener === null) {
      bottoms.set(kind, at);
      at += 1;
    } else {
      join(items, opener, at, closer);
      at = opener + 2;
    }
  }
}

function openerOf(items: readonly Item[], closer: Run, at: number, bottom: number): number | null {
  for (let index = at - 1; index >= bottom; index -= 1) {
    const opener = items[index];
    if (opener?.is !== "run" || opener.char !== closer.char || !opener.opens || opener.left === 0) continue;
    const odd = (opener.closes || closer.opens) && (opener.length + closer.length) % 3 === 0;
    if (!odd || (opener.length % 3 === 0 && closer.length % 3 === 0)) return index;
  }
  return null;
}

function join(items: Item[], opener: number, closerAt: number, closer: Run): void {
  const run = items[opener] as Run;
  const width = run.left >= 2 && closer.left >= 2 ? 2 : 1;
  const inside = items.slice(opener + 1, closerAt);
  run.left -= width;
  closer.left -= width;
  const end = closer.at + closer.length - closer.left;
  items.splice(opener + 1, closerAt - opener - 1, emphasis(run, width, inside, end));
}

/** What stands between two runs; those have given `width` characters each already. */
function emphasis(run: Run, width: number, inside: readonly Item[], end: number): Whole {
  const depth = 1 + deepest(inside);
  const children = nodesOf(inside);
  const is = run.char === "~" ? "strike" : width === 2 ? "strong" : "emphasis";
  const mark = run.char.repeat(width);
  const flat: Inline = { is: "text", text: mark + plainText(children) + mark };
  const isDeep = depth > DEEPEST;
  return { is: "whole", at: run.at + run.left, end, node: isDeep ? flat : { is, children }, depth: isDeep ? 0 : depth };
}

function deepest(items: readonly Item[]): number {
  return items.reduce((most, item) => (item.is === "whole" ? Math.max(most, item.depth) : most), 0);
}

/** What of the open rest to show: marks at its end not at all, openers as if they were closed. */
function hopeful(items: readonly Item[], end: number): Item[] {
  const shown = [...items];
  const last = shown.at(-1);
  if (last?.is === "run" && last.left > 0 && last.at + last.length === end) shown.pop();
  for (let at = shown.length - 1; at >= 0; at -= 1) {
    const run = shown[at];
    if (run?.is !== "run" || !run.opens || run.left === 0 || run.left > 3 || end - run.at > HOPE) continue;
    const inside = shown.splice(at + 1);
    const width = Math.min(run.left, 2);
    run.left = 0;
    if (inside.length > 0) shown.push(emphasis(run, width, inside, end));
  }
  return shown;
}

function nodesOf(items: readonly Item[]): Inline[] {
  const nodes: Inline[] = [];
  for (const item of items) {
    const last = nodes.at(-1);
    const node = item.is === "whole" ? item.node : ({ is: "text", text: marks(item) } as const);
    if (node.is === "text" && last?.is === "text") nodes[nodes.length - 1] = { is: "text", text: last.text + node.text };
    else if (node.is !== "text" || node.text !== "") nodes.push(node);
  }
  return nodes;
}

function marks(item: Run | Bracket): string {
  return item.is === "run" ? item.char.repeat(item.left) : bracketText(item);
}

/** The text of `nodes` without its looks. */
export function plainText(nodes: readonly Inline[]): string {
  return nodes
    .map((node) => {
      if ("text" in node) return node.text;
      if (node.is === "note") return `[${node.label}]`;
      if (node.is === "reference") return `[${plainText(node.children)}]${node.tail}`;
      if ("children" in node) return plainText(node.children);
      return node.is === "image" ? node.alt : "\n";
    })
    .join("");
}

/** A label as definitions and references share it; `null` if `text` can be none. */
export function labelOf(text: string): string | null {
  const label = text.trim().replace(/\s+/g, " ").toLowerCase();
  return label === "" || label === "^" || label.length > LONGEST_LABEL || /[[\]]/.test(label) ? null : label;
}

/** One space at each end of code is not shown, so that it may begin with a backtick. */
function trimCode(text: string): string {
  const flat = text.replaceAll("\n", " ");
  return flat.length > 2 && flat.startsWith(" ") && flat.endsWith(" ") && flat.trim() !== "" ? flat.slice(1, -1) : flat;
}

function withoutEscapes(text: string): string {
  return text.replace(/\\([!-/:-@[-`{-~])/g, "$1");
}

/** How much of `match` is an address: punctuation behind it is the sentence's. */
function urlLength(match: string): number {
  let length = match.length;
  while (length > 0) {
    const last = match[length - 1] ?? "";
    const isForeign = /[.,;:!?'*_~\]]/.test(last) || (last === ")" && !isBalanced(match.slice(0, length)));
    if (!isForeign) break;
    length -= 1;
  }
  return /^(?:https?:\/\/|www\.)./.test(match.slice(0, length)) ? length : 0;
}

function isOpenTarget(text: string): boolean {
  return text.split("(").length > text.split(")").length;
}

function isBalanced(text: string): boolean {
  return text.split("(").length >= text.split(")").length;
}

function entityText([, decimal, hex, name]: RegExpExecArray): string | null {
  if (name !== undefined) return ENTITIES[name] ?? null;
  const code = decimal !== undefined ? Number.parseInt(decimal, 10) : Number.parseInt(hex ?? "", 16);
  const isCharacter = code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return isCharacter ? String.fromCodePoint(code) : "\ufffd";
}
