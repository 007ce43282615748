// Messages on a QUIC stream of a connection, and the codes with which such a stream ends
// (spec/session.md, section 2).

import { MAX_EPOCH } from "./position.js";
import { Reader, WireError, Writer, decodeUtf8, encodeUtf8 } from "./wire.js";

/** Types of messages (S-2.2). */
export const MessageType = { Request: 0, Body: 1, Response: 2, Answer: 3, Frame: 4 } as const;

/** Longest message that a client accepts, bytes (S-2.1). */
export const MAX_MESSAGE_BYTES = 1 << 20;

/** Unknown types from here on are skipped, so that the protocol can grow; lower ones are errors (S-2.1). */
const FIRST_SKIPPED_TYPE = 64;

/** Why a QUIC stream was reset or stopped, or a connection closed (S-2.6). */
export const Code = {
  None: 0,
  Malformed: 1,
  BrokenOff: 2,
  Cancelled: 3,
  Superseded: 4,
  Stopped: 5,
  ShuttingDown: 6,
} as const;
export type Code = (typeof Code)[keyof typeof Code];

/** What `code` means: an unknown one, or none, that the transport gave up. */
export function codeOf(code: unknown): Code {
  return Object.values(Code).find((known) => known === code) ?? Code.BrokenOff;
}

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
  readonly channel?: number;
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
  readonly channel: number;
  /** Where the log goes on. */
  readonly offset: number;
  /** The epoch of the log (D-6.8). */
  readonly epoch: number;
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

  /** Reads messages of up to `limit_bytes`, also of those that it skips. */
  constructor(private readonly limit_bytes = MAX_MESSAGE_BYTES) {}

  /**
   * Takes in the next bytes; yields the messages that are complete, without those that are to be
   * skipped.
   *
   * @throws {WireError} at a message of an unknown type below 64 or beyond the limit.
   */
  *push(bytes: Uint8Array): Generator<Message, void> {
    const all = new Uint8Array(this.#pending.length + bytes.length);
    all.set(this.#pending);
    all.set(bytes, this.#pending.length);
    this.#pending = all;
    for (let next = this.#decode(); next !== null; next = this.#decode()) {
      this.#pending = this.#pending.subarray(next.length);
      if (next.message.type < FIRST_SKIPPED_TYPE) yield next.message;
    }
  }

  /** Whether bytes of an incomplete message are left. */
  get partial(): boolean {
    return this.#pending.length > 0;
  }

  #decode(): { length: number; message: Message } | null {
    const reader = new Reader(this.#pending);
    try {
      const type = reader.byte();
      if (type > MessageType.Frame && type < FIRST_SKIPPED_TYPE) throw new WireError("Malformed");
      const length = reader.int();
      if (length > this.limit_bytes) throw new WireError("Malformed");
      const payload = reader.take(length);
      return { length: reader.position, message: { type, payload } };
    } catch (error) {
      if (error instanceof WireError && error.fault === "Truncated") return null;
      throw error;
    }
  }
}

/** An ANSWER's payload (S-4.2); throws {@link WireError} if it is not one. */
export function decodeAnswerHead(payload: Uint8Array): AnswerHead {
  const { id, token, channel, offset, headers, epoch } = decodeObject(payload);
  const named = isHex128(id) && isHex128(token);
  if (!named || !isOffset(channel) || !isOffset(offset)) throw new WireError("Malformed");
  const known = epoch ?? 0;
  if (!isOffset(known) || known > MAX_EPOCH) throw new WireError("Malformed");
  return {
    id: id.toLowerCase(),
    token: token.toLowerCase(),
    channel,
    offset,
    epoch: known,
    headers: decodeHeaders(headers),
  };
}

/** A RESPONSE's payload; throws {@link WireError} if it is not one. */
export function decodeResponseHead(payload: Uint8Array): ResponseHead {
  const { status, headers } = decodeObject(payload);
  if (!isOffset(status) || status < 100 || status > 999) throw new WireError("Malformed");
  return { status, headers: decodeHeaders(headers) };
}

/** Strings by names in lower case; nothing is as good as an empty object. */
function decodeHeaders(headers: unknown): Record<string, string> {
  if (typeof (headers ?? {}) !== "object" || Array.isArray(headers)) throw new WireError("Malformed");
  const pairs = Object.entries(headers ?? {});
  if (pairs.some(([, value]) => typeof value !== "string")) throw new WireError("Malformed");
  return Object.fromEntries(pairs.map(([name, value]) => [name.toLowerCase(), value]));
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
