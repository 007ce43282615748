// What of the chat page is open: panels and dialogs.

import { signal } from "@preact/signals";
import { startNew } from "./chats.js";

/** What lies beside or over the conversation. */
export type Dialogue = "none" | "connect" | "models" | "shortcuts" | "device";

/** Below this width side panels lie over the conversation, px. */
const NARROW = 900;

export function isNarrow(): boolean {
  return globalThis.innerWidth < NARROW;
}

export const sidebarOpen = signal(!isNarrow());
export const settingsOpen = signal(false);
export const dialogue = signal<Dialogue>("none");
/** The question that is being written anew. */
export const editedTurn = signal<string | null>(null);

export function closeDialogue(): void {
  dialogue.value = "none";
}

/** Closes what lies over the conversation on a narrow page. */
export function uncover(): void {
  if (!isNarrow()) return;
  sidebarOpen.value = false;
  settingsOpen.value = false;
}

export function focusPrompt(): void {
  document.getElementById("prompt")?.focus();
}

export function newChat(): void {
  startNew();
  uncover();
  focusPrompt();
}
