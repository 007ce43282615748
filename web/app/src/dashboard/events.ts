// What the server sends to the dashboard, checked: `open` once, then a `snapshot` each second.

/** A figure of one second; `null` where there is none. */
export type Figure = number | null;

/** The first event. */
export interface Opening {
  /** Names of the figures in a row. */
  readonly columns: readonly string[];
  /** How long the server's own memory is, seconds. */
  readonly historyS: number;
  /** What percentiles and shares are taken over, seconds. */
  readonly windowS: number;
  readonly rows: readonly (readonly Figure[])[];
}

/** One second, and what has no history. */
export interface Snapshot {
  readonly row: readonly Figure[];
  readonly details: Details;
}

export interface Details {
  readonly uptimeS: number;
  /** `null` while the model loads. */
  readonly model: string | null;
  /** Why requests are refused; `null` while they are not. */
  readonly trouble: string | null;
  readonly transports: readonly TransportFigures[];
  /** `null` where the only model is always loaded. */
  readonly models: readonly ModelFigures[] | null;
  /** `null` on a server without keys. */
  readonly keys: KeyList | null;
  readonly stages: StageList | null;
  readonly upstream: UpstreamFigures | null;
}

export interface TransportFigures {
  readonly name: string;
  readonly streams: Figure;
  readonly connections: Figure;
  readonly lossShare: Figure;
  readonly rttP50Ms: Figure;
  readonly rttP95Ms: Figure;
}

/** Where one of several models is. */
export interface ModelFigures {
  readonly name: string;
  readonly state: string;
  readonly answers: Figure;
  /** How much of it is loaded. */
  readonly share: Figure;
}

export interface KeyFigures {
  /** The key's name; `null`: keys without one. */
  readonly name: string | null;
  readonly running: Figure;
  readonly waiting: Figure;
  readonly requests: Figure;
  readonly refused: Figure;
  readonly promptTokens: Figure;
  readonly generatedTokens: Figure;
}

export interface KeyList {
  readonly listed: readonly KeyFigures[];
  /** The sum of those that are not listed, and how many they are. */
  readonly others: { readonly count: number; readonly sum: KeyFigures } | null;
}

export interface StageFigures {
  readonly busyShare: Figure;
  readonly batches: Figure;
  readonly roundTripMs: Figure;
}

export interface StageList {
  readonly isConnected: boolean;
  readonly linkDelayMs: Figure;
  readonly list: readonly StageFigures[];
}

export interface UpstreamFigures {
  readonly authority: string;
  readonly running: Figure;
  readonly busyShare: Figure;
}

/** Most of each that is read: what a server sends is far below. */
const MAX_COLUMNS = 200;
const MAX_ROWS = 3_600;
const MAX_LIST = 256;
const MAX_TEXT = 500;

type Fields = Readonly<Record<string, unknown>>;

/** The first event in `data`; `null` if it is none. */
export function readOpening(data: string): Opening | null {
  const fields = parse(data);
  const { columns, rows } = fields;
  const areNames = Array.isArray(columns) && columns.length <= MAX_COLUMNS && columns.every((name) => typeof name === "string");
  if (!areNames || !Array.isArray(rows)) return null;
  return {
    columns,
    historyS: figure(fields["history_s"]) ?? 0,
    windowS: figure(fields["window_s"]) ?? 0,
    rows: rows.slice(-MAX_ROWS).map((row) => readRow(row, columns.length)),
  };
}

/** The event of a second, with as many figures as there are `columns`; `null` if it is none. */
export function readSnapshot(data: string, columns: number): Snapshot | null {
  const { row, details } = parse(data);
  return Array.isArray(row) ? { row: readRow(row, columns), details: readDetails(fieldsOf(details)) } : null;
}

function readRow(row: unknown, columns: number): Figure[] {
  return Array.from({ length: columns }, (_, at) => figure(Array.isArray(row) ? row[at] : null));
}

function readDetails(fields: Fields): Details {
  return {
    uptimeS: figure(fields["uptime_s"]) ?? 0,
    model: text(fields["model"]),
    trouble: text(fields["trouble"]),
    transports: list(fields["transports"]).map(readTransport),
    models: fields["models"] ? list(fields["models"]).map(readModel) : null,
    keys: fields["keys"] ? readKeys(fieldsOf(fields["keys"])) : null,
    stages: fields["stages"] ? readStages(fieldsOf(fields["stages"])) : null,
    upstream: fields["upstream"] ? readUpstream(fieldsOf(fields["upstream"])) : null,
  };
}

function readTransport(fields: Fields): TransportFigures {
  return {
    name: text(fields["name"]) ?? "unnamed",
    streams: figure(fields["streams"]),
    connections: figure(fields["connections"]),
    lossShare: figure(fields["loss_share"]),
    rttP50Ms: figure(fields["rtt_p50_ms"]),
    rttP95Ms: figure(fields["rtt_p95_ms"]),
  };
}

function readModel(fields: Fields): ModelFigures {
  return {
    name: text(fields["name"]) ?? "unnamed",
    state: text(fields["state"]) ?? "unknown",
    answers: figure(fields["answers"]),
    share: figure(fields["share"]),
  };
}

function readKeys(fields: Fields): KeyList {
  const others = fields["others"];
  const count = figure(fieldsOf(others)["name"]);
  return {
    listed: list(fields["listed"]).map(readKey),
    others: others && count !== null ? { count, sum: readKey(fieldsOf(others)) } : null,
  };
}

function readKey(fields: Fields): KeyFigures {
  return {
    name: text(fields["name"]),
    running: figure(fields["running"]),
    waiting: figure(fields["waiting"]),
    requests: figure(fields["requests"]),
    refused: figure(fields["refused"]),
    promptTokens: figure(fields["prompt_tokens"]),
    generatedTokens: figure(fields["generated_tokens"]),
  };
}

function readStages(fields: Fields): StageList {
  const stage = (one: Fields): StageFigures => ({
    busyShare: figure(one["busy_share"]),
    batches: figure(one["batches"]),
    roundTripMs: figure(one["round_trip_ms"]),
  });
  return {
    isConnected: fields["connected"] === true,
    linkDelayMs: figure(fields["link_delay_ms"]),
    list: list(fields["list"]).map(stage),
  };
}

function readUpstream(fields: Fields): UpstreamFigures {
  return {
    authority: text(fields["authority"]) ?? "unnamed",
    running: figure(fields["running"]),
    busyShare: figure(fields["busy_share"]),
  };
}

function parse(data: string): Fields {
  try {
    return fieldsOf(JSON.parse(data));
  } catch {
    return {};
  }
}

function fieldsOf(value: unknown): Fields {
  return typeof value === "object" && value !== null ? (value as Fields) : {};
}

function list(value: unknown): Fields[] {
  return Array.isArray(value) ? value.slice(0, MAX_LIST).map(fieldsOf) : [];
}

function figure(value: unknown): Figure {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function text(value: unknown): string | null {
  return typeof value === "string" ? value.slice(0, MAX_TEXT) : null;
}
