// The AI SDK's messages as OpenAI's: text, pictures, calls of tools and what these returned.

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
  if (known.every(({ type }) => type === "text")) return known.map(({ text = "" }) => text).join("");
  return known.map((part): ContentPart => {
    if (part.type === "text") return { type: "text", text: part.text ?? "" };
    if (part.mediaType?.startsWith("image/")) return { type: "image_url", image_url: { url: part.url } };
    return { type: "file", file: { filename: part.filename, file_data: part.url } };
  });
}

/** An answer of several steps: each one's text and calls, then what the calls returned. */
function assistantMessages(parts: readonly UiPartLike[]): ChatMessage[] {
  const messages: ChatMessage[] = [];
  let [text, calls, results]: [string, ToolCallRequest[], ChatMessage[]] = ["", [], []];
  const endStep = (): void => {
    if (text === "" && calls.length === 0) return;
    const content = text === "" && calls.length > 0 ? null : text;
    messages.push({ role: "assistant", content, ...(calls.length > 0 && { tool_calls: calls }) }, ...results);
    [text, calls, results] = ["", [], []];
  };
  for (const part of parts) {
    // Text behind a call that has returned is the next step's.
    if (part.type === "step-start" || (part.type === "text" && results.length > 0)) endStep();
    if (part.type === "text") text += part.text ?? "";
    const call = callOf(part);
    if (call === null) continue;
    calls.push(call);
    const content = resultOf(part);
    if (content !== null) results.push({ role: "tool", tool_call_id: call.id, content });
  }
  endStep();
  return messages;
}

function callOf(part: UiPartLike): ToolCallRequest | null {
  const name = part.type === "dynamic-tool" ? part.toolName : /^tool-(.+)$/s.exec(part.type)?.[1];
  if (name === undefined || part.toolCallId === undefined || part.state === "input-streaming") return null;
  const input = JSON.stringify(part.input ?? {});
  return { id: part.toolCallId, type: "function", function: { name, arguments: input } };
}

/** What a call returned, as text; `null` if it has not. */
function resultOf({ state, output, errorText }: UiPartLike): string | null {
  if (state === "output-error") return errorText ?? "The tool failed.";
  if (state !== "output-available") return null;
  return typeof output === "string" ? output : JSON.stringify(output ?? null);
}
