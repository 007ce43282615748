// What a program needs to go on with an answer after a reload, in a storage that it chooses: by
// default `sessionStorage`, the tab's own, and gone with it.

import type { Json } from "./chunk.js";
import type { Delta, ToolCall } from "./delta.js";
import type { StorageLike } from "./platform.js";
import type { AnswerReference } from "./source.js";

/** Everything about an answer so far, consistent with its offset. */
export interface Progress {
  readonly is: "begun";
  /** The endpoint that was asked. */
  readonly url: string;
  readonly reference: AnswerReference;
  /** Log offset after what the fields below hold. */
  readonly offset: number;
  /** The open record's JSON. */
  readonly meta: string;
  /** Choice 0's text, reasoning and calls of tools. */
  readonly text: string;
  readonly reasoning: string;
  readonly toolCalls: readonly ToolCall[];
  readonly finish: string | null;
  readonly usage: Extract<Delta, { kind: "usage" }> | null;
}

/** A question whose answer has not begun: asked again with the same key, it is the same question (S-4.9). */
export interface Question {
  readonly is: "asked";
  readonly url: string;
  readonly body: Json;
  /** Its idempotency key, 32 hex digits. */
  readonly key: string;
  /** When it was asked, `Date.now()`. */
  readonly asked_ms: number;
}

/** What is kept of an answer. */
export type Kept = Progress | Question;

/** Writing more often than this costs more than a few tokens sent twice, ms. */
const SAVE_EVERY_MS = 250;

/** How long a question that was not answered is kept: as long as servers keep answers by default, ms. */
const QUESTION_KEPT_MS = 60_000;

const answerKey = (name: string): string => `loquent:answer:${name}`;

/** Keeps one answer's progress under a name. */
export class ProgressStore {
  #timer: ReturnType<typeof setTimeout> | null = null;
  /** What this answer has written, which nothing else writes: two may stand at the same offset. */
  #written: string | null = null;
  readonly #writer = Math.random().toString(36).slice(2);
  /** The page is being left: what fails from here on, fails because its connections are cut. */
  #isLeaving = false;
  readonly #flush = (): void => this.save();
  readonly #leave = (): void => {
    this.save();
    this.#isLeaving = true;
  };
  readonly #comeBack = (): void => {
    this.#isLeaving = false;
  };

  constructor(
    readonly name: string,
    readonly storage: StorageLike | null,
    /** What to write; `null` while there is nothing to go on with. */
    readonly progress: () => Kept | null,
  ) {
    globalThis.addEventListener?.("pagehide", this.#leave);
    globalThis.addEventListener?.("pageshow", this.#comeBack);
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
    if (progress === null || !this.#isOurs()) return;
    try {
      const text = JSON.stringify({ ...progress, writer: this.#writer });
      this.storage?.setItem(answerKey(this.name), text);
      this.#written = text;
    } catch {
      // No storage, or no room in it: a reload starts over.
    }
  }

  /** Writes for the last time: somebody else may go on. */
  release(): void {
    this.save();
    this.#forgetPage();
  }

  /** The answer is over. */
  clear(): void {
    this.#forgetPage();
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#isOurs() && !this.#isLeaving) forget(this.name, this.storage);
  }

  #forgetPage(): void {
    globalThis.removeEventListener?.("pagehide", this.#leave);
    globalThis.removeEventListener?.("pageshow", this.#comeBack);
  }

  /** A later answer under the same name, or somebody who forgot this one, has the last word. */
  #isOurs(): boolean {
    return this.#written === null || readItem(this.storage, this.name) === this.#written;
  }
}

/** The storage that is used where none was chosen; `null` where there is none. */
export function tabStorage(): StorageLike | null {
  try {
    return globalThis.sessionStorage ?? null;
  } catch {
    return null; // a page may not touch it
  }
}

/** What was kept under `name`; `null` if nothing usable was. */
export function recall(name: string, storage: StorageLike | null): Kept | null {
  try {
    const kept: unknown = JSON.parse(readItem(storage, name) ?? "null");
    return isProgress(kept) || isQuestion(kept) ? kept : null;
  } catch {
    return null;
  }
}

/** Forgets what was kept under `name`. */
export function forget(name: string, storage: StorageLike | null): void {
  try {
    storage?.removeItem(answerKey(name));
  } catch {
    // No storage: nothing was kept.
  }
}

function readItem(storage: StorageLike | null, name: string): string | null {
  try {
    return storage?.getItem(answerKey(name)) ?? null;
  } catch {
    return null;
  }
}

function isProgress(value: unknown): value is Progress {
  const { is, url, reference, offset, text, meta, reasoning, toolCalls } = (value ?? {}) as Partial<Progress>;
  const strings = [url, text, meta, reasoning];
  return (
    is === "begun" &&
    strings.every((part) => typeof part === "string") &&
    Array.isArray(toolCalls) &&
    toolCalls.every(isToolCall) &&
    isUrl(url) &&
    isReference(reference) &&
    Number.isSafeInteger(offset)
  );
}

function isToolCall(value: unknown): value is ToolCall {
  const { index, id, name, arguments: text } = (value ?? {}) as Partial<ToolCall>;
  return Number.isSafeInteger(index) && [id, name, text].every((part) => typeof part === "string");
}

/** Whether `value` can name an answer: 32 hex digits each, of either case (S-4.2). */
export function isReference(value: unknown): value is AnswerReference {
  const { id, token } = (value ?? {}) as Partial<AnswerReference>;
  return [id, token].every((part) => typeof part === "string" && /^[0-9a-f]{32}$/i.test(part));
}

function isQuestion(value: unknown): value is Question {
  const { is, url, body, key, asked_ms } = (value ?? {}) as Partial<Question>;
  const age_ms = Date.now() - Number(asked_ms);
  const isWhole = isUrl(url) && typeof body === "object" && body !== null && /^[0-9a-f]{32}$/.test(String(key));
  return is === "asked" && isWhole && age_ms >= 0 && age_ms < QUESTION_KEPT_MS;
}

function isUrl(value: unknown): boolean {
  try {
    return typeof value === "string" && /^https?:$/.test(new URL(value).protocol);
  } catch {
    return false;
  }
}
