// Which preset the open conversation has; keeping and deleting them.

import type { VNode } from "preact";
import { useRef } from "preact/hooks";
import { IconButton } from "../shell/controls.js";
import { choosePreset, current } from "./chats.js";
import { isComposing } from "./composing.js";
import { MAX_PRESET_NAME, type Preset, readPreset } from "./preset.js";
import { deletePreset, keepPreset, presets } from "./presets.js";
import { instructionsOf } from "./settings.js";
import { say } from "./toast.js";

export function PresetSection(): VNode {
  const { preset } = current.value;
  const kept = presets.value;
  const isForeign = preset !== null && kept.every(({ name }) => name !== preset.name);
  const choose = (event: Event): void => {
    const { value } = event.currentTarget as HTMLSelectElement;
    if (value !== preset?.name) choosePreset(kept.find(({ name }) => name === value) ?? null);
  };
  return (
    <fieldset>
      <legend>Preset</legend>
      <label class="row" title="A system prompt and parameters under a name, for this conversation">
        <span>In use</span>
        <select id="preset" value={preset?.name ?? ""} onChange={choose}>
          <option value="">none</option>
          {isForeign && <option value={preset.name}>{preset.name}</option>}
          {kept.map(({ name }) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
      </label>
      <Keeper key={preset?.name ?? ""} preset={preset} />
      <p class="faint">{explained(preset, kept)}</p>
    </fieldset>
  );
}

/** What holds in this conversation, in words. */
function explained(preset: Preset | null, kept: readonly Preset[]): string {
  if (preset === null) return "What is below holds for all conversations of this tab without a preset.";
  const original = kept.find(({ name }) => name === preset.name);
  const isKept = JSON.stringify(original) === JSON.stringify(preset);
  return isKept ? "What is below holds for this conversation alone." : "What is below holds for this conversation alone, until it is saved.";
}

/** Keeps what holds in this conversation under a name, and gives it to the conversation. */
function Keeper({ preset }: { readonly preset: Preset | null }): VNode {
  const field = useRef<HTMLInputElement | null>(null);
  const save = (): void => {
    const made = readPreset({ ...instructionsOf(current.peek()), name: field.current?.value });
    if (made === null) return field.current?.focus();
    keepPreset(made);
    choosePreset(made);
    say(`Saved “${made.name}”.`);
  };
  const remove = (name: string): void => {
    deletePreset(name);
    choosePreset(null);
  };
  const handleKey = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || isComposing(event)) return;
    event.preventDefault();
    save();
  };
  return (
    <div class="keeper">
      <input id="preset-name" ref={field} aria-label="Name of the preset" placeholder="name" maxLength={MAX_PRESET_NAME} defaultValue={preset?.name ?? ""} onKeyDown={handleKey} />
      <button id="save-preset" type="button" title="Keeps the system prompt and the parameters on this device" onClick={save}>
        Save
      </button>
      {preset && <IconButton icon="trash" label={`Delete the preset “${preset.name}”`} onClick={() => remove(preset.name)} />}
    </div>
  );
}
