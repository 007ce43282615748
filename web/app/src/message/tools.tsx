// Calls of tools, as cards: name, arguments, and what came of it.

import type { VNode } from "preact";
import type { LiveMessage } from "./live.js";
import { CopyCode } from "./copy_code.js";
import { type ToolCall, isOpen } from "./model.js";
import { useMessage } from "./use_live.js";

/** Longer values are cut on the page; copying gives them whole. */
const LONGEST_SHOWN = 20_000;

export function ToolCalls({ live }: { readonly live: LiveMessage }): VNode | null {
  const { toolCalls, state } = useMessage(live, "toolCalls", "state");
  if (toolCalls.length === 0) return null;
  return (
    <div class="tools">
      {toolCalls.map((call, index) => (
        <ToolCard key={call.id || index} call={call} isComing={isOpen(state) && index === toolCalls.length - 1} />
      ))}
    </div>
  );
}

function ToolCard({ call, isComing }: { readonly call: ToolCall; readonly isComing: boolean }): VNode {
  const name = call.name || "a tool";
  return (
    <details class="tool" open aria-label={`Tool call: ${name}`}>
      <summary>
        <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
          <path d="M14.5 6.5a4 4 0 0 0-5.3 5L4 16.7 7.3 20l5.2-5.2a4 4 0 0 0 5-5.3l-2.6 2.6-2.5-.5-.5-2.5z" />
        </svg>
        <span class="tool-name">{name}</span>
        <span class="tool-state">{isComing ? "is being called…" : call.result === null ? "called" : "answered"}</span>
      </summary>
      <Value title="Arguments" text={call.arguments} isComing={isComing} />
      {call.result !== null && <Value title="Result" text={call.result} isComing={false} />}
    </details>
  );
}

function Value({ title, text, isComing }: { readonly title: string; readonly text: string; readonly isComing: boolean }): VNode {
  const shown = isComing ? text : pretty(text);
  return (
    <div class="tool-value">
      <div class="tool-title">
        <span>{title}</span>
        <CopyCode text={() => shown} what={title.toLowerCase()} />
      </div>
      <pre tabIndex={0} role="group" aria-label={title}>
        {shown === "" ? "none" : shown.slice(0, LONGEST_SHOWN)}
        {shown.length > LONGEST_SHOWN && "…"}
      </pre>
    </div>
  );
}

/** JSON with a line for each member; anything else as it is. */
export function pretty(text: string): string {
  if (text.length > LONGEST_SHOWN * 4) return text;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "string" ? value : JSON.stringify(value, null, 2);
  } catch {
    return text;
  }
}
