// What the page knows about its server: whether it answers, and which models it has.

import { signal } from "@preact/signals";
import { settings } from "./settings.js";

export interface ModelCard {
  readonly id: string;
  /** Longest sequence, prompt and answer together, tokens; `null` if the server does not tell. */
  readonly contextTokens: number | null;
  /** What applies to requests that do not say, in the server's words; `null` if it does not tell. */
  readonly samplingDefaults: object | null;
  /** A model of another server may; this server's own read text only. */
  readonly mayTakeImages: boolean;
  /** Where the model is; `null` if the server does not tell. */
  readonly presence: Presence | null;
  /** How much of it is loaded while it is being loaded, 0 to 1; `null` if the server does not tell. */
  readonly loadedShare: number | null;
}

const PRESENCES = ["loaded", "permanent", "loading", "unloading", "unloaded", "failed"] as const;

/** `failed`: not in memory, because loading it failed. */
export type Presence = (typeof PRESENCES)[number];

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
  watching = setTimeout(() => void look(), isAtRest(now) ? LATER_MS : SOON_MS);
}

/** Whether nothing is expected to change soon. */
function isAtRest(state: ServerState): boolean {
  return state.is === "ready" && state.models.every(({ presence }) => presence !== "loading" && presence !== "unloading");
}

async function currentState(before: ServerState): Promise<ServerState> {
  try {
    const { ok, body } = await requestJson("ready");
    const fields = (body ?? {}) as { model?: unknown; model_id?: unknown; error?: { message?: unknown } };
    if (!ok) return { is: "loading", why: nameOf(fields.error?.message) ?? "the server is not ready" };
    const name = nameOf(fields.model) ?? "unnamed model";
    const { models, wantsKey } = await askModels();
    const known = nameOf(fields.model_id);
    const only = known === null ? [] : [{ id: known, contextTokens: null, samplingDefaults: null, mayTakeImages: true, presence: null, loadedShare: null }];
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

/** `value`, an entry of `/v1/models`, as a card; `null` if it has no name. */
export function readCard(value: unknown): ModelCard | null {
  const card = (value ?? {}) as { id?: unknown; max_model_len?: unknown; sampling_defaults?: unknown; status?: unknown };
  const id = nameOf(card.id);
  if (id === null) return null;
  const context = numberOf(card.max_model_len);
  const isKnown = context !== null && context > 0 && context < MAX_CONTEXT;
  // Which a server tells of its own models only.
  const samplingDefaults = objectOf(card.sampling_defaults);
  const mayTakeImages = samplingDefaults === null;
  return { id, contextTokens: isKnown ? context : null, samplingDefaults, mayTakeImages, ...readStatus(card.status) };
}

function readStatus(value: unknown): Pick<ModelCard, "presence" | "loadedShare"> {
  const { value: word, failed, permanent, progress } = (value ?? {}) as Record<string, unknown>;
  const known = failed === true ? "failed" : permanent === true ? "permanent" : word;
  const presence = PRESENCES.find((one) => one === known) ?? null;
  const share = numberOf(progress);
  return { presence, loadedShare: presence === "loading" && share !== null ? Math.min(Math.max(share, 0), 1) : null };
}

function nameOf(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value.slice(0, MAX_NAME) : null;
}

function objectOf(value: unknown): object | null {
  return typeof value === "object" ? value : null;
}

function numberOf(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
