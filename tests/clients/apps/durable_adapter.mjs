// A Durable Streams server for its conformance tests, whose read side is Loquent's: reads pass
// through to /v1/streams/{id}. The write side makes Loquent generate what the tests write: this
// server is the upstream that Loquent asks, and an append is a chunk of its answer.
//
// Loquent's stream has an answer's chunks as JSON messages, or its text. The tests' own messages
// are lines of the chunks' content here, and are unpacked from what Loquent gives; a text passes
// byte by byte.
import { createServer } from "node:http";

const NOWHERE = { id: "0".repeat(32), token: "0".repeat(32) };
const LONG_POLL_S = 2;

/** Streams by their paths. */
const streams = new Map();
/** Upstream responses that a stream waits for, by the question that Loquent asks. */
const expected = new Map();
let loquent;
let questions = 0;

const server = createServer((request, response) => {
    const bytes = [];
    request.on("data", (piece) => bytes.push(piece));
    request.on("end", () => {
        const body = Buffer.concat(bytes);
        const handler = request.url.startsWith("/upstream/") ? answerLoquent : answerTests;
        handler(request, response, body).catch((error) => {
            if (response.headersSent) return response.destroy(error);
            reply(response, 500, {}, String(error.stack));
        });
    });
});

/** What Loquent asks: the stand-in of a model. */
async function answerLoquent(request, response, body) {
    if (request.method === "GET") return reply(response, 200, {}, '{"object":"list","data":[]}');
    const question = JSON.parse(body).messages.at(-1).content;
    response.writeHead(200, { "content-type": "text/event-stream" });
    // As models' servers do; until then Loquent waits for an error, which would have a status.
    response.write(eventOf({ delta: { role: "assistant" } }));
    expected.get(question)(response);
    expected.delete(question);
}

class Stream {
    static async create(contentType) {
        const question = `stream ${++questions}`;
        const asked = new Promise((resolve) => expected.set(question, resolve));
        const aborter = new AbortController();
        const body = { model: "tests", messages: [{ role: "user", content: question }], stream: true, resumable: true };
        const started = await fetch(`${loquent}/v1/chat/completions`, {
            method: "POST",
            body: JSON.stringify(body),
            signal: aborter.signal,
        });
        if (started.status !== 200) throw new Error(await started.text());
        const stream = new Stream();
        stream.handle = {
            id: started.headers.get("x-loquent-stream-id"),
            token: started.headers.get("x-loquent-stream-token"),
        };
        stream.contentType = contentType;
        stream.upstream = await asked;
        stream.closed = false;
        stream.turn = Promise.resolve();
        aborter.abort();
        return stream;
    }

    get isJson() {
        return mediaType(this.contentType) === "application/json";
    }

    /** Runs one writer after the other. */
    exclusively(write) {
        const result = this.turn.then(write);
        this.turn = result.catch(() => {});
        return result;
    }

    /** Appends content, and waits until Loquent has it. */
    async append(content) {
        const before = (await this.head()).headers.get("stream-next-offset");
        this.send({ delta: { content } });
        await this.until((head) => head.headers.get("stream-next-offset") > before);
    }

    async close() {
        this.send({ delta: {}, finish_reason: "stop" });
        this.upstream.end("data: [DONE]\n\n");
        this.closed = true;
        await this.until((head) => head.headers.get("stream-closed") === "true");
    }

    send(choice) {
        this.upstream.write(eventOf(choice));
    }

    async until(holds) {
        for (;;) {
            const head = await this.head();
            if (holds(head)) return head;
            await new Promise((resolve) => setTimeout(resolve, 1));
        }
    }

    head() {
        return fetch(addressOf(this.handle), { method: "HEAD" });
    }
}

function eventOf(choice) {
    const chunk = { id: "x", object: "chat.completion.chunk", created: 1, model: "m", choices: [{ index: 0, ...choice }] };
    return `data: ${JSON.stringify(chunk)}\n\n`;
}

function addressOf({ id, token }, query = "") {
    return `${loquent}/v1/streams/${id}?token=${token}${query}`;
}

async function answerTests(request, response, body) {
    const url = new URL(request.url, "http://localhost");
    const stream = streams.get(url.pathname);
    switch (request.method) {
        case "PUT":
            return create(request, response, url, stream, body);
        case "POST":
            return append(request, response, stream, body);
        case "DELETE": {
            const gone = await fetch(addressOf(stream?.handle ?? NOWHERE), { method: "DELETE" });
            streams.delete(url.pathname);
            stream?.upstream.destroy();
            return reply(response, gone.status);
        }
        default:
            return read(request, response, url, stream);
    }
}

async function create(request, response, url, known, body) {
    const contentType = request.headers["content-type"] ?? "text/plain";
    const closes = isTrue(request.headers["stream-closed"]);
    if (known) {
        const same = mediaType(known.contentType) === mediaType(contentType) && known.closed === closes;
        return reply(response, same ? 200 : 409, await stateOf(known));
    }
    const content = body.length > 0 ? contentOf(contentType, body, true) : "";
    if (content === null) return reply(response, 400);
    const stream = await Stream.create(contentType);
    streams.set(url.pathname, stream);
    if (content) await stream.append(content);
    if (closes) await stream.close();
    const location = `http://${request.headers.host}${url.pathname}`;
    return reply(response, 201, { ...(await stateOf(stream)), location });
}

function append(request, response, stream, body) {
    if (!stream) return reply(response, 404);
    return stream.exclusively(async () => {
        const closes = isTrue(request.headers["stream-closed"]);
        const state = () => stateOf(stream);
        if (stream.closed) {
            return reply(response, body.length === 0 && closes ? 204 : 409, await state());
        }
        if (body.length === 0 && !closes) return reply(response, 400);
        if (body.length > 0) {
            const type = request.headers["content-type"];
            if (!type) return reply(response, 400);
            if (mediaType(type) !== mediaType(stream.contentType)) return reply(response, 409);
            const sequence = request.headers["stream-seq"];
            if (sequence !== undefined && stream.sequence !== undefined && sequence <= stream.sequence) {
                return reply(response, 409);
            }
            const content = contentOf(stream.contentType, body, false);
            if (content === null) return reply(response, 400);
            stream.sequence = sequence ?? stream.sequence;
            await stream.append(content);
        }
        if (closes) await stream.close();
        reply(response, 204, await state());
    });
}

/** What a body appends: text, or JSON messages as lines; null if it is not valid. */
function contentOf(contentType, body, mayBeEmpty) {
    if (mediaType(contentType) !== "application/json") return body.toString();
    let value;
    try {
        value = JSON.parse(body);
    } catch {
        return null;
    }
    const messages = Array.isArray(value) ? value : [value];
    if (messages.length === 0) return mayBeEmpty ? "" : null;
    return messages.map((message) => `${JSON.stringify(message)}\n`).join("");
}

async function stateOf(stream) {
    const head = await stream.head();
    const state = { "content-type": stream.contentType, "stream-next-offset": head.headers.get("stream-next-offset") };
    if (head.headers.has("stream-closed")) state["stream-closed"] = "true";
    return state;
}

async function read(request, response, url, stream) {
    let query = url.search.slice(1);
    // Without both, a read begins at the beginning; with them missing Loquent resumes in its own way.
    if (!url.searchParams.has("offset") && !url.searchParams.has("live")) query += "&offset=-1";
    const isJson = stream?.isJson ?? false;
    const address = addressOf(stream?.handle ?? NOWHERE, `&as=${isJson ? "chunks" : "text"}&timeout=${LONG_POLL_S}&${query}`);
    const aborter = new AbortController();
    response.on("close", () => aborter.abort());
    const passed = ["if-none-match", "origin", "access-control-request-method", "access-control-request-headers"];
    const headers = Object.fromEntries(passed.filter((name) => name in request.headers).map((name) => [name, request.headers[name]]));
    const answer = await fetch(address, { method: request.method, headers, signal: aborter.signal });
    const state = Object.fromEntries(answer.headers);
    for (const name of ["content-length", "connection", "transfer-encoding", "content-encoding"]) delete state[name];
    const isEvents = state["content-type"]?.startsWith("text/event-stream");
    if (stream && answer.ok && !isEvents) state["content-type"] = stream.contentType;
    if (isEvents) {
        response.writeHead(answer.status, state);
        response.flushHeaders();
        return follow(answer.body, response, isJson).catch(() => response.destroy());
    }
    const body = await answer.text();
    const isContent = answer.status === 200 && request.method === "GET";
    reply(response, answer.status, state, isContent && isJson ? `[${unpacked(JSON.parse(body))}]` : body);
}

/** Passes events on; JSON messages are unpacked. */
async function follow(body, response, isJson) {
    if (!isJson) {
        for await (const piece of body) response.write(piece);
        return response.end();
    }
    let buffer = "";
    let withheld = false;
    for await (const piece of body.pipeThrough(new TextDecoderStream())) {
        const events = (buffer + piece).split("\n\n");
        buffer = events.pop();
        for (const event of events) {
            if (!event.startsWith("event: data\n")) {
                // A control event without its data would be one too many, unless it tells the end.
                if (!withheld || /upToDate|streamClosed/.test(event)) response.write(`${event}\n\n`);
                withheld = false;
                continue;
            }
            const lines = event.split("\n").slice(1);
            const messages = unpacked(JSON.parse(lines.map((line) => line.replace(/^data: ?/, "")).join("\n")));
            withheld = messages === "";
            if (!withheld) response.write(`event: data\ndata:[${messages}]\n\n`);
        }
    }
    response.end();
}

/** The tests' messages in the content of `chunks`. */
function unpacked(chunks) {
    const content = chunks.map((chunk) => chunk.choices?.[0]?.delta?.content ?? "").join("");
    return content.split("\n").filter(Boolean).join(",");
}

function reply(response, status, headers = {}, body = "") {
    response.writeHead(status, { "x-content-type-options": "nosniff", ...headers });
    response.end(status === 204 || status === 304 ? undefined : body);
}

function isTrue(value) {
    return value?.toLowerCase() === "true";
}

function mediaType(contentType) {
    return contentType.split(";")[0].trim().toLowerCase();
}

server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
// The address of Loquent, which has to know this one's first.
process.stdin.once("data", (line) => {
    loquent = line.toString().trim();
    console.log("ready");
});
