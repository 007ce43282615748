// Conversations as they come out of storage or a file: everything is checked and bounded, because a
// file, and a database that any version of these pages wrote, may hold anything.

import { type Message, type MessageState, type PauseCause, type ToolCall, NO_FACTS, emptyMessage } from "../message/model.js";
import { readPreset } from "./preset.js";
import type { AnswerReference, Attachment, Conversation, Turn } from "./conversation.js";

/** Most turns of one conversation. */
const MAX_TURNS = 4_000;

/** Longest text of a turn, and longest name of anything, UTF-16 units. */
const MAX_TEXT = 2 << 20;
const MAX_NAME = 300;
const MAX_FILES = 20;
const MAX_CALLS = 100;
const MAX_TIMES = 20_000;

/** `value` as a conversation; `null` if it is none. What is wrong in it is left out. */
export function readConversation(value: unknown): Conversation | null {
  const fields = record(value);
  const id = identifier(fields?.["id"]);
  if (fields === null || id === null) return null;
  const turns = readTurns(fields["turns"]);
  const known = new Set(turns.map((turn) => turn.id));
  const knownId = (value: unknown): string | null => (typeof value === "string" && known.has(value) ? value : null);
  return {
    id,
    title: text(fields["title"], MAX_NAME),
    createdAt: time(fields["createdAt"]),
    updatedAt: time(fields["updatedAt"]),
    turns,
    leaf: knownId(fields["leaf"]) ?? turns.at(-1)?.id ?? null,
    seenFrom: knownId(fields["seenFrom"]),
    preset: readPreset(fields["preset"]),
    // `chosenAt` was the time of both.
    titleAt: time(fields["titleAt"] ?? fields["chosenAt"]),
    presetAt: time(fields["presetAt"] ?? fields["chosenAt"]),
  };
}

/** Turns whose parents come before them, so that there is no circle. */
function readTurns(value: unknown): Turn[] {
  const turns = new Map<string, Turn>();
  for (const one of list(value, MAX_TURNS)) {
    const turn = readTurn(one);
    if (turn === null || turns.has(turn.id) || (turn.parent !== null && !turns.has(turn.parent))) continue;
    turns.set(turn.id, turn);
  }
  return [...turns.values()];
}

function readTurn(value: unknown): Turn | null {
  const fields = record(value);
  const id = identifier(fields?.["id"]);
  if (fields === null || id === null) return null;
  const parent = fields["parent"] === null ? null : identifier(fields["parent"]);
  const message = readMessage(id, fields["message"]);
  if (message === null || (parent === null && fields["parent"] !== null)) return null;
  const files = list(fields["files"], MAX_FILES).flatMap((file) => readFile(file) ?? []);
  return { id, parent, at: time(fields["at"]), files, message, reference: readReference(fields["reference"]) };
}

/** Names of an answer at a server: 32 hex digits each. */
export function readReference(value: unknown): AnswerReference | null {
  const fields = record(value);
  const [id, token] = [fields?.["id"], fields?.["token"]];
  const isHex = (part: unknown): part is string => typeof part === "string" && /^[0-9a-f]{32}$/.test(part);
  return isHex(id) && isHex(token) ? { id, token } : null;
}

function readFile(value: unknown): Attachment | null {
  const fields = record(value);
  if (fields === null) return null;
  const name = text(fields["name"], MAX_NAME);
  const { image } = fields;
  if (image === undefined) return { name, text: text(fields["text"], MAX_TEXT) };
  return isImageUrl(image) ? { name, image } : null;
}

/** Whether `value` is a picture as this page makes them: nothing else gets into the page or to a server. */
function isImageUrl(value: unknown): value is string {
  return typeof value === "string" && value.length <= MAX_TEXT && /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}$/.test(value);
}

function readMessage(id: string, value: unknown): Message | null {
  const fields = record(value);
  const role = fields?.["role"];
  if (fields === null || (role !== "user" && role !== "assistant")) return null;
  const continuedAt = count(fields["continuedAt"]);
  return {
    ...emptyMessage(id, role),
    text: text(fields["text"], MAX_TEXT),
    ...(continuedAt !== null && { continuedAt }),
    reasoning: text(fields["reasoning"], MAX_TEXT),
    reasoningMs: count(fields["reasoningMs"]),
    toolCalls: list(fields["toolCalls"], MAX_CALLS).flatMap((call) => readCall(call) ?? []),
    state: readState(fields["state"]),
    facts: readFacts(fields["facts"]),
  };
}

function readCall(value: unknown): ToolCall | null {
  const fields = record(value);
  if (fields === null) return null;
  const result = fields["result"];
  return {
    id: text(fields["id"], MAX_NAME),
    name: text(fields["name"], MAX_NAME),
    arguments: text(fields["arguments"], MAX_TEXT),
    result: typeof result === "string" ? text(result, MAX_TEXT) : null,
  };
}

/** An answer that was on its way stays so: whoever opens the conversation goes on with it. */
function readState(value: unknown): MessageState {
  const fields = record(value);
  if (fields?.["is"] === "finished") return { is: "finished", reason: text(fields["reason"], MAX_NAME) };
  if (fields?.["is"] !== "failed") return { is: "streaming" };
  return { is: "failed", error: text(fields["error"], MAX_NAME * 10), retry: fields["retry"] === true };
}

function readFacts(value: unknown): Message["facts"] {
  const fields = record(value);
  if (fields === null) return NO_FACTS;
  const transport = fields["transport"];
  const times = list(fields["times"], MAX_TIMES);
  return {
    transport: transport === "webtransport" || transport === "sse" ? transport : null,
    model: typeof fields["model"] === "string" ? text(fields["model"], MAX_NAME) : null,
    ttftMs: count(fields["ttftMs"]),
    tokens: count(fields["tokens"]) ?? 0,
    promptTokens: count(fields["promptTokens"]),
    cachedTokens: count(fields["cachedTokens"]),
    tokensPerSecond: count(fields["tokensPerSecond"]),
    resumes: count(fields["resumes"]) ?? 0,
    pauses: list(fields["pauses"], MAX_TURNS).flatMap((pause) => readPause(pause) ?? []),
    times: times.every((one) => typeof one === "number" && Number.isFinite(one)) ? (times as number[]) : [],
  };
}

const CAUSES: readonly PauseCause[] = ["engine", "queue", "network", "hidden", "unknown"];

function readPause(value: unknown): Message["facts"]["pauses"][number] | null {
  const fields = record(value);
  const cause = CAUSES.find((cause) => cause === fields?.["cause"]);
  const part = fields?.["part"];
  const [ms, at, from] = [count(fields?.["ms"]), count(fields?.["at"]), count(fields?.["from"])];
  if (cause === undefined || (part !== "text" && part !== "reasoning")) return null;
  return ms === null || at === null || from === null ? null : { cause, ms, part, at, from };
}

function record(value: unknown): Record<string, unknown> | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null;
}

function list(value: unknown, most: number): readonly unknown[] {
  return Array.isArray(value) ? value.slice(0, most) : [];
}

function text(value: unknown, longest: number): string {
  return typeof value === "string" ? value.slice(0, longest) : "";
}

function identifier(value: unknown): string | null {
  return typeof value === "string" && /^[0-9a-zA-Z-]{1,64}$/.test(value) ? value : null;
}

function count(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) && value >= 0 ? value : null;
}

function time(value: unknown): number {
  return Math.min(count(value) ?? 0, 8.64e15);
}
