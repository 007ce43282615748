// Text as it came, without Markdown.

import { element } from "./elements.js";

/** Plain text goes on in another box after so many units, so that appending lays out no more than that. */
const LONGEST_BOX = 6_000;

/** What takes text in and shows it. */
export interface Sink {
  write(text: string): void;
  flush(): void;
  mark(mark: Element): void;
  end(): void;
}

/** Text as it is, in boxes of bounded length. */
export class PlainSink implements Sink {
  #box: HTMLElement | null = null;
  #boxed = 0;

  constructor(readonly root: HTMLElement) {}

  write(text: string): void {
    if (this.#box === null || this.#boxed > LONGEST_BOX) {
      this.#box = element("div", "plain");
      this.#box.dir = "auto";
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
