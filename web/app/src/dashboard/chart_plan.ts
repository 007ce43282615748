// Which charts there are, and which figures they show.

import type { ColourName } from "./palette.js";
import type { Unit } from "./figures.js";

export interface Series {
  /** The server's name of the figure. */
  readonly column: string;
  /** In the legend. */
  readonly name: string;
  readonly colour: ColourName;
  readonly dash?: readonly number[];
  readonly filled?: boolean;
}

export interface ChartPlan {
  readonly title: string;
  /** What it is, for those who do not know the term. */
  readonly about: string;
  readonly unit: Unit;
  /** The least that the axis reaches to, so that little noise does not look like much. */
  readonly atLeast: number;
  /** The most that it ever reaches to, as for shares. */
  readonly atMost?: number;
  readonly series: readonly Series[];
}

export const CHARTS: readonly ChartPlan[] = [
  {
    title: "Requests",
    about: "Completions in the batch, and those that wait for a place in it",
    unit: "count",
    atLeast: 4,
    series: [
      { column: "running", name: "running", colour: "series-1", filled: true },
      { column: "waiting", name: "waiting", colour: "series-2" },
    ],
  },
  {
    title: "Tokens per second",
    about: "Tokens of answers that left, and tokens of prompts that were computed",
    unit: "rate",
    atLeast: 10,
    series: [
      { column: "tokens_per_s", name: "answers", colour: "series-1", filled: true },
      { column: "prompt_tokens_per_s", name: "prompts", colour: "series-2" },
    ],
  },
  {
    title: "Time to first token",
    about: "From a request's arrival, for answers that began in the last seconds",
    unit: "ms",
    atLeast: 1,
    series: percentiles("ttft", ["p50", "p95", "p99"]),
  },
  {
    title: "Between tokens (ITL)",
    about: "The gap between two tokens of one answer as the engine makes them",
    unit: "ms",
    atLeast: 1,
    series: percentiles("itl", ["p50", "p95", "p99"]),
  },
  {
    title: "Between chunks (ICL)",
    about: "The gap between two pieces of one answer as they leave for its reader",
    unit: "ms",
    atLeast: 1,
    series: percentiles("icl", ["p50", "p95", "p99"]),
  },
  {
    title: "Step time and batch wait",
    about: "How long one step of the engine takes, and how long a sequence waits for its step",
    unit: "ms",
    atLeast: 1,
    series: [
      { column: "step_p50_ms", name: "step", colour: "series-1" },
      { column: "step_p99_ms", name: "p99", colour: "series-1", dash: [4, 3] },
      { column: "batch_wait_p50_ms", name: "wait", colour: "series-2" },
      { column: "batch_wait_p99_ms", name: "p99", colour: "series-2", dash: [4, 3] },
    ],
  },
  {
    title: "Batch size",
    about: "Sequences in one step of the engine, on average",
    unit: "rate",
    atLeast: 4,
    series: [{ column: "batch_size", name: "sequences", colour: "series-1", filled: true }],
  },
  {
    title: "Engine, cache, prefixes",
    about: "How much of the time the engine or the upstream server computes, how full the KV cache is, and which share of prompt tokens was found in it",
    unit: "share",
    atLeast: 1,
    atMost: 1,
    series: [
      { column: "busy_share", name: "busy", colour: "series-1" },
      { column: "kv_share", name: "KV cache", colour: "series-2" },
      { column: "prefix_hit_share", name: "prefix hits", colour: "series-3" },
    ],
  },
  {
    title: "Streams",
    about: "Answers that are being read, by the way that they take",
    unit: "count",
    atLeast: 4,
    series: [
      { column: "http_streams", name: "HTTP", colour: "series-1" },
      { column: "quic_streams", name: "QUIC", colour: "series-2" },
      { column: "webtransport_streams", name: "WebTransport", colour: "series-3" },
    ],
  },
  {
    title: "Loss and redundancy",
    about: "Packets lost on QUIC connections, and the share of bytes in datagrams that had been sent before",
    unit: "share",
    atLeast: 0.02,
    atMost: 1,
    series: [
      { column: "loss_share", name: "lost", colour: "series-4" },
      { column: "redundant_share", name: "redundant", colour: "series-3" },
    ],
  },
  {
    title: "Round trip",
    about: "Of the open QUIC connections",
    unit: "ms",
    atLeast: 1,
    series: percentiles("rtt", ["p50", "p95"]),
  },
  {
    title: "Ends, refusals, resumes",
    about: "Answers that ended, requests that were refused, and readers that came back to their answer, each second",
    unit: "count",
    atLeast: 4,
    series: [
      { column: "ended", name: "ended", colour: "series-1" },
      { column: "refused", name: "refused", colour: "series-4" },
      { column: "resumed", name: "resumed", colour: "series-3" },
    ],
  },
];

function percentiles(figure: string, which: readonly string[]): Series[] {
  const colours: readonly ColourName[] = ["series-1", "series-2", "series-4"];
  return which.map((name, at) => ({ column: `${figure}_${name}_ms`, name, colour: colours[at] ?? "series-1" }));
}
