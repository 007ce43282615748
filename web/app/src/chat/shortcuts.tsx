// The list of keyboard shortcuts.

import type { VNode } from "preact";
import { Dialog } from "../shell/dialog.js";
import { closeDialogue } from "./layout.js";

const SHORTCUTS: readonly (readonly [keys: string, what: string])[] = [
  ["Enter", "Send"],
  ["Shift + Enter", "New line"],
  ["↑", "Edit the last question (in an empty prompt)"],
  ["Escape", "Stop the answer, or close a panel"],
  ["Ctrl/⌘ + Shift + O", "New chat"],
  ["Ctrl/⌘ + K", "Search conversations"],
  ["/", "Go to the prompt"],
  ["?", "This list"],
];

export function ShortcutsDialog(): VNode {
  return (
    <Dialog title="Keyboard shortcuts" onClose={closeDialogue}>
      <dl class="shortcuts">
        {SHORTCUTS.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
