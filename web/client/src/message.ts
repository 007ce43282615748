// Messages on a stream of a connection (spec/session.md, section 2).

import { Reader, WireError, Writer, decodeUtf8, encodeUtf8 } from "./wire.js";

/** Types of messages (S-2.2). */
export const MessageType = { Request: 0, Body: 1, Response: 2, Answer: 3, Frame: 4 } as const;

/** Longest message that a client accepts, bytes (S-2.1). */
export const MAX_MESSAGE_BYTES = 1 << 20;

/** One message, as it came. */
export interface Message {
  readonly type: number;
  readonly payload: Uint8Array;
}

/** A REQUEST's head (S-2.3). */
export interface RequestHead {
  readonly key?: string;
  readonly method: string;
  readonly path: string;
  readonly headers?: Record<string, string>;
  readonly stream?: number;
}

/** A RESPONSE's head: the request was refused, or was not for a log. */
export interface ResponseHead {
  readonly status: number;
  readonly headers: Record<string, string>;
}

/** An ANSWER's head (S-4.2): names the answer for a resume. */
export interface AnswerHead {
  /** 32 hex digits. */
  readonly id: string;
  /** 32 hex digits. */
  readonly token: string;
  readonly stream: number;
  /** Where the log goes on. */
  readonly offset: number;
  /** What an HTTP response would say in its headers; names in lower case. */
  readonly headers: Record<string, string>;
}

/** One message as bytes. */
export function encodeMessage(type: number, payload: Uint8Array): Uint8Array {
  return new Writer().byte(type).counted(payload).bytes;
}

/** A message whose payload is JSON. */
export function encodeJson(type: number, value: unknown): Uint8Array {
  return encodeMessage(type, encodeUtf8(JSON.stringify(value)));
}

/** Cuts a stream's bytes, in whatever pieces they come, into messages. */
export class MessageReader {
  #pending: Uint8Array = new Uint8Array(0);

  /**
   * Takes in the next bytes; returns the messages that are complete.
   *
   * @throws {WireError} for a message of an unknown type or beyond {@link MAX_MESSAGE_BYTES}.
   */
  push(bytes: Uint8Array): Message[] {
    const all = new Uint8Array(this.#pending.length + bytes.length);
    all.set(this.#pending);
    all.set(bytes, this.#pending.length);
    const messages: Message[] = [];
    let at = 0;
    for (;;) {
      const next = decodeMessage(all.subarray(at));
      if (next === null) break;
      messages.push(next.message);
      at += next.length;
    }
    this.#pending = all.slice(at);
    return messages;
  }

  /** Whether bytes of an incomplete message are left. */
  get partial(): boolean {
    return this.#pending.length > 0;
  }
}

function decodeMessage(bytes: Uint8Array): { length: number; message: Message } | null {
  const reader = new Reader(bytes);
  try {
    const type = reader.byte();
    const length = reader.int();
    if (type > MessageType.Frame || length > MAX_MESSAGE_BYTES) throw new WireError("Malformed");
    const payload = reader.take(length);
    return { length: reader.position, message: { type, payload } };
  } catch (error) {
    if (error instanceof WireError && error.fault === "Truncated") return null;
    throw error;
  }
}

/** An ANSWER's payload (S-4.2); throws {@link WireError} if it is not one. */
export function decodeAnswerHead(payload: Uint8Array): AnswerHead {
  const { id, token, stream, offset, headers } = decodeObject(payload);
  const named = isHex128(id) && isHex128(token);
  if (!named || !isOffset(stream) || !isOffset(offset)) throw new WireError("Malformed");
  return { id, token, stream, offset, headers: decodeHeaders(headers) };
}

/** A RESPONSE's payload; throws {@link WireError} if it is not one. */
export function decodeResponseHead(payload: Uint8Array): ResponseHead {
  const { status, headers } = decodeObject(payload);
  if (!isOffset(status)) throw new WireError("Malformed");
  return { status, headers: decodeHeaders(headers) };
}

function decodeHeaders(headers: unknown): Record<string, string> {
  const pairs = typeof headers === "object" && headers !== null ? Object.entries(headers) : [];
  return Object.fromEntries(pairs.map(([name, value]) => [name.toLowerCase(), String(value)]));
}

function decodeObject(payload: Uint8Array): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(decodeUtf8(payload));
    if (typeof value === "object" && value !== null) return value as Record<string, unknown>;
  } catch (error) {
    if (error instanceof WireError) throw error;
  }
  throw new WireError("Malformed");
}

function isOffset(value: unknown): value is number {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0;
}

function isHex128(value: unknown): value is string {
  return typeof value === "string" && /^[0-9a-f]{32}$/i.test(value);
}

/** Bytes of hex digits, as ids and tokens are written in JSON. */
export function fromHex(hex: string): Uint8Array {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}
