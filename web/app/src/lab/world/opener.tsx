// Opens a history of the world of replicas from a file.

import type { VNode } from "preact";
import { useState } from "preact/hooks";

import { withPart } from "../../shell/lazy.js";
import type { WorldHistory } from "./history.js";

/** A history, and the name of its file. */
export interface OpenedHistory {
  readonly name: string;
  readonly history: WorldHistory;
}

export function HistoryOpener({ onOpen }: { readonly onOpen: (opened: OpenedHistory) => void }): VNode {
  const [problem, setProblem] = useState("");
  const open = ({ currentTarget }: Event): void => {
    const [file] = (currentTarget as HTMLInputElement).files ?? [];
    // The same file, changed, can be chosen again.
    if (file) withPart(import("./open_file.js"), ({ openFile }) => void openFile(file).then(onOpen, (error: Error) => setProblem(error.message)));
    (currentTarget as HTMLInputElement).value = "";
  };
  return (
    <div class="world-opener">
      <label>
        Open a history of the world of replicas <input type="file" accept=".txt,.log,text/plain" onChange={open} />
      </label>{" "}
      (<a href="docs/world">what that is</a>){problem !== "" && <p role="alert">{problem}</p>}
    </div>
  );
}
