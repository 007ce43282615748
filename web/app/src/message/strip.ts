// The strip of token times: a line for each moment at which tokens were shown, on an axis of
// seconds, so that a steady flow is a steady pattern. Pauses are shaded, and say why.

import type { Pause, PauseCause } from "./model.js";

/** While an answer streams, its last so many ms are shown. */
const WINDOW_MS = 12_000;

/** Room below the lines for the axis, px. */
const AXIS_PX = 18;

/** What the strip shows. Times are ms after the question. */
export interface StripContents {
  /** When, and how many tokens, in turn. */
  readonly times: readonly number[];
  readonly pauses: readonly Pause[];
  /** The right end while more comes; `null`: the whole answer is shown. */
  readonly now: number | null;
}

/** A moment at which tokens were shown. */
export interface Moment {
  readonly at: number;
  readonly tokens: number;
  /** Since the one before; `null` for the first. */
  readonly gap: number | null;
  /** Tokens up to and with this one. */
  readonly total: number;
}

/** The part of the axis that is shown. */
export function rangeOf({ times, now }: StripContents): { readonly from: number; readonly to: number } {
  if (now !== null) return { from: Math.max(0, now - WINDOW_MS), to: Math.max(now, 1_000) };
  const [first, last] = [times[0] ?? 0, times.at(-2) ?? 0];
  const margin = Math.max(20, (last - first) * 0.01);
  return { from: Math.max(0, first - margin), to: last + margin };
}

/** Where the axis has marks: at most `most` round numbers. */
export function ticks(from: number, to: number, most: number): number[] {
  const least = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  const step = ([1, 2, 5, 10].find((times) => times * power >= least) ?? 10) * power;
  const found: number[] = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

/** The moment nearest to `at`. */
export function nearest(times: readonly number[], at: number): Moment | null {
  if (times.length < 2) return null;
  let [low, high] = [0, times.length / 2 - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((times[2 * middle] ?? 0) < at) low = middle + 1;
    else high = middle;
  }
  const before = low > 0 && at - (times[2 * low - 2] ?? 0) < (times[2 * low] ?? 0) - at ? low - 1 : low;
  return momentAt(times, before);
}

/** The moment number `index`. */
export function momentAt(times: readonly number[], index: number): Moment | null {
  const [at, tokens] = [times[2 * index], times[2 * index + 1]];
  if (at === undefined || tokens === undefined) return null;
  let total = 0;
  for (let before = 1; before <= 2 * index + 1; before += 2) total += times[before] ?? 0;
  return { at, tokens, gap: index === 0 ? null : at - (times[2 * index - 2] ?? 0), total };
}

/** Gaps between moments in numbers: half are shorter than `median`, and so on. */
export function gapsOf(times: readonly number[]): { readonly median: number; readonly p95: number; readonly longest: number } | null {
  const gaps: number[] = [];
  for (let at = 2; at < times.length; at += 2) gaps.push((times[at] ?? 0) - (times[at - 2] ?? 0));
  gaps.sort((a, b) => a - b);
  const share = (part: number): number => gaps[Math.min(gaps.length - 1, Math.floor(part * gaps.length))] ?? 0;
  return gaps.length === 0 ? null : { median: share(0.5), p95: share(0.95), longest: gaps.at(-1) ?? 0 };
}

/** Draws `contents`; `cursor` is the moment that somebody looks at. */
export function drawStrip(canvas: HTMLCanvasElement, contents: StripContents, cursor: Moment | null): void {
  const pen = canvas.getContext("2d");
  if (pen === null) return;
  const scale = globalThis.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  pen.scale(scale, scale);
  const colours = coloursOf(canvas);
  const { from, to } = rangeOf(contents);
  const place = (at: number): number => ((at - from) / Math.max(1, to - from)) * width;
  const bottom = height - AXIS_PX;
  drawPauses(pen, contents.pauses, place, bottom, colours);
  drawMoments(pen, contents.times, place, { from, to, bottom }, colours);
  drawAxis(pen, { from, to, width, bottom }, place, colours);
  if (cursor) drawCursor(pen, place(cursor.at), bottom, colours);
}

type Place = (at: number) => number;

/** The page's colours as a canvas understands them. */
type Colours = Readonly<Record<"accent" | "danger" | "warn" | "line" | "faint" | "ink", string>> & { readonly font: string };

function coloursOf(canvas: HTMLCanvasElement): Colours {
  const style = getComputedStyle(canvas);
  const resolved = (name: string): string => {
    canvas.style.color = `var(--${name})`;
    return style.color;
  };
  const [accent, danger, warn] = [resolved("accent"), resolved("danger"), resolved("warn")];
  const [line, faint, ink] = [resolved("line"), resolved("faint"), resolved("ink")];
  return { accent, danger, warn, line, faint, ink, font: style.fontFamily };
}

function colourOf(cause: PauseCause, colours: Colours): string {
  return cause === "network" ? colours.danger : cause === "engine" ? colours.accent : colours.warn;
}

function drawPauses(pen: CanvasRenderingContext2D, pauses: readonly Pause[], place: Place, bottom: number, colours: Colours): void {
  for (const { from, ms, cause } of pauses) {
    pen.globalAlpha = 0.18;
    pen.fillStyle = colourOf(cause, colours);
    pen.fillRect(place(from), 0, place(from + ms) - place(from), bottom);
  }
  pen.globalAlpha = 1;
}

function drawMoments(
  pen: CanvasRenderingContext2D,
  times: readonly number[],
  place: Place,
  { from, to, bottom }: { readonly from: number; readonly to: number; readonly bottom: number },
  colours: Colours,
): void {
  pen.fillStyle = colours.accent;
  // Many lines on one pixel are darker than one.
  pen.globalAlpha = times.length > 800 ? 0.35 : 0.8;
  for (let index = 0; index < times.length; index += 2) {
    const at = times[index] ?? 0;
    const tokens = times[index + 1] ?? 1;
    const height = Math.min(bottom - 6, 10 + 5 * tokens);
    if (at >= from && at <= to) pen.fillRect(place(at), bottom - height, 1.25, height);
  }
  pen.globalAlpha = 1;
}

function drawAxis(
  pen: CanvasRenderingContext2D,
  { from, to, width, bottom }: { readonly from: number; readonly to: number; readonly width: number; readonly bottom: number },
  place: Place,
  colours: Colours,
): void {
  pen.fillStyle = colours.line;
  pen.fillRect(0, bottom, width, 1);
  pen.font = `11px ${colours.font}`;
  pen.textBaseline = "top";
  const marks = ticks(from, to, Math.max(2, Math.floor(width / 80)));
  const digits = marks.some((at) => at % 1_000 !== 0) ? (marks.some((at) => at % 100 !== 0) ? 2 : 1) : 0;
  for (const at of marks) {
    const x = place(at);
    pen.fillStyle = colours.line;
    pen.fillRect(x, bottom, 1, 4);
    pen.fillStyle = colours.faint;
    const label = `${(at / 1_000).toFixed(digits)} s`;
    const half = pen.measureText(label).width / 2;
    pen.fillText(label, Math.min(Math.max(0, x - half), width - 2 * half), bottom + 5);
  }
}

function drawCursor(pen: CanvasRenderingContext2D, x: number, bottom: number, colours: Colours): void {
  pen.fillStyle = colours.ink;
  pen.fillRect(x - 0.5, 0, 2, bottom);
}
