// The chat page's parts and where they are; shortcuts that work everywhere on it.

import type { VNode } from "preact";
import { useEffect } from "preact/hooks";
import { lazy } from "../shell/lazy.js";
import { current, failures, isRunning, stop } from "./chats.js";
import { isComposing } from "./composing.js";
import { Composer } from "./composer.js";
import { ChatHeader } from "./chat_header.js";
import { dialogue, focusPrompt, isNarrow, newChat, settingsOpen, sidebarOpen, uncover } from "./layout.js";
import { wantsKey } from "./server.js";
import { Sidebar } from "./sidebar.js";
import { Thread } from "./thread.js";
import { Announcement } from "./toast.js";

const SettingsPanel = lazy(async () => (await import("./settings_panel.js")).SettingsPanel);
const Dialogues = lazy(async () => (await import("./dialogues.js")).Dialogues);
const KeyNotice = lazy(async () => (await import("./key_notice.js")).KeyNotice);

export function App(): VNode {
  useEffect(() => {
    document.addEventListener("keydown", handleKey);
    return () => document.removeEventListener("keydown", handleKey);
  }, []);
  const isCovered = isNarrow() && (sidebarOpen.value || settingsOpen.value);
  return (
    <div class="app">
      <Sidebar />
      <div class="column">
        <ChatHeader />
        <main>
          <Thread />
          {isKeyWanted() && <KeyNotice />}
          <Composer />
          <Announcement />
        </main>
      </div>
      {settingsOpen.value && <SettingsPanel />}
      {isCovered && <div class="cover" onClick={uncover} />}
      {dialogue.value !== "none" && <Dialogues />}
    </div>
  );
}

/** Whether the server wants a key, or has refused what was asked last without one. */
function isKeyWanted(): boolean {
  const { leaf } = current.value;
  return wantsKey() || (leaf !== null && failures.value.get(leaf) === "key");
}

function handleKey(event: KeyboardEvent): void {
  if (isComposing(event) || dialogue.peek() !== "none") return;
  const isCommand = event.ctrlKey || event.metaKey;
  const isTyping = event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
  if (event.key === "Escape") leave(event);
  else if (isCommand && event.shiftKey && event.key.toLowerCase() === "o") act(event, newChat);
  else if (isCommand && event.key.toLowerCase() === "k") act(event, focusSearch);
  else if (event.key === "/" && !isTyping) act(event, focusPrompt);
  else if (event.key === "?" && !isTyping) act(event, () => (dialogue.value = "shortcuts"));
}

function act(event: KeyboardEvent, what: () => void): void {
  event.preventDefault();
  what();
}

/** Stops the answer; without one, closes what is open. */
function leave(event: KeyboardEvent): void {
  if (event.defaultPrevented) return;
  if (isRunning()) return stop();
  settingsOpen.value = false;
  uncover();
}

function focusSearch(): void {
  sidebarOpen.value = true;
  requestAnimationFrame(() => document.getElementById("search")?.focus());
}
