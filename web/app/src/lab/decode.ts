// The lines of the server's laboratory, checked and put into lanes. A line that is not as it should be
// ends the run with an error; so does a run that is longer than any can be.

import type { LaneEvent, TokenRun, Way } from "./events.js";
import { Lane } from "./lane.js";
import type { Weather } from "./timeline.js";

const MAX_LANES = 8;
const MAX_LINES = 200_000;
const MAX_LINE_CHARS = 200_000;
const MAX_TOKENS = 2_000;
const MAX_TOKEN_CHARS = 200;
const MAX_RUNS = 64;
/** Far beyond the end of any run, in µs. */
const MAX_US = 3_600_000_000;

/** The server's last word on a lane, in the simulator's own measures. */
export interface LaneSummary {
  /** Share of the time that was spent in stalls. */
  readonly stallRatio: number;
  /** Mean time from generation to display, in ms. */
  readonly delayMs: number;
  readonly bytes: number;
  readonly packets: number;
}

/** A lane with what the server says of it. */
export interface RecordedLane {
  readonly lane: Lane;
  /** "tcp", "duplication", "eloquent" or "loquent". */
  readonly scheme: string;
  summary: LaneSummary | null;
}

/** Thrown for a run that cannot be read. */
export class LabError extends Error {
  override readonly name = "LabError";
}

type Json = Readonly<Record<string, unknown>>;

/** A run as far as its lines have come. */
export class Recording {
  readonly lanes: RecordedLane[] = [];
  weather: readonly Weather[] = [];
  /** Whether all lines have come. */
  isWhole = false;
  /** Whether the server ended the run before its lanes were done. */
  isCut = false;
  /** The time of the latest event, in ms. */
  end = 0;
  #lines = 0;
  #tokens = 0;

  /** Takes one line. */
  accept(line: string): void {
    this.#lines += 1;
    require(this.#lines <= MAX_LINES && line.length <= MAX_LINE_CHARS, "the run is too long");
    const json = parse(line);
    switch (json.kind) {
      case "run":
        return this.#begin(json);
      case "token":
        return this.#addToken(json);
      case "summary":
        return this.#finish(json);
      default:
        return this.#addEvent(json);
    }
  }

  #begin(json: Json): void {
    require(this.lanes.length === 0, "the run begins twice");
    const lanes = list(json.lanes, MAX_LANES).map(object);
    for (const { name, scheme } of lanes) {
      this.lanes.push({ lane: new Lane(string(name, 80)), scheme: string(scheme, 80), summary: null });
    }
    this.weather = readWeather(json.weather);
  }

  #addToken(json: Json): void {
    this.#tokens += 1;
    require(this.#tokens <= MAX_TOKENS, "the answer is too long");
    const event: LaneEvent = { kind: "token", at: time(json.at_us), text: string(json.text, MAX_TOKEN_CHARS) };
    for (const { lane } of this.lanes) this.#put(lane, event);
  }

  #addEvent(json: Json): void {
    const lane = this.lanes[whole(json.lane, MAX_LANES)]?.lane;
    if (!lane) throw new LabError("an event has no lane");
    this.#put(lane, readEvent(json, lane));
  }

  #finish(json: Json): void {
    const summaries = list(json.lanes, MAX_LANES).map(object);
    require(summaries.length === this.lanes.length, "the summary has other lanes");
    for (const [index, summary] of summaries.entries()) {
      const recorded = this.lanes[index] as RecordedLane;
      recorded.summary = {
        stallRatio: number(summary.full),
        delayMs: number(summary.delay_ms),
        bytes: number(summary.bytes),
        packets: number(summary.packets),
      };
      if (summary.complete !== true) {
        this.#put(recorded.lane, { kind: "ended", at: time(json.ended_us), complete: false });
      }
    }
    this.isCut = json.cut === true;
    this.isWhole = true;
  }

  #put(lane: Lane, event: LaneEvent): void {
    // What goes on behind the last text, acknowledgements, does not lengthen the show.
    if (event.kind !== "sent" && event.kind !== "arrived" && event.kind !== "lost") {
      this.end = Math.max(this.end, event.at);
    }
    lane.add(event);
  }
}

function readEvent(json: Json, lane: Lane): LaneEvent {
  const at = time(json.at_us);
  const packet = () => whole(json.packet, MAX_LINES);
  switch (json.kind) {
    case "sent":
      return { kind: "sent", at, packet: packet(), way: way(json.way), bytes: whole(json.bytes, 65_535), carried: runs(json.carried) };
    case "arrived":
      return { kind: "arrived", at, packet: packet() };
    case "lost":
      return { kind: "lost", at, packet: packet() };
    case "shown":
      return shown(at, whole(json.tokens, MAX_TOKENS), lane);
    case "stalled":
      return { kind: "stalled", at, since: time(json.since_us) };
    case "resumed":
      return { kind: "resumed", at };
    case "complete":
      return { kind: "ended", at, complete: true };
    default:
      throw new LabError("an event is of an unknown kind");
  }
}

/** The server says how many tokens are shown in all. */
function shown(at: number, tokens: number, lane: Lane): LaneEvent {
  const first = lane.shownTokens;
  require(tokens > first && tokens <= lane.generated.length, "more is shown than was generated");
  const run = { first, count: tokens - first };
  return { kind: "shown", at, text: lane.textOf(run), tokens: run.count };
}

function readWeather(value: unknown): readonly Weather[] {
  const steps = list(value, MAX_LINES).map((step) => list(step, 2));
  return steps.map(([from, loss], index) => {
    const next = steps[index + 1];
    const to = next ? time(next[0]) : Number.POSITIVE_INFINITY;
    return { from: time(from), to, loss: Math.min(Math.max(number(loss), 0), 1) };
  });
}

function runs(value: unknown): readonly TokenRun[] {
  return list(value, MAX_RUNS).map((run) => {
    const [first, count] = list(run, 2);
    return { first: whole(first, MAX_TOKENS), count: whole(count, MAX_TOKENS) };
  });
}

function way(value: unknown): Way {
  require(value === "down" || value === "up", "a packet has no way");
  return value === "up" ? "up" : "down";
}

function parse(line: string): Json {
  try {
    return object(JSON.parse(line));
  } catch {
    throw new LabError("a line is no object");
  }
}

function object(value: unknown): Json {
  require(typeof value === "object" && value !== null && !Array.isArray(value), "a value is no object");
  return value as Json;
}

function list(value: unknown, most: number): readonly unknown[] {
  require(Array.isArray(value) && value.length <= most, "a value is no short list");
  return value as readonly unknown[];
}

function string(value: unknown, most: number): string {
  require(typeof value === "string" && value.length <= most, "a value is no short text");
  return value as string;
}

function number(value: unknown): number {
  require(typeof value === "number" && Number.isFinite(value), "a value is no number");
  return value as number;
}

function whole(value: unknown, most: number): number {
  const found = number(value);
  require(Number.isInteger(found) && found >= 0 && found <= most, "a number is out of its bounds");
  return found;
}

/** A time in µs, as ms. */
function time(value: unknown): number {
  return whole(value, MAX_US) / 1_000;
}

function require(holds: boolean, what: string): void {
  if (!holds) throw new LabError(`the laboratory's events cannot be read: ${what}`);
}
