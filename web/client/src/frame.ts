// Frames: what a datagram or a FRAME message carries (spec/delivery.md, sections 2, 4, 5, 6).

import { MAX_INT, Reader, WireError, Writer, crc32c } from "./wire.js";

/** Version of the wire format, in the first byte of every frame (D-2.1). */
export const VERSION = 1;

/** How many packets below the largest an acknowledgement reports on (D-5.4). */
export const ACK_WINDOW = 53;

/** Most ranges in an acknowledgement (D-5.6). */
export const MAX_ACK_RANGES = 8;

/** Unit of an acknowledgement's hold on the wire, microseconds (D-5.5). */
export const HOLD_UNIT_US = 125;

/** Bytes of a log, sender to receiver (D-4). */
export interface DataFrame {
  readonly kind: "data";
  /** The answer's number within its connection. */
  readonly channel: number;
  /** Counts the answer's DATA frames, each number used once. */
  readonly packet: number;
  /** Log offset of the first byte. */
  readonly offset: number;
  /** The bytes; if empty, the frame only shows that the sender is alive. */
  readonly bytes: Uint8Array;
}

/** What has arrived and what the reader has, receiver to sender (D-5). */
export interface AckFrame {
  readonly kind: "ack";
  readonly channel: number;
  /** Counts the path's ACK frames: the newest knows the reader's state. */
  readonly number: number;
  /** Log offset below which everything has arrived. */
  readonly cumulative: number;
  /** Largest packet number that arrived; `null` before the first. */
  readonly largest: number | null;
  /** Bit i: packet `largest - 1 - i` has not arrived; {@link ACK_WINDOW} bits. */
  readonly missing: number;
  /** How long the receiver held this since `largest` arrived, microseconds. */
  readonly hold_us: number;
  /** Bytes below `cumulative` that the reader has not been shown. */
  readonly unshown: number;
  /** Log bytes per second at which they are being shown; 0: nothing is held back. */
  readonly pace: number;
  /** Nobody looks: the page is hidden. */
  readonly hidden: boolean;
  /** Asks to be answered, with new bytes or none. */
  readonly probe: boolean;
  /** Ranges `[start, end]` that have arrived beyond `cumulative`, ascending, apart. */
  readonly ranges: readonly (readonly [number, number])[];
}

/** A request to go on elsewhere, receiver to sender (D-6.1). */
export interface ResumeFrame {
  readonly kind: "resume";
  /** The number that the answer gets in this connection. */
  readonly channel: number;
  /** The answer's name, 16 bytes. */
  readonly id: Uint8Array;
  /** Proof that the reader may have it, 16 bytes. */
  readonly token: Uint8Array;
  /** Log offset from which to go on. */
  readonly offset: number;
}

/** STOP: the reader wants no more (D-6.6). GONE: the sender does not have it (D-6.5). */
export interface SignalFrame {
  readonly kind: "stop" | "gone";
  readonly channel: number;
}

/** One frame; `bytes` are the datagram's own. */
export type Frame = DataFrame | AckFrame | ResumeFrame | SignalFrame;

const KINDS = ["data", "ack", "resume", "stop", "gone"] as const;
const KIND = 0x07;
const PADDED = 5;
const CHECKED = 0x08;
const CHECKSUM_BYTES = 4;
const HIDDEN = 0x01;
const PROBE = 0x02;
/** A flag without a meaning, which keeps the rule alive that receivers ignore such flags (S-2.7). */
const GREASE = 0x80;

/** `frame` as bytes, with a checksum if `checked` (D-2.4). */
export function encodeFrame(frame: Frame, checked = false): Uint8Array {
  const out = new Writer();
  out.byte((VERSION << 4) | (checked ? CHECKED : 0) | KINDS.indexOf(frame.kind));
  switch (frame.kind) {
    case "data":
      out.int(frame.channel).int(frame.packet).int(frame.offset).raw(frame.bytes);
      break;
    case "ack":
      encodeAck(out, frame);
      break;
    case "resume":
      out.int(frame.channel).raw(frame.id).raw(frame.token).int(frame.offset);
      break;
    default:
      out.int(frame.channel);
  }
  if (checked) out.uint32(crc32c(out.bytes));
  return out.bytes;
}

/** `frame` within a PADDED one of `length` bytes in all, or of more if it does not fit (D-2.6). */
export function encodePaddedFrame(frame: Frame, length: number, checked = false): Uint8Array {
  const inner = encodeFrame(frame);
  const out = new Writer().byte((VERSION << 4) | (checked ? CHECKED : 0) | PADDED).counted(inner);
  const padding = length - out.bytes.length - (checked ? CHECKSUM_BYTES : 0);
  if (padding > 0) out.raw(new Uint8Array(padding));
  if (checked) out.uint32(crc32c(out.bytes));
  return out.bytes;
}

/** The padding step of ACK frames (D-2.7): what all but the rarest take. */
const ACK_STEP_BYTES = 32;

/** `ack`, an encoded frame without a checksum, within a PADDED one whose length tells nothing of it (D-2.7). */
export function padAck(ack: Uint8Array): Uint8Array {
  const out = new Writer().byte((VERSION << 4) | PADDED).counted(ack);
  const length = Math.ceil(out.bytes.length / ACK_STEP_BYTES) * ACK_STEP_BYTES;
  return out.raw(new Uint8Array(length - out.bytes.length)).bytes;
}

/**
 * Reads a datagram, which is one frame (D-2.3); of a PADDED one, the frame within (D-2.6).
 * `requireCheck` refuses frames without a checksum, for links that do not protect what they carry
 * (WebTransport does).
 *
 * @throws {WireError} for anything else than a frame of this version.
 */
export function decodeFrame(datagram: Uint8Array, requireCheck = false): Frame {
  const first = knownFirst(datagram);
  if (!(first & CHECKED) && requireCheck) throw new WireError("BadChecksum");
  const body = first & CHECKED ? verified(datagram) : datagram;
  return decodeUnpadded((first & KIND) === PADDED ? unpadded(body) : body);
}

function decodeUnpadded(bytes: Uint8Array): Frame {
  const first = knownFirst(bytes);
  const reader = new Reader(bytes);
  reader.byte();
  const frame = decodeBody(first & KIND, reader);
  reader.end();
  return frame;
}

/**
 * The channel of a datagram's frame, without decoding the rest (D-2.3); `null` if there is no frame
 * of this version and of a kind that belongs to an answer.
 */
export function peekChannel(datagram: Uint8Array): number | null {
  try {
    const frame = (knownFirst(datagram) & KIND) === PADDED ? unpadded(datagram) : datagram;
    const kind = KINDS[knownFirst(frame) & KIND];
    if (kind === undefined) return null;
    const reader = new Reader(frame);
    reader.take(kind === "ack" ? 2 : 1); // an ACK's flags stand before it
    return reader.int();
  } catch (error) {
    if (error instanceof WireError) return null;
    throw error;
  }
}

/** The kind of `frame`, which was written here and is not PADDED. */
export function kindOf(frame: Uint8Array): Frame["kind"] {
  const kind = KINDS[knownFirst(frame) & KIND];
  if (kind === undefined) throw new WireError("Malformed");
  return kind;
}

/** Marks `frame`, if it is an ACK without a checksum, with a flag that receivers ignore (S-2.7). */
export function greaseAck(frame: Uint8Array): void {
  if (kindOf(frame) === "ack" && !(knownFirst(frame) & CHECKED)) frame[1] = (frame[1] as number) | GREASE;
}

/** The first byte of a frame, which says that it is of this version (D-2.1). */
function knownFirst(frame: Uint8Array): number {
  const first = new Reader(frame).byte();
  if (first >> 4 !== VERSION) throw new WireError("UnknownVersion");
  return first;
}

/** The frame within a PADDED one, whose own checksum has been cut off (D-2.6). */
function unpadded(padded: Uint8Array): Uint8Array {
  const frame = innerBytes(padded);
  const first = frame[0];
  // Nothing within may begin this again, and the checksum covers it already.
  if (first === undefined || first & CHECKED || (first & KIND) === PADDED) throw new WireError("Malformed");
  return frame;
}

function innerBytes(padded: Uint8Array): Uint8Array {
  try {
    return new Reader(padded.subarray(1)).counted();
  } catch {
    throw new WireError("Malformed"); // no later byte can complete it
  }
}

function decodeBody(code: number, reader: Reader): Frame {
  const kind = KINDS[code];
  switch (kind) {
    case "data":
      return decodeData(reader);
    case "ack":
      return decodeAck(reader);
    case "resume": {
      const channel = reader.int();
      const [id, token] = [reader.take(16), reader.take(16)];
      return { kind, channel, id, token, offset: reader.int() };
    }
    case "stop":
    case "gone":
      return { kind, channel: reader.int() };
    default:
      // Of the kinds behind kind 7 none is assigned yet (D-2.2).
      throw new WireError("Malformed");
  }
}

/** The frame without its checksum, which is right. */
function verified(datagram: Uint8Array): Uint8Array {
  const length = datagram.length - CHECKSUM_BYTES;
  if (length < 1) throw new WireError("Truncated");
  const sum = new DataView(datagram.buffer, datagram.byteOffset + length, CHECKSUM_BYTES).getUint32(0);
  const body = datagram.subarray(0, length);
  if (crc32c(body) !== sum) throw new WireError("BadChecksum");
  return body;
}

function decodeData(reader: Reader): DataFrame {
  const [channel, packet, offset] = [reader.int(), reader.int(), reader.int()];
  const bytes = reader.take(reader.left);
  if (offset + bytes.length > MAX_INT) throw new WireError("Malformed");
  return { kind: "data", channel, packet, offset, bytes };
}

function encodeAck(out: Writer, ack: AckFrame): void {
  out.byte((ack.hidden ? HIDDEN : 0) | (ack.probe ? PROBE : 0));
  out.int(ack.channel).int(ack.number).int(ack.cumulative);
  out.int(ack.largest === null ? 0 : ack.largest + 1).int(ack.missing);
  out.int(Math.floor(ack.hold_us / HOLD_UNIT_US)).int(ack.unshown).int(ack.pace);
  let from = ack.cumulative;
  for (const [start, end] of ack.ranges) {
    out.int(start - from).int(end - start);
    from = end;
  }
}

function decodeAck(reader: Reader): AckFrame {
  const flags = reader.byte(); // others than the two are ignored (D-5.7)
  const [channel, number, cumulative, largest] = [reader.int(), reader.int(), reader.int(), reader.int()];
  const [missing, hold, unshown, pace] = [reader.int(), reader.int(), reader.int(), reader.int()];
  if (unshown > cumulative) throw new WireError("Malformed");
  return {
    kind: "ack",
    channel,
    number,
    cumulative,
    largest: largest === 0 ? null : largest - 1,
    missing,
    hold_us: hold * HOLD_UNIT_US,
    unshown,
    pace,
    hidden: (flags & HIDDEN) !== 0,
    probe: (flags & PROBE) !== 0,
    ranges: decodeRanges(cumulative, reader),
  };
}

function decodeRanges(cumulative: number, reader: Reader): [number, number][] {
  const ranges: [number, number][] = [];
  let from = cumulative;
  while (reader.left > 0) {
    const start = from + reader.int();
    const end = start + reader.int();
    const apart = start > from && end > start && end <= MAX_INT;
    if (!apart || ranges.length === MAX_ACK_RANGES) throw new WireError("Malformed");
    ranges.push([start, end]);
    from = end;
  }
  return ranges;
}
