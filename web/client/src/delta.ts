// The pieces of an answer, and how a piece is written as a record of the log
// (spec/delivery.md, section 3).

import { Reader, WireError, Writer, decodeUtf8, encodeUtf8 } from "./wire.js";

/** Version of the record format, the first field of an open record (D-3.4). */
export const LOG_VERSION = 1;

/** Longest body of a record, bytes (D-3.2). */
export const MAX_RECORD_BYTES = (1 << 14) - 1;

/** A first byte from here on is a short record: one token's text in choice 0 (D-3.3). */
const SHORT_TEXT = 0x80;

/**
 * One step of an answer. `choice` numbers parallel answers to one request, from 0;
 * `tokens` is how many tokens a step stands for: tokens are merged, and some yield no text.
 */
export type Delta =
  /** First: JSON that a client needs to show the others. */
  | { readonly kind: "open"; readonly meta: string }
  /** Text, or the model's reasoning; always whole characters. */
  | {
      readonly kind: "text" | "reasoning";
      readonly choice: number;
      readonly tokens: number;
      readonly text: string;
    }
  /** A fragment of a tool call; `id` and `name` come with the first, and are empty later. */
  | {
      readonly kind: "tool_call";
      readonly choice: number;
      readonly index: number;
      readonly tokens: number;
      readonly id: string;
      readonly name: string;
      readonly arguments: string;
    }
  /** JSON: log probabilities of the next text; or what else a chunk carried. */
  | { readonly kind: "logprobs" | "other"; readonly choice: number; readonly json: string }
  /** One choice has ended, and why (`stop`, `length`, `tool_calls`, ...). */
  | { readonly kind: "finish"; readonly choice: number; readonly reason: string }
  /** Tokens so far; the last one counts. */
  | {
      readonly kind: "usage";
      readonly prompt: number;
      readonly completion: number;
      readonly cached: number;
      readonly reasoning: number;
    }
  /** Where the answer stands before its first token; the last one counts. */
  | PromptProgress
  /** Nothing comes for now, and `why` in the server's words; what comes next goes on where the answer stopped. */
  | { readonly kind: "pause"; readonly why: string }
  /** Last: the answer is incomplete. */
  | { readonly kind: "error"; readonly code: string; readonly message: string }
  /** Last: the answer is complete. */
  | { readonly kind: "done" };

/** A call of a tool, as far as it has come. */
export interface ToolCall {
  /** Which of its choice's calls it is. */
  readonly index: number;
  readonly id: string;
  readonly name: string;
  readonly arguments: string;
}

/** Where an answer stands before its first token. */
export interface PromptProgress {
  readonly kind: "progress";
  /** Its place in the queue, from 1; 0 once its prompt is being computed. */
  readonly queued: number;
  /** Predicted time to the first token, ms; `null` if nothing can be said. */
  readonly eta_ms: number | null;
  /** Tokens of the prompt. */
  readonly total: number;
  /** Tokens of it that came from a cache. */
  readonly cached: number;
  /** Tokens of it that the model knows by now. */
  readonly processed: number;
  /** Time since the request was accepted, ms. */
  readonly elapsed_ms: number;
}

const enum Kind {
  Open,
  Text,
  TextN,
  Reasoning,
  ReasoningN,
  ToolCall,
  Logprobs,
  Finish,
  Usage,
  Error,
  Done,
  Other,
  Progress,
  Pause = 14,
  /** The kind is an integer that follows, at least {@link LEAST_LONG_KIND} (D-3.1). */
  Long = 15,
}

const LEAST_LONG_KIND = 16;

/** Whether nothing may follow `delta` (D-3.6). */
export function isLast(delta: Delta): boolean {
  return delta.kind === "done" || delta.kind === "error";
}

/** Tokens that `delta` stands for. */
export function tokensOf(delta: Delta): number {
  return "tokens" in delta ? delta.tokens : 0;
}

/** A record read from the front of bytes. */
export interface DecodedRecord {
  /** Bytes that it took. */
  readonly length: number;
  /** `null` for a kind that this version does not know, which is skipped (D-3.5). */
  readonly delta: Delta | null;
}

/**
 * Reads the record at the front of `bytes`; `null` if it is not complete.
 *
 * @throws {WireError} for a record that nobody can read.
 */
export function decodeRecord(bytes: Uint8Array): DecodedRecord | null {
  const first = bytes[0];
  if (first === undefined) return null;
  if (first >= SHORT_TEXT) {
    const length = 1 + first - SHORT_TEXT;
    if (bytes.length < length) return null;
    const text = decodeUtf8(bytes.subarray(1, length));
    return { length, delta: { kind: "text", choice: 0, tokens: 1, text } };
  }
  const reader = new Reader(bytes);
  const body = wholeBody(reader);
  return body && { length: reader.position, delta: decodeDelta(new Reader(body)) };
}

/** The body of a record that has all its bytes. */
function wholeBody(reader: Reader): Uint8Array | null {
  try {
    return reader.counted();
  } catch (error) {
    if (error instanceof WireError && error.fault === "Truncated") return null;
    throw error;
  }
}

function decodeDelta(reader: Reader): Delta | null {
  const tag = reader.byte();
  const choice = tag >> 4 === 15 ? reader.int32() : tag >> 4;
  const delta = decodeFields(tag & 15, choice, reader);
  if (delta !== null) reader.end();
  return delta;
}

function decodeFields(kind: Kind, choice: number, reader: Reader): Delta | null {
  switch (kind) {
    case Kind.Open:
      if (reader.byte() !== LOG_VERSION) throw new WireError("UnknownVersion");
      return { kind: "open", meta: reader.restText() };
    case Kind.Text:
    case Kind.Reasoning:
      return { kind: textKind(kind), choice, tokens: 1, text: reader.restText() };
    case Kind.TextN:
    case Kind.ReasoningN:
      return { kind: textKind(kind), choice, tokens: reader.int32(), text: reader.restText() };
    case Kind.ToolCall:
      return decodeToolCall(choice, reader);
    case Kind.Logprobs:
      return { kind: "logprobs", choice, json: reader.restText() };
    case Kind.Finish:
      return { kind: "finish", choice, reason: reader.restText() };
    case Kind.Usage:
      return decodeUsage(reader);
    case Kind.Error:
      return { kind: "error", code: reader.text(), message: reader.restText() };
    case Kind.Done:
      return { kind: "done" };
    case Kind.Other:
      return { kind: "other", choice, json: reader.restText() };
    case Kind.Progress:
      return decodeProgress(reader);
    case Kind.Pause:
      return { kind: "pause", why: reader.restText() };
    case Kind.Long:
      // None of these is assigned yet; one that cannot be read makes the log unreadable.
      if (reader.int() < LEAST_LONG_KIND) throw new WireError("Malformed");
      return null;
    default:
      return null;
  }
}

function textKind(kind: Kind): "text" | "reasoning" {
  return kind === Kind.Text || kind === Kind.TextN ? "text" : "reasoning";
}

function decodeToolCall(choice: number, reader: Reader): Delta {
  const [index, tokens] = [reader.int32(), reader.int32()];
  const [id, name] = [reader.text(), reader.text()];
  return { kind: "tool_call", choice, index, tokens, id, name, arguments: reader.restText() };
}

function decodeUsage(reader: Reader): Delta {
  const [prompt, completion] = [reader.int(), reader.int()];
  const [cached, reasoning] = [reader.int(), reader.int()];
  return { kind: "usage", prompt, completion, cached, reasoning };
}

function decodeProgress(reader: Reader): Delta {
  const [queued, eta] = [reader.int32(), reader.int32()];
  const [total, cached, processed] = [reader.int32(), reader.int32(), reader.int32()];
  const eta_ms = eta === 0 ? null : eta - 1;
  return { kind: "progress", queued, eta_ms, total, cached, processed, elapsed_ms: reader.int32() };
}

/**
 * `delta` as one record, as a sender writes it (D-3.1, D-3.3).
 *
 * @throws {RangeError} if its body exceeds {@link MAX_RECORD_BYTES}.
 */
export function encodeRecord(delta: Delta): Uint8Array {
  if (delta.kind === "text" && delta.choice === 0 && delta.tokens === 1) {
    const text = encodeUtf8(delta.text);
    if (text.length < 0x80) return new Writer().byte(SHORT_TEXT | text.length).raw(text).bytes;
  }
  const body = encodeDelta(delta);
  if (body.length > MAX_RECORD_BYTES) throw new RangeError("delta does not fit a record");
  return new Writer().counted(body).bytes;
}

function encodeDelta(delta: Delta): Uint8Array {
  const out = new Writer();
  switch (delta.kind) {
    case "open":
      return putTag(out, Kind.Open).byte(LOG_VERSION).raw(encodeUtf8(delta.meta)).bytes;
    case "text":
      return putText(out, Kind.Text, Kind.TextN, delta);
    case "reasoning":
      return putText(out, Kind.Reasoning, Kind.ReasoningN, delta);
    case "tool_call":
      putTag(out, Kind.ToolCall, delta.choice).int(delta.index).int(delta.tokens);
      out.counted(encodeUtf8(delta.id)).counted(encodeUtf8(delta.name));
      return out.raw(encodeUtf8(delta.arguments)).bytes;
    case "logprobs":
      return putTag(out, Kind.Logprobs, delta.choice).raw(encodeUtf8(delta.json)).bytes;
    case "other":
      return putTag(out, Kind.Other, delta.choice).raw(encodeUtf8(delta.json)).bytes;
    case "finish":
      return putTag(out, Kind.Finish, delta.choice).raw(encodeUtf8(delta.reason)).bytes;
    case "usage":
      putTag(out, Kind.Usage).int(delta.prompt).int(delta.completion);
      return out.int(delta.cached).int(delta.reasoning).bytes;
    case "error":
      putTag(out, Kind.Error).counted(encodeUtf8(delta.code));
      return out.raw(encodeUtf8(delta.message)).bytes;
    case "progress":
      putTag(out, Kind.Progress).int(delta.queued).int(delta.eta_ms === null ? 0 : delta.eta_ms + 1);
      return out.int(delta.total).int(delta.cached).int(delta.processed).int(delta.elapsed_ms).bytes;
    case "pause":
      return putTag(out, Kind.Pause).raw(encodeUtf8(delta.why)).bytes;
    case "done":
      return putTag(out, Kind.Done).bytes;
  }
}

function putTag(out: Writer, kind: Kind, choice = 0): Writer {
  if (choice < 15) return out.byte(kind | (choice << 4));
  return out.byte(kind | 0xf0).int(choice);
}

function putText(
  out: Writer,
  one: Kind,
  many: Kind,
  delta: { choice: number; tokens: number; text: string },
): Uint8Array {
  if (delta.tokens === 1) putTag(out, one, delta.choice);
  else putTag(out, many, delta.choice).int(delta.tokens);
  return out.raw(encodeUtf8(delta.text)).bytes;
}
