// How figures are written: two or three digits, a unit, and a dash where there is none.

import type { Figure } from "./events.js";

/** What a figure counts. */
export type Unit = "count" | "rate" | "ms" | "share" | "seconds";

/** A figure with its unit, such as `1,234`, `12.3 ms` or `4.2 %`. */
export function shown(figure: Figure, unit: Unit): string {
  if (figure === null) return "–";
  switch (unit) {
    case "ms":
      return figure >= 10_000 ? `${digits(figure / 1e3)} s` : `${digits(figure)} ms`;
    case "share":
      return `${(figure * 100).toFixed(figure >= 0.0995 ? 0 : 1)} %`;
    case "seconds":
      return duration(figure);
    case "count":
      return Math.round(figure).toLocaleString("en");
    case "rate":
      return digits(figure);
  }
}

/** The same at an axis, in fewer digits. */
export function atAxis(figure: number, unit: Unit): string {
  if (unit === "share") return `${tidy(figure * 100)} %`;
  if (unit === "ms") return figure >= 10_000 ? `${tidy(figure / 1e3)} s` : `${tidy(figure)} ms`;
  if (figure >= 10_000) return `${tidy(figure / 1e3)} k`;
  return tidy(figure);
}

function tidy(value: number): string {
  return String(Number(value.toPrecision(4)));
}

/** As many decimals as its size calls for, so that a figure that moves a little stays as long. */
function digits(value: number): string {
  const size = Math.abs(value);
  if (size >= 99.95 || size === 0) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 9.995 ? 1 : 2);
}

function duration(seconds: number): string {
  const [days, hours, minutes] = [Math.floor(seconds / 86_400), Math.floor(seconds / 3_600) % 24, Math.floor(seconds / 60) % 60];
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

/** The time of day of a wall clock's seconds; with seconds where `exact`. */
export function clock(unixS: number, exact: boolean): string {
  const at = new Date(unixS * 1e3);
  const two = (part: number): string => String(part).padStart(2, "0");
  const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return exact ? `${minutes}:${two(at.getSeconds())}` : minutes;
}
