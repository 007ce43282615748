// Lines to copy.

import type { VNode } from "preact";
import { CopyButton } from "../shell/controls.js";

export function Snippet({ text, label }: { readonly text: string; readonly label?: string }): VNode {
  return (
    <div class="snippet">
      <pre tabIndex={0}>{text}</pre>
      <CopyButton text={() => text} {...(label !== undefined && { label })} />
    </div>
  );
}
