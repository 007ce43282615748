// How durations, counts and causes are said.

import type { Message, MessageFacts, MessageState, PauseCause } from "./model.js";

/** `ms` for people: `340 ms`, `2.4 s`, `3 min 5 s`. */
export function duration(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1_000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/** `ms` in whole seconds where that is enough: `12 s`. */
export function roughly(ms: number): string {
  return ms < 1_000 ? "a moment" : ms < 60_000 ? `${Math.round(ms / 1_000)} s` : duration(ms);
}

const CAUSES: Readonly<Record<PauseCause, { readonly word: string; readonly sentence: string }>> = {
  engine: { word: "model", sentence: "the model made nothing" },
  queue: { word: "queue", sentence: "others had their turn" },
  network: { word: "network", sentence: "the network held text back" },
  hidden: { word: "page hidden", sentence: "this page was hidden" },
  unknown: { word: "unknown", sentence: "the cause is not known" },
};

/** A cause in a word or two. */
export function causeWord(cause: PauseCause): string {
  return CAUSES[cause].word;
}

/** A pause in a sentence. */
export function pauseSentence(cause: PauseCause, ms: number): string {
  return `Paused for ${duration(ms)}: ${CAUSES[cause].sentence}.`;
}

const TRANSPORTS = {
  webtransport: { name: "WebTransport", about: "Tokens come as datagrams: loss does not hold back what follows" },
  sse: { name: "SSE", about: "Tokens come as server-sent events over TCP, the way that works everywhere" },
} as const;

/** A fact of a message, and what it means. */
export interface Fact {
  readonly text: string;
  readonly about: string;
}

/** What is known of how a message came. */
export function factsOf({ facts, state }: Message): Fact[] {
  const found: (Fact | null)[] = [
    facts.transport && { text: TRANSPORTS[facts.transport].name, about: TRANSPORTS[facts.transport].about },
    facts.ttftMs === null ? null : { text: `first token ${duration(facts.ttftMs)}`, about: "Time from the question to the first token" },
    rate(facts),
    facts.tokens > 0 ? { text: count(facts.tokens, "token"), about: promptFact(facts) } : null,
    facts.resumes === 0 ? null : { text: facts.resumes === 1 ? "resumed" : `resumed ${facts.resumes} times`, about: "The connection was lost, and the answer went on where it stood" },
    pausesFact(facts),
    ending(state),
  ];
  return found.filter((fact) => fact !== null);
}

function rate({ tokensPerSecond }: MessageFacts): Fact | null {
  if (tokensPerSecond === null) return null;
  const text = tokensPerSecond < 10 ? tokensPerSecond.toFixed(1) : String(Math.round(tokensPerSecond));
  return { text: `${text} tokens/s`, about: "Speed at which tokens were shown" };
}

function promptFact({ promptTokens, cachedTokens, model }: MessageFacts): string {
  const prompt = promptTokens === null ? "Tokens of the answer" : `The prompt had ${count(promptTokens, "token")}`;
  const cached = cachedTokens ? `, ${cachedTokens} of them from the cache` : "";
  return prompt + cached + (model ? `; ${model} answered` : "");
}

function pausesFact({ pauses }: MessageFacts): Fact | null {
  if (pauses.length === 0) return null;
  const total = pauses.reduce((sum, { ms }) => sum + ms, 0);
  const about = pauses.map(({ cause, ms }) => pauseSentence(cause, ms)).slice(0, 12);
  return { text: `${count(pauses.length, "pause")}, ${duration(total)}`, about: about.join(" ") };
}

function ending(state: MessageState): Fact | null {
  if (state.is !== "finished") return null;
  if (state.reason === "stopped") return { text: "stopped", about: "You ended this answer" };
  if (state.reason === "length") return { text: "cut at the token limit", about: "The answer reached the most tokens that it may have, or the end of the context" };
  if (state.reason === "content_filter") return { text: "cut by a filter", about: "The server's filter ended this answer" };
  return null;
}

function count(number: number, noun: string): string {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** What is going on with a message that is not there yet, and how far it is; `null`: nothing to say. */
export function standing(state: MessageState): { readonly text: string; readonly share: number | null } | null {
  if (state.is === "waiting" && state.queue !== null) return { text: `Number ${state.queue} in the queue${forecast(state.etaMs)}`, share: null };
  if (state.is === "waiting" && state.why) return { text: `${sentence(state.why)}…`, share: null };
  if (state.is === "waiting") return { text: "Waiting for the first token", share: null };
  // Every prompt has tokens; those of one whose model is not loaded yet are unknown.
  if (state.is === "prompt" && state.total === 0) return { text: `Loading the model${forecast(state.etaMs)}`, share: null };
  if (state.is === "prompt") {
    const text = `Reading the prompt: ${state.done.toLocaleString("en")} of ${count(state.total, "token")}${forecast(state.etaMs)}`;
    return { text, share: state.total > 0 ? Math.min(1, state.done / state.total) : null };
  }
  if (state.is === "paused") return { text: pausedNow(state), share: null };
  return null;
}

function forecast(etaMs: number | null): string {
  return etaMs === null ? "" : `, about ${duration(etaMs)} to go`;
}

/** What a server says, as the beginning of a line. */
function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function pausedNow({ cause, ms, why }: Extract<MessageState, { is: "paused" }>): string {
  const seconds = `${(ms / 1_000).toFixed(1)} s`;
  if (cause === "engine" && why !== null) return `${sentence(why)}… ${seconds}`;
  if (cause === "network") return `Connection lost, resuming… ${seconds}`;
  if (cause === "engine") return `The model makes nothing just now… ${seconds}`;
  if (cause === "queue") return `Waiting for its turn… ${seconds}`;
  if (cause === "hidden") return `Paused while the page was hidden… ${seconds}`;
  return `Nothing has come for ${seconds}`;
}
