// Conversations as a file.

import type { Conversation } from "./conversation.js";
import { readConversation } from "./read_conversation.js";

const FORMAT = "loquent-conversations";

/** Largest file that is read, bytes, and most conversations of it. */
export const MAX_FILE_BYTES = 32 << 20;
const MAX_CONVERSATIONS = 2_000;

/** A file of `conversations`. What proves the right to an answer on its way stays here. */
export function exportText(conversations: readonly Conversation[]): string {
  const withhold = (name: string, value: unknown): unknown => (name === "reference" ? null : value);
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, withhold, 1);
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
  const found = listed.slice(0, MAX_CONVERSATIONS).flatMap((one) => readConversation(one) ?? []);
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
