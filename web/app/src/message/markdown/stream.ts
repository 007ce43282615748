// A message's Markdown on the page as it comes: in slices of a few milliseconds once a frame, so
// that a megabyte that comes at once freezes nothing.

import { PlainSink, type Sink } from "./plain_sink.js";

/** Time for text in one frame, ms. */
const SLICE_MS = 8;

/** Units that are read between two looks at the clock. */
const BITE = 1_024;

type MarkdownModule = typeof import("./markdown_sink.js");

let loaded: MarkdownModule | null = null;
let loading: Promise<MarkdownModule | null> | null = null;

/** Loads what Markdown needs. A page that expects an answer calls it ahead of time. */
export async function loadMarkdown(): Promise<void> {
  // What could not be loaded is tried again for the next message.
  loading ??= import("./markdown_sink.js").catch(() => (loading = null));
  loaded = await loading;
}

type Piece = { readonly is: "text"; readonly text: string } | { readonly is: "mark"; readonly mark: Element };

/** Shows one text inside an element. */
export class TextStream {
  /** `null` until it is loaded. */
  #sink: Sink | null = null;
  #pieces: Piece[] = [];
  #frame: number | null = null;
  #isEnding = false;
  #isOver = false;
  readonly #onOver: () => void;

  /** Calls `onOver` when all is on the page, after `end`. */
  constructor(root: HTMLElement, markdown: boolean, onOver: () => void) {
    this.#onOver = onOver;
    if (!markdown) this.#sink = new PlainSink(root);
    else if (loaded) this.#sink = new loaded.MarkdownSink(root);
    else void this.#load(root);
  }

  /** Appends `text`, soon. */
  write(text: string): void {
    for (let at = 0; at < text.length; ) {
      const end = biteEnd(text, at);
      this.#pieces.push({ is: "text", text: text.slice(at, end) });
      at = end;
    }
    this.#schedule();
  }

  /** Inserts `mark` behind what was written. */
  mark(mark: Element): void {
    this.#pieces.push({ is: "mark", mark });
    this.#schedule();
  }

  /** Nothing more comes. */
  end(): void {
    this.#isEnding = true;
    this.#schedule();
  }

  /** Shows what fits into a slice of time at once, without waiting for a frame. */
  showNow(): void {
    this.#work();
  }

  /** The element leaves the page: nothing waits for its colours any more. */
  stop(): void {
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    if (!this.#isOver) this.#sink?.end();
    this.#isOver = true;
  }

  /** Text that cannot be shown as Markdown is shown as it is. */
  async #load(root: HTMLElement): Promise<void> {
    await loadMarkdown();
    this.#sink = loaded ? new loaded.MarkdownSink(root) : new PlainSink(root);
    this.#schedule();
  }

  #schedule(): void {
    if (this.#isOver) return;
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#work();
    });
  }

  #work(): void {
    const sink = this.#sink;
    if (this.#isOver || sink === null) return;
    const deadline = performance.now() + SLICE_MS;
    let done = 0;
    for (; done < this.#pieces.length && (done === 0 || performance.now() < deadline); done += 1) {
      const piece = this.#pieces[done];
      if (piece?.is === "text") sink.write(piece.text);
      if (piece?.is === "mark") sink.mark(piece.mark);
      // Long text is shown as it is read, so that no flush has much to do.
      if (piece?.is === "text" && piece.text.length >= BITE / 2) sink.flush();
    }
    this.#pieces.splice(0, done);
    sink.flush();
    if (this.#pieces.length > 0) return this.#schedule();
    if (!this.#isEnding) return;
    this.#isOver = true;
    sink.end();
    this.#onOver();
  }
}

/** Where a bite that begins at `at` ends: never inside a character. */
function biteEnd(text: string, at: number): number {
  const end = Math.min(at + BITE, text.length);
  const unit = text.charCodeAt(end - 1);
  const cutsCharacter = unit >= 0xd800 && unit <= 0xdbff && end < text.length;
  return cutsCharacter ? end + 1 : end;
}
