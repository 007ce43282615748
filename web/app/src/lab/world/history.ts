// A history of the world of replicas (docs/world.md), as `make world SEED=N` and a failed test print it:
// a line for each event, and below them what came of the run.

/** Where something happens. */
export const PLACES = ["clients", "A", "B", "C", "store"] as const;
export type Place = (typeof PLACES)[number];

/** One event. */
export interface WorldEvent {
  /** Virtual time in ms. */
  readonly at: number;
  readonly text: string;
  /** Where it begins, and where it ends; the same if nothing crosses the network. */
  readonly from: Place;
  readonly to: Place;
  /** Whether a fault begins or ends at `from`; null if the event is no fault. */
  readonly fault: "begins" | "ends" | null;
  /** Names of the answers and responses that it is about. */
  readonly subjects: readonly string[];
  /** The places with a fault, once the event has happened. */
  readonly faulty: readonly Place[];
}

/** What a file shows. */
export interface WorldHistory {
  readonly events: readonly WorldEvent[];
  /** Answers and responses, in the order in which they are asked for. */
  readonly subjects: readonly string[];
  /** What is below the events: the counts of the run, and the law that was broken. */
  readonly outcome: readonly string[];
  /** True if there were more events than a page can show. */
  readonly isCut: boolean;
}

/** Largest file that is read, bytes: a history has some hundred kilobytes. */
export const MAX_HISTORY_BYTES = 8 << 20;
/** Most events that are shown; the last ones, which tell how a law was broken. */
const MAX_EVENTS = 5_000;
/** Longest text of an event, characters: owners of old epochs make some long. */
const MAX_TEXT = 300;
/** Most lines of the outcome. */
const MAX_OUTCOME = 6;

const EVENT = /^\s*(\d{1,7})\.(\d{3}) (.+)$/;
const FAULT = /^([ABC]|store): (no )?(\w+)/;
const CALL = /^([ABC]) (?:writes|asks|gives|stops|stores|claims|leaves|deletes|fences) /;
const VISIT = / at ([ABC])(?: by datagrams)?$/;
/** Names under which histories speak of answers and responses: `reader 3`, the beginning of an id, a whole one. */
const NAME = /\b(?:(?:answer|reader|chat|response|client) \d+|[0-9a-f]{6}|chatcmpl-\d+|resp_[0-9a-f]{32})\b/g;
/** An event that says which answer or response has a further name. */
const NAMED = [
  /^(?<subject>answer \d+) is (?<name>[0-9a-f]{6})$/,
  /^(?<name>reader \d+) of (?<subject>answer \d+)\b/,
  /^(?<name>chat \d+) is that of (?<subject>answer \d+): (?<id>chatcmpl-\d+)$/,
  /^(?<subject>response \d+) is asked for as (?<name>resp_[0-9a-f]{32}) /,
  /^(?<name>client \d+) of (?<subject>response \d+)\b/,
];

/** Reads a history; returns null if `text` has no event. */
export function readHistory(text: string): WorldHistory | null {
  const lines = text.split("\n");
  const told = lines.map((line) => EVENT.exec(line));
  const last = told.findLastIndex((event) => event !== null);
  if (last < 0) return null;
  const found = told.filter((event) => event !== null);
  const events = new EventReader();
  const read = found.map(([, seconds, ms, what]) => events.read(1_000 * Number(seconds) + Number(ms), what ?? ""));
  const outcome = lines.slice(last + 1).map((line) => line.trim().slice(0, MAX_TEXT));
  return {
    events: read.slice(-MAX_EVENTS),
    subjects: events.subjects,
    outcome: outcome.filter((line) => line !== "").slice(0, MAX_OUTCOME),
    isCut: read.length > MAX_EVENTS,
  };
}

/** Reads events in their order, and keeps what later ones need to be understood. */
class EventReader {
  readonly subjects: string[] = [];
  private readonly names = new Map<string, string>();
  private faulty: readonly Place[] = [];

  read(at: number, text: string): WorldEvent {
    this.learn(text);
    const { from, to, fault } = placesOf(text);
    if (fault === "begins" && !this.faulty.includes(from)) this.faulty = [...this.faulty, from];
    if (fault === "ends") this.faulty = this.faulty.filter((place) => place !== from);
    return { at, text: shortened(text), from, to, fault, subjects: this.subjectsOf(text), faulty: this.faulty };
  }

  private learn(text: string): void {
    for (const pattern of NAMED) {
      const { subject, name, id } = pattern.exec(text)?.groups ?? {};
      for (const further of [name, id]) if (subject && further) this.names.set(further, subject);
    }
  }

  private subjectsOf(text: string): readonly string[] {
    const names = new Set<string>();
    for (const [name] of text.matchAll(NAME)) {
      const subject = /^(?:answer|response) /.test(name) ? name : this.names.get(name);
      if (subject) names.add(subject);
    }
    for (const subject of names) if (!this.subjects.includes(subject)) this.subjects.push(subject);
    return [...names];
  }
}

function placesOf(text: string): Pick<WorldEvent, "from" | "to" | "fault"> {
  const fault = FAULT.exec(text);
  if (fault) {
    const from = fault[1] as Place;
    if (fault[2] || fault[3] === "works") return { from, to: from, fault: "ends" };
    // An eviction and a change of the clock are over at once; the store works again later.
    return { from, to: from, fault: fault[3] === "evicts" ? null : "begins" };
  }
  const call = CALL.exec(text);
  if (call) return { from: call[1] as Place, to: "store", fault: null };
  const visit = VISIT.exec(text);
  if (visit) return { from: "clients", to: visit[1] as Place, fault: null };
  const left = /^([ABC]) has left$/.exec(text);
  const place = left ? (left[1] as Place) : "clients";
  return { from: place, to: place, fault: null };
}

function shortened(text: string): string {
  return text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}…` : text;
}
