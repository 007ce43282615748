// The stream of the dashboard's events: read with the key that the user has set, again after every
// end. An `EventSource` can send no key.

import { type Opening, type Snapshot, readOpening, readSnapshot } from "./events.js";

/** Where the page stands with its server. */
export type FeedState =
  | { readonly is: "connecting" }
  | { readonly is: "live" }
  /** A key is missing or wrong, or it is known and may not see this; `why` is the server's own word. */
  | { readonly is: "refused"; readonly why: string; readonly isKnown: boolean }
  /** All places are taken, or something else is in the way that may pass. */
  | { readonly is: "busy"; readonly why: string }
  | { readonly is: "gone"; readonly sinceMs: number };

export interface FeedHandlers {
  readonly onState: (state: FeedState) => void;
  readonly onOpening: (opening: Opening) => void;
  readonly onSnapshot: (snapshot: Snapshot) => void;
  /** The API key; empty for none. */
  readonly key: () => string;
}

const PATH = "v1/dashboard/events";
/** An event comes each second; after this long without one the server counts as gone, ms. */
const SILENCE_MS = 8_000;
/** How long until the next try, ms. */
const RETRY_MS = 2_000;
const BUSY_RETRY_MS = 10_000;
/** Longest event, characters: ten minutes of figures are about 150,000. */
const MAX_EVENT = 4_000_000;
/** Longest error that is shown, characters. */
const MAX_WHY = 500;

/** Follows the server's events until `stop`. */
export class Feed {
  #state: FeedState = { is: "connecting" };
  #abort = new AbortController();
  #timer: ReturnType<typeof setTimeout> | null = null;
  #columns = 0;

  constructor(private readonly handlers: FeedHandlers) {}

  /** Connects now, whatever was waited for: at first, or with a new key. */
  connect(): void {
    this.stop();
    void this.#follow(this.#abort);
  }

  stop(): void {
    this.#abort.abort();
    this.#abort = new AbortController();
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
  }

  async #follow(abort: AbortController): Promise<void> {
    const outcome = await this.#read(abort).catch((): FeedState => this.#gone());
    // Another connection has taken its place, or nothing is wanted any more.
    if (abort !== this.#abort) return;
    this.#enter(outcome);
    if (outcome.is === "refused") return;
    const wait_ms = { connecting: 0, live: 0, busy: BUSY_RETRY_MS, gone: RETRY_MS }[outcome.is];
    this.#timer = setTimeout(() => this.connect(), wait_ms);
  }

  /** Reads one response to its end; what comes of that. */
  async #read(abort: AbortController): Promise<FeedState> {
    const key = this.handlers.key().trim();
    const headers: Record<string, string> = key === "" ? {} : { authorization: `Bearer ${key}` };
    let watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
    try {
      const response = await fetch(PATH, { headers, cache: "no-store", signal: abort.signal });
      if (!response.ok || response.body === null) return await refusal(response);
      let rest = "";
      for await (const piece of textOf(response.body)) {
        clearTimeout(watchdog);
        watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
        rest = this.#takeEvents(rest + piece);
        if (rest.length > MAX_EVENT) return this.#gone();
      }
      return { is: "connecting" };
    } finally {
      clearTimeout(watchdog);
    }
  }

  /** Handles the events that `text` has whole; returns what is left. */
  #takeEvents(text: string): string {
    const blocks = text.split("\n\n");
    const rest = blocks.pop() ?? "";
    for (const block of blocks) this.#takeEvent(block);
    return rest;
  }

  #takeEvent(block: string): void {
    const lines = block.split("\n");
    const field = (name: string): string => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2) ?? "";
    if (field("event") === "open") {
      const opening = readOpening(field("data"));
      if (opening === null) return;
      this.#columns = opening.columns.length;
      this.handlers.onOpening(opening);
      this.#enter({ is: "live" });
    } else if (field("event") === "snapshot") {
      const snapshot = readSnapshot(field("data"), this.#columns);
      if (snapshot !== null) this.handlers.onSnapshot(snapshot);
    }
  }

  #gone(): FeedState {
    return this.#state.is === "gone" ? this.#state : { is: "gone", sinceMs: Date.now() };
  }

  #enter(state: FeedState): void {
    // The pause between two streams of a server that is there says nothing.
    if (state.is === "connecting" && this.#state.is === "live") return;
    this.#state = state;
    this.handlers.onState(state);
  }
}

async function refusal(response: Response): Promise<FeedState> {
  const why = await errorOf(response);
  const isKnown = response.status === 403;
  return response.status === 401 || isKnown ? { is: "refused", why, isKnown } : { is: "busy", why };
}

async function errorOf(response: Response): Promise<string> {
  try {
    const { error } = (await response.json()) as { error?: { message?: unknown } };
    if (typeof error?.message === "string") return error.message.slice(0, MAX_WHY);
  } catch {
    // Not the server's own words then.
  }
  return `The server answers ${response.status}.`;
}

async function* textOf(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield decoder.decode(value, { stream: true });
    }
  } finally {
    reader.releaseLock();
  }
}
