// The dialogs of the chat page, which are loaded with the first of them.

import type { VNode } from "preact";
import { adoptStyles } from "../shell/adopted.js";
import { ConnectDialog } from "./connect_app.js";
import { HandoverDialog } from "./handover_dialog.js";
import styles from "./dialogues.css" with { type: "text" };
import { dialogue } from "./layout.js";
import { ModelsDialog } from "./models_dialog.js";
import { ShortcutsDialog } from "./shortcuts.js";

adoptStyles(styles);

/** The dialog that is open. */
export function Dialogues(): VNode | null {
  switch (dialogue.value) {
    case "connect":
      return <ConnectDialog />;
    case "models":
      return <ModelsDialog />;
    case "shortcuts":
      return <ShortcutsDialog />;
    case "device":
      return <HandoverDialog />;
    case "none":
      return null;
  }
}
