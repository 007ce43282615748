// What the user has set: kept in the tab over a reload, and on this device if the user wants that.

import { effect, signal } from "@preact/signals";
import { type Place, readStored, writeStored } from "../shell/stored.js";

/** Parameters of a request; `null` leaves one to the server. */
export interface Parameters {
  readonly temperature: number | null;
  readonly top_p: number | null;
  readonly top_k: number | null;
  readonly min_p: number | null;
  readonly repetition_penalty: number | null;
  readonly max_tokens: number | null;
  readonly seed: number | null;
}

export type ParameterName = keyof Parameters;

export interface Settings {
  readonly system: string;
  readonly parameters: Parameters;
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

const NO_PARAMETERS: Parameters = {
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  repetition_penalty: null,
  max_tokens: null,
  seed: null,
};

const DEFAULTS: Settings = {
  system: "",
  parameters: NO_PARAMETERS,
  model: null,
  apiKey: "",
  delivery: "auto",
  pace: "smooth",
  markdown: true,
  pauses: true,
  readingPace: true,
  patience_s: 120,
  isKept: false,
};

export const settings = signal<Settings>(keptSettings());

/** Changes some of the settings. */
export function changeSettings(change: Partial<Settings>): void {
  settings.value = { ...settings.peek(), ...change };
}

export function changeParameter(name: ParameterName, value: number | null): void {
  changeSettings({ parameters: { ...settings.peek().parameters, [name]: value } });
}

/** The parameters that are set, as a request's fields. */
export function requestParameters({ parameters }: Settings): Partial<Record<ParameterName, number>> {
  const set = Object.entries(parameters).filter(([, value]) => value !== null);
  return Object.fromEntries(set) as Partial<Record<ParameterName, number>>;
}

/** Writes every change to where the settings are kept. */
export function keepSettings(): void {
  effect(() => {
    const now = settings.value;
    writeStored("tab", KEY, now);
    writeStored("device", KEY, now.isKept ? now : null);
  });
}

function keptSettings(): Settings {
  const places: readonly Place[] = ["tab", "device"];
  const kept = places.map((place) => readStored(place, KEY)).find((value) => value !== null);
  return readSettings(kept);
}

/** `value` as settings; what is missing or wrong in it is the default. */
function readSettings(value: unknown): Settings {
  const kept = (typeof value === "object" && value !== null ? value : {}) as Partial<Record<keyof Settings, unknown>>;
  const parameters = (kept.parameters ?? {}) as Partial<Record<ParameterName, unknown>>;
  const numbers = Object.keys(NO_PARAMETERS).map((name) => [name, numberOf(parameters[name as ParameterName])]);
  return {
    system: textOf(kept.system),
    parameters: Object.fromEntries(numbers) as unknown as Parameters,
    model: typeof kept.model === "string" ? kept.model : null,
    apiKey: textOf(kept.apiKey),
    delivery: kept.delivery === "webtransport" || kept.delivery === "sse" ? kept.delivery : "auto",
    pace: kept.pace === "off" ? "off" : "smooth",
    markdown: kept.markdown !== false,
    pauses: kept.pauses !== false,
    readingPace: kept.readingPace !== false,
    patience_s: numberOf(kept.patience_s) ?? DEFAULTS.patience_s,
    isKept: kept.isKept === true,
  };
}

function numberOf(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}
