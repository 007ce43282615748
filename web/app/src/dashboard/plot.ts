// One chart on the page: uPlot with the page's colours, axes and fonts.

import uPlot from "uplot";
import type { ChartPlan, Series } from "./chart_plan.js";
import { atAxis, clock } from "./figures.js";
import type { Figure } from "./events.js";
import type { History } from "./history.js";
import type { Palette } from "./palette.js";

const HEIGHT_PX = 150;
const AXIS_PX = 52;
const FONT = "11px system-ui, sans-serif";
/** Steps between the times at the axis, s. */
const TIME_STEPS_S = [10, 20, 30, 60, 120, 300];
/** Least time that a chart spans, s. */
const LEAST_SPAN_S = 60;
/** All charts show the same time under the mouse. */
const CURSOR = "loquent-dashboard";

export interface PlotOptions {
  readonly plan: ChartPlan;
  /** The colours of the moment. */
  readonly palette: () => Palette;
  /** The row under the mouse; `null` for none. */
  readonly onCursor: (row: number | null) => void;
}

/** A chart of `plan` in `parent`. */
export class Plot {
  readonly #plot: uPlot;
  readonly #resize: ResizeObserver;
  readonly #plan: ChartPlan;

  constructor(parent: HTMLElement, { plan, palette, onCursor }: PlotOptions) {
    this.#plan = plan;
    const options: uPlot.Options = {
      width: Math.max(parent.clientWidth, 200),
      height: HEIGHT_PX,
      legend: { show: false },
      padding: [8, 26, 0, 0],
      cursor: { y: false, drag: { setScale: false }, points: { size: 6 }, sync: { key: CURSOR, setSeries: false } },
      scales: { x: { time: true }, y: { range: (_, __, highest) => [0, top(plan, highest)] } },
      axes: [timeAxis(palette), valueAxis(plan, palette)],
      series: [{}, ...plan.series.map((series) => line(series, palette))],
      hooks: { setCursor: [({ cursor }) => onCursor(cursor.idx ?? null)] },
    };
    this.#plot = new uPlot(options, [[], ...plan.series.map(() => [])], parent);
    this.#resize = new ResizeObserver(() => this.#plot.setSize({ width: Math.max(parent.clientWidth, 200), height: HEIGHT_PX }));
    this.#resize.observe(parent);
  }

  /** Shows the last `spanS` seconds of `history`. */
  show(history: History, spanS: number): void {
    const times = history.times();
    const columns = this.#plan.series.map(({ column }) => history.column(column));
    const max = times.at(-1) ?? Date.now() / 1e3;
    // A server that has just started fills its charts all the same.
    const known_s = Math.max(LEAST_SPAN_S, max - (times[0] ?? max));
    this.#plot.batch(() => {
      this.#plot.setData([times, ...columns] as uPlot.AlignedData, false);
      this.#plot.setScale("x", { min: max - Math.min(spanS, known_s), max });
    });
  }

  /** Draws again, in other colours. */
  repaint(): void {
    this.#plot.redraw(false, true);
  }

  destroy(): void {
    this.#resize.disconnect();
    this.#plot.destroy();
  }
}

/** The upper end of the axis: a round number above what is shown. */
function top({ atLeast, atMost }: ChartPlan, highest: Figure): number {
  const wanted = Math.max((highest ?? 0) * 1.1, atLeast);
  const unit = 10 ** Math.floor(Math.log10(wanted));
  const round = [1, 1.5, 2, 3, 4, 5, 8, 10].find((step) => step * unit >= wanted) ?? 10;
  return Math.min(round * unit, atMost ?? Infinity);
}

function line({ colour, dash, filled }: Series, palette: () => Palette): uPlot.Series {
  return {
    stroke: () => palette()[colour],
    width: 1.5,
    ...(dash && { dash: [...dash] }),
    ...(filled && { fill: () => palette()[colour].replace(/^rgb\((.*)\)$/, "rgba($1, 0.12)") }),
    points: { show: false },
    spanGaps: false,
  };
}

function timeAxis(palette: () => Palette): uPlot.Axis {
  return {
    stroke: () => palette().faint,
    font: FONT,
    size: 26,
    gap: 4,
    space: 55,
    incrs: TIME_STEPS_S,
    grid: { show: false },
    ticks: { show: true, stroke: () => palette().line, size: 4, width: 1 },
    // With seconds where they tell one mark from the next.
    values: (_, ticks, __, ___, step_s) => ticks.map((at) => clock(at, step_s < 60)),
  };
}

function valueAxis({ unit }: ChartPlan, palette: () => Palette): uPlot.Axis {
  return {
    stroke: () => palette().faint,
    font: FONT,
    size: AXIS_PX,
    gap: 6,
    space: 32,
    grid: { stroke: () => palette().line, width: 1 },
    ticks: { show: false },
    values: (_, ticks) => ticks.map((value) => atAxis(value, unit)),
  };
}
