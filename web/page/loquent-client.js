// Built from web/client by `npm run build`; change it there.
class ChunkWriter {
    #head = { id: "", object: "chat.completion.chunk", created: 0, model: "" };
    #usageIn = "none";
    #usage = null;
    #usageShown = true;
    #progress = false;
    #begun = new Set();
    #logprobs = new Map();
    chunks(delta) {
        switch (delta.kind) {
            case "open":
                this.#open(delta.meta);
                return [];
            case "text":
                return this.#choice(delta.choice, this.#content("content", delta.text));
            case "reasoning":
                return this.#choice(delta.choice, this.#content("reasoning_content", delta.text));
            case "tool_call":
                return this.#choice(delta.choice, { delta: { tool_calls: [toolCall(delta)] } });
            case "logprobs":
                this.#logprobs.set(delta.choice, parseJson(delta.json));
                return [];
            case "finish":
                return this.#choice(delta.choice, this.#content(null, ""), delta.reason);
            case "usage":
                this.#usage = usageOf(delta);
                this.#usageShown = this.#usageIn !== "counts";
                return this.#usageShown ? this.#usageChunk() : [];
            case "other":
                return [this.#other(parseJson(delta.json))];
            case "progress":
                return this.#progress ? [this.#standing(delta)] : [];
            default:
                return delta.kind === "done" && !this.#usageShown ? this.#usageChunk() : [];
        }
    }
    get #chat() {
        return this.#head.object === "chat.completion.chunk";
    }
    #open(meta) {
        const { id, object, created, model, system_fingerprint, usage, progress } = parseJson(meta);
        this.#usageIn = usage;
        this.#progress = progress === true;
        const known = { id, object, created, model, system_fingerprint };
        const set = Object.entries(known).filter(([, value]) => value !== undefined);
        this.#head = { ...this.#head, ...Object.fromEntries(set) };
    }
    #usageChunk() {
        return this.#usage === null ? [] : [{ ...this.#head, choices: [], usage: this.#usage }];
    }
    #other(members) {
        this.#usageShown ||= "usage" in members;
        return { ...this.#head, choices: [], ...members };
    }
    #standing({ total, cached, processed, elapsed_ms, queued, eta_ms }) {
        const prompt_progress = { total, cache: cached, processed, time_ms: elapsed_ms, queued, eta_ms };
        return { ...this.#chunk(0, this.#content(null, ""), null, null), prompt_progress };
    }
    #content(name, text) {
        if (!this.#chat)
            return name === "reasoning_content" ? { text: "", [name]: text } : { text };
        return { delta: name === null ? {} : { [name]: text } };
    }
    #choice(index, fields, reason = null) {
        const chunks = [];
        if (this.#chat && !this.#begun.has(index)) {
            this.#begun.add(index);
            chunks.push(this.#chunk(index, { delta: { role: "assistant", content: "" } }, null, null));
        }
        const logprobs = this.#logprobs.get(index) ?? null;
        this.#logprobs.delete(index);
        chunks.push(this.#chunk(index, fields, logprobs, reason));
        return chunks;
    }
    #chunk(index, fields, logprobs, finish_reason) {
        const choice = { index, logprobs, finish_reason, ...fields };
        const usage = this.#usageIn === "counts" ? this.#usage : null;
        const hasUsage = this.#usageIn === "counts" || this.#usageIn === "null";
        this.#usageShown ||= usage !== null;
        return { ...this.#head, choices: [choice], ...(hasUsage && { usage }) };
    }
}
function toolCall(delta) {
    return {
        index: delta.index,
        ...(delta.id && { id: delta.id, type: "function" }),
        function: { ...(delta.name && { name: delta.name }), arguments: delta.arguments },
    };
}
function usageOf(delta) {
    return {
        prompt_tokens: delta.prompt,
        completion_tokens: delta.completion,
        total_tokens: delta.prompt + delta.completion,
        prompt_tokens_details: { cached_tokens: delta.cached },
        ...(delta.reasoning > 0 && { completion_tokens_details: { reasoning_tokens: delta.reasoning } }),
    };
}
function parseJson(text) {
    try {
        const value = JSON.parse(text);
        return typeof value === "object" && value !== null ? value : {};
    }
    catch {
        return {};
    }
}
const asObject = (value) => (typeof value === "object" && value !== null ? value : {});
const asText = (value) => (typeof value === "string" ? value : "");
const asCount = (value) => (Number.isSafeInteger(value) && Number(value) >= 0 ? Number(value) : 0);
class ChunkReader {
    #opened = false;
    deltas(chunk) {
        const { id, object, created, model, choices, usage, prompt_progress, error } = asObject(chunk);
        if (error !== undefined)
            return [errorDelta(error)];
        const deltas = [];
        if (!this.#opened)
            deltas.push({ kind: "open", meta: JSON.stringify({ id, object, created, model, progress: prompt_progress !== undefined }) });
        this.#opened = true;
        for (const choice of Array.isArray(choices) ? choices : [])
            deltas.push(...choiceDeltas(asObject(choice)));
        if (usage)
            deltas.push(usageDelta(asObject(usage)));
        if (prompt_progress)
            deltas.push(progressDelta(asObject(prompt_progress)));
        return deltas;
    }
}
function errorDelta(error) {
    const { code, type, message } = asObject(error);
    return { kind: "error", code: asText(code) || asText(type), message: asText(message) || asText(error) };
}
function choiceDeltas({ index, delta, text, logprobs, finish_reason, ...rest }) {
    const choice = asCount(index);
    const { content, tool_calls, ...more } = asObject(delta);
    const { reasoning_content, reasoning } = delta === undefined ? rest : more;
    const deltas = [];
    const put = (kind, piece) => {
        if (piece)
            deltas.push({ kind, choice, tokens: 1, text: piece });
    };
    if (logprobs)
        deltas.push({ kind: "logprobs", choice, json: JSON.stringify(logprobs) });
    put("reasoning", asText(reasoning_content) || asText(reasoning));
    put("text", asText(content) || asText(text));
    for (const call of Array.isArray(tool_calls) ? tool_calls : [])
        deltas.push(toolDelta(choice, asObject(call)));
    if (finish_reason)
        deltas.push({ kind: "finish", choice, reason: asText(finish_reason) });
    return deltas;
}
function toolDelta(choice, call) {
    const { name, arguments: fragment } = asObject(call["function"]);
    return {
        kind: "tool_call",
        choice,
        index: asCount(call["index"]),
        tokens: 1,
        id: asText(call["id"]),
        name: asText(name),
        arguments: asText(fragment),
    };
}
function progressDelta(progress) {
    return {
        kind: "progress",
        queued: asCount(progress["queued"]),
        eta_ms: typeof progress["eta_ms"] === "number" ? asCount(progress["eta_ms"]) : null,
        total: asCount(progress["total"]),
        cached: asCount(progress["cache"]),
        processed: asCount(progress["processed"]),
        elapsed_ms: asCount(progress["time_ms"]),
    };
}
function usageDelta(usage) {
    return {
        kind: "usage",
        prompt: asCount(usage["prompt_tokens"]),
        completion: asCount(usage["completion_tokens"]),
        cached: asCount(asObject(usage["prompt_tokens_details"])["cached_tokens"]),
        reasoning: asCount(asObject(usage["completion_tokens_details"])["reasoning_tokens"]),
    };
}
const REMEMBERED_MS = 10 * 60_000;
const DISCOVERY_MS = 5_000;
const PATH = ".well-known/loquent";
const VERSION = 1;
function serverOf(endpoint) {
    const at = endpoint.pathname.lastIndexOf("/v1/");
    const path = at < 0 ? endpoint.pathname.replace(/[^/]*$/, "") : endpoint.pathname.slice(0, at + 1);
    return new URL(path, endpoint.origin);
}
async function discover(server) {
    const signal = AbortSignal.timeout(DISCOVERY_MS);
    const response = await fetch(new URL(PATH, server), { cache: "no-store", signal });
    return response.ok ? targetOf(server, await response.json().catch(() => null)) : null;
}
function targetOf(server, document) {
    const first = (document ?? {});
    const others = Array.isArray(first["versions"]) ? first["versions"] : [];
    const offers = [first, ...others.map((other) => (other ?? {}))];
    const offer = offers.find(({ version }) => version === VERSION);
    return offer ? targetOfOffer(server, offer) : null;
}
function targetOfOffer(server, offer) {
    const { port, certificate_sha256: hash, path } = offer;
    const usable = Number.isInteger(port) && Number(port) > 0 && Number(port) < 65536;
    if (!usable || typeof path !== "string" || !path.startsWith("/"))
        return null;
    if (hash !== null && !(typeof hash === "string" && /^[0-9a-f]{64}$/.test(hash)))
        return null;
    const urls = hostsOf(server.hostname, hash !== null).map((host) => `https://${host}:${Number(port)}${path}`);
    return { urls, certificate_sha256: hash };
}
function hostsOf(host, anyName) {
    return host === "localhost" && anyName ? [host, "127.0.0.1"] : [host];
}
function webTransportWorks() {
    if (!("WebTransport" in globalThis))
        return false;
    return globalThis.navigator?.vendor !== "Apple Computer, Inc.";
}
const remembered = new Map();
const winnerKey = (server) => `loquent:transport:${server.href}`;
function lastWinner(server) {
    const memory = remembered.get(server.href) ?? stored(server);
    return memory && memory.until > Date.now() ? memory.winner : null;
}
function rememberWinner(server, winner) {
    const memory = { winner, until: Date.now() + REMEMBERED_MS };
    remembered.set(server.href, memory);
    try {
        localStorage.setItem(winnerKey(server), JSON.stringify(memory));
    }
    catch {
    }
}
function stored(server) {
    try {
        const memory = JSON.parse(localStorage.getItem(winnerKey(server)) ?? "null");
        const { winner, until } = (memory ?? {});
        return (winner === "sse" || winner === "webtransport") && typeof until === "number" ? { winner, until } : null;
    }
    catch {
        return null;
    }
}
class LoquentError extends Error {
    kind;
    name = "LoquentError";
    status;
    code;
    retryAfter_s;
    constructor(kind, message, facts = {}) {
        super(message);
        this.kind = kind;
        this.status = facts.status;
        this.code = facts.code;
        this.retryAfter_s = facts.retryAfter_s;
    }
}
function refusal(status, retryAfter, body) {
    const { message, code, type } = errorObject(body);
    const seconds = Number(retryAfter ?? NaN);
    return new LoquentError("refused", message ?? `The server answered ${status}.`, {
        status,
        ...((code ?? type) && { code: (code ?? type) }),
        ...(Number.isFinite(seconds) && { retryAfter_s: seconds }),
    });
}
function errorObject(body) {
    try {
        const { error } = JSON.parse(body);
        if (typeof error !== "object" || error === null)
            return {};
        const strings = Object.entries(error).filter(([, value]) => typeof value === "string");
        return Object.fromEntries(strings);
    }
    catch {
        return {};
    }
}
function abortReason(signal) {
    return signal.reason ?? new DOMException("The answer was stopped.", "AbortError");
}
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
const IGNORED_HEADER = "x-loquent-ignored-parameters";
const REPEAT_HEADER = "idempotency-key";
class PathLost extends Error {
    isTransportUseless;
    name = "PathLost";
    constructor(message, options = {}, isTransportUseless = false) {
        super(message, options);
        this.isTransportUseless = isTransportUseless;
    }
}
class Link {
    #port;
    #connecting = new Map();
    #connected = new Set();
    #answers = new Map();
    #nextAnswer = 0;
    #dead = null;
    constructor(port) {
        this.#port = port;
        port.onmessage = ({ data }) => this.#handleNews(data);
    }
    isConnected(server) {
        return this.#connected.has(server.href);
    }
    connect(server, target) {
        if (this.#dead !== null)
            return Promise.reject(new PathLost(this.#dead));
        const before = this.#connecting.get(server.href);
        if (before)
            return before.promise;
        const waiting = newWaiting();
        this.#connecting.set(server.href, waiting);
        this.order({ type: "connect", server: server.href, target });
        return waiting.promise;
    }
    async ask({ server, pace, signal }, head, body) {
        const answer = this.#add(null, signal);
        this.order({ type: "ask", answer: answer.number, server: server.href, head, body, pace });
        await answer.begun;
        return answer;
    }
    async resume({ server, pace, signal }, handle, offset, before) {
        const answer = this.#add(before?.number ?? null, signal);
        answer.handle = handle;
        const { id, token } = handle;
        this.order({ type: "resume", answer: answer.number, server: server.href, id, token, offset, pace });
        await answer.begun;
        return answer;
    }
    setHidden(hidden) {
        this.order({ type: "hidden", hidden });
    }
    handleDeath(why) {
        this.#dead = why;
        for (const server of [...this.#connecting.keys()])
            this.#handleDisconnected(server, why);
        for (const answer of this.#answers.values())
            answer.handleEnd(new PathLost(why));
    }
    order(order) {
        if (this.#dead === null)
            this.#port.postMessage(order);
    }
    #add(number, signal) {
        const answer = new LinkAnswer(this, number ?? this.#nextAnswer++, signal);
        this.#answers.set(answer.number, answer);
        return answer;
    }
    #handleNews(news) {
        if (news.type === "connected") {
            this.#connected.add(news.server);
            this.#connecting.get(news.server)?.resolve();
        }
        else if (news.type === "disconnected") {
            this.#handleDisconnected(news.server, news.why);
        }
        else {
            const answer = this.#answers.get(news.answer);
            answer?.handleNews(news);
            if (answer?.ended)
                this.#answers.delete(news.answer);
        }
    }
    #handleDisconnected(server, why) {
        this.#connected.delete(server);
        this.#connecting.get(server)?.reject(new PathLost(why));
        this.#connecting.delete(server);
    }
}
function newWaiting() {
    let [resolve, reject] = [() => { }, () => { }];
    const promise = new Promise((yes, no) => ([resolve, reject] = [yes, no]));
    promise.catch(() => { });
    return { promise, resolve, reject };
}
class LinkAnswer {
    link;
    number;
    signal;
    transport = "webtransport";
    handle = null;
    ignoredParameters = null;
    #queue = [];
    #end = null;
    #wake = () => { };
    #begun = newWaiting();
    constructor(link, number, signal) {
        this.link = link;
        this.number = number;
        this.signal = signal;
        signal.addEventListener("abort", () => this.handleEnd(abortReason(signal)), { once: true });
        if (signal.aborted)
            this.handleEnd(abortReason(signal));
    }
    get begun() {
        return this.#begun.promise;
    }
    get ended() {
        return this.#end !== null;
    }
    cancel() {
        this.link.order({ type: "stop", answer: this.number });
    }
    forget() {
        this.link.order({ type: "forget", answer: this.number });
    }
    handleNews(news) {
        switch (news.type) {
            case "answered":
                this.handle = { id: news.head.id, token: news.head.token };
                this.ignoredParameters = news.head.headers[IGNORED_HEADER] ?? null;
                return this.#begun.resolve();
            case "deltas":
                this.#queue.push(...news.deltas);
                this.#begun.resolve();
                return this.#wake();
            case "refused":
                return this.handleEnd(refusal(news.head.status, news.head.headers["retry-after"] ?? null, news.body));
            case "complete":
                return this.handleEnd(null);
            case "failed":
                return this.handleEnd(failure(news.fault));
            case "ended":
                return this.handleEnd(ending(news.code));
            case "lost":
                return this.handleEnd(new PathLost(news.loss.why, {}, news.loss.malformed));
        }
    }
    handleEnd(error) {
        this.#end ??= { error };
        if (error === null)
            this.#begun.resolve();
        else
            this.#begun.reject(error);
        this.#wake();
    }
    async *[Symbol.asyncIterator]() {
        for (;;) {
            const batch = this.#queue;
            this.#queue = [];
            for (const [offset, delta] of batch) {
                if (this.signal.aborted)
                    throw abortReason(this.signal);
                yield { offset, delta };
            }
            if (batch.length > 0) {
                this.link.order({ type: "read", answer: this.number, count: batch.length });
            }
            else if (this.#end) {
                if (this.#end.error !== null)
                    throw this.#end.error;
                return;
            }
            else {
                await new Promise((resolve) => (this.#wake = resolve));
            }
        }
    }
}
function failure(fault) {
    if (fault === null)
        return new LoquentError("gone", "The rest of this answer is not kept any more.");
    return new LoquentError("unreadable", `What the server sent cannot be read (${fault}).`);
}
function ending(code) {
    if (code === Code.Superseded)
        return new LoquentError("superseded", "Another reader has taken this one's place.");
    if (code === Code.ShuttingDown)
        return new LoquentError("gone", "The server is shutting down. Ask again.");
    return new LoquentError("gone", "The answer was stopped.");
}
let shared = null;
function sharedLink() {
    if (shared === null) {
        const worker = new Worker(new URL("./loquent-worker.js", import.meta.url), { type: "module", name: "loquent" });
        const link = new Link(worker);
        worker.onerror = (event) => link.handleDeath(event.message || "the worker cannot be loaded");
        watchVisibility(link);
        shared = link;
    }
    return shared;
}
function setSharedLink(link) {
    shared = link;
}
function watchVisibility(link) {
    if (typeof document === "undefined")
        return;
    const tell = () => link.setHidden(document.visibilityState === "hidden");
    document.addEventListener("visibilitychange", tell);
    tell();
}
const SAVE_EVERY_MS = 250;
const answerKey = (name) => `loquent:answer:${name}`;
class ProgressStore {
    name;
    progress;
    #timer = null;
    #flush = () => this.save();
    constructor(name, progress) {
        this.name = name;
        this.progress = progress;
        globalThis.addEventListener?.("pagehide", this.#flush);
    }
    handleProgress() {
        this.#timer ??= setTimeout(this.#flush, SAVE_EVERY_MS);
    }
    save() {
        if (this.#timer !== null)
            clearTimeout(this.#timer);
        this.#timer = null;
        const progress = this.progress();
        try {
            if (progress)
                sessionStorage.setItem(answerKey(this.name), JSON.stringify(progress));
        }
        catch {
        }
    }
    clear() {
        globalThis.removeEventListener?.("pagehide", this.#flush);
        if (this.#timer !== null)
            clearTimeout(this.#timer);
        this.#timer = null;
        forget(this.name);
    }
}
function recall(name) {
    try {
        const kept = JSON.parse(sessionStorage.getItem(answerKey(name)) ?? "null");
        return isProgress(kept) ? kept : null;
    }
    catch {
        return null;
    }
}
function forget(name) {
    try {
        sessionStorage.removeItem(answerKey(name));
    }
    catch {
    }
}
function isProgress(value) {
    const { url, handle, offset, text, meta, reasoning } = (value ?? {});
    const strings = [url, text, meta, reasoning, handle?.id, handle?.token];
    return strings.every((part) => typeof part === "string") && Number.isSafeInteger(offset);
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
const MAX_EVENT_CHARS = 4 << 20;
const RESUME_RESPONSE_MS = 10_000;
const SILENCE_MS = 30_000;
class EventReader {
    #line = "";
    #id = null;
    #data = [];
    #chars = 0;
    push(piece) {
        const events = [];
        const lines = (this.#line + piece).split(/\r\n|\n|\r(?!$)/);
        this.#line = lines.pop() ?? "";
        for (const line of lines)
            this.#handleLine(line, events);
        if (this.#chars + this.#line.length > MAX_EVENT_CHARS) {
            throw new LoquentError("unreadable", "The server sent an event without end.");
        }
        return events;
    }
    #handleLine(line, events) {
        if (line === "") {
            if (this.#data.length > 0)
                events.push({ id: this.#id, data: this.#data.join("\n") });
            this.#id = null;
            this.#data = [];
            this.#chars = 0;
            return;
        }
        this.#chars += line.length;
        const colon = line.indexOf(":");
        const [name, value] = colon < 0 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
        if (name === "data")
            this.#data.push(value);
        if (name === "id")
            this.#id = value;
    }
}
async function askBySse({ url, headers, body }, server, signal) {
    const response = await reach(url, { method: "POST", headers, body, signal }, signal);
    if (!response.ok)
        throw await refusedBy(response);
    return new EventAnswer(response, server, handleOf(response), null, signal);
}
async function resumeBySse(server, handle, offset, signal) {
    const url = new URL(`v1/streams/${handle.id}?from=${offset}`, server);
    const headers = { "x-loquent-stream-token": handle.token, accept: "text/event-stream" };
    const patience = new AbortController();
    const timer = setTimeout(() => patience.abort(), RESUME_RESPONSE_MS);
    const abort = () => patience.abort(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    if (signal.aborted)
        abort();
    const response = await reach(url, { headers, signal: patience.signal }, signal).finally(() => clearTimeout(timer));
    if (response.status === 404) {
        throw new LoquentError("gone", "The rest of this answer is not kept any more.", { status: 404 });
    }
    if (!response.ok)
        throw await refusedBy(response);
    return new EventAnswer(response, server, handle, offset, signal);
}
function stopByHttp(server, handle) {
    const url = new URL(`v1/streams/${handle.id}`, server);
    const headers = { "x-loquent-stream-token": handle.token };
    void fetch(url, { method: "DELETE", headers, keepalive: true }).catch(() => { });
}
async function reach(url, init, stopped) {
    try {
        return await fetch(url, { cache: "no-store", ...init });
    }
    catch (error) {
        if (stopped.aborted)
            throw error;
        throw new PathLost("The server does not answer.", { cause: error });
    }
}
async function refusedBy(response) {
    const body = await response.text().catch(() => "");
    return refusal(response.status, response.headers.get("retry-after"), body);
}
function handleOf(response) {
    const id = response.headers.get("x-loquent-stream-id");
    const token = response.headers.get("x-loquent-stream-token");
    return id && token ? { id, token } : null;
}
class EventAnswer {
    response;
    server;
    handle;
    offset;
    signal;
    transport = "sse";
    #chunks = new ChunkReader();
    constructor(response, server, handle, offset, signal) {
        this.response = response;
        this.server = server;
        this.handle = handle;
        this.offset = offset;
        this.signal = signal;
        if (handle)
            this.offset ??= 0;
    }
    get ignoredParameters() {
        return this.response.headers.get(IGNORED_HEADER);
    }
    cancel() {
        if (this.handle)
            stopByHttp(this.server, this.handle);
    }
    async *[Symbol.asyncIterator]() {
        for await (const event of this.#events()) {
            const items = this.#items(event);
            yield* items;
            const last = items.at(-1);
            if (last && isLast(last.delta))
                return;
        }
        throw new PathLost("The connection ended before the answer did.");
    }
    async *#events() {
        if (!this.response.body)
            throw new PathLost("The response has no body.");
        const reader = this.response.body.getReader();
        const [text, events] = [new TextDecoder(), new EventReader()];
        try {
            for (let next = await this.#next(reader); !next.done; next = await this.#next(reader)) {
                yield* events.push(text.decode(next.value, { stream: true }));
            }
        }
        finally {
            reader.cancel().catch(() => { });
        }
    }
    async #next(reader) {
        const silent = () => void reader.cancel().catch(() => { });
        const timer = this.handle ? setTimeout(silent, SILENCE_MS) : undefined;
        try {
            return await reader.read();
        }
        catch (error) {
            if (this.signal.aborted)
                throw error;
            throw new PathLost("The connection broke.", { cause: error });
        }
        finally {
            clearTimeout(timer);
        }
    }
    #items(event) {
        const deltas = event.data === "[DONE]" ? [{ kind: "done" }] : this.#chunks.deltas(chunkOf(event));
        const before = this.offset;
        if (this.handle && event.id !== null && /^\d{1,16}$/.test(event.id))
            this.offset = Number(event.id);
        return deltas.map((delta, at) => ({ delta, offset: at === deltas.length - 1 ? this.offset : before }));
    }
}
function chunkOf(event) {
    try {
        return JSON.parse(event.data);
    }
    catch {
        throw new LoquentError("unreadable", "The server sent an event that is not JSON.");
    }
}
const HEAD_START_MS = 500;
const INSISTED_MS = 15_000;
const RESUME_WITHIN_MS = 60_000;
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4_000;
function streamChat(options) {
    return new Answer(absolute(options.url), options, { is: "new", body: options.body, apiKey: options.apiKey ?? null });
}
function resumeChat(options) {
    const progress = recall(options.remember);
    return progress && new Answer(new URL(progress.url), options, { is: "kept", progress });
}
function forgetChat(remember) {
    const progress = recall(remember);
    if (progress)
        stopByHttp(serverOf(new URL(progress.url)), progress.handle);
    forget(remember);
}
async function prepare(url) {
    const connecting = webTransportWorks() ? connected(serverOf(absolute(url))) : null;
    const link = connecting && (await Promise.race([connecting, after(INSISTED_MS)]));
    return link ? "webtransport" : "sse";
}
function absolute(url) {
    return new URL(url, globalThis.document?.baseURI);
}
class Answer {
    url;
    options;
    origin;
    text = "";
    reasoning = "";
    finish = null;
    usage = null;
    progress = null;
    transport = null;
    handle = null;
    ignoredParameters = null;
    offset = null;
    #meta = "{}";
    #server;
    #stopped = new AbortController();
    #memory;
    #source = null;
    #isLinkUseless = false;
    #progressAt = Date.now();
    #barrenPaths = 0;
    constructor(url, options, origin) {
        this.url = url;
        this.options = options;
        this.origin = origin;
        this.#server = serverOf(url);
        this.#memory = options.remember === undefined ? null : new ProgressStore(options.remember, () => this.#progress());
        if (origin.is === "kept")
            this.#restore(origin.progress);
    }
    cancel() {
        this.#stopped.abort();
    }
    async *chunks() {
        const writer = new ChunkWriter();
        writer.chunks({ kind: "open", meta: this.#meta });
        for await (const delta of this)
            yield* writer.chunks(delta);
    }
    async finalText() {
        for await (const _ of this)
            continue;
        return this.text;
    }
    async *[Symbol.asyncIterator]() {
        const unfollow = this.#followSignal();
        let isOurs = true;
        try {
            this.#state(this.origin.is === "new" ? "connecting" : "resuming");
            const first = this.origin.is === "new" ? this.#ask(this.origin) : this.#goOn(null);
            let path = this.#enter(await first);
            while (path) {
                const lost = yield* this.#follow(path);
                isOurs = lost !== null;
                path = lost && this.#enter(await this.#goOn(lost));
            }
        }
        catch (error) {
            if (error instanceof LoquentError && error.kind === "superseded")
                isOurs = false;
            throw error;
        }
        finally {
            unfollow();
            if (isOurs)
                this.#cancelAtServer();
            this.#memory?.clear();
            this.#state("ended");
        }
    }
    #cancelAtServer() {
        if (this.#source)
            this.#source.cancel();
        else if (this.handle)
            stopByHttp(this.#server, this.handle);
    }
    #followSignal() {
        const { signal } = this.options;
        const abort = () => this.#stopped.abort(signal?.reason);
        if (signal?.aborted)
            abort();
        signal?.addEventListener("abort", abort);
        return () => signal?.removeEventListener("abort", abort);
    }
    async *#follow(path) {
        try {
            for await (const { offset, delta } of path) {
                this.#apply(offset, delta);
                yield delta;
                if (delta.kind === "error")
                    throw new LoquentError("failed", delta.message, { code: delta.code });
            }
            return null;
        }
        catch (error) {
            if (error instanceof PathLost)
                return error;
            throw error;
        }
    }
    #apply(offset, delta) {
        this.#progressAt = Date.now();
        this.#barrenPaths = 0;
        this.offset = offset;
        this.handle ??= this.#source?.handle ?? null;
        this.ignoredParameters ??= this.#source?.ignoredParameters ?? null;
        if (delta.kind === "open")
            this.#meta = delta.meta;
        if (delta.kind === "usage")
            this.usage = delta;
        if (delta.kind === "progress")
            this.progress = delta;
        if ("choice" in delta && delta.choice === 0) {
            if (delta.kind === "text")
                this.text += delta.text;
            if (delta.kind === "reasoning")
                this.reasoning += delta.text;
            if (delta.kind === "finish")
                this.finish = delta.reason;
        }
        this.#memory?.handleProgress();
    }
    #state(state) {
        this.options.onState?.(state);
    }
    #enter(source) {
        this.#source = source;
        this.handle = source.handle ?? this.handle;
        this.#memory?.save();
        if (this.transport !== source.transport) {
            this.transport = source.transport;
            this.options.onTransport?.(source.transport);
        }
        this.#state("streaming");
        return source;
    }
    async #ask({ body, apiKey }) {
        this.#stopped.signal.throwIfAborted();
        const request = { ...body, stream: true };
        try {
            const link = await this.#link();
            if (link === null)
                return await this.#askBySse(request, apiKey, {});
            const repeatable = { [REPEAT_HEADER]: randomKey() };
            const asked = await this.#askByLink(link, request, apiKey, repeatable);
            return asked ?? (await this.#askBySse(request, apiKey, repeatable));
        }
        catch (error) {
            throw broken(error, error instanceof PathLost ? error.message : undefined);
        }
    }
    async #askByLink(link, request, apiKey, headers) {
        const path = this.url.pathname.slice(this.#server.pathname.length - 1) + this.url.search;
        const head = { method: "POST", path, headers, ...(apiKey !== null && { key: apiKey }) };
        try {
            return await link.ask(this.#linkRequest(), head, JSON.stringify(request));
        }
        catch (error) {
            if (error instanceof PathLost && this.options.transport !== "webtransport")
                return null;
            throw error;
        }
    }
    #askBySse(request, apiKey, more) {
        const authorization = apiKey === null ? {} : { authorization: `Bearer ${apiKey}` };
        const headers = { "content-type": "application/json", ...more, ...authorization };
        const body = JSON.stringify({ ...request, resumable: true });
        return askBySse({ url: this.url, headers, body }, this.#server, this.#stopped.signal);
    }
    async #goOn(lost) {
        this.handle ??= this.#source?.handle ?? null;
        if (this.handle === null)
            throw broken(lost);
        if (lost)
            this.#heed(lost);
        const before = this.#source instanceof LinkAnswer ? this.#source : null;
        this.#source = null;
        this.#state("resuming");
        let resumed = null;
        try {
            for (; resumed === null; this.#barrenPaths += 1) {
                if (this.#barrenPaths > 0)
                    await paused(pauseAfter(this.#barrenPaths), this.#stopped.signal);
                if (Date.now() > this.#progressAt + RESUME_WITHIN_MS)
                    throw broken(null);
                resumed = await this.#resume(this.handle, before);
            }
            return resumed;
        }
        finally {
            if (!(resumed instanceof LinkAnswer))
                before?.forget();
        }
    }
    async #resume(handle, before) {
        const offset = this.offset ?? 0;
        try {
            const link = await this.#link();
            if (link)
                return await link.resume(this.#linkRequest(), handle, offset, before);
            return await resumeBySse(this.#server, handle, offset, this.#stopped.signal);
        }
        catch (error) {
            if (!(error instanceof PathLost))
                throw error;
            this.#heed(error);
            return null;
        }
    }
    #heed(lost) {
        this.#isLinkUseless ||= lost.isTransportUseless;
        if (this.#isLinkUseless && this.options.transport === "webtransport")
            throw broken(lost);
    }
    async #link() {
        const { transport = "auto" } = this.options;
        if (transport === "sse" || this.#isLinkUseless)
            return null;
        const link = await headStart(this.#server, transport);
        this.#stopped.signal.throwIfAborted();
        if (link === null && transport === "webtransport")
            throw new PathLost("WebTransport does not get through.");
        return link;
    }
    #linkRequest() {
        return { server: this.#server, pace: this.options.pace ?? "smooth", signal: this.#stopped.signal };
    }
    #progress() {
        const { handle, offset, text, reasoning, finish, usage } = this;
        if (handle === null)
            return null;
        return { url: this.url.href, handle, offset: offset ?? 0, meta: this.#meta, text, reasoning, finish, usage };
    }
    #restore(progress) {
        const { handle, offset, meta, text, reasoning, finish, usage } = progress;
        this.#meta = meta;
        Object.assign(this, { handle, offset, text, reasoning, finish, usage });
    }
}
function randomKey() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
function broken(error, message = "The connection broke; the answer is incomplete.") {
    return error === null || error instanceof PathLost ? new LoquentError("broken", message) : error;
}
function pauseAfter(paths) {
    return Math.min(FIRST_PAUSE_MS * 2 ** (paths - 1), LONGEST_PAUSE_MS);
}
async function paused(ms, signal) {
    await new Promise((resolve) => {
        const done = () => {
            clearTimeout(timer);
            signal.removeEventListener("abort", done);
            globalThis.removeEventListener?.("online", done);
            resolve();
        };
        const timer = setTimeout(done, ms);
        signal.addEventListener("abort", done);
        globalThis.addEventListener?.("online", done);
    });
    signal.throwIfAborted();
}
const without = new Map();
const WITHOUT_MS = 60_000;
async function headStart(server, wish) {
    if (wish === "webtransport")
        return Promise.race([connected(server), after(INSISTED_MS)]);
    if (!webTransportWorks())
        return null;
    const link = await Promise.race([connected(server), after(lastWinner(server) === "sse" ? 0 : HEAD_START_MS)]);
    if (link === null)
        rememberWinner(server, "sse");
    return link;
}
const attempts = new Map();
function connected(server) {
    const attempt = attempts.get(server.href) ?? attemptTo(server).finally(() => attempts.delete(server.href));
    attempts.set(server.href, attempt);
    return attempt;
}
async function attemptTo(server) {
    if (!("WebTransport" in globalThis) || (without.get(server.href) ?? 0) > Date.now())
        return null;
    try {
        const link = sharedLink();
        if (!link.isConnected(server))
            await connect(link, server);
        rememberWinner(server, "webtransport");
        return link;
    }
    catch {
        return null;
    }
}
function after(ms) {
    return new Promise((resolve) => setTimeout(() => resolve(null), ms));
}
async function connect(link, server) {
    const target = await targetAt(server);
    try {
        await link.connect(server, target);
    }
    catch (error) {
        const again = await targetAt(server);
        if (again.certificate_sha256 === target.certificate_sha256)
            throw error;
        await link.connect(server, again);
    }
}
async function targetAt(server) {
    const target = await discover(server);
    if (target !== null)
        return target;
    without.set(server.href, Date.now() + WITHOUT_MS);
    throw new PathLost("The server has no WebTransport.");
}
export { Answer, LoquentError, forgetChat, prepare, resumeChat, streamChat };
