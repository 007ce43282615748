// Colours code by highlight.js, in a worker: expressions of languages may take long, and text goes
// on meanwhile. Of a block that grows only lines are told whose colours have changed.

import hljs from "highlight.js/lib/core";
import { loadLanguage } from "./language_loaders.js";

/** What the page asks for. */
export type HighlightOrder =
  | { readonly is: "open"; readonly block: number; readonly language: string }
  | { readonly is: "text"; readonly block: number; readonly text: string }
  | { readonly is: "end"; readonly block: number };

/** Lines of `block` that have other colours now: from, to and kind, in turn. */
export interface HighlightNews {
  readonly block: number;
  readonly lines: readonly (readonly [line: number, colours: readonly number[]])[];
  readonly isOver: boolean;
}

/** A block is coloured again after this many times the time that it took, so that long ones cost no more than short ones. */
const REST = 4;
const LEAST_REST_MS = 80;
const LONGEST_REST_MS = 2_000;

/** Numbers of the classes in code.ts. */
const KINDS: Readonly<Record<string, number>> = {
  keyword: 1,
  literal: 1,
  "selector-tag": 1,
  name: 1,
  string: 2,
  regexp: 2,
  "char.escape": 2,
  number: 3,
  symbol: 3,
  bullet: 3,
  comment: 4,
  quote: 4,
  title: 5,
  "title.function": 5,
  "title.class": 6,
  "title.class.inherited": 6,
  section: 5,
  type: 6,
  built_in: 6,
  class: 6,
  attr: 5,
  attribute: 5,
  property: 5,
  "selector-class": 6,
  "selector-id": 6,
  variable: 7,
  "variable.language": 1,
  "template-variable": 7,
  meta: 7,
  doctag: 7,
  addition: 8,
  deletion: 9,
};

interface Block {
  readonly language: string;
  text: string;
  /** The colours of each line that were told, as text to compare. */
  told: string[];
  isEnding: boolean;
  timer: ReturnType<typeof setTimeout> | undefined;
  earliest: number;
}

/** Collects ranges where highlight.js would write HTML. */
class RangeEmitter {
  readonly ranges: number[] = [];
  length = 0;
  readonly #scopes: string[] = [];

  addText(text: string): void {
    const kind = KINDS[this.#scopes.at(-1) ?? ""] ?? 0;
    if (kind > 0) this.ranges.push(this.length, this.length + text.length, kind);
    this.length += text.length;
  }

  /** highlight.js opens keywords by `startScope`, and all else by `openNode`. */
  startScope(scope: string): void {
    this.#scopes.push(scope);
  }

  openNode(scope: string): void {
    this.#scopes.push(scope);
  }

  endScope(): void {
    this.#scopes.pop();
  }

  closeNode(): void {
    this.#scopes.pop();
  }

  /** Code of another language inside. */
  __addSublanguage(inner: RangeEmitter): void {
    for (const [index, value] of inner.ranges.entries()) this.ranges.push(index % 3 === 2 ? value : value + this.length);
    this.length += inner.length;
  }

  finalize(): void {}

  toHTML(): string {
    return "";
  }
}

hljs.configure({ __emitter: RangeEmitter } as unknown as Parameters<typeof hljs.configure>[0]);

const blocks = new Map<number, Block>();

self.onmessage = ({ data }: MessageEvent<HighlightOrder>): void => {
  if (data.is === "open") {
    const { block, language } = data;
    blocks.set(block, { language, text: "", told: [], isEnding: false, timer: undefined, earliest: 0 });
    return;
  }
  const block = blocks.get(data.block);
  if (block === undefined) return;
  if (data.is === "text") block.text += data.text;
  else block.isEnding = true;
  const wait = block.isEnding ? 0 : Math.max(0, block.earliest - performance.now());
  if (block.isEnding) clearTimeout(block.timer);
  if (block.isEnding || block.timer === undefined) block.timer = setTimeout(() => void colour(data.block, block), wait);
};

async function colour(number: number, block: Block): Promise<void> {
  const isKnown = await loadLanguage(hljs, block.language);
  block.timer = undefined;
  const isOver = block.isEnding;
  const before = performance.now();
  const lines = isKnown ? changedLines(block) : [];
  const took = performance.now() - before;
  block.earliest = performance.now() + Math.min(Math.max(LEAST_REST_MS, REST * took), LONGEST_REST_MS);
  if (isOver) blocks.delete(number);
  self.postMessage({ block: number, lines, isOver } satisfies HighlightNews);
}

function changedLines(block: Block): [number, number[]][] {
  const { _emitter } = hljs.highlight(block.text, { language: block.language, ignoreIllegals: true });
  const changed: [number, number[]][] = [];
  for (const [line, colours] of byLine(block.text, (_emitter as unknown as RangeEmitter).ranges).entries()) {
    const asText = colours.join();
    if (asText === (block.told[line] ?? "")) continue;
    block.told[line] = asText;
    changed.push([line, colours]);
  }
  return changed;
}

/** Cuts `ranges` at the ends of lines. */
function byLine(text: string, ranges: readonly number[]): number[][] {
  const lines: number[][] = [];
  let [start, next] = [0, 0];
  while (start <= text.length) {
    const newline = text.indexOf("\n", start);
    const end = newline < 0 ? text.length : newline;
    const line: number[] = [];
    for (; next < ranges.length && (ranges[next] ?? 0) < end; next += 3) {
      const [from = 0, to = 0, kind = 0] = ranges.slice(next, next + 3);
      line.push(Math.max(from, start) - start, Math.min(to, end) - start, kind);
      if (to > end) break;
    }
    lines.push(line);
    start = end + 1;
    while (next < ranges.length && (ranges[next + 1] ?? 0) <= start) next += 3;
  }
  return lines;
}
