// Built from web/client by `npm run build`; change it there.
const MAX_INT = Number.MAX_SAFE_INTEGER;
class WireError extends Error {
    fault;
    name = "WireError";
    constructor(fault) {
        super(fault);
        this.fault = fault;
    }
}
function assertInt(value) {
    if (!Number.isSafeInteger(value) || value < 0)
        throw new RangeError(`not a wire integer: ${value}`);
}
const utf8 = new TextEncoder();
const strictUtf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
function encodeUtf8(text) {
    return utf8.encode(text);
}
class Writer {
    #bytes = new Uint8Array(64);
    #view = new DataView(this.#bytes.buffer);
    #length = 0;
    get bytes() {
        return this.#bytes.subarray(0, this.#length);
    }
    byte(value) {
        this.#reserve(1);
        this.#bytes[this.#length++] = value;
        return this;
    }
    int(value) {
        assertInt(value);
        this.#reserve(8);
        const at = this.#length;
        if (value < 0x40) {
            this.#view.setUint8(at, value);
        }
        else if (value < 0x4000) {
            this.#view.setUint16(at, value | 0x4000);
        }
        else if (value < 0x4000_0000) {
            this.#view.setUint32(at, (value | 0x8000_0000) >>> 0);
        }
        else {
            this.#view.setUint32(at, (Math.floor(value / 2 ** 32) | 0xc000_0000) >>> 0);
            this.#view.setUint32(at + 4, value >>> 0);
        }
        this.#length += value < 0x40 ? 1 : value < 0x4000 ? 2 : value < 0x4000_0000 ? 4 : 8;
        return this;
    }
    raw(bytes) {
        this.#reserve(bytes.length);
        this.#bytes.set(bytes, this.#length);
        this.#length += bytes.length;
        return this;
    }
    counted(bytes) {
        return this.int(bytes.length).raw(bytes);
    }
    uint32(value) {
        this.#reserve(4);
        this.#view.setUint32(this.#length, value);
        this.#length += 4;
        return this;
    }
    #reserve(more) {
        const needed = this.#length + more;
        if (needed <= this.#bytes.length)
            return;
        const grown = new Uint8Array(Math.max(needed, 2 * this.#bytes.length));
        grown.set(this.bytes);
        this.#bytes = grown;
        this.#view = new DataView(grown.buffer);
    }
}
class Reader {
    bytes;
    #at = 0;
    constructor(bytes) {
        this.bytes = bytes;
    }
    get position() {
        return this.#at;
    }
    get left() {
        return this.bytes.length - this.#at;
    }
    byte() {
        return this.take(1)[0];
    }
    take(count) {
        if (count > this.left)
            throw new WireError("Truncated");
        this.#at += count;
        return this.bytes.subarray(this.#at - count, this.#at);
    }
    int() {
        const first = this.bytes[this.#at];
        if (first === undefined)
            throw new WireError("Truncated");
        const field = this.take(1 << (first >> 6));
        let value = first & 0x3f;
        for (let i = 1; i < field.length; i++) {
            if (value > (MAX_INT - 255) / 256 && value * 256 + field[i] > MAX_INT) {
                throw new WireError("Malformed");
            }
            value = value * 256 + field[i];
        }
        return value;
    }
    int32() {
        const value = this.int();
        if (value > 0xffff_ffff)
            throw new WireError("Malformed");
        return value;
    }
    counted() {
        return this.take(this.int());
    }
    text() {
        return decodeUtf8(this.counted());
    }
    restText() {
        return decodeUtf8(this.take(this.left));
    }
    end() {
        if (this.left > 0)
            throw new WireError("Malformed");
    }
}
function decodeUtf8(bytes) {
    try {
        return strictUtf8.decode(bytes);
    }
    catch {
        throw new WireError("Malformed");
    }
}
const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, index) => {
    let crc = index;
    for (let bit = 0; bit < 8; bit++)
        crc = crc & 1 ? 0x82f6_3b78 ^ (crc >>> 1) : crc >>> 1;
    return crc;
});
function crc32c(bytes) {
    let crc = 0xffff_ffff;
    for (const byte of bytes)
        crc = CRC_TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8);
    return ~crc >>> 0;
}
const VERSION = 1;
const ACK_WINDOW = 53;
const MAX_ACK_RANGES = 8;
const HOLD_UNIT_US = 125;
const KINDS = ["data", "ack", "resume", "stop", "gone"];
const KIND = 0x07;
const PADDED = 5;
const CHECKED = 0x08;
const CHECKSUM_BYTES = 4;
const HIDDEN = 0x01;
const PROBE = 0x02;
const GREASE = 0x80;
function encodeFrame(frame, checked = false) {
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
    if (checked)
        out.uint32(crc32c(out.bytes));
    return out.bytes;
}
function encodePaddedFrame(frame, length, checked = false) {
    const inner = encodeFrame(frame);
    const out = new Writer().byte((VERSION << 4) | (checked ? CHECKED : 0) | PADDED).counted(inner);
    const padding = length - out.bytes.length - (checked ? CHECKSUM_BYTES : 0);
    if (padding > 0)
        out.raw(new Uint8Array(padding));
    if (checked)
        out.uint32(crc32c(out.bytes));
    return out.bytes;
}
const ACK_STEP_BYTES = 32;
function padAck(ack) {
    const out = new Writer().byte((VERSION << 4) | PADDED).counted(ack);
    const length = Math.ceil(out.bytes.length / ACK_STEP_BYTES) * ACK_STEP_BYTES;
    return out.raw(new Uint8Array(length - out.bytes.length)).bytes;
}
function decodeFrame(datagram, requireCheck = false) {
    const first = knownFirst(datagram);
    if (!(first & CHECKED) && requireCheck)
        throw new WireError("BadChecksum");
    const body = first & CHECKED ? verified(datagram) : datagram;
    return decodeUnpadded((first & KIND) === PADDED ? unpadded(body) : body);
}
function decodeUnpadded(bytes) {
    const first = knownFirst(bytes);
    const reader = new Reader(bytes);
    reader.byte();
    const frame = decodeBody(first & KIND, reader);
    reader.end();
    return frame;
}
function peekChannel(datagram) {
    try {
        const frame = (knownFirst(datagram) & KIND) === PADDED ? unpadded(datagram) : datagram;
        const kind = KINDS[knownFirst(frame) & KIND];
        if (kind === undefined)
            return null;
        const reader = new Reader(frame);
        reader.take(kind === "ack" ? 2 : 1);
        return reader.int();
    }
    catch (error) {
        if (error instanceof WireError)
            return null;
        throw error;
    }
}
function kindOf(frame) {
    const kind = KINDS[knownFirst(frame) & KIND];
    if (kind === undefined)
        throw new WireError("Malformed");
    return kind;
}
function greaseAck(frame) {
    if (kindOf(frame) === "ack" && !(knownFirst(frame) & CHECKED))
        frame[1] = frame[1] | GREASE;
}
function knownFirst(frame) {
    const first = new Reader(frame).byte();
    if (first >> 4 !== VERSION)
        throw new WireError("UnknownVersion");
    return first;
}
function unpadded(padded) {
    const frame = innerBytes(padded);
    const first = frame[0];
    if (first === undefined || first & CHECKED || (first & KIND) === PADDED)
        throw new WireError("Malformed");
    return frame;
}
function innerBytes(padded) {
    try {
        return new Reader(padded.subarray(1)).counted();
    }
    catch {
        throw new WireError("Malformed");
    }
}
function decodeBody(code, reader) {
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
            throw new WireError("Malformed");
    }
}
function verified(datagram) {
    const length = datagram.length - CHECKSUM_BYTES;
    if (length < 1)
        throw new WireError("Truncated");
    const sum = new DataView(datagram.buffer, datagram.byteOffset + length, CHECKSUM_BYTES).getUint32(0);
    const body = datagram.subarray(0, length);
    if (crc32c(body) !== sum)
        throw new WireError("BadChecksum");
    return body;
}
function decodeData(reader) {
    const [channel, packet, offset] = [reader.int(), reader.int(), reader.int()];
    const bytes = reader.take(reader.left);
    if (offset + bytes.length > MAX_INT)
        throw new WireError("Malformed");
    return { kind: "data", channel, packet, offset, bytes };
}
function encodeAck(out, ack) {
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
function decodeAck(reader) {
    const flags = reader.byte();
    const [channel, number, cumulative, largest] = [reader.int(), reader.int(), reader.int(), reader.int()];
    const [missing, hold, unshown, pace] = [reader.int(), reader.int(), reader.int(), reader.int()];
    if (unshown > cumulative)
        throw new WireError("Malformed");
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
function decodeRanges(cumulative, reader) {
    const ranges = [];
    let from = cumulative;
    while (reader.left > 0) {
        const start = from + reader.int();
        const end = start + reader.int();
        const apart = start > from && end > start && end <= MAX_INT;
        if (!apart || ranges.length === MAX_ACK_RANGES)
            throw new WireError("Malformed");
        ranges.push([start, end]);
        from = end;
    }
    return ranges;
}
const MessageType = { Request: 0, Body: 1, Response: 2, Answer: 3, Frame: 4 };
const MAX_MESSAGE_BYTES = 1 << 20;
const FIRST_SKIPPED_TYPE = 64;
const Code = {
    None: 0,
    Malformed: 1,
    BrokenOff: 2,
    Cancelled: 3,
    Superseded: 4,
    Stopped: 5,
    ShuttingDown: 6,
};
function codeOf(code) {
    return Object.values(Code).find((known) => known === code) ?? Code.BrokenOff;
}
function encodeMessage(type, payload) {
    return new Writer().byte(type).counted(payload).bytes;
}
function encodeJson(type, value) {
    return encodeMessage(type, encodeUtf8(JSON.stringify(value)));
}
class MessageReader {
    limit_bytes;
    #pending = new Uint8Array(0);
    constructor(limit_bytes = MAX_MESSAGE_BYTES) {
        this.limit_bytes = limit_bytes;
    }
    *push(bytes) {
        const all = new Uint8Array(this.#pending.length + bytes.length);
        all.set(this.#pending);
        all.set(bytes, this.#pending.length);
        this.#pending = all;
        for (let next = this.#decode(); next !== null; next = this.#decode()) {
            this.#pending = this.#pending.subarray(next.length);
            if (next.message.type < FIRST_SKIPPED_TYPE)
                yield next.message;
        }
    }
    get partial() {
        return this.#pending.length > 0;
    }
    #decode() {
        const reader = new Reader(this.#pending);
        try {
            const type = reader.byte();
            if (type > MessageType.Frame && type < FIRST_SKIPPED_TYPE)
                throw new WireError("Malformed");
            const length = reader.int();
            if (length > this.limit_bytes)
                throw new WireError("Malformed");
            const payload = reader.take(length);
            return { length: reader.position, message: { type, payload } };
        }
        catch (error) {
            if (error instanceof WireError && error.fault === "Truncated")
                return null;
            throw error;
        }
    }
}
function decodeAnswerHead(payload) {
    const { id, token, channel, offset, headers } = decodeObject(payload);
    const named = isHex128(id) && isHex128(token);
    if (!named || !isOffset(channel) || !isOffset(offset))
        throw new WireError("Malformed");
    return { id: id.toLowerCase(), token: token.toLowerCase(), channel, offset, headers: decodeHeaders(headers) };
}
function decodeResponseHead(payload) {
    const { status, headers } = decodeObject(payload);
    if (!isOffset(status) || status < 100 || status > 999)
        throw new WireError("Malformed");
    return { status, headers: decodeHeaders(headers) };
}
function decodeHeaders(headers) {
    if (typeof (headers ?? {}) !== "object" || Array.isArray(headers))
        throw new WireError("Malformed");
    const pairs = Object.entries(headers ?? {});
    if (pairs.some(([, value]) => typeof value !== "string"))
        throw new WireError("Malformed");
    return Object.fromEntries(pairs.map(([name, value]) => [name.toLowerCase(), value]));
}
function decodeObject(payload) {
    try {
        const value = JSON.parse(decodeUtf8(payload));
        if (typeof value === "object" && value !== null)
            return value;
    }
    catch (error) {
        if (error instanceof WireError)
            throw error;
    }
    throw new WireError("Malformed");
}
function isOffset(value) {
    return typeof value === "number" && Number.isSafeInteger(value) && value >= 0;
}
function isHex128(value) {
    return typeof value === "string" && /^[0-9a-f]{32}$/i.test(value);
}
function fromHex(hex) {
    return Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}
const INCOMING_DATAGRAMS = 1024;
const OUTGOING_DATAGRAMS = 64;
class Connection {
    rtt_us;
    #transport;
    #datagrams;
    #receivers = new Map();
    #lastChannel = 0;
    closed;
    constructor(transport, rtt_us) {
        this.rtt_us = rtt_us;
        this.#transport = transport;
        const datagrams = transport.datagrams;
        widen(datagrams);
        this.#datagrams = (datagrams.createWritable?.() ?? datagrams.writable).getWriter();
        this.#datagrams.closed.catch(() => { });
        this.closed = transport.closed.then((info) => ({ code: codeOf(info?.closeCode), why: info?.reason || "closed" }), (error) => ({ code: Code.BrokenOff, why: String(error) }));
        void this.#readDatagrams(datagrams.readable);
    }
    static async open(target, Transport, clock_us) {
        const begun = clock_us();
        const attempts = target.urls.map((url) => new Transport(url, optionsFor(target)));
        for (const attempt of attempts)
            attempt.closed.catch(() => { });
        const ready = attempts.map((attempt) => attempt.ready.then(() => attempt));
        const winner = await Promise.any(ready);
        for (const attempt of attempts)
            if (attempt !== winner)
                attempt.close();
        return new Connection(winner, Math.floor((clock_us() - begun) / 2));
    }
    addChannel(receive) {
        this.#lastChannel += 1;
        this.#receivers.set(this.#lastChannel, receive);
        return this.#lastChannel;
    }
    dropChannel(channel) {
        this.#receivers.delete(channel);
    }
    async openStream() {
        const { readable, writable } = await this.#transport.createBidirectionalStream();
        const writer = writable.getWriter();
        writer.closed.catch(() => { });
        return { readable: readable, writer };
    }
    async codeOf(error) {
        const { streamErrorCode } = (error ?? {});
        if (typeof streamErrorCode === "number")
            return codeOf(streamErrorCode);
        const soon = new Promise((resolve) => setTimeout(() => resolve(null), 0));
        return (await Promise.race([this.closed, soon]))?.code ?? Code.BrokenOff;
    }
    send(datagram) {
        if ((this.#datagrams.desiredSize ?? 0) <= -OUTGOING_DATAGRAMS)
            return;
        this.#datagrams.write(datagram).catch(() => { });
    }
    close() {
        this.#receivers.clear();
        try {
            this.#transport.close();
        }
        catch {
        }
    }
    async #readDatagrams(readable) {
        const reader = readable.getReader();
        try {
            for (let next = await reader.read(); !next.done; next = await reader.read()) {
                const channel = peekChannel(next.value);
                if (channel !== null)
                    this.#receivers.get(channel)?.(next.value);
            }
        }
        catch {
        }
    }
}
function optionsFor(target) {
    const hash = target.certificate_sha256;
    if (hash === null)
        return { congestionControl: "low-latency" };
    const value = Uint8Array.from(hash.match(/../g) ?? [], (pair) => parseInt(pair, 16));
    return { congestionControl: "low-latency", serverCertificateHashes: [{ algorithm: "sha-256", value }] };
}
function widen(datagrams) {
    if ("incomingHighWaterMark" in datagrams)
        datagrams.incomingHighWaterMark = INCOMING_DATAGRAMS;
    if ("incomingMaxBufferedDatagrams" in datagrams)
        datagrams.incomingMaxBufferedDatagrams = INCOMING_DATAGRAMS;
    if ("outgoingHighWaterMark" in datagrams)
        datagrams.outgoingHighWaterMark = OUTGOING_DATAGRAMS;
    if ("outgoingMaxBufferedDatagrams" in datagrams)
        datagrams.outgoingMaxBufferedDatagrams = OUTGOING_DATAGRAMS;
}
function reasonOf(code) {
    const { WebTransportError: Reason } = globalThis;
    try {
        return Reason && new Reason(`code ${code}`, { streamErrorCode: code });
    }
    catch {
        return undefined;
    }
}
const SHARE = 1 / 4;
const [FIRST, STEP, LEAST, COUNT] = [27, 31, 2, 6];
const MAX_PAYLOAD_BYTES = 15;
function isGreased(draw) {
    return draw < SHARE;
}
function greaseMessage(draw) {
    const type = FIRST + STEP * (LEAST + Math.floor(draw * COUNT));
    const payload = new Uint8Array(Math.floor(draw * (MAX_PAYLOAD_BYTES + 1))).fill(type);
    return encodeMessage(type, payload);
}
function greaseMember(draw) {
    return { grease: Math.floor(draw * 2 ** 16) };
}
const PLAY_AT_ONCE = { buffer_us: 0, max_tokens_per_s: null };
function smoothPlayout(rtt_us) {
    return { buffer_us: Math.max(5_000, Math.floor((rtt_us * 3) / 10) - 8_000), max_tokens_per_s: null };
}
const SLOPE_PERMILLE = 450;
const FASTEST_PERMILLE = 500;
const NOT_A_STALL_US = 190_000;
const MEASURED = 32;
const MEASURE_GAP_US = 125_000;
class PlayoutClock {
    #playout;
    #arrivedTokens = 0;
    #arrivals = [];
    #nextAt = null;
    constructor(playout) {
        this.#playout = playout;
    }
    setPlayout(playout) {
        this.#playout = playout;
        this.#nextAt = null;
    }
    get nextAt() {
        return this.#nextAt;
    }
    onArrival(now, tokens) {
        this.#arrivedTokens += tokens;
        const last = this.#arrivals.at(-1);
        if (last && this.#arrivals.length > 1 && now - last.at < MEASURE_GAP_US) {
            last.tokens = this.#arrivedTokens;
        }
        else {
            this.#arrivals.push({ at: now, tokens: this.#arrivedTokens });
        }
        if (this.#arrivals.length > MEASURED)
            this.#arrivals.shift();
    }
    get tokenGap() {
        const [first, last] = [this.#arrivals[0], this.#arrivals.at(-1)];
        if (!first || !last || last.tokens === first.tokens)
            return null;
        return Math.floor(Math.max(0, last.at - first.at) / (last.tokens - first.tokens));
    }
    onShown(now, tokens, waiting) {
        const off = this.#playout.buffer_us === 0 && this.#playout.max_tokens_per_s === null;
        if (off || tokens === 0)
            return;
        this.#nextAt = now + this.step(now, waiting) * tokens;
    }
    step(now, waiting) {
        const rate = this.#playout.max_tokens_per_s;
        const limit = rate === null ? 0 : Math.floor(1_000_000 / Math.max(1, rate));
        const gap = this.tokenGap;
        const smooth = gap !== null && this.#playout.buffer_us > 0 ? this.#smoothStep(now, gap, waiting) : 0;
        return Math.max(smooth, limit);
    }
    #smoothStep(now, gap, waiting) {
        const sinceArrival = Math.max(0, now - (this.#arrivals.at(-1)?.at ?? now));
        const buffered = Math.max(0, gap * waiting - Math.min(sinceArrival, gap));
        const surplus = Math.floor((SLOPE_PERMILLE * buffered) / this.#playout.buffer_us);
        const permille = Math.max(1_000 + SLOPE_PERMILLE - surplus, FASTEST_PERMILLE);
        return Math.min(Math.floor((gap * permille) / 1_000), Math.max(NOT_A_STALL_US, gap));
    }
}
const LOG_VERSION = 1;
const MAX_RECORD_BYTES = (1 << 14) - 1;
const SHORT_TEXT = 0x80;
var Kind;
(function (Kind) {
    Kind[Kind["Open"] = 0] = "Open";
    Kind[Kind["Text"] = 1] = "Text";
    Kind[Kind["TextN"] = 2] = "TextN";
    Kind[Kind["Reasoning"] = 3] = "Reasoning";
    Kind[Kind["ReasoningN"] = 4] = "ReasoningN";
    Kind[Kind["ToolCall"] = 5] = "ToolCall";
    Kind[Kind["Logprobs"] = 6] = "Logprobs";
    Kind[Kind["Finish"] = 7] = "Finish";
    Kind[Kind["Usage"] = 8] = "Usage";
    Kind[Kind["Error"] = 9] = "Error";
    Kind[Kind["Done"] = 10] = "Done";
    Kind[Kind["Other"] = 11] = "Other";
    Kind[Kind["Progress"] = 12] = "Progress";
    Kind[Kind["Long"] = 15] = "Long";
})(Kind || (Kind = {}));
const LEAST_LONG_KIND = 16;
function isLast(delta) {
    return delta.kind === "done" || delta.kind === "error";
}
function tokensOf(delta) {
    return "tokens" in delta ? delta.tokens : 0;
}
function decodeRecord(bytes) {
    const first = bytes[0];
    if (first === undefined)
        return null;
    if (first >= SHORT_TEXT) {
        const length = 1 + first - SHORT_TEXT;
        if (bytes.length < length)
            return null;
        const text = decodeUtf8(bytes.subarray(1, length));
        return { length, delta: { kind: "text", choice: 0, tokens: 1, text } };
    }
    const reader = new Reader(bytes);
    const body = wholeBody(reader);
    return body && { length: reader.position, delta: decodeDelta(new Reader(body)) };
}
function wholeBody(reader) {
    try {
        return reader.counted();
    }
    catch (error) {
        if (error instanceof WireError && error.fault === "Truncated")
            return null;
        throw error;
    }
}
function decodeDelta(reader) {
    const tag = reader.byte();
    const choice = tag >> 4 === 15 ? reader.int32() : tag >> 4;
    const delta = decodeFields(tag & 15, choice, reader);
    if (delta !== null)
        reader.end();
    return delta;
}
function decodeFields(kind, choice, reader) {
    switch (kind) {
        case Kind.Open:
            if (reader.byte() !== LOG_VERSION)
                throw new WireError("UnknownVersion");
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
        case Kind.Long:
            if (reader.int() < LEAST_LONG_KIND)
                throw new WireError("Malformed");
            return null;
        default:
            return null;
    }
}
function textKind(kind) {
    return kind === Kind.Text || kind === Kind.TextN ? "text" : "reasoning";
}
function decodeToolCall(choice, reader) {
    const [index, tokens] = [reader.int32(), reader.int32()];
    const [id, name] = [reader.text(), reader.text()];
    return { kind: "tool_call", choice, index, tokens, id, name, arguments: reader.restText() };
}
function decodeUsage(reader) {
    const [prompt, completion] = [reader.int(), reader.int()];
    const [cached, reasoning] = [reader.int(), reader.int()];
    return { kind: "usage", prompt, completion, cached, reasoning };
}
function decodeProgress(reader) {
    const [queued, eta] = [reader.int32(), reader.int32()];
    const [total, cached, processed] = [reader.int32(), reader.int32(), reader.int32()];
    const eta_ms = eta === 0 ? null : eta - 1;
    return { kind: "progress", queued, eta_ms, total, cached, processed, elapsed_ms: reader.int32() };
}
function encodeRecord(delta) {
    if (delta.kind === "text" && delta.choice === 0 && delta.tokens === 1) {
        const text = encodeUtf8(delta.text);
        if (text.length < 0x80)
            return new Writer().byte(SHORT_TEXT | text.length).raw(text).bytes;
    }
    const body = encodeDelta(delta);
    if (body.length > MAX_RECORD_BYTES)
        throw new RangeError("delta does not fit a record");
    return new Writer().counted(body).bytes;
}
function encodeDelta(delta) {
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
        case "done":
            return putTag(out, Kind.Done).bytes;
    }
}
function putTag(out, kind, choice = 0) {
    if (choice < 15)
        return out.byte(kind | (choice << 4));
    return out.byte(kind | 0xf0).int(choice);
}
function putText(out, one, many, delta) {
    if (delta.tokens === 1)
        putTag(out, one, delta.choice);
    else
        putTag(out, many, delta.choice).int(delta.tokens);
    return out.raw(encodeUtf8(delta.text)).bytes;
}
const DEFAULT_LIMITS = { maxBytes: 128 * 1024, maxRanges: 16 };
const endOf = (held) => held.start + held.bytes.length;
function joined(first, second) {
    const both = new Uint8Array(first.length + second.length);
    both.set(first);
    both.set(second, first.length);
    return both;
}
class Assembler {
    #limits;
    #ready = new Uint8Array(0);
    #taken = 0;
    #cursor;
    #held = [];
    #heldBytes = 0;
    #ended = false;
    #failed = null;
    constructor(offset, limits = DEFAULT_LIMITS) {
        this.#cursor = offset;
        this.#limits = limits;
    }
    get cumulative() {
        return this.#cursor + this.#ready.length - this.#taken;
    }
    get cursor() {
        return this.#cursor;
    }
    get ended() {
        return this.#ended;
    }
    get held() {
        return this.#held.map((held) => [held.start, endOf(held)]);
    }
    get heldBytes() {
        return this.#heldBytes;
    }
    insert(offset, bytes) {
        if (this.#failed)
            throw this.#failed;
        const end = offset + bytes.length;
        if (end > MAX_INT)
            throw new WireError("Malformed");
        const cumulative = this.cumulative;
        if (end <= cumulative)
            return false;
        if (offset > cumulative) {
            this.#hold(offset, bytes);
            return false;
        }
        const news = bytes.subarray(cumulative - offset);
        if (news.length > this.#room()) {
            this.#held = [];
            this.#heldBytes = 0;
        }
        const room = this.#room();
        this.#append(news.subarray(0, room));
        this.#joinHeld();
        if (room === 0)
            throw new WireError("NoRoom");
        return true;
    }
    poll() {
        if (this.#failed)
            throw this.#failed;
        try {
            return this.#nextDelta();
        }
        catch (error) {
            if (error instanceof WireError)
                this.#failed = error;
            throw error;
        }
    }
    #nextDelta() {
        while (!this.#ended) {
            const record = decodeRecord(this.#ready.subarray(this.#taken));
            if (record === null)
                break;
            this.#taken += record.length;
            this.#cursor += record.length;
            if (record.delta !== null) {
                this.#ended = isLast(record.delta);
                return { offset: this.#cursor, delta: record.delta };
            }
        }
        this.#dropTaken();
        return null;
    }
    #room() {
        const used = this.#ready.length - this.#taken + this.#heldBytes;
        return Math.max(0, this.#limits.maxBytes - used);
    }
    #append(news) {
        this.#dropTaken();
        this.#ready = joined(this.#ready, news);
    }
    #dropTaken() {
        if (this.#taken === 0)
            return;
        this.#ready = this.#ready.slice(this.#taken);
        this.#taken = 0;
    }
    #hold(offset, bytes) {
        const end = offset + bytes.length;
        let at = offset;
        while (at < end) {
            const covering = this.#held.find((held) => held.start <= at && endOf(held) > at);
            if (covering) {
                at = endOf(covering);
                continue;
            }
            const next = this.#held.find((held) => held.start > at);
            const stop = Math.min(end, next?.start ?? end);
            this.#holdPart(at, bytes.slice(at - offset, stop - offset));
            at = stop;
        }
    }
    #holdPart(start, part) {
        if (part.length > this.#room())
            throw new WireError("NoRoom");
        const before = this.#held.find((held) => endOf(held) === start);
        const after = this.#held.find((held) => held.start === start + part.length);
        if (!before && this.#held.length >= this.#limits.maxRanges)
            throw new WireError("NoRoom");
        let range = before ? { start: before.start, bytes: joined(before.bytes, part) } : { start, bytes: part };
        if (after)
            range = { start: range.start, bytes: joined(range.bytes, after.bytes) };
        this.#held = this.#held.filter((held) => held !== before && held !== after);
        const at = this.#held.findIndex((held) => held.start > range.start);
        this.#held.splice(at < 0 ? this.#held.length : at, 0, range);
        this.#heldBytes += part.length;
    }
    #joinHeld() {
        for (;;) {
            const first = this.#held[0];
            if (!first || first.start > this.cumulative)
                return;
            this.#held.shift();
            this.#heldBytes -= first.bytes.length;
            const news = this.cumulative - first.start;
            if (news < first.bytes.length)
                this.#append(first.bytes.subarray(news));
        }
    }
}
const DEFAULT_CONFIG = {
    limits: DEFAULT_LIMITS,
    checked: false,
    playout: PLAY_AT_ONCE,
    ackGap_us: 100_000,
    probeAfter_us: 2_000_000,
    silentAfter_us: 10_000_000,
    linger_us: 3_000_000,
};
const WITH_ANOTHER_PATH = { probeAfter_us: 1_000_000, silentAfter_us: 3_000_000 };
const MAX_QUEUE = 512;
const MAX_EVENTS = 512;
const MAX_PROBES = 5;
const WINDOW = (1n << BigInt(ACK_WINDOW)) - 1n;
class Arrived {
    largest = null;
    largestAt = 0;
    #before = 0n;
    note(now, packet) {
        if (this.largest === null || packet > this.largest) {
            const shift = this.largest === null ? Infinity : packet - this.largest;
            this.#before = shifted(this.#before, shift) | shifted(1n, shift - 1);
            this.largest = packet;
            this.largestAt = now;
        }
        else if (packet < this.largest) {
            this.#before |= shifted(1n, this.largest - packet - 1);
        }
    }
    get missing() {
        const reported = Math.min(this.largest ?? 0, ACK_WINDOW);
        return Number(~this.#before & ((1n << BigInt(reported)) - 1n));
    }
}
function shifted(bits, by) {
    return by < ACK_WINDOW ? (bits << BigInt(by)) & WINDOW : 0n;
}
function earliest(...times) {
    const set = times.filter((time) => time !== null);
    return set.length === 0 ? null : Math.min(...set);
}
class Receiver {
    #config;
    #channel;
    #state = { is: "open" };
    #assembler;
    #playout;
    #queue = [];
    #queuedTokens = 0;
    #events = [];
    #now;
    #shown;
    #arrived = new Arrived();
    #hidden = false;
    #nextAck = 0;
    #ackAt = null;
    #lastAck = null;
    #silentSince;
    #probes = 0;
    #silentSaid = false;
    #stopping = false;
    constructor(now, channel, offset, config = {}) {
        this.#config = { ...DEFAULT_CONFIG, ...config };
        this.#channel = channel;
        this.#assembler = new Assembler(offset, this.#config.limits);
        this.#playout = new PlayoutClock(this.#config.playout);
        this.#now = now;
        this.#shown = offset;
        this.#silentSince = now;
    }
    migrate(now, channel) {
        this.#channel = channel;
        this.#arrived = new Arrived();
        this.#nextAck = 0;
        this.#lastAck = null;
        this.#ackAt = null;
        this.#beginSilence(now);
    }
    get cumulative() {
        return this.#assembler.cumulative;
    }
    get shown() {
        return this.#shown;
    }
    get ended() {
        return this.#assembler.ended;
    }
    get starved() {
        return this.#state.is === "open" && this.#shown === this.cumulative;
    }
    get closed() {
        return this.#state.is === "closed" && this.#events.length === 0;
    }
    get unansweredProbes() {
        return this.#probes;
    }
    acknowledgeAtOnce(now) {
        this.#catchUp(now);
        this.#ackAt = now;
    }
    setHidden(now, hidden) {
        this.#catchUp(now);
        if (this.#hidden === hidden)
            return;
        this.#hidden = hidden;
        this.#ackAt = now;
        this.#showDue(now);
    }
    setPlayout(now, playout) {
        this.#catchUp(now);
        this.#playout.setPlayout(playout);
        this.#ackAt = now;
        this.#showDue(now);
    }
    stop() {
        if (this.#state.is !== "open")
            return;
        this.#state = { is: "closed" };
        this.#stopping = true;
    }
    handleDatagram(now, datagram) {
        try {
            this.#handleFrame(now, datagram);
            return null;
        }
        catch (error) {
            if (error instanceof WireError)
                return error.fault;
            throw error;
        }
    }
    #handleFrame(now, datagram) {
        const frame = decodeFrame(datagram, this.#config.checked);
        if (frame.channel !== this.#channel)
            throw new WireError("WrongChannel");
        if (frame.kind === "data")
            this.#handleData(now, frame);
        else if (frame.kind !== "gone")
            throw new WireError("Malformed");
        else if (!this.#mayBeWhole())
            this.#fail(null);
    }
    #handleData(now, data) {
        if (this.#state.is === "closed")
            return;
        this.#catchUp(now);
        this.#beginSilence(now);
        this.#arrived.note(now, data.packet);
        const held = this.#assembler.heldBytes;
        const room = Math.max(0, this.#shown + this.#config.limits.maxBytes - data.offset);
        const moved = this.#insert(data.offset, data.bytes.subarray(0, room));
        const news = moved || this.#assembler.heldBytes !== held;
        const quietUntil = this.#lastAck === null ? now : this.#lastAck + this.#config.ackGap_us;
        const ackAt = news ? now : Math.max(quietUntil, now);
        this.#ackAt = Math.min(this.#ackAt ?? ackAt, ackAt);
        this.#readAhead(now);
        this.#showDue(now);
    }
    #insert(offset, bytes) {
        try {
            return this.#assembler.insert(offset, bytes);
        }
        catch (error) {
            if (error instanceof WireError && error.fault === "NoRoom")
                return false;
            throw error;
        }
    }
    #readAhead(now) {
        let arrived = 0;
        while (this.#queue.length < MAX_QUEUE && this.#state.is === "open") {
            const next = this.#pollAssembler();
            if (next === null)
                break;
            const tokens = tokensOf(next.delta);
            arrived += tokens;
            this.#queuedTokens += tokens;
            this.#queue.push(next);
        }
        if (arrived > 0)
            this.#playout.onArrival(now, arrived);
    }
    #pollAssembler() {
        try {
            return this.#assembler.poll();
        }
        catch (error) {
            if (!(error instanceof WireError))
                throw error;
            this.#fail(error.fault);
            return null;
        }
    }
    #catchUp(now) {
        for (let at = this.#playout.nextAt; at !== null && at <= now; at = this.#playout.nextAt) {
            const shown = this.#shown;
            this.#showDue(Math.max(at, this.#now));
            if (this.#shown === shown)
                break;
        }
        this.#now = now;
    }
    #showDue(now) {
        for (let next = this.#queue[0]; next !== undefined; next = this.#queue[0]) {
            const tokens = tokensOf(next.delta);
            const heldBack = tokens > 0 && !this.#hidden;
            if (this.#events.length >= MAX_EVENTS)
                return;
            if (heldBack && (this.#playout.nextAt ?? 0) > now)
                return;
            const wasBehind = this.#isBehind();
            this.#queue.shift();
            this.#queuedTokens -= tokens;
            this.#playout.onShown(now, tokens, this.#queuedTokens);
            this.#show(now, next.offset, next.delta);
            this.#readAhead(now);
            if (wasBehind && !this.#isBehind())
                this.#beginSilence(now);
        }
    }
    #beginSilence(now) {
        this.#silentSince = now;
        this.#probes = 0;
        this.#silentSaid = false;
    }
    #show(now, offset, delta) {
        this.#shown = offset;
        this.#events.push({ event: "delta", offset, delta });
        if (delta.kind !== "done" && delta.kind !== "error")
            return;
        this.#events.push(delta.kind === "done" ? { event: "complete" } : { event: "failed", error: null });
        this.#state = { is: "lingering", until: now + this.#config.linger_us };
    }
    #fail(error) {
        this.#state = { is: "closed" };
        this.#stopping = error !== null;
        this.#events.push({ event: "failed", error });
    }
    handleTimeout(now) {
        this.#catchUp(now);
        this.#showDue(now);
        if (this.#state.is === "lingering" && now >= this.#state.until)
            this.#state = { is: "closed" };
        const silentAt = this.#silentAt();
        if (silentAt !== null && now >= silentAt) {
            this.#silentSaid = true;
            this.#events.push({ event: "silent" });
        }
    }
    pollTimeout() {
        if (this.#state.is === "closed")
            return null;
        const linger = this.#state.is === "lingering" ? this.#state.until : null;
        const showing = this.#queue.length > 0 && this.#events.length < MAX_EVENTS;
        const showAt = showing ? this.#playout.nextAt : null;
        return earliest(linger, showAt, this.#ackAt, this.#probeAt(), this.#silentAt());
    }
    pollEvent() {
        if (this.#events.length === 0 && this.#state.is !== "closed")
            this.#showDue(this.#now);
        return this.#events.shift() ?? null;
    }
    pollTransmit(now) {
        if (this.#stopping) {
            this.#stopping = false;
            return encodeFrame({ kind: "stop", channel: this.#channel }, this.#config.checked);
        }
        if (this.#state.is === "closed")
            return null;
        const probeAt = this.#probeAt();
        const probe = probeAt !== null && now >= probeAt;
        if (!probe && (this.#ackAt === null || now < this.#ackAt))
            return null;
        const ack = this.#encodeAck(now, probe);
        this.#probes += probe ? 1 : 0;
        this.#nextAck += 1;
        this.#ackAt = null;
        this.#lastAck = now;
        return ack;
    }
    #encodeAck(now, probe) {
        const cumulative = this.#assembler.cumulative;
        const ack = {
            kind: "ack",
            channel: this.#channel,
            number: this.#nextAck,
            cumulative,
            largest: this.#arrived.largest,
            missing: this.#arrived.missing,
            hold_us: this.#arrived.largest === null ? 0 : Math.max(0, now - this.#arrived.largestAt),
            unshown: cumulative - this.#shown,
            pace: this.#paceBytesPerS(now),
            hidden: this.#hidden,
            probe,
            ranges: this.#assembler.held.slice(0, MAX_ACK_RANGES),
        };
        return encodeFrame(ack, this.#config.checked);
    }
    #paceBytesPerS(now) {
        const step = this.#playout.step(now, this.#queuedTokens);
        if (step === 0 || this.#queuedTokens === 0 || this.#hidden)
            return 0;
        const queued = (this.#queue.at(-1)?.offset ?? this.#shown) - this.#shown;
        const bytesPerTokenMilli = Math.floor((queued * 1_000) / this.#queuedTokens);
        return Math.min(Math.floor((bytesPerTokenMilli * 1_000) / step), MAX_INT);
    }
    #needsSender() {
        return this.#state.is === "open" && !this.#mayBeWhole() && !this.#isBehind();
    }
    #mayBeWhole() {
        return this.#state.is !== "open" || this.#assembler.ended || this.#queue.length >= MAX_QUEUE;
    }
    #isBehind() {
        const unshown = this.#assembler.cumulative - this.#shown;
        return this.#queue.length >= MAX_QUEUE || unshown >= this.#config.limits.maxBytes;
    }
    #probeAt() {
        const asking = this.#needsSender() && this.#probes < MAX_PROBES;
        return asking ? this.#silentSince + this.#config.probeAfter_us * 2 ** this.#probes : null;
    }
    #silentAt() {
        const waiting = this.#needsSender() && !this.#silentSaid;
        return waiting ? this.#silentSince + this.#config.silentAfter_us : null;
    }
}
const MAX_UNREAD = 512;
const PROBES_BY_STREAM = 2;
const MAX_REFUSAL_BYTES = 64 * 1024;
const ANSWER_WITHIN_MS = 10_000;
const GIVE_UP_AFTER_MS = 1_000;
class DatagramAnswer {
    listener;
    clock;
    pace;
    hidden;
    random;
    #state = { is: "asking" };
    #path = null;
    #receiver = null;
    #offset = 0;
    #unread = 0;
    #timer = null;
    constructor(listener, clock, pace, hidden, random = Math.random) {
        this.listener = listener;
        this.clock = clock;
        this.pace = pace;
        this.hidden = hidden;
        this.random = random;
    }
    ask(connection, head, body) {
        const path = this.#enter(connection, true);
        const grease = path.greased ? greaseMember(this.random()) : {};
        const request = encodeJson(MessageType.Request, { ...head, channel: path.channel, ...grease });
        const end = encodeMessage(MessageType.Body, new Uint8Array(0));
        void this.#run(path, [request, encodeMessage(MessageType.Body, encodeUtf8(body)), end]);
    }
    resume(connection, id, token, offset) {
        const path = this.#enter(connection, false);
        const { channel } = path;
        this.#receiver?.migrate(this.#now(), channel);
        this.#offset = this.#receiver?.cumulative ?? offset;
        const frame = { kind: "resume", channel, id: fromHex(id), token: fromHex(token), offset: this.#offset };
        void this.#run(path, [encodeMessage(MessageType.Frame, encodeFrame(frame))]);
    }
    setHidden(hidden) {
        this.hidden = hidden;
        this.#receiver?.setHidden(this.#now(), hidden);
        this.#drive();
    }
    handleRead(count) {
        this.#unread -= count;
        this.#drive();
    }
    stop() {
        const path = this.#path;
        if (path)
            this.#sendStop(path, encodeFrame({ kind: "stop", channel: path.channel }));
        this.#finish();
    }
    forget() {
        this.#leave();
        this.#finish();
    }
    #finish() {
        if (this.#state.is === "over")
            return;
        this.#state = { is: "over" };
        if (!this.#path?.ended)
            this.#path?.stream?.writer.close().catch(() => { });
        this.#leave(false);
        this.#receiver = null;
        this.listener.over();
    }
    #now() {
        return Math.floor(this.clock() * 1_000);
    }
    #enter(connection, asks) {
        this.#leave();
        this.#state = { is: "asking" };
        const path = {
            connection,
            channel: connection.addChannel((datagram) => this.#handleFrame(path, datagram, false)),
            asks,
            greased: isGreased(this.random()),
            stream: null,
            byStream: false,
            waiting: null,
            isSilent: false,
            ended: false,
        };
        this.#path = path;
        this.#timer = setTimeout(() => this.#lose(path, "the server does not begin"), ANSWER_WITHIN_MS);
        return path;
    }
    #leave(reset = true, reason) {
        if (this.#timer !== null)
            clearTimeout(this.#timer);
        this.#timer = null;
        this.#path?.connection.dropChannel(this.#path.channel);
        if (reset)
            this.#path?.stream?.writer.abort(reason).catch(() => { });
        this.#path = null;
    }
    #lose(path, why, malformed = false) {
        if (path !== this.#path || this.#state.is === "over")
            return;
        this.#leave(true, malformed ? reasonOf(Code.Malformed) : undefined);
        if (this.#state.is === "told")
            return this.#finish();
        this.listener.lost(this.#receiver?.shown ?? this.#offset, { why, malformed });
    }
    #handleReset(path, code, why) {
        if (path !== this.#path || this.#state.is === "over")
            return;
        if (this.#receiver?.ended && this.#state.is !== "told") {
            this.#begin(this.#receiver);
            return this.#handleEnd(path);
        }
        const isOver = code === Code.Superseded || code === Code.Stopped || code === Code.Cancelled;
        const isLeft = code === Code.ShuttingDown && !(path.asks && this.#state.is === "asking");
        if (this.#state.is === "told" || !(isOver || isLeft))
            return this.#lose(path, why, code === Code.Malformed);
        this.listener.ended(code);
        this.#finish();
    }
    async #run(path, messages) {
        try {
            path.stream = await path.connection.openStream();
            if (path !== this.#path)
                return void path.stream.writer.abort().catch(() => { });
            for (const message of messages)
                path.stream.writer.write(message).catch(() => { });
            if (path.greased)
                path.stream.writer.write(greaseMessage(this.random())).catch(() => { });
            await this.#read(path, path.stream.readable);
            this.#handleEnd(path);
        }
        catch (error) {
            const ours = error instanceof WireError;
            this.#handleReset(path, ours ? Code.Malformed : await path.connection.codeOf(error), String(error));
        }
    }
    async #read(path, readable) {
        const reader = readable.getReader();
        const messages = new MessageReader();
        try {
            for (let next = await reader.read(); !next.done; next = await reader.read()) {
                for (const message of messages.push(next.value))
                    this.#handleMessage(path, message);
                if (path !== this.#path)
                    return void reader.cancel().catch(() => { });
            }
        }
        catch (error) {
            if (error instanceof WireError)
                reader.cancel(reasonOf(Code.Malformed)).catch(() => { });
            throw error;
        }
        if (messages.partial)
            throw new WireError("Truncated");
    }
    #handleMessage(path, { type, payload }) {
        if (path !== this.#path)
            return;
        const state = this.#state;
        if (type === MessageType.Frame && state.is !== "refused") {
            this.#handleFrame(path, payload, true);
        }
        else if (type === MessageType.Answer && state.is === "asking") {
            const head = this.#answerHead(path, payload);
            this.#begin(this.#receiver ?? this.#newReceiver(path));
            this.listener.answered(head);
            this.#drive();
        }
        else if (type === MessageType.Response && state.is === "asking") {
            this.#state = { is: "refused", head: decodeResponseHead(payload), body: [] };
        }
        else if (type === MessageType.Body && state.is === "refused") {
            const bytes = state.body.reduce((sum, piece) => sum + piece.length, payload.length);
            if (bytes <= MAX_REFUSAL_BYTES)
                state.body.push(payload);
        }
        else if (type === MessageType.Answer && (state.is === "streaming" || state.is === "told")) {
            this.listener.answered(this.#answerHead(path, payload));
        }
        else {
            throw new WireError("Malformed");
        }
    }
    #answerHead(path, payload) {
        const head = decodeAnswerHead(payload);
        if (head.channel !== path.channel || head.offset !== this.#offset)
            throw new WireError("Malformed");
        return head;
    }
    #newReceiver(path) {
        const receiver = new Receiver(this.#now(), path.channel, this.#offset, {
            ...WITH_ANOTHER_PATH,
            ...(this.pace !== "off" && {
                playout: this.pace === "smooth" ? smoothPlayout(path.connection.rtt_us) : this.pace,
            }),
        });
        receiver.setHidden(this.#now(), this.hidden);
        return receiver;
    }
    #begin(receiver) {
        this.#receiver = receiver;
        if (this.#state.is === "asking")
            this.#state = { is: "streaming" };
    }
    #handleFrame(path, frame, byStream) {
        if (path !== this.#path || this.#state.is === "refused" || this.#state.is === "over")
            return;
        const [receiver, now] = [this.#receiver ?? this.#newReceiver(path), this.#now()];
        if (receiver.handleDatagram(now, frame) !== null)
            return;
        this.#begin(receiver);
        if (byStream && !path.byStream)
            receiver.acknowledgeAtOnce(now);
        path.byStream = byStream;
        path.isSilent = false;
        this.#drive();
    }
    #handleEnd(path) {
        if (path !== this.#path)
            return;
        path.ended = true;
        path.stream?.writer.close().catch(() => { });
        const state = this.#state;
        if (state.is === "refused") {
            const body = state.body.map((piece) => decodeUtf8(piece)).join("");
            this.listener.refused(state.head, body);
            this.#finish();
        }
        else if (state.is === "asking") {
            this.#lose(path, "the server ended the stream without an answer");
        }
        else {
            this.#drive();
        }
    }
    #drive() {
        const [path, receiver] = [this.#path, this.#receiver];
        if (!path || !receiver || (this.#state.is !== "streaming" && this.#state.is !== "told"))
            return;
        const now = this.#now();
        receiver.handleTimeout(now);
        const ends = this.#tellDeltas(receiver);
        this.#transmit(path, receiver, now);
        for (const end of ends)
            this.#handleEvent(path, end);
        if (path !== this.#path)
            return;
        if (receiver.closed || (path.ended && this.#state.is === "told"))
            return this.#finish();
        if (path.ended && receiver.starved)
            return this.#lose(path, "the server ended the stream too early");
        this.#schedule(receiver, now);
    }
    #tellDeltas(receiver) {
        const deltas = [];
        const others = [];
        while (this.#unread < MAX_UNREAD) {
            const event = receiver.pollEvent();
            if (event === null)
                break;
            if (event.event === "delta") {
                deltas.push([event.offset, event.delta]);
                this.#unread += 1;
            }
            else {
                others.push(event);
            }
        }
        if (deltas.length > 0)
            this.listener.deltas(deltas);
        return others;
    }
    #handleEvent(path, event) {
        if (event.event === "complete") {
            this.#state = { is: "told" };
            this.listener.complete();
        }
        else if (event.event === "failed") {
            this.#state = { is: "told" };
            this.listener.failed(event.error);
        }
        else if (event.event === "silent" && !path.ended) {
            path.isSilent = true;
            setTimeout(() => this.#giveUp(path), GIVE_UP_AFTER_MS);
        }
    }
    #giveUp(path) {
        if (path !== this.#path || !path.isSilent || path.ended)
            return;
        this.#lose(path, "nothing was heard");
        path.connection.close();
    }
    #transmit(path, receiver, now) {
        for (let due = receiver.pollTransmit(now); due; due = receiver.pollTransmit(now)) {
            if (kindOf(due) === "stop") {
                this.#sendStop(path, due);
                continue;
            }
            if (path.greased)
                greaseAck(due);
            const frame = padAck(due);
            path.connection.send(frame);
            const isHeard = !path.byStream && receiver.unansweredProbes < PROBES_BY_STREAM;
            if (!isHeard && path.stream)
                writeAck(path, path.stream.writer, frame);
        }
    }
    #sendStop(path, stop) {
        if (path.stream)
            path.stream.writer.write(encodeMessage(MessageType.Frame, stop)).catch(() => { });
        else
            path.connection.send(stop);
    }
    #schedule(receiver, now) {
        if (this.#timer !== null)
            clearTimeout(this.#timer);
        const at = receiver.pollTimeout();
        this.#timer = at === null ? null : setTimeout(() => this.#drive(), Math.max(0, Math.ceil((at - now) / 1_000)));
    }
}
function writeAck(path, writer, ack) {
    const isWaiting = path.waiting !== null;
    path.waiting = ack;
    if (isWaiting)
        return;
    const write = () => {
        if (path.waiting)
            writer.write(encodeMessage(MessageType.Frame, path.waiting)).catch(() => { });
        path.waiting = null;
    };
    if ((writer.desiredSize ?? 0) > 0)
        write();
    else
        writer.ready.then(write, () => { });
}
function serve(port, Transport, clock = () => performance.now(), random = Math.random) {
    const service = new Service((news) => port.postMessage(news), Transport, clock, random);
    port.onmessage = ({ data }) => service.handleOrder(data);
}
class Service {
    tell;
    Transport;
    clock;
    random;
    #connections = new Map();
    #open = new Map();
    #answers = new Map();
    #hidden = false;
    constructor(tell, Transport, clock, random) {
        this.tell = tell;
        this.Transport = Transport;
        this.clock = clock;
        this.random = random;
    }
    handleOrder(order) {
        switch (order.type) {
            case "connect":
                return void this.#connect(order.server, order.target);
            case "disconnect":
                return this.#disconnect(order.server);
            case "ask":
                return this.#with(order, (answer, connection) => answer.ask(connection, order.head, order.body));
            case "resume":
                return this.#with(order, (answer, connection) => answer.resume(connection, order.id, order.token, order.offset));
            case "read":
                return this.#answers.get(order.answer)?.handleRead(order.count);
            case "hidden":
                this.#hidden = order.hidden;
                for (const answer of this.#answers.values())
                    answer.setHidden(order.hidden);
                return;
            case "stop":
                return this.#answers.get(order.answer)?.stop();
            case "forget":
                return this.#answers.get(order.answer)?.forget();
        }
    }
    async #connect(server, target) {
        try {
            if (!this.Transport)
                throw new Error("WebTransport is not available in workers here");
            const clock_us = () => this.clock() * 1_000;
            const opening = this.#connections.get(server) ?? Connection.open(target, this.Transport, clock_us);
            this.#connections.set(server, opening);
            const connection = await opening;
            if (this.#connections.get(server) !== opening)
                return connection.close();
            if (!this.#open.has(server)) {
                this.#open.set(server, connection);
                void connection.closed.then(({ why }) => this.#handleClosed(server, connection, why));
            }
            this.tell({ type: "connected", server });
        }
        catch (error) {
            this.#connections.delete(server);
            this.tell({ type: "disconnected", server, why: String(error) });
        }
    }
    #handleClosed(server, connection, why) {
        if (this.#open.get(server) !== connection)
            return;
        this.#open.delete(server);
        this.#connections.delete(server);
        this.tell({ type: "disconnected", server, why });
    }
    #disconnect(server) {
        const connection = this.#open.get(server);
        this.#open.delete(server);
        this.#connections.delete(server);
        connection?.close();
    }
    #with(order, act) {
        const connection = this.#open.get(order.server);
        if (!connection) {
            const offset = order.offset ?? 0;
            const loss = { why: "not connected", malformed: false };
            return this.tell({ type: "lost", answer: order.answer, offset, loss });
        }
        let answer = this.#answers.get(order.answer);
        if (!answer) {
            answer = new DatagramAnswer(this.#listener(order.answer), this.clock, order.pace, this.#hidden, this.random);
            this.#answers.set(order.answer, answer);
        }
        act(answer, connection);
    }
    #listener(answer) {
        return {
            answered: (head) => this.tell({ type: "answered", answer, head }),
            refused: (head, body) => this.tell({ type: "refused", answer, head, body }),
            deltas: (deltas) => this.tell({ type: "deltas", answer, deltas }),
            complete: () => this.tell({ type: "complete", answer }),
            failed: (fault) => this.tell({ type: "failed", answer, fault }),
            ended: (code) => this.tell({ type: "ended", answer, code }),
            lost: (offset, loss) => this.tell({ type: "lost", answer, offset, loss }),
            over: () => void this.#answers.delete(answer),
        };
    }
}
const scope = globalThis;
serve(scope, scope.WebTransport);
export {};
