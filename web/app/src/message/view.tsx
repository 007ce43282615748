// How one message is shown.

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { LiveMessage } from "./live.js";

export interface MessageViewProps {
  readonly live: LiveMessage;
  /** Off: the text as it came. Default on. */
  readonly markdown?: boolean;
  /** Asks again after a failure; without it there is no such button. */
  readonly onRetry?: () => void;
  /** Buttons of the page (copy, edit, …), shown in the message's last line. */
  readonly children?: ComponentChildren;
}

export function MessageView({ live, children }: MessageViewProps): VNode {
  const [, redraw] = useState(0);
  useEffect(() => live.subscribe(() => redraw((count) => count + 1)), [live]);
  return (
    <article class={live.message.role}>
      <div class="text">{live.message.text}</div>
      <footer>{children}</footer>
    </article>
  );
}
