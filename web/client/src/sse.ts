// Answers over HTTP as server-sent events, the way that works everywhere: with fetch, so
// that requests have bodies and headers (spec/session.md, section 5).

import { ChunkReader } from "./chunk.js";
import { LoquentError, abortReason } from "./errors.js";
import { isLast } from "./delta.js";
import { type Http, refusedBy } from "./http.js";
import type { ByteReaderLike, ByteStreamLike, ResponseLike } from "./platform.js";
import { IGNORED_HEADER, type Item, PathLost, type AnswerReference, type Source } from "./source.js";

/** Longest event that is read, characters. */
const MAX_EVENT_CHARS = 4 << 20;

/** How long a server may take to say whether an answer can be resumed, ms. */
const RESUME_RESPONSE_MS = 10_000;

/** A silence of a resumable answer that is longer than three heartbeats: the path is dead, ms. */
const SILENCE_MS = 30_000;

/** What begins the comment that says why nothing comes for now (S-6.8). */
const PAUSED = "paused, ";

/** One server-sent event with data, or a comment that says of a pause why. */
export interface ServerEvent {
  /** Of this event itself, not the last one seen; `null` if it has none. */
  readonly id: string | null;
  readonly data: string;
  /** Why nothing comes for now: the event is a comment, and has no data. */
  readonly paused: string | null;
}

/** Cuts text, in whatever pieces it comes, into events (HTML Standard, 9.2.6). */
export class EventReader {
  #line = "";
  #id: string | null = null;
  #data: string[] = [];
  #chars = 0;

  /**
   * Takes in the next piece; returns the events that it completes.
   *
   * @throws {LoquentError} `unreadable` for an event that exceeds any sane bound.
   */
  push(piece: string): ServerEvent[] {
    const events: ServerEvent[] = [];
    // A carriage return at the end may be half of a line's end: it waits for the rest.
    const lines = (this.#line + piece).split(/\r\n|\n|\r(?!$)/);
    this.#line = lines.pop() ?? "";
    for (const line of lines) this.#handleLine(line, events);
    if (this.#chars + this.#line.length > MAX_EVENT_CHARS) {
      throw new LoquentError("unreadable", "The server sent an event without end.");
    }
    return events;
  }

  #handleLine(line: string, events: ServerEvent[]): void {
    if (line === "") {
      if (this.#data.length > 0) events.push({ id: this.#id, data: this.#data.join("\n"), paused: null });
      this.#id = null;
      this.#data = [];
      this.#chars = 0;
      return;
    }
    this.#chars += line.length;
    const colon = line.indexOf(":");
    const [name, value] = colon < 0 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
    if (name === "" && value.startsWith(PAUSED)) events.push({ id: null, data: "", paused: value.slice(PAUSED.length) });
    if (name === "data") this.#data.push(value);
    if (name === "id") this.#id = value;
  }
}

/** A question by HTTP. */
export interface EventQuestion {
  readonly url: URL;
  readonly headers: Record<string, string>;
  readonly body: string;
}

/** Asks for an answer; resolves once the server has begun. */
export async function askBySse(
  http: Http,
  { url, headers, body }: EventQuestion,
  server: URL,
  signal: AbortSignal,
): Promise<Source> {
  const response = await http.reach(url, { method: "POST", headers, body }, signal);
  if (!response.ok) throw await refusedBy(response);
  return new EventAnswer(http, response, server, referenceOf(response), null, signal);
}

/** Goes on with an answer (S-5.2). */
export async function resumeBySse(
  http: Http,
  server: URL,
  reference: AnswerReference,
  offset: number,
  signal: AbortSignal,
): Promise<Source> {
  const url = new URL(`v1/streams/${reference.id}?from=${offset}`, server);
  const headers = { "x-loquent-stream-token": reference.token, accept: "text/event-stream" };
  // Only until the response begins: its body may take as long as it likes.
  const patience = new AbortController();
  const timer = setTimeout(() => patience.abort(), RESUME_RESPONSE_MS);
  const abort = (): void => patience.abort(signal.reason);
  signal.addEventListener("abort", abort, { once: true });
  if (signal.aborted) abort();
  const asking = http.reach(url, { method: "GET", headers }, patience.signal, signal);
  const response = await asking.finally(() => clearTimeout(timer));
  if (response.status === 404) {
    throw new LoquentError("gone", "The rest of this answer is not kept any more.", { status: 404 });
  }
  if (!response.ok) throw await refusedBy(response);
  return new EventAnswer(http, response, server, reference, offset, signal);
}

/** Ends an answer on the server (S-5.3). Best effort: a page may be about to go. */
export function stopByHttp(http: Http, server: URL, reference: AnswerReference): void {
  const url = new URL(`v1/streams/${reference.id}`, server);
  const headers = { "x-loquent-stream-token": reference.token };
  http.request(url, { method: "DELETE", headers, keepalive: true }).catch(() => {});
}

function referenceOf(response: ResponseLike): AnswerReference | null {
  const id = response.headers.get("x-loquent-stream-id");
  const token = response.headers.get("x-loquent-stream-token");
  return id && token ? { id, token } : null;
}

/** The stream of a response. React Native's own `fetch` has none, and asking again would not help. */
function streamOf(response: ResponseLike): ByteStreamLike {
  if (response.body) return response.body;
  const hint = "Give one that has them as the option `fetch`, in React Native `fetch` of `expo/fetch`.";
  throw new LoquentError("unsupported", `This platform's fetch gives no streams (response.body is missing). ${hint}`);
}

class EventAnswer implements Source {
  readonly transport = "sse";
  readonly #chunks = new ChunkReader();
  readonly #stream: ByteStreamLike;
  heardAt_ms = Date.now();

  constructor(
    readonly http: Http,
    readonly response: ResponseLike,
    readonly server: URL,
    readonly reference: AnswerReference | null,
    /** Where the answer goes on from; `null` in an answer that begins here. */
    private offset: number | null,
    readonly signal: AbortSignal,
  ) {
    if (reference) this.offset ??= 0;
    this.#stream = streamOf(response);
  }

  get ignoredParameters(): string | null {
    return this.response.headers.get(IGNORED_HEADER);
  }

  cancel(): void {
    if (this.reference) stopByHttp(this.http, this.server, this.reference);
  }

  /** Its reader or the signal has ended the response; nothing else is held. */
  leave(): void {}

  async *[Symbol.asyncIterator](): AsyncGenerator<Item> {
    for await (const event of this.#events()) {
      const items = this.#items(event);
      yield* items;
      const last = items.at(-1);
      if (last && isLast(last.delta)) return;
    }
    throw new PathLost("The connection ended before the answer did.");
  }

  async *#events(): AsyncGenerator<ServerEvent> {
    const reader = this.#stream.getReader();
    const [text, events] = [new TextDecoder(), new EventReader()];
    try {
      for (let next = await this.#next(reader); !next.done; next = await this.#next(reader)) {
        this.heardAt_ms = Date.now();
        yield* events.push(text.decode(next.value, { stream: true }));
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  async #next(reader: ByteReaderLike): ReturnType<ByteReaderLike["read"]> {
    // A server that keeps an answer also sends heartbeats.
    const silent = (): void => void reader.cancel().catch(() => {});
    const timer = this.reference ? setTimeout(silent, SILENCE_MS) : undefined;
    try {
      return await reader.read();
    } catch (error) {
      if (this.signal.aborted) throw abortReason(this.signal);
      throw new PathLost("The connection broke.", { cause: error });
    } finally {
      clearTimeout(timer);
    }
  }

  /** An event's deltas; only after the last of them is the event's offset reached. */
  #items(event: ServerEvent): Item[] {
    if (event.paused !== null) return [{ delta: { kind: "pause", why: event.paused }, offset: this.offset }];
    const deltas = event.data === "[DONE]" ? [{ kind: "done" } as const] : this.#chunks.deltas(chunkOf(event));
    const before = this.offset;
    if (this.reference && event.id !== null && /^\d{1,16}$/.test(event.id)) this.offset = Number(event.id);
    return deltas.map((delta, at) => ({ delta, offset: at === deltas.length - 1 ? this.offset : before }));
  }
}

function chunkOf(event: ServerEvent): unknown {
  try {
    return JSON.parse(event.data);
  } catch {
    throw new LoquentError("unreadable", "The server sent an event that is not JSON.");
  }
}
