// Opens a history of the world of replicas from a file.

import type { VNode } from "preact";
import { useState } from "preact/hooks";

import type { OpenedHistory } from "./open_file.js";

export function HistoryOpener({ onOpen }: { readonly onOpen: (opened: OpenedHistory) => void }): VNode {
  const [problem, setProblem] = useState("");
  const open = ({ currentTarget }: Event): void => {
    const [file] = (currentTarget as HTMLInputElement).files ?? [];
    // What few need is loaded with the first file.
    const opened = file && import("./open_file.js").then(({ openFile }) => openFile(file));
    opened?.then(onOpen, (error: Error) => setProblem(error.message));
    // The same file, changed, can be chosen again.
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
