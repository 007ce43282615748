// An answer's deltas as the chunks of the AI SDK's message stream.

import type { Delta, ToolCall } from "./delta.js";

/** Why an answer ended, in the SDK's words. */
export type UiFinishReason = "stop" | "length" | "content-filter" | "tool-calls" | "error" | "other";

/** The chunks that are written here, of those that the SDK reads. */
export type UiChunk =
  | { type: "start" }
  | { type: "start-step" }
  | { type: "text-start" | "text-end" | "reasoning-start" | "reasoning-end"; id: string }
  | { type: "text-delta" | "reasoning-delta"; id: string; delta: string }
  | { type: "tool-input-start"; toolCallId: string; toolName: string }
  | { type: "tool-input-delta"; toolCallId: string; inputTextDelta: string }
  | { type: "tool-input-available"; toolCallId: string; toolName: string; input: unknown }
  | { type: "tool-input-error"; toolCallId: string; toolName: string; input: unknown; errorText: string }
  | { type: "finish-step" }
  | { type: "finish"; finishReason: UiFinishReason }
  | { type: "error"; errorText: string }
  | { type: "abort" };

const FINISH_REASONS: Readonly<Record<string, UiFinishReason>> = {
  stop: "stop",
  length: "length",
  tool_calls: "tool-calls",
  function_call: "tool-calls",
  content_filter: "content-filter",
};

/** Longest arguments of a call that are collected, characters. */
const MAX_ARGUMENTS_CHARS = 1 << 20;

type TextKind = "text" | "reasoning";

interface Call {
  readonly id: string;
  readonly name: string;
  arguments: string;
}

/** What an answer holds already when its stream begins. */
export interface Begun {
  readonly text: string;
  readonly reasoning: string;
  readonly toolCalls: readonly ToolCall[];
  readonly finish: string | null;
}

/** Writes one answer's chunks. Only choice 0 is shown: a message of the SDK's has no others. */
export class UiChunkWriter {
  #open: { readonly kind: TextKind; readonly id: string } | null = null;
  #parts = 0;
  readonly #calls = new Map<number, Call>();

  /** The first chunks; what a reload had shown comes again, as the SDK expects. */
  begin({ text, reasoning, toolCalls }: Begun): UiChunk[] {
    const texts = [...this.#text("reasoning", reasoning), ...this.#text("text", text)];
    return [{ type: "start" }, { type: "start-step" }, ...texts, ...toolCalls.flatMap((call) => this.#call(call))];
  }

  /** The chunks that `delta` makes. */
  chunks(delta: Delta): UiChunk[] {
    if (!("choice" in delta) || delta.choice !== 0) return [];
    if (delta.kind === "text" || delta.kind === "reasoning") return this.#text(delta.kind, delta.text);
    return delta.kind === "tool_call" ? this.#call(delta) : [];
  }

  /** Ends what is open, whether or not the answer is whole. */
  close(): UiChunk[] {
    const open = this.#open;
    this.#open = null;
    return open === null ? [] : [{ type: `${open.kind}-end`, id: open.id }];
  }

  /** The last chunks of a whole answer. */
  end({ finish }: Begun): UiChunk[] {
    const calls = [...this.#calls.values()].map(inputOf);
    const finishReason = FINISH_REASONS[finish ?? ""] ?? "other";
    return [...this.close(), ...calls, { type: "finish-step" }, { type: "finish", finishReason }];
  }

  #text(kind: TextKind, delta: string): UiChunk[] {
    if (delta === "") return [];
    const isOpen = this.#open?.kind === kind;
    const begun: UiChunk[] = isOpen ? [] : [...this.close(), { type: `${kind}-start`, id: `${kind}-${this.#parts++}` }];
    this.#open ??= { kind, id: `${kind}-${this.#parts - 1}` };
    return [...begun, { type: `${kind}-delta`, id: this.#open.id, delta }];
  }

  #call(delta: ToolCall): UiChunk[] {
    const begun: UiChunk[] = [];
    let call = this.#calls.get(delta.index);
    if (call === undefined) {
      call = { id: delta.id || `call-${delta.index}`, name: delta.name, arguments: "" };
      this.#calls.set(delta.index, call);
      begun.push(...this.close(), { type: "tool-input-start", toolCallId: call.id, toolName: call.name });
    }
    if (delta.arguments === "" || call.arguments.length > MAX_ARGUMENTS_CHARS) return begun;
    call.arguments += delta.arguments;
    return [...begun, { type: "tool-input-delta", toolCallId: call.id, inputTextDelta: delta.arguments }];
  }
}

function inputOf(call: Call): UiChunk {
  const named = { toolCallId: call.id, toolName: call.name };
  try {
    const input: unknown = JSON.parse(call.arguments === "" ? "{}" : call.arguments);
    return { type: "tool-input-available", ...named, input };
  } catch {
    return { type: "tool-input-error", ...named, input: call.arguments, errorText: "The arguments are not JSON." };
  }
}
