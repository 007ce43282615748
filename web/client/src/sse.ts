// Answers over HTTP as server-sent events, the way that works everywhere: with fetch, so
// that requests have bodies and headers (spec/session.md, section 5).

import { ChunkReader } from "./chunk.js";
import { LoquentError, refusal } from "./errors.js";
import { isLast } from "./delta.js";
import { IGNORED_HEADER, type Item, PathLost, type AnswerHandle, type Source } from "./source.js";

/** Longest event that is read, characters. */
const MAX_EVENT_CHARS = 4 << 20;

/** How long a server may take to say whether an answer can be resumed, ms. */
const RESUME_RESPONSE_MS = 10_000;

/** A silence of a resumable answer that is longer than three heartbeats: the path is dead, ms. */
const SILENCE_MS = 30_000;

/** One server-sent event with data. */
export interface ServerEvent {
  /** Of this event itself, not the last one seen; `null` if it has none. */
  readonly id: string | null;
  readonly data: string;
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
      if (this.#data.length > 0) events.push({ id: this.#id, data: this.#data.join("\n") });
      this.#id = null;
      this.#data = [];
      this.#chars = 0;
      return;
    }
    this.#chars += line.length;
    const colon = line.indexOf(":");
    const [name, value] = colon < 0 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
    if (name === "data") this.#data.push(value);
    if (name === "id") this.#id = value;
  }
}

/** What a request by HTTP needs. */
export interface HttpRequest {
  readonly url: URL;
  readonly headers: Record<string, string>;
  readonly body: string;
}

/** Asks for an answer; resolves once the server has begun. */
export async function askBySse({ url, headers, body }: HttpRequest, server: URL, signal: AbortSignal): Promise<Source> {
  const response = await reach(url, { method: "POST", headers, body, signal }, signal);
  if (!response.ok) throw await refusedBy(response);
  return new EventAnswer(response, server, handleOf(response), null, signal);
}

/** Goes on with an answer (S-5.2). */
export async function resumeBySse(
  server: URL,
  handle: AnswerHandle,
  offset: number,
  signal: AbortSignal,
): Promise<Source> {
  const url = new URL(`v1/streams/${handle.id}?from=${offset}`, server);
  const headers = { "x-loquent-stream-token": handle.token, accept: "text/event-stream" };
  // Only until the response begins: its body may take as long as it likes.
  const patience = new AbortController();
  const timer = setTimeout(() => patience.abort(), RESUME_RESPONSE_MS);
  const abort = (): void => patience.abort(signal.reason);
  signal.addEventListener("abort", abort, { once: true });
  if (signal.aborted) abort();
  const response = await reach(url, { headers, signal: patience.signal }, signal).finally(() => clearTimeout(timer));
  if (response.status === 404) {
    throw new LoquentError("gone", "The rest of this answer is not kept any more.", { status: 404 });
  }
  if (!response.ok) throw await refusedBy(response);
  return new EventAnswer(response, server, handle, offset, signal);
}

/** Ends an answer on the server (S-5.3). Best effort: a page may be about to go. */
export function stopByHttp(server: URL, handle: AnswerHandle): void {
  const url = new URL(`v1/streams/${handle.id}`, server);
  const headers = { "x-loquent-stream-token": handle.token };
  void fetch(url, { method: "DELETE", headers, keepalive: true }).catch(() => {});
}

/** `fetch`, with a failed network as a lost path. */
async function reach(url: URL, init: RequestInit, stopped: AbortSignal): Promise<Response> {
  try {
    return await fetch(url, { cache: "no-store", ...init });
  } catch (error) {
    if (stopped.aborted) throw error;
    throw new PathLost("The server does not answer.", { cause: error });
  }
}

async function refusedBy(response: Response): Promise<LoquentError> {
  const body = await response.text().catch(() => "");
  return refusal(response.status, response.headers.get("retry-after"), body);
}

function handleOf(response: Response): AnswerHandle | null {
  const id = response.headers.get("x-loquent-stream-id");
  const token = response.headers.get("x-loquent-stream-token");
  return id && token ? { id, token } : null;
}

class EventAnswer implements Source {
  readonly transport = "sse";
  readonly #chunks = new ChunkReader();

  constructor(
    readonly response: Response,
    readonly server: URL,
    readonly handle: AnswerHandle | null,
    /** Where the answer goes on from; `null` in an answer that begins here. */
    private offset: number | null,
    readonly signal: AbortSignal,
  ) {
    if (handle) this.offset ??= 0;
  }

  get ignoredParameters(): string | null {
    return this.response.headers.get(IGNORED_HEADER);
  }

  cancel(): void {
    if (this.handle) stopByHttp(this.server, this.handle);
  }

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
    if (!this.response.body) throw new PathLost("The response has no body.");
    const reader = this.response.body.getReader();
    const [text, events] = [new TextDecoder(), new EventReader()];
    try {
      for (let next = await this.#next(reader); !next.done; next = await this.#next(reader)) {
        yield* events.push(text.decode(next.value, { stream: true }));
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  async #next(reader: ReadableStreamDefaultReader<Uint8Array>): Promise<ReadableStreamReadResult<Uint8Array>> {
    // A server that keeps an answer also sends heartbeats.
    const silent = (): void => void reader.cancel().catch(() => {});
    const timer = this.handle ? setTimeout(silent, SILENCE_MS) : undefined;
    try {
      return await reader.read();
    } catch (error) {
      if (this.signal.aborted) throw error;
      throw new PathLost("The connection broke.", { cause: error });
    } finally {
      clearTimeout(timer);
    }
  }

  /** An event's deltas; only after the last of them is the event's offset reached. */
  #items(event: ServerEvent): Item[] {
    const deltas = event.data === "[DONE]" ? [{ kind: "done" } as const] : this.#chunks.deltas(chunkOf(event));
    const before = this.offset;
    if (this.handle && event.id !== null && /^\d{1,16}$/.test(event.id)) this.offset = Number(event.id);
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
