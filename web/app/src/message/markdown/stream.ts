// A message's Markdown on the page as it comes: in slices of a few milliseconds once a frame, so
// that a megabyte that comes at once freezes nothing.

import { BlockReader } from "./blocks.js";
import { DomSink } from "./dom.js";
import { element } from "./leaf.js";

/** Time for text in one frame, ms. */
const SLICE_MS = 8;

/** Units that are read between two looks at the clock. */
const BITE = 1_024;

/** Plain text goes on in another box after so many units. */
const LONGEST_BOX = 6_000;

/** What takes text in and shows it. */
interface Sink {
  write(text: string): void;
  flush(): void;
  mark(mark: Element): void;
  end(): void;
}

type Piece = { readonly is: "text"; readonly text: string } | { readonly is: "mark"; readonly mark: Element };

/** Shows one text inside an element. */
export class TextStream {
  readonly #sink: Sink;
  #pieces: Piece[] = [];
  #frame: number | null = null;
  #isEnding = false;
  #isOver = false;

  constructor(root: HTMLElement, markdown: boolean) {
    this.#sink = markdown ? new MarkdownSink(root) : new PlainSink(root);
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

  /** The element leaves the page. */
  stop(): void {
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#isOver = true;
  }

  #schedule(): void {
    if (this.#isOver) return;
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#work();
    });
  }

  #work(): void {
    if (this.#isOver) return;
    const deadline = performance.now() + SLICE_MS;
    let done = 0;
    for (; done < this.#pieces.length && (done === 0 || performance.now() < deadline); done += 1) {
      const piece = this.#pieces[done];
      if (piece?.is === "text") this.#sink.write(piece.text);
      if (piece?.is === "mark") this.#sink.mark(piece.mark);
      // Long text is shown as it is read, so that no flush has much to do.
      if (piece?.is === "text" && piece.text.length >= BITE / 2) this.#sink.flush();
    }
    this.#pieces.splice(0, done);
    this.#sink.flush();
    if (this.#pieces.length > 0) return this.#schedule();
    if (!this.#isEnding) return;
    this.#isOver = true;
    this.#sink.end();
  }
}

/** Where a bite that begins at `at` ends: never inside a character. */
function biteEnd(text: string, at: number): number {
  const end = Math.min(at + BITE, text.length);
  const unit = text.charCodeAt(end - 1);
  const cutsCharacter = unit >= 0xd800 && unit <= 0xdbff && end < text.length;
  return cutsCharacter ? end + 1 : end;
}

/** Text as it is, in boxes of bounded length. */
class PlainSink implements Sink {
  #box: HTMLElement | null = null;
  #boxed = 0;

  constructor(readonly root: HTMLElement) {}

  write(text: string): void {
    if (this.#box === null || this.#boxed > LONGEST_BOX) {
      this.#box = element("div", "plain");
      this.#boxed = 0;
      this.root.append(this.#box);
    }
    this.#boxed += text.length;
    const last = this.#box.lastChild;
    if (last instanceof Text) last.appendData(text);
    else this.#box.append(text);
  }

  flush(): void {}

  mark(mark: Element): void {
    (this.#box ?? this.root).append(mark);
  }

  end(): void {}
}

/** Markdown; plain text once the page has as many elements of it as it can bear. */
class MarkdownSink implements Sink {
  readonly #dom: DomSink;
  readonly #reader: BlockReader;
  #rest: PlainSink | null = null;

  constructor(readonly root: HTMLElement) {
    this.#dom = new DomSink(root);
    this.#reader = new BlockReader(this.#dom);
  }

  write(text: string): void {
    if (this.#rest === null && this.#dom.isFull) {
      this.#reader.end();
      this.#rest = new PlainSink(this.root);
    }
    if (this.#rest) this.#rest.write(text);
    else this.#reader.write(text);
  }

  flush(): void {
    if (this.#rest === null) this.#dom.flush();
  }

  mark(mark: Element): void {
    if (this.#rest) this.#rest.mark(mark);
    else this.#dom.mark(mark);
  }

  end(): void {
    if (this.#rest === null) this.#reader.end();
  }
}
