// One chart with its title and its figures, which are text for everybody.

import { useEffect, useRef, useState } from "preact/hooks";
import type { VNode } from "preact";
import type { ChartPlan, Series } from "./chart_plan.js";
import { clock, shown } from "./figures.js";
import { type Palette, readPalette, watchTheme } from "./palette.js";
import { Plot } from "./plot.js";
import { history, second, span_s } from "./state.js";

/** How old a percentile may be that is still shown as the present one, seconds. */
const RECENT_S = 10;

export function Chart({ plan }: { readonly plan: ChartPlan }): VNode {
  const canvas = useRef<HTMLDivElement>(null);
  const plot = useRef<Plot | null>(null);
  const [cursor, setCursor] = useState<number | null>(null);
  useEffect(() => {
    const parent = canvas.current;
    if (parent === null) return;
    let palette: Palette = readPalette(parent);
    const made = new Plot(parent, { plan, palette: () => palette, onCursor: setCursor });
    plot.current = made;
    const stop = watchTheme(() => {
      palette = readPalette(parent);
      made.repaint();
    });
    return () => {
      stop();
      made.destroy();
    };
  }, [plan]);
  const [now, span] = [second.value, span_s.value];
  useEffect(() => {
    if (document.visibilityState === "visible") plot.current?.show(history, span);
  }, [now, span]);
  return (
    <figure class="chart">
      <figcaption>
        <h2 title={plan.about}>{plan.title}</h2>
        <Legend plan={plan} cursor={cursor} />
      </figcaption>
      <div class="canvas" ref={canvas} role="img" aria-label={description(plan, span)} />
    </figure>
  );
}

/** The figures at the time under the mouse, else the latest. */
function Legend({ plan, cursor }: { readonly plan: ChartPlan; readonly cursor: number | null }): VNode {
  const value = ({ column }: Series) => (cursor === null ? history.recent(column, RECENT_S) : (history.column(column)[cursor] ?? null));
  const at = cursor === null ? null : (history.times()[cursor] ?? null);
  return (
    <ul class="legend">
      {plan.series.map((series) => (
        <li key={series.column} class={`${series.colour}${series.dash ? " dashed" : ""}`}>
          {series.name} <b>{shown(value(series), plan.unit)}</b>
        </li>
      ))}
      {at !== null && <li class="at">{clock(at, true)}</li>}
    </ul>
  );
}

/** The chart in words: what each line is now, and between what it was. */
function description({ title, about, unit, series }: ChartPlan, spanS: number): string {
  const words = series.map(({ column, name }) => {
    const figures = history.column(column).slice(-spanS).filter((figure) => figure !== null);
    if (figures.length === 0) return `${name}: nothing yet`;
    const [low, high] = [Math.min(...figures), Math.max(...figures)].map((figure) => shown(figure, unit));
    return `${name}: ${shown(history.recent(column, RECENT_S), unit)} now, ${low} to ${high}`;
  });
  return `${title}. ${about}. The last ${Math.round(spanS / 60)} minutes: ${words.join("; ")}.`;
}
