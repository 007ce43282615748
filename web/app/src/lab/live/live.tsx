// The live half of the laboratory: this browser's event stream and its WebTransport session side by side,
// over the bad link of `loquent demo`.

import type { VNode } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { authorization } from "../../chat/server.js";
import { describeStalls } from "../describe.js";
import { Pane } from "../pane.js";
import { LANES, type LaneName } from "./link_events.js";
import { type LiveNetwork, type LiveOffer, type LiveWeather, fetchOffer } from "./offer.js";
import { LiveRun } from "./run.js";
import { WEATHER_CONTROLS, type WeatherControl } from "./weather_controls.js";

/** The address's query that starts a run at once, as `loquent demo` opens the page. */
const START_QUERY = "?live";

const ABOUT: Readonly<Record<LaneName, Readonly<Record<LiveNetwork, string>>>> = {
  tcp: {
    kernel: "Server-sent events over the kernel’s TCP. All text waits for a lost packet.",
    modelled: "Server-sent events over TCP, here the simulator’s. All text waits for a lost packet.",
  },
  loquent: {
    kernel: "WebTransport. Each packet repeats all that has not been acknowledged.",
    modelled: "WebTransport over a relay. Each packet repeats all that has not been acknowledged.",
  },
};

const NETWORKS: Readonly<Record<LiveNetwork, string>> = {
  kernel: "Real packets: kernel TCP and QUIC cross an emulated link on this machine.",
  modelled:
    "QUIC is real and crosses a lossy relay on this machine; TCP is modelled, because only root can send the kernel’s over such a link.",
};

const NO_WEBTRANSPORT =
  "This browser has no WebTransport, so that it has nothing to compare. Chromium, Firefox and Safari from 26.4 on have it; so does the terminal: loquent demo --terminal";

/** Shows the live laboratory where the server offers one, and nothing elsewhere. */
export function LiveSection(): VNode | null {
  const [offer, setOffer] = useState<LiveOffer | null>(null);
  useEffect(() => {
    const abort = new AbortController();
    fetchOffer(authorization(), abort.signal).then(setOffer, () => undefined);
    return () => abort.abort();
  }, []);
  return offer && <Live offer={offer} />;
}

/** Where a run stands. The last one stays to be looked at. */
type RunState = "none" | "connecting" | "running" | "over" | "failed";

interface View {
  readonly state: RunState;
  readonly run: LiveRun | null;
  /** What is said of it. */
  readonly told: string;
}

function Live({ offer }: { readonly offer: LiveOffer }): VNode {
  const [weather, setWeather] = useState(offer.weather);
  const [view, setView] = useState<View>({ state: "none", run: null, told: "" });
  const works = "WebTransport" in globalThis;
  const isBusy = view.state === "connecting" || view.state === "running";

  const start = (): void => {
    const run = new LiveRun(offer, weather);
    setView({ state: "connecting", run, told: "Connecting over a calm link …" });
    const onBegun = (): void => setView({ state: "running", run, told: "The weather has begun." });
    run.run(onBegun).then(
      () => setView({ state: "over", run, told: describeStalls(LANES.map((lane) => run.lanes[lane]), run.clock.time) }),
      (error: unknown) => setView({ state: "failed", run, told: explain(error) }),
    );
  };
  useEffect(() => {
    if (works && location.search === START_QUERY) start();
  }, []);
  useEffect(() => () => view.run?.stop(), [view.run]);

  return (
    <section class="live" aria-labelledby="live-heading">
      <header class="lab-head">
        <h2 id="live-heading">
          Live <span class="live-badge">{offer.network === "kernel" ? "kernel" : "modelled"}</span>
        </h2>
        <p>{NETWORKS[offer.network]}</p>
      </header>
      <form class="lab-controls" aria-label="Weather of the live run" onSubmit={(event) => event.preventDefault()}>
        <div class="lab-sliders">
          {WEATHER_CONTROLS.map((control) => (
            <WeatherSlider key={control.name} control={control} weather={weather} onChange={setWeather} />
          ))}
        </div>
        <div class="live-buttons">
          {isBusy ? (
            <button type="button" onClick={() => view.run?.stop()}>
              Stop
            </button>
          ) : (
            <button type="button" class="primary" disabled={!works} onClick={start}>
              {view.run ? "Run again" : "Run"}
            </button>
          )}
          <button type="button" disabled={isBusy} onClick={() => setWeather({ ...weather, seed: drawSeed() })}>
            Other losses
          </button>
          <span class="live-seed">{`Weather no. ${weather.seed}`}</span>
        </div>
      </form>
      <p class="live-question">{`“${offer.question}”`}</p>
      <p class={`live-told live-${view.state}`} role="status">
        {works ? view.told : NO_WEBTRANSPORT}
      </p>
      {view.run && <Panes offer={offer} run={view.run} />}
    </section>
  );
}

function Panes({ offer, run }: { readonly offer: LiveOffer; readonly run: LiveRun }): VNode {
  const panes = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => (panes.current ? followTexts(panes.current, run) : undefined), [run]);
  return (
    <div class="lab-panes live-panes" ref={panes}>
      {LANES.map((lane) => (
        <Pane key={lane} lane={run.lanes[lane]} about={ABOUT[lane][offer.network]} moment={run.clock} weather={run.storms} />
      ))}
    </div>
  );
}

/** Keeps the end of each text in sight: how long it will be is not known, so its box has a fixed height. */
function followTexts(panes: HTMLElement, run: LiveRun): () => void {
  const texts = [...panes.querySelectorAll<HTMLElement>(".lab-text")];
  // What can be scrolled can be reached by keyboard.
  for (const text of texts) text.tabIndex = 0;
  return run.clock.subscribe(() => {
    for (const text of texts) text.scrollTop = text.scrollHeight;
  });
}

interface WeatherSliderProps {
  readonly control: WeatherControl;
  readonly weather: LiveWeather;
  readonly onChange: (weather: LiveWeather) => void;
}

function WeatherSlider({ control, weather, onChange }: WeatherSliderProps): VNode {
  const { label, unit, most, step, read, write } = control;
  const value = read(weather);
  const id = `live-${control.name}`;
  return (
    <div class="lab-slider" title={control.about}>
      <label for={id}>{label}</label>
      <output for={id}>{`${value}${unit}`}</output>
      <input
        id={id}
        type="range"
        min={0}
        max={most}
        step={step}
        value={value}
        aria-valuetext={`${value}${unit}`}
        onInput={(event) => onChange(write(weather, event.currentTarget.valueAsNumber))}
      />
    </div>
  );
}

/** Seeds drawn by the button stay short, so that they can be told. */
const DRAWN_SEEDS = 10_000;

function drawSeed(): number {
  return (crypto.getRandomValues(new Uint32Array(1))[0] ?? 0) % DRAWN_SEEDS;
}

function explain(error: unknown): string {
  if (error instanceof DOMException && error.name === "AbortError") return "Stopped.";
  return error instanceof Error ? error.message : String(error);
}
