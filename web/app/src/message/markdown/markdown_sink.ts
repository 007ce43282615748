// Markdown on the page. This module, and all that only it needs, is loaded with the first answer.

import { adoptStyles } from "../../shell/adopted.js";
import { BlockReader } from "./blocks.js";
import { DomSink } from "./dom.js";
import styles from "./markdown.css" with { type: "text" };
import { PlainSink, type Sink } from "./plain_sink.js";

adoptStyles(styles);

/** Markdown; plain text once the page has as many elements of it as it can bear. */
export class MarkdownSink implements Sink {
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
