// The AI SDK's messages as OpenAI's: text, reasoning, pictures, calls of tools and what these
// returned. A server does the same at /v1/ui/chat (crates/dialects/src/ui_stream/message.rs).

import type { ChatMessage, ContentPart, ToolCallRequest } from "./request.js";

/** What is read of a part of the SDK's messages; further members are its own business. */
export interface UiPartLike {
  readonly type: string;
  readonly text?: string;
  readonly url?: string;
  readonly mediaType?: string;
  readonly filename?: string;
  readonly toolName?: string;
  readonly toolCallId?: string;
  readonly state?: string;
  readonly input?: unknown;
  /** An input that is no JSON. */
  readonly rawInput?: unknown;
  readonly output?: unknown;
  readonly errorText?: string;
}

/** What is read of one of the SDK's messages. */
export interface UiMessageLike {
  readonly id: string;
  readonly role: "system" | "user" | "assistant";
  // Parts of data have any members at all; `partOf` looks at what is there.
  readonly parts: readonly { readonly type: string }[];
}

/** The conversation as a request has it. */
export function chatMessages(messages: readonly UiMessageLike[]): ChatMessage[] {
  return messages.flatMap((message) => {
    const parts = message.parts as readonly UiPartLike[];
    return message.role === "assistant" ? assistantMessages(parts) : [{ role: message.role, content: contentOf(parts) }];
  });
}

/** Text alone as text, which every server takes; else its parts. */
function contentOf(parts: readonly UiPartLike[]): string | ContentPart[] {
  const known = parts.filter(({ type }) => type === "text" || type === "file");
  if (known.every(({ type }) => type === "text")) return joined(known.map(({ text = "" }) => text));
  return known.map((part): ContentPart => {
    if (part.type === "text") return { type: "text", text: part.text ?? "" };
    if (part.mediaType?.startsWith("image/")) return { type: "image_url", image_url: { url: part.url } };
    const named = part.filename === undefined ? {} : { filename: part.filename };
    return { type: "file", file: { ...named, file_data: part.url } };
  });
}

/** Texts of a message as one: each is a line, and one that ends with a blank line needs no further. */
function joined(texts: readonly string[]): string {
  const lines = texts.filter((text) => text !== "");
  return lines.map((text, at) => (at === 0 || lines[at - 1]?.endsWith("\n\n") ? text : `\n${text}`)).join("");
}

/** One step of an answer: what the model said, what it called, and what the calls returned. */
class Step {
  readonly texts: string[] = [];
  reasoning = "";
  readonly calls: ToolCallRequest[] = [];
  readonly results: ChatMessage[] = [];

  get messages(): ChatMessage[] {
    const [content, reasoning_content, tool_calls] = [joined(this.texts), this.reasoning, this.calls];
    if (content === "" && reasoning_content === "" && tool_calls.length === 0) return [];
    const said = { ...(content && { content }), ...(reasoning_content && { reasoning_content }) };
    return [{ role: "assistant", ...said, ...(tool_calls.length > 0 && { tool_calls }) }, ...this.results];
  }
}

function assistantMessages(parts: readonly UiPartLike[]): ChatMessage[] {
  const steps = [new Step()];
  for (const part of parts) {
    const isSaid = part.type === "text" || part.type === "reasoning";
    let step = steps.at(-1) as Step;
    // What is said behind a call that has returned is the next step's.
    if (part.type === "step-start" || (isSaid && step.results.length > 0)) steps.push((step = new Step()));
    if (part.type === "text") step.texts.push(part.text ?? "");
    if (part.type === "reasoning") step.reasoning += part.text ?? "";
    const call = callOf(part);
    if (call === null) continue;
    step.calls.push(call);
    const content = resultOf(part);
    if (content !== null) step.results.push({ role: "tool", tool_call_id: call.id, content });
  }
  return steps.flatMap(({ messages }) => messages);
}

function callOf(part: UiPartLike): ToolCallRequest | null {
  const name = part.type === "dynamic-tool" ? part.toolName : /^tool-(.+)$/s.exec(part.type)?.[1];
  if (name === undefined || part.toolCallId === undefined || part.state === "input-streaming") return null;
  const input = textOf(part.input ?? part.rawInput ?? {});
  return { id: part.toolCallId, type: "function", function: { name, arguments: input } };
}

/** What a call returned, as text; `null` if it has not. */
function resultOf({ state, output, errorText }: UiPartLike): string | null {
  if (state === "output-error") return errorText ?? "The tool failed.";
  if (state === "output-denied") return "The user did not allow this call.";
  return state === "output-available" ? textOf(output ?? null) : null;
}

/** A value as text for the model. */
function textOf(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}
