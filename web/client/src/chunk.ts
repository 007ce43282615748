// OpenAI's chunks and the log's deltas, each from the other (spec/session.md, section 6).

import type { Delta, PromptProgress } from "./delta.js";

/** A JSON object. */
export type Json = Record<string, unknown>;

/** A chunk of a streamed chat completion, as OpenAI's SDKs know it. */
export interface ChatChunk extends ChunkHead {
  object: "chat.completion.chunk";
  choices: ChatChunkChoice[];
}

/** A chunk of a streamed text completion. */
export interface TextChunk extends ChunkHead {
  object: "text_completion";
  choices: TextChunkChoice[];
}

/** A chunk of either. */
export type Chunk = ChatChunk | TextChunk;

/** What chunks of both kinds have. */
export interface ChunkHead {
  id: string;
  created: number;
  model: string;
  system_fingerprint?: string;
  usage?: ChunkUsage | null;
  /** Of a request with `return_progress`: where the answer stands before its first token. */
  prompt_progress?: ChunkProgress;
}

/** One choice of a {@link ChatChunk}. */
export interface ChatChunkChoice {
  index: number;
  delta: ChunkDelta;
  logprobs?: ChunkLogprobs | null;
  finish_reason: "stop" | "length" | "tool_calls" | "content_filter" | "function_call" | null;
}

/** What a {@link ChatChunk} adds to a choice. */
export interface ChunkDelta {
  role?: "assistant";
  content?: string | null;
  reasoning_content?: string;
  tool_calls?: ChunkToolCall[];
}

/** A piece of a tool call: `id`, `type` and `name` come with the first. */
export interface ChunkToolCall {
  index: number;
  id?: string;
  type?: "function";
  function?: { name?: string; arguments?: string };
}

/** Log probabilities of a {@link ChatChunk}'s tokens. */
export interface ChunkLogprobs {
  content: TokenLogprob[] | null;
  refusal: TokenLogprob[] | null;
}

/** One token with its log probability, and the likeliest in its place. */
export interface TokenLogprob {
  token: string;
  bytes: number[] | null;
  logprob: number;
  top_logprobs: { token: string; bytes: number[] | null; logprob: number }[];
}

/** One choice of a {@link TextChunk}. */
export interface TextChunkChoice {
  index: number;
  text: string;
  reasoning_content?: string;
  logprobs: unknown;
  finish_reason: string | null;
}

/** Progress of a {@link Chunk}, under llama-server's names. */
export interface ChunkProgress {
  readonly total: number;
  readonly cache: number;
  readonly processed: number;
  readonly time_ms: number;
  /** Place in the queue, from 1; 0 once the prompt is being computed. */
  readonly queued: number;
  /** Predicted time to the first token; `null` if nothing can be said. */
  readonly eta_ms: number | null;
}

/** Token counts of a {@link Chunk}. */
export interface ChunkUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details?: { cached_tokens: number };
  completion_tokens_details?: { reasoning_tokens: number };
}

/** Writes chunks from deltas (S-6.2). */
export class ChunkWriter {
  #head = { id: "", object: "chat.completion.chunk", created: 0, model: "" };
  /** How the open record wants usage in chunks (S-6.1), and the latest counts. */
  #usageIn: unknown = "none";
  #usage: ChunkUsage | null = null;
  /** A chunk has carried the latest counts: they do not come again before the end (S-6.3). */
  #usageShown = true;
  /** The request asked for progress in chunks (S-6.7). */
  #progress = false;
  /** Choices whose role was written, and log probabilities that wait for their text. */
  readonly #begun = new Set<number>();
  readonly #logprobs = new Map<number, unknown>();

  /** The chunks that `delta` makes; none for what only the log needs. */
  chunks(delta: Delta): Chunk[] {
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

  get #chat(): boolean {
    return this.#head.object === "chat.completion.chunk";
  }

  #open(meta: string): void {
    const { id, object, created, model, system_fingerprint, usage, progress } = parseJson(meta);
    this.#usageIn = usage;
    this.#progress = progress === true;
    const known = { id, object, created, model, system_fingerprint };
    const set = Object.entries(known).filter(([, value]) => value !== undefined);
    this.#head = { ...this.#head, ...Object.fromEntries(set) };
  }

  #usageChunk(): Chunk[] {
    return this.#usage === null ? [] : [asChunk({ ...this.#head, choices: [], usage: this.#usage })];
  }

  /** Counts among the members stand in the place of ours. */
  #other(members: Json): Chunk {
    this.#usageShown ||= "usage" in members;
    return asChunk({ ...this.#head, choices: [], ...members });
  }

  /** A chunk without content, whose choice has not begun. */
  #standing({ total, cached, processed, elapsed_ms, queued, eta_ms }: PromptProgress): Chunk {
    const prompt_progress = { total, cache: cached, processed, time_ms: elapsed_ms, queued, eta_ms };
    return { ...this.#chunk(0, this.#content(null, ""), null, null), prompt_progress };
  }

  #content(name: string | null, text: string): Json {
    if (!this.#chat) return name === "reasoning_content" ? { text: "", [name]: text } : { text };
    return { delta: name === null ? {} : { [name]: text } };
  }

  #choice(index: number, fields: Json, reason: string | null = null): Chunk[] {
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

  #chunk(index: number, fields: Json, logprobs: unknown, finish_reason: string | null): Chunk {
    const choice = { index, logprobs, finish_reason, ...fields };
    const usage = this.#usageIn === "counts" ? this.#usage : null;
    const hasUsage = this.#usageIn === "counts" || this.#usageIn === "null";
    this.#usageShown ||= usage !== null;
    return asChunk({ ...this.#head, choices: [choice], ...(hasUsage && { usage }) });
  }
}

/** `members` are those of a chunk: the open record's `object` says of which kind. */
const asChunk = (members: Json): Chunk => members as unknown as Chunk;

function toolCall(delta: Extract<Delta, { kind: "tool_call" }>): Json {
  return {
    index: delta.index,
    ...(delta.id && { id: delta.id, type: "function" }),
    function: { ...(delta.name && { name: delta.name }), arguments: delta.arguments },
  };
}

function usageOf(delta: Extract<Delta, { kind: "usage" }>): ChunkUsage {
  return {
    prompt_tokens: delta.prompt,
    completion_tokens: delta.completion,
    total_tokens: delta.prompt + delta.completion,
    prompt_tokens_details: { cached_tokens: delta.cached },
    ...(delta.reasoning > 0 && { completion_tokens_details: { reasoning_tokens: delta.reasoning } }),
  };
}

/** A JSON object, empty for anything else. */
function parseJson(text: string): Json {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Json) : {};
  } catch {
    return {};
  }
}

const asObject = (value: unknown): Json => (typeof value === "object" && value !== null ? (value as Json) : {});
const asText = (value: unknown): string => (typeof value === "string" ? value : "");
const asCount = (value: unknown): number => (Number.isSafeInteger(value) && Number(value) >= 0 ? Number(value) : 0);

/** Reads deltas from the chunks of any OpenAI-compatible server. */
export class ChunkReader {
  #opened = false;

  /** The deltas that a chunk carries. A chunk's tokens are counted as one: it does not tell. */
  deltas(chunk: unknown): Delta[] {
    const { id, object, created, model, choices, usage, prompt_progress, error } = asObject(chunk);
    if (error !== undefined) return [errorDelta(error)];
    const deltas: Delta[] = [];
    if (!this.#opened) deltas.push({ kind: "open", meta: JSON.stringify({ id, object, created, model, progress: prompt_progress !== undefined }) });
    this.#opened = true;
    for (const choice of Array.isArray(choices) ? choices : []) deltas.push(...choiceDeltas(asObject(choice)));
    if (usage) deltas.push(usageDelta(asObject(usage)));
    if (prompt_progress) deltas.push(progressDelta(asObject(prompt_progress)));
    return deltas;
  }
}

function errorDelta(error: unknown): Delta {
  const { code, type, message } = asObject(error);
  return { kind: "error", code: asText(code) || asText(type), message: asText(message) || asText(error) };
}

function choiceDeltas({ index, delta, text, logprobs, finish_reason, ...rest }: Json): Delta[] {
  const choice = asCount(index);
  const { content, tool_calls, ...more } = asObject(delta);
  // A text completion's reasoning stands beside its text.
  const { reasoning_content, reasoning } = delta === undefined ? rest : more;
  const deltas: Delta[] = [];
  const put = (kind: "text" | "reasoning", piece: string): void => {
    if (piece) deltas.push({ kind, choice, tokens: 1, text: piece });
  };
  if (logprobs) deltas.push({ kind: "logprobs", choice, json: JSON.stringify(logprobs) });
  put("reasoning", asText(reasoning_content) || asText(reasoning));
  put("text", asText(content) || asText(text));
  for (const call of Array.isArray(tool_calls) ? tool_calls : []) deltas.push(toolDelta(choice, asObject(call)));
  if (finish_reason) deltas.push({ kind: "finish", choice, reason: asText(finish_reason) });
  return deltas;
}

function toolDelta(choice: number, call: Json): Delta {
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

function progressDelta(progress: Json): Delta {
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

function usageDelta(usage: Json): Delta {
  return {
    kind: "usage",
    prompt: asCount(usage["prompt_tokens"]),
    completion: asCount(usage["completion_tokens"]),
    cached: asCount(asObject(usage["prompt_tokens_details"])["cached_tokens"]),
    reasoning: asCount(asObject(usage["completion_tokens_details"])["reasoning_tokens"]),
  };
}
