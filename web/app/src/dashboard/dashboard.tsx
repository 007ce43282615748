// The dashboard: what the server does now and did in the last minutes. It shows counts and times,
// and never what anybody asked or was answered.

import { render } from "preact";
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import { changeSettings, keepSettings, settings } from "../chat/settings.js";
import { CHARTS } from "./chart_plan.js";
import { Chart } from "./chart.js";
import { Feed, type FeedState } from "./feed.js";
import { type Unit, shown } from "./figures.js";
import { details, feedState, history, second, span_s } from "./state.js";
import { Keys, Models, Stages, Transports, Upstream } from "./tables.js";

/** Shows the dashboard in `root`. */
export function mountDashboard(root: HTMLElement): void {
  keepSettings();
  const feed = new Feed({
    key: () => settings.peek().apiKey,
    onState: (state) => {
      feedState.value = state;
    },
    onOpening: (opening) => {
      history.open(opening, Date.now() / 1e3);
      second.value++;
    },
    onSnapshot: ({ row, details: present }) => {
      history.add(row, Date.now() / 1e3);
      details.value = present;
      second.value++;
    },
  });
  render(<Dashboard onKey={() => feed.connect()} />, root);
  feed.connect();
}

function Dashboard({ onKey }: { readonly onKey: () => void }): VNode {
  const state = feedState.value;
  return (
    <div class="dashboard" data-state={state.is}>
      <header class="dashboard-head">
        <h1>Dashboard</h1>
        <Status state={state} />
        <span class="space" />
        <Spans />
      </header>
      {state.is === "refused" ? <KeyForm why={state.why} isKnown={state.isKnown} onKey={onKey} /> : <Figures />}
    </div>
  );
}

/** Where the page stands with its server, said aloud when it changes. */
function Status({ state }: { readonly state: FeedState }): VNode {
  const about = details.value;
  const ago = useSecondsSince(state.is === "gone" ? state.sinceMs : null);
  const trouble = state.is === "live" ? about?.trouble : null;
  return (
    <p class="status">
      <span class={`dot ${trouble ? "trouble" : state.is}`} aria-hidden="true" />
      <span role="status">{trouble ?? words(state)}</span>
      {ago !== null && <span class="ago">for {shown(ago, "seconds")}; trying again</span>}
      {state.is === "live" && about?.model && (
        <span class="ago">
          {about.model}, up for {shown(about.uptimeS, "seconds")}
        </span>
      )}
    </p>
  );
}

function words(state: FeedState): string {
  switch (state.is) {
    case "connecting":
      return "Connecting";
    case "live":
      return "Live";
    case "refused":
      return state.isKnown ? "This key may not see the dashboard" : "Needs a key";
    case "busy":
      return state.why;
    case "gone":
      return "The server does not answer";
  }
}

function useSecondsSince(sinceMs: number | null): number | null {
  const [, tick] = useState(0);
  useEffect(() => {
    if (sinceMs === null) return;
    const timer = setInterval(() => tick((count) => count + 1), 1_000);
    return () => clearInterval(timer);
  }, [sinceMs]);
  return sinceMs === null ? null : Math.max(0, (Date.now() - sinceMs) / 1e3);
}

const SPANS: readonly { readonly seconds: number; readonly name: string }[] = [
  { seconds: 60, name: "1 min" },
  { seconds: 300, name: "5 min" },
  { seconds: 600, name: "10 min" },
];

function Spans(): VNode {
  return (
    <fieldset class="spans">
      <legend class="unseen">Time shown</legend>
      {SPANS.map(({ seconds, name }) => (
        <label key={seconds}>
          <input type="radio" name="span" checked={span_s.value === seconds} onChange={() => (span_s.value = seconds)} />
          <span>{name}</span>
        </label>
      ))}
    </fieldset>
  );
}

interface KeyFormProps {
  readonly why: string;
  /** The server knows the key that it was shown. */
  readonly isKnown: boolean;
  readonly onKey: () => void;
}

function KeyForm({ why, isKnown, onKey }: KeyFormProps): VNode {
  const [key, setKey] = useState(settings.value.apiKey);
  const submit = (event: Event): void => {
    event.preventDefault();
    changeSettings({ apiKey: key.trim() });
    onKey();
  };
  return (
    <form class="key-form" onSubmit={submit}>
      <p>{isKnown || settings.value.apiKey !== "" ? why : "This server has API keys: the dashboard is for those of its administrators."}</p>
      {isKnown && (
        <p class="hint">
          The key is valid, but it is not an administrator’s: the figures are of everybody’s requests. Whoever runs the server can give
          it <code>admin = true</code> in the file of keys. A file with one plain key per line has no administrators.
        </p>
      )}
      <label>
        API key of an administrator
        <input type="password" autocomplete="off" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
      </label>
      <button class="primary" type="submit">
        Show the dashboard
      </button>
    </form>
  );
}

interface Tile {
  readonly name: string;
  readonly column: string;
  readonly unit: Unit;
  /** Percentiles come and go; they are shown for a while. */
  readonly recentS?: number;
}

const TILES: readonly Tile[] = [
  { name: "running", column: "running", unit: "count" },
  { name: "waiting", column: "waiting", unit: "count" },
  { name: "tokens/s", column: "tokens_per_s", unit: "rate" },
  { name: "first token, p50", column: "ttft_p50_ms", unit: "ms", recentS: 60 },
  { name: "token gap, p99", column: "itl_p99_ms", unit: "ms", recentS: 10 },
  { name: "busy", column: "busy_share", unit: "share" },
  { name: "KV cache in use", column: "kv_share", unit: "share" },
  { name: "packets lost", column: "loss_share", unit: "share", recentS: 10 },
];

/** Nothing has been asked for as long as the figures go back. */
function wasIdle(): boolean {
  return !history.isEmpty && ["running", "waiting", "tokens_per_s"].every((column) => history.sum(column) === 0);
}

/** What to do about charts without lines. */
function Idle(): VNode {
  return (
    <div class="idle">
      <p>
        Nothing has been asked in the last {shown(history.lengthS, "seconds")}, so there is nothing to draw. <a href="./">Ask something in the chat</a>,
        or from a terminal:
      </p>
      <pre>{`loquent chat --url ${location.origin}`}</pre>
      <p>The charts follow within a second.</p>
    </div>
  );
}

function Figures(): VNode {
  const present = details.value;
  // The figures change in place.
  void second.value;
  return (
    <>
      <section aria-label="Now">
        <dl class="tiles">
          {TILES.map(({ name, column, unit, recentS }) => (
            <div key={column}>
              <dt>{name}</dt>
              <dd data-figure={column}>{shown(history.recent(column, recentS ?? 1), unit)}</dd>
            </div>
          ))}
        </dl>
      </section>
      {wasIdle() && <Idle />}
      <section class="charts" aria-label="The last minutes">
        {CHARTS.map((plan) => (
          <Chart key={plan.title} plan={plan} />
        ))}
      </section>
      {present !== null && (
        <section class="tables" aria-label="In detail">
          <Transports list={present.transports} />
          {present.models !== null && <Models models={present.models} />}
          {present.stages !== null && <Stages stages={present.stages} />}
          {present.upstream !== null && <Upstream upstream={present.upstream} />}
          {present.keys !== null && <Keys keys={present.keys} />}
        </section>
      )}
      <p class="hint">
        Percentiles and shares are of the last 10 seconds. The same figures are at <a href="metrics">/metrics</a>, for Prometheus.
      </p>
    </>
  );
}
