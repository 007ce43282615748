// What a model is told beside the conversation: a system prompt and parameters; and such a set under a
// name. Whatever comes out of storage or a file is checked.

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

export interface Instructions {
  readonly system: string;
  readonly parameters: Parameters;
}

/** Instructions under a name: kept on this device, and with each conversation that has them. */
export interface Preset extends Instructions {
  readonly name: string;
}

/** Longest name, and longest system prompt that is read, UTF-16 units. */
export const MAX_PRESET_NAME = 60;
const MAX_SYSTEM = 1 << 17;

export const NO_PARAMETERS: Parameters = {
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  repetition_penalty: null,
  max_tokens: null,
  seed: null,
};

/** `value` as instructions; what is missing or wrong in it is empty. */
export function readInstructions(value: unknown): Instructions {
  const { system, parameters } = fieldsOf(value);
  const numbers = Object.keys(NO_PARAMETERS).map((name) => [name, numberOf(fieldsOf(parameters)[name])]);
  return {
    system: typeof system === "string" ? system.slice(0, MAX_SYSTEM) : "",
    parameters: Object.fromEntries(numbers) as unknown as Parameters,
  };
}

/** `value` as a preset; `null` if it is none. */
export function readPreset(value: unknown): Preset | null {
  const { name } = fieldsOf(value);
  const trimmed = typeof name === "string" ? name.trim().slice(0, MAX_PRESET_NAME) : "";
  return trimmed === "" ? null : { name: trimmed, ...readInstructions(value) };
}

/** The parameters that are set, as a request's fields. */
export function requestParameters({ parameters }: Instructions): Partial<Record<ParameterName, number>> {
  const set = Object.entries(parameters).filter(([, value]) => value !== null);
  return Object.fromEntries(set) as Partial<Record<ParameterName, number>>;
}

function fieldsOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

export function numberOf(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
