// What the user has set: kept in the tab over a reload, and on this device if the user wants that.

import { effect, signal } from "@preact/signals";
import type { Conversation } from "./conversation.js";
import { type Instructions, numberOf, readInstructions } from "./preset.js";
import { readStored, writeStored } from "../shell/stored.js";

export interface Settings extends Instructions {
  /** The model to ask; `null`: the server's first. */
  readonly model: string | null;
  readonly apiKey: string;
  readonly delivery: "auto" | "webtransport" | "sse";
  readonly pace: "smooth" | "off";
  /** Shows answers formatted; otherwise as the model wrote them. */
  readonly markdown: boolean;
  /** Marks in the text where an answer paused. */
  readonly pauses: boolean;
  /** Shows the demonstration model's answers no faster than one reads. */
  readonly readingPace: boolean;
  /** How long an answer may bring nothing before it is given up, s; 0: for ever. */
  readonly patience_s: number;
  /** Keeps all this, the key included, on this device. */
  readonly isKept: boolean;
}

const KEY = "loquent:settings";

/** How long an answer may bring nothing before it is given up, unless somebody says otherwise, s. */
const PATIENCE_S = 120;

export const settings = signal<Settings>(keptSettings());

/** Changes some of the settings. */
export function changeSettings(change: Partial<Settings>): void {
  settings.value = { ...settings.peek(), ...change };
}

/** What the model is told in `conversation`: what its preset says, or the settings. */
export function instructionsOf({ preset }: Conversation): Instructions {
  return preset ?? settings.value;
}

/** Writes every change to where the settings are kept. What is on the device is left to the tabs whose settings it holds. */
export function keepSettings(): void {
  let before = settings.peek();
  effect(() => {
    const now = settings.value;
    writeStored("tab", KEY, now);
    if (now !== before && (now.isKept || before.isKept)) writeStored("device", KEY, now.isKept ? now : null);
    before = now;
  });
  globalThis.addEventListener("storage", () => {
    // Another tab has removed them: this one must not bring them back.
    if (settings.peek().isKept && !isOnDevice()) changeSettings({ isKept: false });
  });
}

function isOnDevice(): boolean {
  return readStored("device", KEY) !== null;
}

function keptSettings(): Settings {
  const kept = readSettings(readStored("tab", KEY) ?? readStored("device", KEY));
  // They may have been removed while this tab was not there to hear of it.
  return { ...kept, isKept: kept.isKept && isOnDevice() };
}

/** `value` as settings; what is missing or wrong in it is the default. */
function readSettings(value: unknown): Settings {
  const kept = (typeof value === "object" && value !== null ? value : {}) as Partial<Record<keyof Settings, unknown>>;
  return {
    ...readInstructions(value),
    model: typeof kept.model === "string" ? kept.model : null,
    apiKey: typeof kept.apiKey === "string" ? kept.apiKey : "",
    delivery: kept.delivery === "webtransport" || kept.delivery === "sse" ? kept.delivery : "auto",
    pace: kept.pace === "off" ? "off" : "smooth",
    markdown: kept.markdown !== false,
    pauses: kept.pauses !== false,
    readingPace: kept.readingPace !== false,
    patience_s: numberOf(kept.patience_s) ?? PATIENCE_S,
    isKept: kept.isKept === true,
  };
}
