// Conversations into a file and out of one, as the sidebar's buttons want it.

import { addAll, allConversations } from "./chats.js";
import { MAX_FILE_BYTES, exportText, importText } from "./import_export.js";
import { say } from "./toast.js";

/** Adds the conversations of the file that `input` has, and says how many they are. */
export async function importFile(input: HTMLInputElement): Promise<void> {
  const file = input.files?.[0];
  input.value = "";
  if (!file) return;
  try {
    if (file.size > MAX_FILE_BYTES) throw new Error("This file is too large.");
    const conversations = importText(await file.text());
    await addAll(conversations);
    say(`Imported ${conversations.length === 1 ? "1 conversation" : `${conversations.length} conversations`}.`);
  } catch (error) {
    say(error instanceof Error ? error.message : String(error));
  }
}

/** Gives the user a file of all conversations. */
export async function exportAll(): Promise<void> {
  const conversations = await allConversations();
  if (conversations.length === 0) return say("There is no conversation yet.");
  const url = URL.createObjectURL(new Blob([exportText(conversations)], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `loquent-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
