// Loading and unloading the server's models. Who may do that is the server's to say.

import { signal } from "@preact/signals";
import { type ModelCard, authorization, lookSoon, requestJson } from "./server.js";

export type Wish = "load" | "unload";

/** Where the latest wish stands. What becomes of it then, the model's card tells. */
export type WishState =
  | { readonly is: "none" }
  | { readonly is: "asking"; readonly model: string }
  /** `isForAll`: this reader may load and unload no model. */
  | { readonly is: "refused"; readonly why: string; readonly isForAll: boolean };

export const wish = signal<WishState>({ is: "none" });

/** What is said about a server that does not respond. */
export const NO_ANSWER = "The server does not answer. Check that it runs and that you are online.";

/** Longest reason that is shown, characters. */
const MAX_WHY = 300;

/** Asks the server to load `model` or to unload it. */
export async function askFor(what: Wish, model: string): Promise<void> {
  wish.value = { is: "asking", model };
  wish.value = await asked(what, model);
  lookSoon();
}

async function asked(what: Wish, model: string): Promise<WishState> {
  const headers = { "content-type": "application/json", ...authorization() };
  try {
    const { ok, status, body } = await requestJson(`v1/models/${what}`, { method: "POST", headers, body: JSON.stringify({ model }) });
    return ok ? { is: "none" } : { is: "refused", why: reason(status, body), isForAll: status === 401 || status === 403 };
  } catch {
    return { is: "refused", why: NO_ANSWER, isForAll: false };
  }
}

function reason(status: number, body: unknown): string {
  if (status === 401) return "This server needs an API key to load and unload models: enter that of an administrator in Settings.";
  return refusalText(status, body, MAX_WHY);
}

/** Why the server refuses a request: its own words, at most `maxLength` characters of them. */
export function refusalText(status: number, body: unknown, maxLength: number): string {
  const { message } = ((body ?? {}) as { error?: { message?: unknown } }).error ?? {};
  return typeof message === "string" ? message.slice(0, maxLength) : `The server refused this with status ${status}.`;
}

/** Where a model is, in words. */
export function presenceText({ presence, loadedShare }: ModelCard): string {
  switch (presence) {
    case "loaded":
      return "loaded";
    case "loading":
      return loadedShare === null ? "loading" : `loading, ${Math.floor(loadedShare * 100)} %`;
    case "permanent":
      return "always loaded";
    case "unloading":
      return "being unloaded, once its answers have ended";
    case "failed":
      return "could not be loaded: the server’s log says why";
    case "unloaded":
      return "not loaded; a question to it loads it";
    case null:
      return "";
  }
}

/** What can be asked for `model`; `null` while nothing can. */
export function wishFor({ presence }: ModelCard): Wish | null {
  if (presence === "unloaded" || presence === "failed") return "load";
  return presence === "loaded" ? "unload" : null;
}
