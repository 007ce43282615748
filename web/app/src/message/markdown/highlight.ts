// The page's side of the worker that colours code. Code is plain where the worker cannot be had,
// or where it takes so long that something is wrong.

import type { HighlightNews, HighlightOrder } from "./highlight_worker.js";

/** Colours of a line: from, to, and the number of a class, in turn. */
export type LineColours = readonly number[];

type Paint = (line: number, colours: LineColours) => void;

/** A block of code that is being coloured. */
export interface Colouring {
  append(text: string): void;
  end(): void;
}

/** A worker that says nothing for so long hangs in an expression that backtracks, ms. */
const PATIENCE_MS = 4_000;

/** Workers that may hang before there are no more colours. */
const MOST_WORKERS = 3;

let worker: Worker | null = null;
let begun = 0;
let nextBlock = 0;
let watch: ReturnType<typeof setTimeout> | undefined;
const painters = new Map<number, Paint>();
/** Blocks whose text the worker has and has not coloured. */
const waiting = new Set<number>();

/** Colours code of `language` by calls of `paint`; `null` where there are no colours. */
export function colour(language: string, paint: Paint): Colouring | null {
  const port = startedWorker();
  if (port === null) return null;
  const block = nextBlock++;
  painters.set(block, paint);
  order(port, { is: "open", block, language });
  return {
    append: (text) => tell(port, block, { is: "text", block, text }),
    end: () => tell(port, block, { is: "end", block }),
  };
}

function tell(port: Worker, block: number, news: HighlightOrder): void {
  if (port !== worker) return;
  waiting.add(block);
  watch ??= setTimeout(replaceWorker, PATIENCE_MS);
  order(port, news);
}

function order(port: Worker, news: HighlightOrder): void {
  port.postMessage(news);
}

function startedWorker(): Worker | null {
  if (worker !== null || begun >= MOST_WORKERS) return worker;
  begun += 1;
  try {
    worker = new Worker(new URL("./highlight-worker.js", import.meta.url), { type: "module", name: "highlight" });
  } catch {
    return null;
  }
  worker.onmessage = ({ data }: MessageEvent<HighlightNews>) => handleNews(data);
  worker.onerror = replaceWorker;
  return worker;
}

function handleNews({ block, lines, isOver }: HighlightNews): void {
  clearTimeout(watch);
  waiting.delete(block);
  watch = waiting.size > 0 ? setTimeout(replaceWorker, PATIENCE_MS) : undefined;
  const paint = painters.get(block);
  for (const [line, colours] of lines) paint?.(line, colours);
  if (isOver) painters.delete(block);
}

/** Blocks that the old one had stay as they are. */
function replaceWorker(): void {
  clearTimeout(watch);
  watch = undefined;
  worker?.terminate();
  worker = null;
  waiting.clear();
  painters.clear();
}
