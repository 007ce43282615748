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
  /** The stream, numbered within its connection. */
  readonly stream: number;
  /** Counts the stream's DATA frames, each number used once. */
  readonly packet: number;
  /** Log offset of the first byte. */
  readonly offset: number;
  /** The bytes; if empty, the frame only shows that the sender is alive. */
  readonly bytes: Uint8Array;
}

/** What has arrived and what the reader has, receiver to sender (D-5). */
export interface AckFrame {
  readonly kind: "ack";
  readonly stream: number;
  /** Counts the stream's ACK frames: the newest knows the reader's state. */
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
  /** The number that the stream gets in this connection. */
  readonly stream: number;
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
  readonly stream: number;
}

/** One frame; `bytes` are the datagram's own. */
export type Frame = DataFrame | AckFrame | ResumeFrame | SignalFrame;

const KINDS = ["data", "ack", "resume", "stop", "gone"] as const;
const CHECKED = 0x08;
const HIDDEN = 0x01;
const PROBE = 0x02;

/** `frame` as bytes, with a checksum if `checked` (D-2.4). */
export function encodeFrame(frame: Frame, checked = false): Uint8Array {
  const out = new Writer();
  out.byte((VERSION << 4) | (checked ? CHECKED : 0) | KINDS.indexOf(frame.kind));
  switch (frame.kind) {
    case "data":
      out.int(frame.stream).int(frame.packet).int(frame.offset).raw(frame.bytes);
      break;
    case "ack":
      encodeAck(out, frame);
      break;
    case "resume":
      out.int(frame.stream).raw(frame.id).raw(frame.token).int(frame.offset);
      break;
    default:
      out.int(frame.stream);
  }
  if (checked) out.uint32(crc32c(out.bytes));
  return out.bytes;
}

/**
 * Reads a datagram, which is one frame (D-2.3). `requireCheck` refuses frames without a
 * checksum, for links that do not protect what they carry (WebTransport does).
 *
 * @throws {WireError} for anything else than a frame of this version.
 */
export function decodeFrame(datagram: Uint8Array, requireCheck = false): Frame {
  const first = new Reader(datagram).byte();
  if (first >> 4 !== VERSION) throw new WireError("UnknownVersion");
  if (!(first & CHECKED) && requireCheck) throw new WireError("BadChecksum");
  const reader = new Reader(first & CHECKED ? verified(datagram) : datagram);
  reader.byte();
  const frame = decodeBody(first & 7, reader);
  reader.end();
  return frame;
}

function decodeBody(code: number, reader: Reader): Frame {
  const kind = KINDS[code];
  switch (kind) {
    case "data":
      return decodeData(reader);
    case "ack":
      return decodeAck(reader);
    case "resume": {
      const stream = reader.int();
      const [id, token] = [reader.take(16), reader.take(16)];
      return { kind, stream, id, token, offset: reader.int() };
    }
    case "stop":
    case "gone":
      return { kind, stream: reader.int() };
    default:
      throw new WireError("Malformed");
  }
}

/** The frame without its checksum, which is right. */
function verified(datagram: Uint8Array): Uint8Array {
  const length = datagram.length - 4;
  if (length < 1) throw new WireError("Truncated");
  const sum = new DataView(datagram.buffer, datagram.byteOffset + length, 4).getUint32(0);
  const body = datagram.subarray(0, length);
  if (crc32c(body) !== sum) throw new WireError("BadChecksum");
  return body;
}

function decodeData(reader: Reader): DataFrame {
  const [stream, packet, offset] = [reader.int(), reader.int(), reader.int()];
  const bytes = reader.take(reader.left);
  if (offset + bytes.length > MAX_INT) throw new WireError("Malformed");
  return { kind: "data", stream, packet, offset, bytes };
}

function encodeAck(out: Writer, ack: AckFrame): void {
  out.byte((ack.hidden ? HIDDEN : 0) | (ack.probe ? PROBE : 0));
  out.int(ack.stream).int(ack.number).int(ack.cumulative);
  out.int(ack.largest === null ? 0 : ack.largest + 1).int(ack.missing);
  out.int(Math.floor(ack.hold_us / HOLD_UNIT_US)).int(ack.unshown).int(ack.pace);
  let from = ack.cumulative;
  for (const [start, end] of ack.ranges) {
    out.int(start - from).int(end - start);
    from = end;
  }
}

function decodeAck(reader: Reader): AckFrame {
  const flags = reader.byte();
  if (flags & ~(HIDDEN | PROBE)) throw new WireError("Malformed");
  const [stream, number, cumulative, largest] = [reader.int(), reader.int(), reader.int(), reader.int()];
  const [missing, hold, unshown, pace] = [reader.int(), reader.int(), reader.int(), reader.int()];
  if (unshown > cumulative) throw new WireError("Malformed");
  return {
    kind: "ack",
    stream,
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
