// The files of a question.

import type { VNode } from "preact";
import type { Attachment } from "./conversation.js";

export function Attached({ files }: { readonly files: readonly Attachment[] }): VNode {
  return (
    <ul class="files" aria-label="Files">
      {files.map((file) => (
        <li key={file.name}>
          {"image" in file ? (
            <img src={file.image} alt={file.name} title={file.name} />
          ) : (
            <details>
              <summary>{file.name}</summary>
              <pre>{file.text}</pre>
            </details>
          )}
        </li>
      ))}
    </ul>
  );
}
