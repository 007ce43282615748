// What can be set in the laboratory: names and bounds as the server has them, presets, and the link
// by which a setting is shared. Whatever comes from a link is checked.

/** Every parameter by the server's name. */
export interface Parameters {
  readonly rtt_ms: number;
  readonly loss_percent: number;
  readonly burst_ms: number;
  readonly tokens_per_s: number;
  readonly buffer_ms: number;
  readonly padding_bytes: number;
  readonly tokens: number;
  readonly copies: number;
  readonly seed: number;
}

export type ParameterName = keyof Parameters;

/** A parameter as its control shows it. */
export interface ParameterControl {
  readonly name: ParameterName;
  readonly label: string;
  /** Behind the value, with a space where it needs one. */
  readonly unit: string;
  readonly least: number;
  readonly most: number;
  readonly step: number;
  /** What it is, in a sentence. */
  readonly about: string;
}

export const CONTROLS: readonly ParameterControl[] = [
  { name: "rtt_ms", label: "Round trip", unit: " ms", least: 0, most: 1_000, step: 10, about: "How long a packet and its acknowledgement take together." },
  { name: "loss_percent", label: "Loss", unit: " %", least: 0, most: 45, step: 0.5, about: "The share of packets that are lost, in both directions." },
  { name: "burst_ms", label: "Burst length", unit: " ms", least: 0, most: 2_000, step: 10, about: "How long losses last once they begin. 0 loses each packet by itself." },
  { name: "tokens_per_s", label: "Token rate", unit: "/s", least: 6, most: 100, step: 1, about: "How fast the model generates." },
  { name: "buffer_ms", label: "Pacing", unit: " ms", least: 0, most: 1_000, step: 10, about: "Text that every client holds back so that it can be shown evenly." },
  { name: "padding_bytes", label: "Padding", unit: " B", least: 0, most: 256, step: 8, about: "Loquent pads its packets to a multiple of this, so that their lengths say little about the text." },
  { name: "copies", label: "Copies", unit: "×", least: 2, most: 5, step: 1, about: "How many times plain duplication sends each packet." },
  { name: "tokens", label: "Length", unit: " tokens", least: 24, most: 300, step: 1, about: "How long the answer is." },
];

/** The largest seed. */
export const MOST_SEED = 4_294_967_295;

/** Settings to begin with. */
export interface Preset {
  readonly name: string;
  readonly about: string;
  readonly parameters: Parameters;
}

const PAPER: Parameters = {
  rtt_ms: 400,
  loss_percent: 15,
  burst_ms: 200,
  tokens_per_s: 10,
  buffer_ms: 0,
  padding_bytes: 0,
  tokens: 139,
  copies: 5,
  seed: 7,
};

const USUAL = { ...PAPER, padding_bytes: 24, copies: 3, tokens: 263, seed: 6 };

export const PRESETS: readonly Preset[] = [
  {
    name: "Train",
    about: "A long radio link with short dead spots.",
    parameters: { ...USUAL, rtt_ms: 160, loss_percent: 18, burst_ms: 250, tokens_per_s: 30 },
  },
  {
    name: "Café Wi-Fi",
    about: "A near server behind a crowded radio channel.",
    parameters: { ...USUAL, rtt_ms: 50, loss_percent: 8, burst_ms: 100, tokens_per_s: 30 },
  },
  {
    name: "Good network",
    about: "Hardly any losses: every way looks the same.",
    parameters: { ...USUAL, rtt_ms: 30, loss_percent: 0.5, burst_ms: 0, tokens_per_s: 30 },
  },
  {
    name: "The paper’s settings",
    about: "The default channel of the Eloquent paper at 400 ms, without padding.",
    parameters: PAPER,
  },
];

/** What the page opens with. */
export const DEFAULTS: Parameters = (PRESETS[0] as Preset).parameters;

/** The longest fragment that is looked at. */
const MAX_FRAGMENT_CHARS = 1_000;

const BOUNDS: Readonly<Record<ParameterName, { least: number; most: number; step: number }>> = Object.freeze({
  ...(Object.fromEntries(CONTROLS.map((control) => [control.name, control])) as Record<
    Exclude<ParameterName, "seed">,
    ParameterControl
  >),
  seed: { least: 0, most: MOST_SEED, step: 1 },
});

/** `value` as the nearest one that a parameter can have; null if it is out of its bounds. */
export function checked(name: ParameterName, value: number): number | null {
  const { least, most, step } = BOUNDS[name];
  if (!(value >= least && value <= most)) return null;
  // Rounded again, since a step of 0.1 is no binary fraction.
  return Math.round(Math.round(value / step) * step * 1_000) / 1_000;
}

/** Parameters as a fragment or a query: `rtt_ms=400&…`. */
export function write(parameters: Parameters): string {
  const names = Object.keys(BOUNDS) as ParameterName[];
  return names.map((name) => `${name}=${parameters[name]}`).join("&");
}

/** What a link says, with the defaults in place of what it leaves out or has wrong. */
export function read(fragment: string): { parameters: Parameters; ignored: readonly string[] } {
  const parameters: Record<ParameterName, number> = { ...DEFAULTS };
  const ignored: string[] = [];
  const text = fragment.replace(/^#/, "");
  if (text.length > MAX_FRAGMENT_CHARS) return { parameters, ignored: ["the whole link"] };
  for (const [name, value] of new URLSearchParams(text)) {
    const known = Object.hasOwn(BOUNDS, name) ? (name as ParameterName) : null;
    const number = /^\d{1,10}(\.\d{1,3})?$/.test(value) ? Number(value) : Number.NaN;
    const valid = known && checked(known, number);
    if (known && valid !== null) parameters[known] = valid;
    else ignored.push(name.slice(0, 40));
  }
  return { parameters, ignored };
}
