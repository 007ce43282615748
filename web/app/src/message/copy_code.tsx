// A small button that copies a text.

import type { VNode } from "preact";
import { useState } from "preact/hooks";
import { copyText } from "../shell/clipboard.js";

/** How long the button says that it has copied, ms. */
const THANKS_MS = 1_600;

export function CopyCode({ text, what }: { readonly text: () => string; readonly what: string }): VNode {
  const [said, say] = useState("Copy");
  const copy = async (): Promise<void> => {
    say((await copyText(text())) ? "Copied" : "Could not copy");
    setTimeout(() => say("Copy"), THANKS_MS);
  };
  return (
    <button type="button" class="copy" aria-label={`${said}: ${what}`} onClick={() => void copy()}>
      {said}
    </button>
  );
}
