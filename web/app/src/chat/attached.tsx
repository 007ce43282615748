// The files of a question.

import type { VNode } from "preact";
import type { TextFile } from "./conversation.js";

export function Attached({ files }: { readonly files: readonly TextFile[] }): VNode {
  return (
    <ul class="files" aria-label="Files">
      {files.map(({ name, text }) => (
        <li key={name}>
          <details>
            <summary>{name}</summary>
            <pre>{text}</pre>
          </details>
        </li>
      ))}
    </ul>
  );
}
