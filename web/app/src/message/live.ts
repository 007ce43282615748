// A message while it changes: takes in what the client library tells about an answer, and
// tells subscribers the pieces, so that nobody compares whole texts.

import type { AnswerState, Delta, TransportName } from "@loquent/client";
import { type Failure, failureOf } from "./failure.js";
import { type Message, type MessageState, type Pause, type PauseCause, isOpen } from "./model.js";
import { type EndedPause, PAUSE_MS, PauseWatch } from "./pauses.js";
import { wordEnd } from "./word_end.js";

/** What subscribers are told. `piece` is what was appended. */
export type Change =
  | { readonly is: "text" | "reasoning"; readonly piece: string }
  | { readonly is: "toolCalls" | "state" | "facts" }
  /** A pause has ended here. */
  | { readonly is: "pause"; readonly pause: Pause }
  /** Its cause has become clear. */
  | { readonly is: "cause"; readonly pause: Pause };

/** How often facts change on the page while an answer streams, ms. */
const TICK_MS = 250;

/** Tokens of the last so many ms are the speed that is shown while an answer streams. */
const RATE_WINDOW_MS = 3_000;

/** Token times that are kept. */
const MOST_TIMES = 8_192;

/** Tool calls that are shown, and how long their arguments may be. */
const MOST_CALLS = 64;
const LONGEST_ARGUMENTS = 200_000;

/** Longest words of the server about a pause that are shown. */
const LONGEST_WHY = 200;

/** What the client library says about an answer that stands still; see its `onPause`. */
export interface ToldPause {
  readonly cause: string;
  readonly since_ms: number;
}

const TOLD: Readonly<Record<string, PauseCause>> = {
  engine: "engine",
  queue: "queue",
  network: "network",
  silence: "network",
  retrying: "network",
  hidden: "hidden",
};

/** One message, old or on its way. */
export class LiveMessage {
  #message: Message;
  readonly #subscribers = new Set<(change: Change) => void>();
  readonly #watch = new PauseWatch();
  /** Pauses whose cause may change, by what the watch knows of them. */
  readonly #pauses = new Map<EndedPause, Pause>();
  /** Pauses that ended inside a word, which are marked behind it. */
  #unplaced: { readonly ended: EndedPause; readonly part: Pause["part"] }[] = [];
  /** When the question was asked, on the page's clock. */
  readonly #askedAt: number;
  /** The question was asked here, not before a reload. */
  readonly #isAskedHere: boolean;
  /** Tokens that the answer had when it was continued: the server counts them as part of the prompt. */
  #tokensBefore = 0;
  #firstAt: number | null = null;
  #lastAt: number | null = null;
  #thoughtFrom: number | null = null;
  #queuedAt: number | null = null;
  #finish: string | null = null;
  /** What the server said of the pause that lasts. */
  #why: string | null = null;
  #timer: ReturnType<typeof setInterval> | undefined;

  constructor(message: Message) {
    this.#message = message;
    this.#isAskedHere = message.text === "" && message.reasoning === "";
    // After a reload the times go on where they ended.
    this.#askedAt = performance.now() - (message.facts.times.at(-2) ?? 0);
    if (message.continuedAt !== undefined && message.text.length === message.continuedAt) this.#tokensBefore = message.facts.tokens;
  }

  /** The message as it stands, to be stored or sent. */
  get message(): Message {
    return this.#message;
  }

  /** When the question was asked, on the clock of `performance.now()`. */
  get askedAt(): number {
    return this.#askedAt;
  }

  /** Calls `subscriber` for each change from now on; returns how to end that. */
  subscribe(subscriber: (change: Change) => void): () => void {
    this.#subscribers.add(subscriber);
    return () => this.#subscribers.delete(subscriber);
  }

  /** For the client library's `onTransport`. */
  readonly onTransport = (transport: TransportName): void => {
    this.#setFacts({ transport });
  };

  /** For the client library's `onState`. */
  readonly onState = (state: AnswerState): void => {
    this.#begin();
    this.#watch.handleSigns({ isLost: state === "resuming" });
    if (state === "resuming") this.#setFacts({ resumes: this.#message.facts.resumes + 1 });
    if (state !== "ended") this.#tick();
  };

  /** For the client library's `onPause`. */
  readonly onPause = (pause: ToldPause | null): void => {
    this.#watch.handleSigns({ told: pause === null ? null : (TOLD[pause.cause] ?? null) });
  };

  /** Takes in the next piece of the answer. */
  handleDelta(delta: Delta): void {
    this.#begin();
    if ("choice" in delta && delta.choice !== 0) return;
    if ("tokens" in delta) this.#count(delta.tokens);
    switch (delta.kind) {
      case "text":
        this.#endThought();
        return this.appendText(delta.text);
      case "reasoning":
        this.#thoughtFrom ??= performance.now() - (this.#message.reasoningMs ?? 0);
        return this.appendReasoning(delta.text);
      case "tool_call":
        this.#placePauses();
        this.#endThought();
        return this.#addToCall(delta);
      case "pause":
        return this.#notePause(delta.why);
      case "progress":
        return this.#showProgress(delta);
      case "usage":
        return this.#noteUsage(delta);
      case "finish":
        this.#finish = delta.reason;
        return;
      default:
        return;
    }
  }

  /** The answer is over: whole (`null`), stopped (an `AbortError`), or not. */
  handleEnd(error: unknown): void {
    const now = performance.now();
    clearInterval(this.#timer);
    this.#timer = undefined;
    if (typeof document !== "undefined") document.removeEventListener("visibilitychange", this.#noteVisibility);
    this.#endThought();
    this.#placePauses();
    if (this.#watch.decide(now, true)) this.#tellCauses();
    this.#setFacts({ tokensPerSecond: this.#wholeRate() ?? this.#message.facts.tokensPerSecond });
    const failure = failureOf(error);
    this.#set({ state: endState(failure, this.#finish) }, { is: "state" });
  }

  appendText(piece: string): void {
    this.#append("text", piece);
  }

  appendReasoning(piece: string): void {
    this.#append("reasoning", piece);
  }

  #append(part: Pause["part"], piece: string): void {
    const end = this.#unplaced.length > 0 ? this.#placeIn(part, piece) : null;
    if (end === null) return this.#write(part, piece);
    this.#write(part, piece.slice(0, end));
    this.#placePauses();
    this.#write(part, piece.slice(end));
  }

  /** Where in `piece` the pauses that wait for the end of a word are marked; `null`: not in it. */
  #placeIn(part: Pause["part"], piece: string): number | null {
    return this.#unplaced.every((pause) => pause.part === part) ? wordEnd(this.#message[part], piece) : 0;
  }

  #write(part: Pause["part"], piece: string): void {
    if (piece === "") return;
    this.#set({ [part]: this.#message[part] + piece }, { is: part, piece });
  }

  /** What a tool answered to the call `id`. */
  setToolResult(id: string, result: string): void {
    const toolCalls = this.#message.toolCalls.map((call) => (call.id === id ? { ...call, result } : call));
    this.#set({ toolCalls }, { is: "toolCalls" });
  }

  /** Something of the answer has come, or is being asked for: from now on its pauses are watched. */
  #begin(): void {
    if (this.#timer !== undefined || !isOpen(this.#message.state)) return;
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
    if (typeof document === "undefined") return;
    document.addEventListener("visibilitychange", this.#noteVisibility);
    this.#noteVisibility();
  }

  readonly #noteVisibility = (): void => {
    this.#watch.handleSigns({ isHidden: document.visibilityState === "hidden" });
  };

  #tick(): void {
    const now = performance.now();
    const { state } = this.#message;
    if (globalThis.navigator?.onLine === false) this.#watch.handleSigns({ isLost: true });
    if (this.#watch.decide(now)) this.#tellCauses();
    const pause = this.#watch.current(now);
    if (pause) this.#setState({ is: "paused", cause: pause.cause, ms: pause.ms, why: this.#why });
    else if (state.is === "paused") this.#setState({ is: "streaming" });
    this.#setFacts({ tokensPerSecond: this.#recentRate(now) });
  }

  #count(tokens: number): void {
    const now = performance.now();
    const facts = this.#message.facts;
    const ended = this.#watch.handleTokens(now, tokens);
    this.#why = null;
    this.#firstAt ??= now;
    this.#lastAt = now;
    if (ended) this.#unplaced.push({ ended, part: this.#part() });
    this.#noteTime(now - this.#askedAt, tokens);
    const ttft = this.#isAskedHere ? Math.round(this.#firstAt - this.#askedAt) : null;
    this.#message = { ...this.#message, facts: { ...this.#message.facts, tokens: facts.tokens + tokens, ttftMs: facts.ttftMs ?? ttft } };
    if (this.#message.state.is !== "streaming") this.#setState({ is: "streaming" });
  }

  #noteTime(at: number, tokens: number): void {
    // The same list goes on, so that a token costs no copy of all before it.
    const times = this.#message.facts.times as number[];
    const isFirst = times.length === 0;
    if (times.length >= 2 * MOST_TIMES) times[times.length - 1] = (times.at(-1) ?? 0) + tokens;
    else if (!isFirst) times.push(Math.round(at), tokens);
    else this.#message = { ...this.#message, facts: { ...this.#message.facts, times: [Math.round(at), tokens] } };
  }

  /** What the answer has come to. */
  #part(): Pause["part"] {
    const { text, reasoning } = this.#message;
    return text === "" && reasoning !== "" ? "reasoning" : "text";
  }

  /** Marks the pauses that wait for the end of a word here. */
  #placePauses(): void {
    const pauses = this.#unplaced;
    this.#unplaced = [];
    for (const { ended, part } of pauses) this.#addPause(ended, part);
  }

  #addPause(ended: EndedPause, part: Pause["part"]): void {
    const { from, to } = ended;
    const { facts } = this.#message;
    const at = this.#message[part].length;
    const [ms, begun] = [Math.round(to - from), Math.round(from - this.#askedAt)];
    const pause: Pause = { cause: ended.cause, ms, part, at, from: begun };
    this.#pauses.set(ended, pause);
    this.#set({ facts: { ...facts, pauses: [...facts.pauses, pause] } }, { is: "pause", pause });
  }

  /** Tells of pauses whose cause has become clear. */
  #tellCauses(): void {
    for (const [ended, pause] of this.#pauses) {
      if (ended.cause === pause.cause) continue;
      const clear = { ...pause, cause: ended.cause };
      this.#pauses.set(ended, clear);
      const { facts } = this.#message;
      const pauses = facts.pauses.map((one) => (one === pause ? clear : one));
      this.#set({ facts: { ...facts, pauses } }, { is: "cause", pause: clear });
    }
  }

  #noteUsage({ prompt, completion, cached }: Extract<Delta, { kind: "usage" }>): void {
    const before = Math.min(this.#tokensBefore, prompt);
    this.#setFacts({ tokens: completion + before, promptTokens: prompt - before, cachedTokens: cached });
  }

  /** After the first token it is shown as soon as the pause is long enough to be one. */
  #notePause(why: string): void {
    this.#why = why.slice(0, LONGEST_WHY);
    this.#watch.handleSigns({ isAnnounced: true });
    if (this.#lastAt === null) this.#setState({ is: "waiting", queue: null, etaMs: null, why: this.#why });
  }

  #showProgress({ queued, eta_ms, processed, total }: Extract<Delta, { kind: "progress" }>): void {
    if (this.#lastAt !== null) return;
    if (queued > 0) {
      this.#queuedAt ??= performance.now();
      return this.#setState({ is: "waiting", queue: queued, etaMs: eta_ms });
    }
    this.#endQueue();
    this.#setState({ is: "prompt", done: processed, total, etaMs: eta_ms });
  }

  /** A wait in the queue that was long enough is a pause like others. */
  #endQueue(): void {
    const [from, to] = [this.#queuedAt, performance.now()];
    this.#queuedAt = null;
    if (from !== null && to - from >= PAUSE_MS) this.#addPause({ from, to, cause: "queue" }, this.#part());
  }

  #endThought(): void {
    if (this.#thoughtFrom === null) return;
    const reasoningMs = Math.round(performance.now() - this.#thoughtFrom);
    this.#thoughtFrom = null;
    this.#set({ reasoningMs }, { is: "state" });
  }

  #addToCall({ index, id, name, arguments: piece }: Extract<Delta, { kind: "tool_call" }>): void {
    const calls = [...this.#message.toolCalls];
    if (index < 0 || index >= MOST_CALLS) return;
    while (calls.length <= index) calls.push({ id: "", name: "", arguments: "", result: null });
    const call = calls[index];
    if (call === undefined || call.arguments.length > LONGEST_ARGUMENTS) return;
    calls[index] = { ...call, id: call.id || id, name: call.name || name, arguments: call.arguments + piece };
    this.#set({ toolCalls: calls }, { is: "toolCalls" });
  }

  #recentRate(now: number): number | null {
    const { times } = this.#message.facts;
    if (this.#firstAt === null) return null;
    const elapsed = Math.min(RATE_WINDOW_MS, now - this.#firstAt);
    if (elapsed < 300) return null;
    let tokens = 0;
    for (let at = times.length - 2; at >= 0 && (times[at] ?? 0) > now - this.#askedAt - elapsed; at -= 2) tokens += times[at + 1] ?? 0;
    return Math.round((tokens / elapsed) * 1000);
  }

  /** Speed of the whole answer, from its first token on. */
  #wholeRate(): number | null {
    const [first, last] = [this.#firstAt, this.#lastAt];
    const { tokens } = this.#message.facts;
    if (!this.#isAskedHere || first === null || last === null || tokens < 2 || last <= first) return null;
    return Math.round(((tokens - 1) / (last - first)) * 10_000) / 10;
  }

  #setState(state: MessageState): void {
    this.#set({ state }, { is: "state" });
  }

  #setFacts(facts: Partial<Message["facts"]>): void {
    this.#set({ facts: { ...this.#message.facts, ...facts } }, { is: "facts" });
  }

  #set(change: Partial<Message>, told: Change): void {
    this.#message = { ...this.#message, ...change };
    for (const subscriber of this.#subscribers) subscriber(told);
  }
}

function endState(failure: Failure, finish: string | null): MessageState {
  if (failure.is === "none") return { is: "finished", reason: finish ?? "stop" };
  if (failure.is === "stopped") return { is: "finished", reason: "stopped" };
  return { is: "failed", error: failure.error, retry: failure.retry };
}
