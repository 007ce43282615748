// Fields on the wire: variable-length integers, length-prefixed bytes, the checksum
// (spec/delivery.md, section 1).

/** The largest integer on the wire, 2^53 - 1, which a number holds exactly (D-1.2). */
export const MAX_INT = Number.MAX_SAFE_INTEGER;

/** What was wrong with bytes from a peer; named as in `spec/vectors`. */
export type WireFault =
  | "Truncated"
  | "Malformed"
  | "UnknownVersion"
  | "BadChecksum"
  | "WrongChannel"
  | "NoRoom";

/** Thrown for bytes that break the format. The receiver turns it into a value. */
export class WireError extends Error {
  override readonly name = "WireError";
  constructor(readonly fault: WireFault) {
    super(fault);
  }
}

/** The format's bound on writers is the caller's to keep: a larger value is a bug. */
function assertInt(value: number): void {
  if (!Number.isSafeInteger(value) || value < 0) throw new RangeError(`not a wire integer: ${value}`);
}

const utf8 = new TextEncoder();
// A byte order mark is text like any other: only so is what is shown what was generated.
const strictUtf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The UTF-8 bytes of `text`. */
export function encodeUtf8(text: string): Uint8Array {
  return utf8.encode(text);
}

/** Appends fields to a growing buffer. */
export class Writer {
  #bytes = new Uint8Array(64);
  #view = new DataView(this.#bytes.buffer);
  #length = 0;

  /** What was written so far; valid until the next write. */
  get bytes(): Uint8Array {
    return this.#bytes.subarray(0, this.#length);
  }

  /** Appends one byte. */
  byte(value: number): this {
    this.#reserve(1);
    this.#bytes[this.#length++] = value;
    return this;
  }

  /** Appends an integer (RFC 9000 section 16) in its shortest form (D-1.1). */
  int(value: number): this {
    assertInt(value);
    this.#reserve(8);
    const at = this.#length;
    if (value < 0x40) {
      this.#view.setUint8(at, value);
    } else if (value < 0x4000) {
      this.#view.setUint16(at, value | 0x4000);
    } else if (value < 0x4000_0000) {
      this.#view.setUint32(at, (value | 0x8000_0000) >>> 0);
    } else {
      this.#view.setUint32(at, (Math.floor(value / 2 ** 32) | 0xc000_0000) >>> 0);
      this.#view.setUint32(at + 4, value >>> 0);
    }
    this.#length += value < 0x40 ? 1 : value < 0x4000 ? 2 : value < 0x4000_0000 ? 4 : 8;
    return this;
  }

  /** Appends `bytes` as they are. */
  raw(bytes: Uint8Array): this {
    this.#reserve(bytes.length);
    this.#bytes.set(bytes, this.#length);
    this.#length += bytes.length;
    return this;
  }

  /** Appends `bytes` with their length before them (D-1.3). */
  counted(bytes: Uint8Array): this {
    return this.int(bytes.length).raw(bytes);
  }

  /** Appends a 32-bit number, big-endian. */
  uint32(value: number): this {
    this.#reserve(4);
    this.#view.setUint32(this.#length, value);
    this.#length += 4;
    return this;
  }

  #reserve(more: number): void {
    const needed = this.#length + more;
    if (needed <= this.#bytes.length) return;
    const grown = new Uint8Array(Math.max(needed, 2 * this.#bytes.length));
    grown.set(this.bytes);
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer);
  }
}

/** Reads fields from the front of `bytes`; every read throws {@link WireError} if it cannot. */
export class Reader {
  #at = 0;
  constructor(readonly bytes: Uint8Array) {}

  /** Bytes that were read so far. */
  get position(): number {
    return this.#at;
  }

  /** Bytes that are left. */
  get left(): number {
    return this.bytes.length - this.#at;
  }

  /** The next byte. */
  byte(): number {
    return this.take(1)[0] as number;
  }

  /** The next `count` bytes, not copied. */
  take(count: number): Uint8Array {
    if (count > this.left) throw new WireError("Truncated");
    this.#at += count;
    return this.bytes.subarray(this.#at - count, this.#at);
  }

  /** An integer of any length (D-1.1), at most {@link MAX_INT} (D-1.2). */
  int(): number {
    const first = this.bytes[this.#at];
    if (first === undefined) throw new WireError("Truncated");
    const field = this.take(1 << (first >> 6));
    let value = first & 0x3f;
    for (let i = 1; i < field.length; i++) {
      // Beyond 2^53 a sum would be rounded, perhaps back below the bound.
      if (value > (MAX_INT - 255) / 256 && value * 256 + (field[i] as number) > MAX_INT) {
        throw new WireError("Malformed");
      }
      value = value * 256 + (field[i] as number);
    }
    return value;
  }

  /** An integer below 2^32. */
  int32(): number {
    const value = this.int();
    if (value > 0xffff_ffff) throw new WireError("Malformed");
    return value;
  }

  /** Length-prefixed bytes (D-1.3), not copied. */
  counted(): Uint8Array {
    return this.take(this.int());
  }

  /** Length-prefixed text (D-1.3). */
  text(): string {
    return decodeUtf8(this.counted());
  }

  /** Everything that is left, as text. */
  restText(): string {
    return decodeUtf8(this.take(this.left));
  }

  /** Nothing may be left (D-1.4). */
  end(): void {
    if (this.left > 0) throw new WireError("Malformed");
  }
}

/** `bytes` as text; throws {@link WireError} if they are not UTF-8 (D-1.3). */
export function decodeUtf8(bytes: Uint8Array): string {
  try {
    return strictUtf8.decode(bytes);
  } catch {
    throw new WireError("Malformed");
  }
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, index) => {
  let crc = index;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? 0x82f6_3b78 ^ (crc >>> 1) : crc >>> 1;
  return crc;
});

/** CRC-32C (RFC 3720 appendix B.4) of `bytes` (D-2.4). */
export function crc32c(bytes: Uint8Array): number {
  let crc = 0xffff_ffff;
  for (const byte of bytes) crc = (CRC_TABLE[(crc ^ byte) & 0xff] as number) ^ (crc >>> 8);
  return ~crc >>> 0;
}
