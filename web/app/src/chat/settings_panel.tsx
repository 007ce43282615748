// The panel of settings, beside the conversation.

import type { ComponentChildren, VNode } from "preact";
import { adoptStyles } from "../shell/adopted.js";
import { IconButton } from "../shell/controls.js";
import { dialogue, settingsOpen } from "./layout.js";
import { type SamplingDefaults, readDefaults } from "./sampling_defaults.js";
import { DEMONSTRATION_MODEL, chosenModel, isDemonstration, lookSoon } from "./server.js";
import { changeInstructions, current } from "./chats.js";
import type { ParameterName } from "./preset.js";
import { PresetSection } from "./preset_section.js";
import { type Settings, changeSettings, instructionsOf, settings } from "./settings.js";
import styles from "./settings_panel.css" with { type: "text" };

adoptStyles(styles);

interface ParameterField {
  readonly name: ParameterName;
  readonly label: string;
  readonly about: string;
  readonly min: number;
  readonly max?: number;
  readonly step: number;
}

const PARAMETERS: readonly ParameterField[] = [
  { name: "temperature", label: "Temperature", about: "0 always takes the likeliest token", min: 0, max: 2, step: 0.1 },
  { name: "top_p", label: "Top p", about: "Samples from the likeliest tokens with this total probability", min: 0, max: 1, step: 0.05 },
  { name: "top_k", label: "Top k", about: "Samples from so many likeliest tokens; 0: all", min: 0, step: 1 },
  { name: "min_p", label: "Min p", about: "Drops tokens less likely than this share of the likeliest one", min: 0, max: 1, step: 0.05 },
  { name: "repetition_penalty", label: "Repetition penalty", about: "Above 1 avoids repetition", min: 0.01, max: 10, step: 0.05 },
  { name: "max_tokens", label: "Max tokens", about: "Longest answer", min: 1, step: 1 },
  { name: "seed", label: "Seed", about: "The same seed gives the same answer", min: 0, step: 1 },
];

export function SettingsPanel(): VNode {
  return (
    <aside class="settings" aria-label="Settings">
      <header>
        <h2>Settings</h2>
        <IconButton icon="close" label="Close settings" onClick={() => (settingsOpen.value = false)} />
      </header>
      <form onSubmit={(event) => event.preventDefault()}>
        <PresetSection />
        <SystemPrompt />
        <ParameterFields />
        <Connection />
        <Display />
        <Keeping />
      </form>
      <button type="button" onClick={() => (dialogue.value = "models")}>
        Models of this server
      </button>
      <button type="button" onClick={() => (dialogue.value = "shortcuts")}>
        Keyboard shortcuts
      </button>
      <p class="faint">
        <a href="licenses.txt">Licences of the libraries in this page</a>
      </p>
    </aside>
  );
}

function Section({ title, children }: { readonly title: string; readonly children: ComponentChildren }): VNode {
  return (
    <fieldset>
      <legend>{title}</legend>
      {children}
    </fieldset>
  );
}

function SystemPrompt(): VNode {
  const change = (event: Event): void => changeInstructions({ system: (event.currentTarget as HTMLTextAreaElement).value });
  return (
    <Section title="System prompt">
      <label>
        <span class="unseen">System prompt</span>
        <textarea id="system" rows={3} placeholder="none" value={instructionsOf(current.value).system} onInput={change} />
      </label>
    </Section>
  );
}

function ParameterFields(): VNode {
  const defaults = readDefaults(chosenModel()?.samplingDefaults);
  return (
    <Section title="Parameters">
      <p class="faint">Empty ones are left to the server; its defaults are shown.</p>
      {PARAMETERS.map((field) => (
        <ParameterInput key={field.name} field={field} byDefault={defaultOf(field.name, defaults)} title={titleOf(field, defaults)} />
      ))}
    </Section>
  );
}

/** Where a default comes from, in words. */
const PLACES: Readonly<Record<string, string>> = {
  flag: "set by the server's operator",
  model: "from the model's file",
  vendor: "recommended by the model's vendor",
  default: "the server's default",
};

/** What the parameter does, and where its default comes from. */
function titleOf({ name, about }: ParameterField, defaults: SamplingDefaults | null): string {
  const place = PLACES[defaults?.from[name] ?? ""];
  return place === undefined ? about : `${about}. ${defaultOf(name, defaults)}: ${place}`;
}

/** What applies where the parameter is not set, in words. */
function defaultOf(name: ParameterName, defaults: SamplingDefaults | null): string {
  if (name === "max_tokens") return "no limit";
  if (name === "seed") return "random";
  const value = defaults?.[name] ?? null;
  if (name === "repetition_penalty" && (value ?? 1) === 1) return "off";
  return value === null ? "default" : `${Number(value.toPrecision(3))}`;
}

interface ParameterInputProps {
  readonly field: ParameterField;
  readonly byDefault: string;
  readonly title: string;
}

function ParameterInput({ field, byDefault, title }: ParameterInputProps): VNode {
  const { name, label, about: _, ...range } = field;
  const { parameters } = instructionsOf(current.value);
  const change = (event: Event): void => {
    const { valueAsNumber } = event.currentTarget as HTMLInputElement;
    changeInstructions({ parameters: { ...parameters, [name]: Number.isFinite(valueAsNumber) ? valueAsNumber : null } });
  };
  return (
    <label class="row" title={title}>
      <span>{label}</span>
      <input id={name.replace("_", "-")} type="number" placeholder={byDefault} value={parameters[name] ?? ""} onInput={change} {...range} />
    </label>
  );
}

function Connection(): VNode {
  const { apiKey, delivery, pace, patience_s } = settings.value;
  return (
    <Section title="Connection">
      <label class="row">
        <span>API key</span>
        <input
          id="api-key"
          type="password"
          autocomplete="off"
          placeholder="none"
          value={apiKey}
          onInput={(event) => changeSettings({ apiKey: event.currentTarget.value })}
          onChange={lookSoon}
        />
      </label>
      <label class="row">
        <span>Delivery</span>
        <select id="delivery" value={delivery} onChange={(event) => changeSettings({ delivery: event.currentTarget.value as Settings["delivery"] })}>
          <option value="auto">automatic</option>
          <option value="webtransport">WebTransport</option>
          <option value="sse">SSE</option>
        </select>
      </label>
      <label class="row" title="Smooth hides most stalls of the network for a small delay">
        <span>Pacing</span>
        <select id="pace" value={pace} onChange={(event) => changeSettings({ pace: event.currentTarget.value as Settings["pace"] })}>
          <option value="smooth">smooth</option>
          <option value="off">show at once</option>
        </select>
      </label>
      <label class="row" title="How long an answer may bring nothing before the page gives it up; 0 is for ever">
        <span>Patience, seconds</span>
        <input
          id="patience"
          type="number"
          min={0}
          step={10}
          value={patience_s}
          onInput={(event) => changeSettings({ patience_s: Math.max(0, event.currentTarget.valueAsNumber || 0) })}
        />
      </label>
    </Section>
  );
}

function Display(): VNode {
  const { markdown, pauses, readingPace } = settings.value;
  return (
    <Section title="Display">
      <Check id="markdown" checked={markdown} onChange={(markdown) => changeSettings({ markdown })} label="Show Markdown formatted" />
      <Check id="pauses" checked={pauses} onChange={(pauses) => changeSettings({ pauses })} label="Mark pauses in the text" />
      {isDemonstration() && (
        <Check
          id="reading-pace"
          checked={readingPace}
          onChange={(readingPace) => changeSettings({ readingPace })}
          label={`Show the answers of ${DEMONSTRATION_MODEL} at reading speed`}
        />
      )}
    </Section>
  );
}

function Keeping(): VNode {
  return (
    <Section title="On this device">
      <Check
        id="keep"
        checked={settings.value.isKept}
        onChange={(isKept) => changeSettings({ isKept })}
        label="Keep these settings and the API key on this device"
      />
      <p class="faint">Without this they last as long as the tab. Conversations never leave this device.</p>
    </Section>
  );
}

interface CheckProps {
  readonly id: string;
  readonly checked: boolean;
  readonly label: string;
  readonly onChange: (checked: boolean) => void;
}

function Check({ id, checked, label, onChange }: CheckProps): VNode {
  return (
    <label class="check">
      <input id={id} type="checkbox" checked={checked} onChange={(event) => onChange(event.currentTarget.checked)} />
      <span>{label}</span>
    </label>
  );
}
