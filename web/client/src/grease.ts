// What an end may send so that the other keeps skipping what it does not know: rule S-2.7 of
// spec/session.md. Nobody gives these values a meaning. `draw` is a random number in [0, 1).

import { encodeMessage } from "./message.js";

/** The share of answers that are greased: enough that a server that chokes on it is found. */
const SHARE = 1 / 4;

/** Types and kinds to skip are 31 n + 27; for types n is from 2 to 7, which is what a byte holds. */
const [FIRST, STEP, LEAST, COUNT] = [27, 31, 2, 6];

const MAX_PAYLOAD_BYTES = 15;

/** Whether an answer is greased. */
export function isGreased(draw: number): boolean {
  return draw < SHARE;
}

/** A message that the other end skips (S-2.1). */
export function greaseMessage(draw: number): Uint8Array {
  const type = FIRST + STEP * (LEAST + Math.floor(draw * COUNT));
  const payload = new Uint8Array(Math.floor(draw * (MAX_PAYLOAD_BYTES + 1))).fill(type);
  return encodeMessage(type, payload);
}

/** A member that the other end ignores in any JSON object. */
export function greaseMember(draw: number): { readonly grease: number } {
  return { grease: Math.floor(draw * 2 ** 16) };
}
