// What applies to requests that leave sampling parameters open, as a server tells it of its models.

import { numberOf } from "./preset.js";

export interface SamplingDefaults {
  readonly temperature: number | null;
  readonly top_p: number | null;
  readonly top_k: number | null;
  readonly min_p: number | null;
  readonly repetition_penalty: number | null;
  /** The place that states each of them: `flag`, `model`, `vendor` or `default`. */
  readonly from: Readonly<Record<string, string>>;
}

/** Most sampling parameters whose origin is read. */
const MAX_PLACES = 16;

/** `value`, of an entry of `/v1/models`, as far as it can be read. */
export function readDefaults(value: unknown): SamplingDefaults | null {
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
