// A message while it changes: takes in what the client library tells about an answer, and
// tells subscribers the pieces, so that nobody compares whole texts.

import type { AnswerState, Delta, TransportName } from "@loquent/client";
import type { Message, MessageState } from "./model.js";

/** What subscribers are told. `piece` is what was appended. */
export type Change =
  | { readonly is: "text" | "reasoning"; readonly piece: string }
  | { readonly is: "toolCalls" }
  | { readonly is: "state" }
  | { readonly is: "facts" };

/** One message, old or on its way. */
export class LiveMessage {
  #message: Message;
  readonly #subscribers = new Set<(change: Change) => void>();

  constructor(message: Message) {
    this.#message = message;
  }

  /** The message as it stands, to be stored or sent. */
  get message(): Message {
    return this.#message;
  }

  /** Calls `subscriber` for each change from now on; returns how to end that. */
  subscribe(subscriber: (change: Change) => void): () => void {
    this.#subscribers.add(subscriber);
    return () => this.#subscribers.delete(subscriber);
  }

  /** For the client library's `onTransport`. */
  readonly onTransport = (transport: TransportName): void => {
    this.#set({ facts: { ...this.#message.facts, transport } }, { is: "facts" });
  };

  /** For the client library's `onState`. */
  readonly onState = (_state: AnswerState): void => {};

  /** Takes in the next piece of the answer. */
  handleDelta(delta: Delta): void {
    if (delta.kind === "text" && delta.choice === 0) this.appendText(delta.text);
    if (delta.kind === "reasoning" && delta.choice === 0) this.appendReasoning(delta.text);
  }

  /** The answer is over: whole (`null`), stopped (an `AbortError`), or not. */
  handleEnd(error: unknown): void {
    const state: MessageState =
      error === null
        ? { is: "finished", reason: "stop" }
        : { is: "failed", error: error instanceof Error ? error.message : String(error), retry: true };
    this.#set({ state }, { is: "state" });
  }

  appendText(piece: string): void {
    this.#set({ text: this.#message.text + piece }, { is: "text", piece });
  }

  appendReasoning(piece: string): void {
    this.#set({ reasoning: this.#message.reasoning + piece }, { is: "reasoning", piece });
  }

  /** What a tool answered to the call `id`. */
  setToolResult(id: string, result: string): void {
    const toolCalls = this.#message.toolCalls.map((call) => (call.id === id ? { ...call, result } : call));
    this.#set({ toolCalls }, { is: "toolCalls" });
  }

  #set(change: Partial<Message>, told: Change): void {
    this.#message = { ...this.#message, ...change };
    for (const subscriber of this.#subscribers) subscriber(told);
  }
}
