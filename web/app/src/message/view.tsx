// How one message is shown.

import "./message.css";
import type { ComponentChildren, VNode } from "preact";
import { useState } from "preact/hooks";
import { Facts, Standing } from "./facts.js";
import type { LiveMessage } from "./live.js";
import { type Message, isOpen } from "./model.js";
import { Reasoning } from "./reasoning.js";
import { LiveText } from "./text.js";
import { ToolCalls } from "./tools.js";
import { useMessage } from "./use_live.js";

export interface MessageViewProps {
  readonly live: LiveMessage;
  /** Off: the text as it came. Default on. */
  readonly markdown?: boolean;
  /** Off: the text does not show where it paused. Default on. */
  readonly pauses?: boolean;
  /** The user wants event streams. Default off. */
  readonly wantsSse?: boolean;
  /** Asks again after a failure; without it there is no such button. */
  readonly onRetry?: () => void;
  /** Buttons of the page (copy, edit, …), shown in the message's last line. */
  readonly children?: ComponentChildren;
}

/** Who speaks, for those who cannot see it. */
const SPEAKERS = { user: "You", assistant: "Answer", tool: "Tool" } as const;

export function MessageView({ live, markdown = true, pauses = true, wantsSse = false, onRetry, children }: MessageViewProps): VNode {
  const message = useMessage(live, "state");
  const isComing = isOpen(message.state);
  // A busy browser shows the last words some frames after they have come.
  const [isShown, setShown] = useState(true);
  const isAnswer = message.role === "assistant";
  return (
    <article class={pauses ? classOf(message) : `${classOf(message)} no-pauses`} aria-label={SPEAKERS[message.role]} aria-busy={isComing || !isShown}>
      <h2 class="unseen">{SPEAKERS[message.role]}</h2>
      {isAnswer && <Reasoning live={live} markdown={markdown} />}
      <LiveText live={live} part="text" markdown={markdown && isAnswer} onShown={setShown} />
      {isAnswer && <ToolCalls live={live} />}
      {isComing && <Standing live={live} />}
      {message.state.is === "failed" && <Failed error={message.state.error} onRetry={message.state.retry ? onRetry : undefined} />}
      <footer>
        {isAnswer && <Facts live={live} wantsSse={wantsSse} />}
        {children}
      </footer>
    </article>
  );
}

function classOf({ role, state }: Message): string {
  return ["message", role, ...(isOpen(state) ? ["streaming"] : []), state.is].join(" ");
}

function Failed({ error, onRetry }: { readonly error: string; readonly onRetry: (() => void) | undefined }): VNode {
  return (
    <div class="failure" role="alert">
      <p>{error}</p>
      {onRetry && (
        <button type="button" class="retry" onClick={onRetry}>
          Try again
        </button>
      )}
    </div>
  );
}
