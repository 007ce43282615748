// Short words of the page: one at a time, some with a way back; and words for screen readers only.

import { signal } from "@preact/signals";
import type { VNode } from "preact";
import { IconButton } from "../shell/controls.js";

interface Toast {
  readonly text: string;
  readonly action: { readonly label: string; readonly act: () => void } | null;
}

/** How long a word stays, ms: longer if there is something to do about it. */
const SHORT_MS = 4_000;
const LONG_MS = 10_000;

const toast = signal<Toast | null>(null);
const announcement = signal("");
let timer: ReturnType<typeof setTimeout> | null = null;

/** Says `text`, and offers `action`. */
export function say(text: string, action: Toast["action"] = null): void {
  toast.value = { text, action };
  if (timer !== null) clearTimeout(timer);
  timer = setTimeout(() => (toast.value = null), action ? LONG_MS : SHORT_MS);
}

/** Tells screen readers. */
export function announce(text: string): void {
  announcement.value = text;
}

export function Announcement(): VNode {
  return (
    <p id="status" class="unseen" role="status">
      {announcement.value}
    </p>
  );
}

export function ToastView(): VNode | null {
  const now = toast.value;
  if (now === null) return null;
  const act = (): void => {
    now.action?.act();
    toast.value = null;
  };
  return (
    <div class="toast" role="alert">
      <span>{now.text}</span>
      {now.action && (
        <button type="button" onClick={act}>
          {now.action.label}
        </button>
      )}
      <IconButton icon="close" label="Dismiss" onClick={() => (toast.value = null)} />
    </div>
  );
}
