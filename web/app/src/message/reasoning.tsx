// What the model thought before it answered: folded, never hidden.

import { type VNode } from "preact";
import { useState } from "preact/hooks";
import type { LiveMessage } from "./live.js";
import { type Message, isOpen } from "./model.js";
import { LiveText } from "./text.js";
import { useMessage } from "./use_live.js";
import { roughly } from "./words.js";

export function Reasoning({ live, markdown }: { readonly live: LiveMessage; readonly markdown: boolean }): VNode | null {
  const message = useMessage(live, "reasoning", "state", "facts");
  const [isUnfolded, unfold] = useState(false);
  if (message.reasoning === "") return null;
  const isThinking = isOpen(message.state) && message.reasoningMs === null;
  return (
    <details class={isThinking ? "reasoning thinking" : "reasoning"} onToggle={(event) => unfold(event.currentTarget.open)}>
      <summary>{isThinking ? `Thinking… ${thinkingFor(live)}` : heading(message)}</summary>
      {isUnfolded && <LiveText live={live} part="reasoning" markdown={markdown} />}
    </details>
  );
}

function heading({ reasoningMs }: Message): string {
  return reasoningMs === null ? "Thoughts" : `Thought for ${roughly(reasoningMs)}`;
}

function thinkingFor(live: LiveMessage): string {
  const { times } = live.message.facts;
  const since = performance.now() - live.askedAt - (times[0] ?? 0);
  return since < 1_000 ? "" : `${Math.floor(since / 1_000)} s`;
}
