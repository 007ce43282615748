// Conversations as files.

import type { Conversation } from "./conversation.js";
import { readConversation } from "./read_conversation.js";

const FORMAT = "loquent-conversations";

/** Largest file that is read, bytes, and most conversations of it. */
export const MAX_FILE_BYTES = 128 << 20;
const MAX_CONVERSATIONS = 2_000;

/** Largest file that is written, bytes, but for a conversation that alone is larger. */
const FILE_BYTES = 32 << 20;

/** What is between and around the conversations of a file. */
const [BEGIN, BETWEEN, END] = [`{"format":"${FORMAT}","version":1,"conversations":[\n`, ",\n", "\n]}\n"];

export interface Exported {
  /** Each of them can be imported. */
  readonly files: readonly Blob[];
  /** Titles of the conversations that are too large for a file. */
  readonly leftOut: readonly string[];
}

/** Files of `conversations`. What proves the right to an answer on its way stays here. */
export async function exportFiles(conversations: AsyncIterable<Conversation> | Iterable<Conversation>): Promise<Exported> {
  const parts: Blob[][] = [];
  const leftOut: string[] = [];
  let room = 0;
  for await (const conversation of conversations) {
    const part = partOf(conversation);
    if (part === null) {
      leftOut.push(conversation.title);
      continue;
    }
    room -= part.size;
    const last = parts.at(-1);
    if (last && room >= 0 && last.length < MAX_CONVERSATIONS) {
      last.push(part);
      continue;
    }
    parts.push([part]);
    room = FILE_BYTES - part.size;
  }
  return { files: parts.map(fileOf), leftOut };
}

/** `conversation` as it stands in a file; `null` if it is too large for one. */
function partOf(conversation: Conversation): Blob | null {
  const withhold = (name: string, value: unknown): unknown => (name === "reference" ? null : value);
  try {
    const part = new Blob([JSON.stringify(conversation, withhold, 1)]);
    return part.size + BEGIN.length + END.length > MAX_FILE_BYTES ? null : part;
  } catch {
    // Longer than any string may be.
    return null;
  }
}

function fileOf(parts: readonly Blob[]): Blob {
  const listed = parts.flatMap((part, at) => (at === 0 ? [part] : [BETWEEN, part]));
  return new Blob([BEGIN, ...listed, END], { type: "application/json" });
}

/**
 * The conversations of a file, as far as they can be used.
 *
 * @throws {Error} that says in words why the file cannot be read.
 */
export function importText(text: string): Conversation[] {
  const file = parsed(text) as { format?: unknown; version?: unknown; conversations?: unknown } | null;
  if (file?.format !== FORMAT) throw new Error("This is no file of conversations that this page has exported.");
  if (file.version !== 1) throw new Error("This file comes from a newer version of this page.");
  const listed: readonly unknown[] = Array.isArray(file.conversations) ? file.conversations : [];
  const read = listed.slice(0, MAX_CONVERSATIONS).flatMap((one) => readConversation(one) ?? []);
  // A clock that was ahead of this one would have everything that is chosen here from now on lose.
  const now = Date.now();
  const found = read.map((one) => ({
    ...one,
    updatedAt: Math.min(one.updatedAt, now),
    titleAt: Math.min(one.titleAt, now),
    presetAt: Math.min(one.presetAt, now),
  }));
  if (found.length === 0) throw new Error("There is no conversation in this file.");
  return found;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
}
