// An answer whose server has ended, and whose next server has less of it than its reader: it is
// read again from its beginning, what comes again is compared with what was read, and nothing is
// shown twice (spec/delivery.md, D-6.7).

import type { Delta } from "./delta.js";
import { LoquentError } from "./errors.js";

/** Most characters of text that are kept for it. */
const MAX_CHARS = 4 << 20;

/** What is known of one text: of a choice, its reasoning, or a tool's arguments. */
interface KnownText {
  readonly choice: number;
  text: string;
  /** How much of it came again. */
  again: number;
  /** The tool that is called. Its id is random, and that of the first answer stays. */
  tool: string;
}

type TextDelta = Extract<Delta, { kind: "text" | "reasoning" | "tool_call" }>;

/** See above. */
export class ReadingAgain {
  /** What was read from the log's beginning on; `null`: not all of it is known, or can be compared. */
  #read: Texts | null;
  /** What has to come again. */
  #known: Texts | null = null;

  constructor(isFromBeginning: boolean) {
    this.#read = isFromBeginning ? new Texts() : null;
  }

  /** Whether something has to come again. */
  get isUnderWay(): boolean {
    return this.#known !== null;
  }

  /** Everything comes again from here on; false if it could not be compared. */
  begin(): boolean {
    const read = this.#read;
    // Nothing is gained by asking for the same again.
    if (read === null || read.chars === 0 || this.#known !== null) return false;
    [this.#read, this.#known] = [new Texts(), read];
    return true;
  }

  /** What is new of a delta; throws a `LoquentError` if it differs from what was read. */
  restOf(delta: Delta): Delta | null {
    if (this.#read?.note(delta) === false || (this.#read?.chars ?? 0) > MAX_CHARS) this.#read = null;
    const known = this.#known;
    if (known === null) return delta;
    const rest = known.restOf(delta);
    if (known.isOver()) this.#known = null;
    return rest;
  }
}

/** The texts of an answer, which come again. */
class Texts {
  chars = 0;
  readonly #texts = new Map<string, KnownText>();
  /** Choices that have ended, and why. */
  readonly #finished = new Map<number, string>();

  /** Adds what comes next; false if it cannot be compared. */
  note(delta: Delta): boolean {
    if (delta.kind === "logprobs" || delta.kind === "other") return false;
    if (delta.kind === "finish") this.#finished.set(delta.choice, delta.reason);
    if (!isText(delta)) return true;
    const key = keyOf(delta);
    const known = this.#texts.get(key) ?? { choice: delta.choice, text: "", again: 0, tool: "" };
    this.#texts.set(key, known);
    known.text += textOf(delta);
    if (delta.kind === "tool_call") known.tool += delta.name;
    this.chars += textOf(delta).length;
    return true;
  }

  restOf(delta: Delta): Delta | null {
    if (delta.kind === "open") return null;
    if (isText(delta)) return this.#textRest(delta);
    if (delta.kind === "finish") return this.#finishRest(delta);
    if (delta.kind === "error" || this.isOver()) return delta;
    if (delta.kind === "done" || delta.kind === "logprobs") throw differs();
    return null;
  }

  #textRest(delta: TextDelta): Delta | null {
    const [known, text] = [this.#texts.get(keyOf(delta)), textOf(delta)];
    if (known === undefined) {
      // What is known of the choice came before this.
      if (text !== "" && this.#isOpen(delta.choice)) throw differs();
      return delta;
    }
    if (delta.kind === "tool_call" && delta.name !== "" && delta.name !== known.tool) throw differs();
    const left = known.text.slice(known.again, known.again + text.length);
    if (!text.startsWith(left)) throw differs();
    known.again += left.length;
    if (left.length === text.length) return null;
    const rest = text.slice(left.length);
    if (delta.kind === "tool_call") return { ...delta, id: "", name: "", arguments: rest };
    return { ...delta, text: rest };
  }

  #finishRest(delta: Extract<Delta, { kind: "finish" }>): Delta | null {
    const reason = this.#finished.get(delta.choice);
    this.#finished.delete(delta.choice);
    if (this.#isOpen(delta.choice) || (reason !== undefined && reason !== delta.reason)) throw differs();
    return reason === undefined ? delta : null;
  }

  #isOpen(choice: number): boolean {
    return [...this.#texts.values()].some((known) => known.choice === choice && known.again < known.text.length);
  }

  /** Whether all of it came again. */
  isOver(): boolean {
    return this.#finished.size === 0 && [...this.#texts.values()].every((known) => known.again === known.text.length);
  }
}

function isText(delta: Delta): delta is TextDelta {
  return delta.kind === "text" || delta.kind === "reasoning" || delta.kind === "tool_call";
}

function textOf(delta: TextDelta): string {
  return delta.kind === "tool_call" ? delta.arguments : delta.text;
}

function keyOf(delta: TextDelta): string {
  return `${delta.kind} ${delta.choice} ${delta.kind === "tool_call" ? delta.index : ""}`;
}

function differs(): LoquentError {
  const message = "The server has ended, and another one has another answer to the same request.";
  return new LoquentError("broken", message);
}
