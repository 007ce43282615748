// Presets, sliders and the seed: what the laboratory is set to.

import type { VNode } from "preact";

import { CopyButton } from "../shell/controls.js";
import { CONTROLS, MOST_SEED, PRESETS, checked, write } from "./parameters.js";
import type { ParameterControl, Parameters } from "./parameters.js";

export interface ControlsProps {
  readonly parameters: Parameters;
  readonly onChange: (parameters: Parameters) => void;
}

export function Controls({ parameters, onChange }: ControlsProps): VNode {
  return (
    <form class="lab-controls" aria-label="Settings of the laboratory" onSubmit={(event) => event.preventDefault()}>
      <fieldset class="lab-presets">
        <legend class="unseen">Presets</legend>
        {PRESETS.map((preset) => (
          <button
            key={preset.name}
            type="button"
            title={preset.about}
            aria-pressed={write(preset.parameters) === write({ ...parameters, seed: preset.parameters.seed })}
            onClick={() => onChange({ ...preset.parameters, seed: parameters.seed })}
          >
            {preset.name}
          </button>
        ))}
      </fieldset>
      <div class="lab-sliders">
        {CONTROLS.map((control) => (
          <Slider
            key={control.name}
            control={control}
            value={parameters[control.name]}
            onChange={(value) => onChange({ ...parameters, [control.name]: value })}
          />
        ))}
        <Seed seed={parameters.seed} onChange={(seed) => onChange({ ...parameters, seed })}>
          <CopyButton label="Copy a link to these settings" text={() => new URL(`#${write(parameters)}`, location.href).href} />
        </Seed>
      </div>
    </form>
  );
}

interface SliderProps {
  readonly control: ParameterControl;
  readonly value: number;
  readonly onChange: (value: number) => void;
}

function Slider({ control, value, onChange }: SliderProps): VNode {
  const { name, label, unit, least, most, step, about } = control;
  const change = (event: Event): void => {
    const chosen = checked(name, (event.currentTarget as HTMLInputElement).valueAsNumber);
    if (chosen !== null) onChange(chosen);
  };
  return (
    <div class="lab-slider">
      <label for={`lab-${name}`}>{label}</label>
      <span class="lab-value">{`${value}${unit}`}</span>
      <input
        id={`lab-${name}`}
        type="range"
        min={least}
        max={most}
        step={step}
        value={value}
        aria-valuetext={`${value}${unit}`}
        aria-describedby={`lab-${name}-about`}
        onInput={change}
      />
      <p id={`lab-${name}-about`} class="lab-about">
        {about}
      </p>
    </div>
  );
}

/** Seeds drawn by the button stay short, so that links do. */
const DRAWN_SEEDS = 10_000;

interface SeedProps {
  readonly seed: number;
  readonly onChange: (seed: number) => void;
  readonly children: VNode;
}

function Seed({ seed, onChange, children }: SeedProps): VNode {
  const change = (event: Event): void => {
    const chosen = checked("seed", (event.currentTarget as HTMLInputElement).valueAsNumber);
    if (chosen !== null) onChange(chosen);
  };
  // Never the same again: the button has to change something.
  const draw = (): void => {
    const step = 1 + ((crypto.getRandomValues(new Uint32Array(1))[0] ?? 0) % (DRAWN_SEEDS - 1));
    onChange((seed + step) % DRAWN_SEEDS);
  };
  return (
    <div class="lab-seed">
      <label for="lab-seed">Weather no.</label>
      <input id="lab-seed" type="number" min={0} max={MOST_SEED} step={1} value={seed} aria-describedby="lab-seed-about" onInput={change} />
      <button type="button" aria-label="Another weather" onClick={draw}>
        Another
      </button>
      {children}
      <p id="lab-seed-about" class="lab-about">
        The same number gives the same losses at the same moments.
      </p>
    </div>
  );
}
