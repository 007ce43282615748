// Conversations into files and out of them, as the sidebar's buttons want it.

import { allConversations, heads, save } from "./chats.js";
import type { Conversation } from "./conversation.js";
import { MAX_FILE_BYTES, exportFiles, importText } from "./import_export.js";
import { say } from "./toast.js";

/** Time between two files that the user is given, ms: browsers drop what comes at once. */
const NEXT_FILE_MS = 500;

/** Adds the conversations of the files that `input` has, and says how many they are. */
export async function importFiles(input: HTMLInputElement): Promise<void> {
  const files = [...(input.files ?? [])];
  input.value = "";
  let count = 0;
  try {
    for (const file of files) {
      if (file.size > MAX_FILE_BYTES) throw new Error(`${file.name} is too large.`);
      const conversations = importText(await file.text());
      await addAll(conversations);
      count += conversations.length;
    }
    if (count > 0) say(`Imported ${counted(count)}.`);
  } catch (error) {
    sayError(error);
  }
}

/** Adds `conversations` to the library; those that it has are replaced if they are older. */
async function addAll(conversations: readonly Conversation[]): Promise<void> {
  for (const conversation of conversations) {
    const known = heads.peek().find(({ id }) => id === conversation.id);
    if (!known || known.updatedAt < conversation.updatedAt) await save(conversation);
  }
}

/** Gives the user files of all conversations. */
export async function exportAll(): Promise<void> {
  try {
    const { files, leftOut } = await exportFiles(allConversations());
    if (files.length + leftOut.length === 0) return say("There is no conversation yet.");
    if (leftOut.length > 0) say(`${counted(leftOut.length)} too large for a file, such as “${leftOut[0]}”.`);
    for (const [at, file] of files.entries()) {
      if (at > 0) await new Promise((resolve) => setTimeout(resolve, NEXT_FILE_MS));
      giveFile(file, at === 0 ? "" : `-${at + 1}`);
    }
  } catch (error) {
    sayError(error);
  }
}

function giveFile(file: Blob, number: string): void {
  const url = URL.createObjectURL(file);
  const link = document.createElement("a");
  link.href = url;
  link.download = `loquent-${new Date().toISOString().slice(0, 10)}${number}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

function counted(conversations: number): string {
  return conversations === 1 ? "1 conversation" : `${conversations} conversations`;
}

function sayError(error: unknown): void {
  say(error instanceof Error ? error.message : String(error));
}
