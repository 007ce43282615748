// Text that names flags of the program.

import type { VNode } from "preact";

/** `text`, whose flags are code that no line break tears. */
export function WithFlags({ text }: { readonly text: string }): VNode {
  const parts = text.split(/(--[a-z]+(?:-[a-z]+)*)/);
  return <>{parts.map((part, at) => (at % 2 === 1 ? <code key={at} class="flag">{part}</code> : part))}</>;
}
