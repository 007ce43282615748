// What one message is, for the pages that keep messages and for the view that shows one.
//
// A page makes one `LiveMessage` (live.ts) for every message on it, old or new, and gives it to
// `<MessageView live={live} />` (view.tsx). While an answer streams the page only passes on what
// the client library tells, and keeps `live.message` when it wants to store it:
//
//     const live = new LiveMessage(emptyMessage(id, "assistant"));
//     const answer = streamChat({ ..., onState: live.onState, onTransport: live.onTransport });
//     try {
//       for await (const delta of answer) live.handleDelta(delta);
//       live.handleEnd(null);
//     } catch (error) {
//       live.handleEnd(error);
//     }
//     store(live.message);
//
// Text never passes through a diff: the view subscribes to pieces.

/** Who said it. `tool`: the result of a call, `text`, that `toolCalls[0]` names. */
export type Role = "user" | "assistant" | "tool";

/** One call of a tool. `arguments` is JSON, incomplete while it streams. */
export interface ToolCall {
  readonly id: string;
  readonly name: string;
  readonly arguments: string;
  /** What the tool answered; `null` if nobody has told. */
  readonly result: string | null;
}

/** Why nothing came for a while; `unknown` while nothing tells. */
export type PauseCause = "engine" | "queue" | "network" | "hidden" | "unknown";

/** Where a message stands. */
export type MessageState =
  /** Nothing has come. `queue`: its place, from 1; `null` if the server does not tell. `why`: what it says instead. */
  | { readonly is: "waiting"; readonly queue: number | null; readonly etaMs: number | null; readonly why?: string }
  /** The model reads the prompt: `done` of `total` tokens. */
  | { readonly is: "prompt"; readonly done: number; readonly total: number; readonly etaMs: number | null }
  | { readonly is: "streaming" }
  /** It streams, but nothing has come for long enough to be noticed. `why`: what the server says of that. */
  | { readonly is: "paused"; readonly cause: PauseCause; readonly ms: number; readonly why: string | null }
  /** Complete, or stopped by the reader (`reason` is `stopped`, else the server's word). */
  | { readonly is: "finished"; readonly reason: string }
  /** Incomplete. `retry`: asking the same again may help. */
  | { readonly is: "failed"; readonly error: string; readonly retry: boolean };

/** A pause that has ended. */
export interface Pause {
  readonly cause: PauseCause;
  readonly ms: number;
  /** Where: after so many UTF-16 units of the text, or of the reasoning. */
  readonly part: "text" | "reasoning";
  readonly at: number;
  /** When it began, ms after the question. */
  readonly from: number;
}

/** How an answer came. */
export interface MessageFacts {
  readonly transport: "webtransport" | "sse" | null;
  /** Name of the model that answered. */
  readonly model: string | null;
  /** Time from the question to the first token; `null` where the question was not asked here. */
  readonly ttftMs: number | null;
  /** Tokens of the answer so far. */
  readonly tokens: number;
  readonly promptTokens: number | null;
  /** Tokens of the prompt that came from the server's cache. */
  readonly cachedTokens: number | null;
  readonly tokensPerSecond: number | null;
  /** How often the answer was continued after a lost connection or a reload. */
  readonly resumes: number;
  readonly pauses: readonly Pause[];
  /** When tokens were shown: ms after the question and their number, in turn. It grows in place. */
  readonly times: readonly number[];
}

export interface Message {
  readonly id: string;
  readonly role: Role;
  readonly text: string;
  /** So many UTF-16 units of `text` came before the answer was stopped and continued; absent: none. */
  readonly continuedAt?: number;
  readonly reasoning: string;
  /** How long the model thought; `null` if it did not, or nobody measured. */
  readonly reasoningMs: number | null;
  readonly toolCalls: readonly ToolCall[];
  readonly state: MessageState;
  readonly facts: MessageFacts;
}

/** Nothing known yet. */
export const NO_FACTS: MessageFacts = {
  transport: null,
  model: null,
  ttftMs: null,
  tokens: 0,
  promptTokens: null,
  cachedTokens: null,
  tokensPerSecond: null,
  resumes: 0,
  pauses: [],
  times: [],
};

/** An answer that is about to be asked for. */
export function emptyMessage(id: string, role: Role): Message {
  const state: MessageState = { is: "waiting", queue: null, etaMs: null };
  return { id, role, text: "", reasoning: "", reasoningMs: null, toolCalls: [], state, facts: NO_FACTS };
}

/** What a user wrote, or any other message that is complete as it stands. */
export function wholeMessage(id: string, role: Role, text: string): Message {
  return { ...emptyMessage(id, role), text, state: { is: "finished", reason: "stop" } };
}

/** Whether more of the message may come. */
export function isOpen(state: MessageState): boolean {
  return state.is !== "finished" && state.is !== "failed";
}
