// The presets of this device, by name.

import { signal } from "@preact/signals";
import { readStored, writeStored } from "../shell/stored.js";
import { type Preset, readPreset } from "./preset.js";

const KEY = "loquent:presets";

const MAX_PRESETS = 100;

export const presets = signal<readonly Preset[]>(keptPresets());

/** Keeps `preset`, in place of one of the same name. */
export function keepPreset(preset: Preset): void {
  const others = keptPresets().filter(({ name }) => name !== preset.name);
  write([...others, preset].sort((one, other) => one.name.localeCompare(other.name)));
}

export function deletePreset(name: string): void {
  write(keptPresets().filter((preset) => preset.name !== name));
}

function write(changed: readonly Preset[]): void {
  writeStored("device", KEY, changed);
  presets.value = changed;
}

/** What is kept now: another tab may have changed it. */
function keptPresets(): Preset[] {
  const kept = readStored("device", KEY);
  return (Array.isArray(kept) ? kept : []).slice(0, MAX_PRESETS).flatMap((one) => readPreset(one) ?? []);
}
