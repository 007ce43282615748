// What a page needs to go on with an answer after a reload, in `sessionStorage`: the tab's
// own, and gone with it.

import type { Delta } from "./delta.js";
import type { AnswerHandle } from "./source.js";

/** Everything about an answer so far, consistent with its offset. */
export interface Progress {
  /** The endpoint that was asked. */
  readonly url: string;
  readonly handle: AnswerHandle;
  /** Log offset after what the fields below hold. */
  readonly offset: number;
  /** The open record's JSON. */
  readonly meta: string;
  /** Choice 0's text and reasoning. */
  readonly text: string;
  readonly reasoning: string;
  readonly finish: string | null;
  readonly usage: Extract<Delta, { kind: "usage" }> | null;
}

/** Writing more often than this costs more than a few tokens sent twice, ms. */
const SAVE_EVERY_MS = 250;

const answerKey = (name: string): string => `loquent:answer:${name}`;

/** Keeps one answer's progress under a name. */
export class ProgressStore {
  #timer: ReturnType<typeof setTimeout> | null = null;
  readonly #flush = (): void => this.save();

  constructor(
    readonly name: string,
    /** The progress to write; `null` while the answer cannot be resumed. */
    readonly progress: () => Progress | null,
  ) {
    globalThis.addEventListener?.("pagehide", this.#flush);
  }

  /** Something was shown. */
  handleProgress(): void {
    this.#timer ??= setTimeout(this.#flush, SAVE_EVERY_MS);
  }

  /** Writes now. */
  save(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    const progress = this.progress();
    try {
      if (progress) sessionStorage.setItem(answerKey(this.name), JSON.stringify(progress));
    } catch {
      // No storage, or no room in it: a reload starts over.
    }
  }

  /** The answer is over. */
  clear(): void {
    globalThis.removeEventListener?.("pagehide", this.#flush);
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    forget(this.name);
  }
}

/** What was kept under `name`; `null` if nothing usable was. */
export function recall(name: string): Progress | null {
  try {
    const kept: unknown = JSON.parse(sessionStorage.getItem(answerKey(name)) ?? "null");
    return isProgress(kept) ? kept : null;
  } catch {
    return null;
  }
}

/** Forgets what was kept under `name`. */
export function forget(name: string): void {
  try {
    sessionStorage.removeItem(answerKey(name));
  } catch {
    // No storage: nothing was kept.
  }
}

function isProgress(value: unknown): value is Progress {
  const { url, handle, offset, text, meta, reasoning } = (value ?? {}) as Partial<Progress>;
  const strings = [url, text, meta, reasoning, handle?.id, handle?.token];
  return strings.every((part) => typeof part === "string") && Number.isSafeInteger(offset);
}
