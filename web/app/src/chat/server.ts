// What the page knows about its server: whether it answers, and which models it has.

import { signal } from "@preact/signals";
import { settings } from "./settings.js";

export interface SamplingDefaults {
  readonly temperature: number | null;
  readonly top_p: number | null;
  readonly top_k: number | null;
  readonly min_p: number | null;
  readonly repetition_penalty: number | null;
  /** The place that states each of them: `flag`, `model`, `vendor` or `default`. */
  readonly from: Readonly<Record<string, string>>;
}

export interface ModelCard {
  readonly id: string;
  /** Longest sequence, prompt and answer together, tokens; `null` if the server does not tell. */
  readonly contextTokens: number | null;
  /** What applies to requests that do not say; `null` if the server does not tell. */
  readonly defaults: SamplingDefaults | null;
}

export type ServerState =
  | { readonly is: "connecting" }
  /** It answers, but not yet to questions. */
  | { readonly is: "loading"; readonly why: string }
  | { readonly is: "ready"; readonly name: string; readonly models: readonly ModelCard[]; readonly wantsKey: boolean }
  | { readonly is: "gone"; readonly since: number };

/** The demonstration model that is built into the binary. */
export const DEMONSTRATION_MODEL = "loquent-tiny";

/** Largest response that is read, bytes, and most models that are offered. */
const MAX_BYTES = 1 << 20;
const MAX_MODELS = 500;
const MAX_NAME = 200;
/** Most sampling parameters whose origin is read. */
const MAX_PLACES = 16;

/** Above this, a server only says that it does not know. */
const MAX_CONTEXT = 1e9;

/** How long a request may take, and how often the server is looked at, ms. */
const TIMEOUT_MS = 5_000;
const SOON_MS = 1_000;
const LATER_MS = 10_000;

export const server = signal<ServerState>({ is: "connecting" });

/** The model that the next question goes to; `null` where no name is known. */
export function chosenModel(): ModelCard | null {
  if (server.value.is !== "ready") return null;
  const { models } = server.value;
  return models.find(({ id }) => id === settings.value.model) ?? models[0] ?? null;
}

/** Whether the server has said that it wants a key, or another one. */
export function wantsKey(): boolean {
  return server.value.is === "ready" && server.value.wantsKey;
}

/** Whether the server runs the model that only demonstrates. */
export function isDemonstration(): boolean {
  return server.value.is === "ready" && server.value.name === DEMONSTRATION_MODEL;
}

export function authorization(): Record<string, string> {
  const key = settings.peek().apiKey.trim();
  return key === "" ? {} : { authorization: `Bearer ${key}` };
}

/** Reads bounded JSON; `null` where there is none. Rejects if the server does not answer. */
export async function requestJson(path: string, options: RequestInit = {}): Promise<{ ok: boolean; status: number; body: unknown }> {
  const response = await fetch(path, { ...options, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  const text = await response.text();
  const { ok, status } = response;
  try {
    return { ok, status, body: text.length > MAX_BYTES ? null : JSON.parse(text) };
  } catch {
    return { ok, status, body: null };
  }
}

let watching: ReturnType<typeof setTimeout> | null = null;

/** Keeps `server` true while the page is looked at. */
export function watchServer(): void {
  document.addEventListener("visibilitychange", lookSoon);
  globalThis.addEventListener("online", lookSoon);
  void look();
}

/** Looks at the server now: something went wrong, or a key was entered. */
export function lookSoon(): void {
  if (document.visibilityState === "visible") void look();
}

async function look(): Promise<void> {
  if (watching !== null) clearTimeout(watching);
  watching = null;
  const before = server.peek();
  const now = await currentState(before);
  if (JSON.stringify(before) !== JSON.stringify(now)) server.value = now;
  if (watching !== null || document.visibilityState === "hidden") return;
  watching = setTimeout(() => void look(), now.is === "ready" ? LATER_MS : SOON_MS);
}

async function currentState(before: ServerState): Promise<ServerState> {
  try {
    const { ok, body } = await requestJson("ready");
    const fields = (body ?? {}) as { model?: unknown; model_id?: unknown; error?: { message?: unknown } };
    if (!ok) return { is: "loading", why: nameOf(fields.error?.message) ?? "the server is not ready" };
    const name = nameOf(fields.model) ?? "unnamed model";
    const { models, wantsKey } = await askModels();
    const known = nameOf(fields.model_id);
    const only = known === null ? [] : [{ id: known, contextTokens: null, defaults: null }];
    return { is: "ready", name, models: models.length > 0 ? models : only, wantsKey };
  } catch {
    return before.is === "gone" ? before : { is: "gone", since: Date.now() };
  }
}

/** The server's models; none where it does not list them, or not without a key. */
async function askModels(): Promise<{ models: ModelCard[]; wantsKey: boolean }> {
  const { ok, status, body } = await requestJson("v1/models", { headers: authorization() });
  const { data } = (body ?? {}) as { data?: unknown };
  const models = ok && Array.isArray(data) ? data.slice(0, MAX_MODELS).flatMap((one) => readCard(one) ?? []) : [];
  return { models, wantsKey: status === 401 };
}

function readCard(value: unknown): ModelCard | null {
  const card = (value ?? {}) as { id?: unknown; max_model_len?: unknown; sampling_defaults?: unknown };
  const id = nameOf(card.id);
  if (id === null) return null;
  const context = numberOf(card.max_model_len);
  const isKnown = context !== null && context > 0 && context < MAX_CONTEXT;
  return { id, contextTokens: isKnown ? context : null, defaults: readDefaults(card.sampling_defaults) };
}

function readDefaults(value: unknown): SamplingDefaults | null {
  if (typeof value !== "object" || value === null) return null;
  const { temperature, top_p, top_k, min_p, repetition_penalty, from } = value as Record<string, unknown>;
  return {
    temperature: numberOf(temperature),
    top_p: numberOf(top_p),
    top_k: numberOf(top_k),
    min_p: numberOf(min_p),
    repetition_penalty: numberOf(repetition_penalty),
    from: readPlaces(from),
  };
}

function readPlaces(value: unknown): Record<string, string> {
  if (typeof value !== "object" || value === null) return {};
  const places = Object.entries(value).slice(0, MAX_PLACES);
  return Object.fromEntries(places.filter((place): place is [string, string] => typeof place[1] === "string"));
}

function nameOf(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value.slice(0, MAX_NAME) : null;
}

function numberOf(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
