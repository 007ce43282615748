// The laboratory: one answer, the same tokens and the same weather, delivered in several ways side by
// side. It opens with two of them and what is to be seen; everything else is a click away.

import { render } from "preact";
import type { VNode } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { authorization } from "../chat/server.js";
import { changeSettings, keepSettings, settings } from "../chat/settings.js";
import { Controls } from "./controls.js";
import type { Recording } from "./decode.js";
import { describeEvents, describeLanes, describeStalls } from "./describe.js";
import type { Lane } from "./lane.js";
import { LiveSection } from "./live/live.js";
import { Pane } from "./pane.js";
import { read, write } from "./parameters.js";
import type { Parameters } from "./parameters.js";
import { PlayButton, Player } from "./player.js";
import { Playhead } from "./playhead.js";
import { RunRefused, fetchRun } from "./run.js";
import { FIRST_SCHEMES, aboutScheme, simplyScheme } from "./schemes.js";
import { ComparisonTable } from "./table.js";
import type { OpenedHistory } from "./world/open_file.js";
import { HistoryOpener } from "./world/opener.js";

/** Shows the laboratory in `root`. */
export function mountLab(root: HTMLElement): void {
  keepSettings();
  render(<Laboratory />, root);
}

/** How long a slider has to stand still before a run is asked for, in ms. */
const SETTLED_MS = 200;

type RunState =
  | { readonly is: "loading" }
  | { readonly is: "ready"; readonly recording: Recording }
  | { readonly is: "failed"; readonly why: string; readonly wantsKey: boolean };

/** Two ways and what is to be seen, or all ways with every figure. A link with settings is of the second kind. */
type View = "first" | "all";

function Laboratory(): VNode {
  const playhead = useMemo(() => new Playhead(), []);
  const [{ parameters, ignored }, setLink] = useState(() => read(location.hash));
  const [view, setView] = useState<View>(() => (location.hash.length > 1 ? "all" : "first"));
  const run = useRun(parameters, playhead);
  const recording = run.is === "ready" ? run.recording : null;
  const [told, setTold] = useState("");
  const [opened, setOpened] = useState<OpenedHistory | null>(null);

  useEffect(() => {
    const follow = (): void => setLink(read(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  useEffect(() => tellWhenItStands(playhead, recording, setTold), [playhead, recording]);

  const change = (changed: Parameters): void => {
    history.replaceState(null, "", `#${write(changed)}`);
    setLink({ parameters: changed, ignored: [] });
  };
  const show = (chosen: View): void => {
    history.replaceState(null, "", chosen === "all" ? `#${write(parameters)}` : location.pathname + location.search);
    setView(chosen);
  };
  const step = (direction: 1 | -1): void => stepTo(recording, playhead, direction);
  if (opened !== null) {
    const { name, history, View } = opened;
    return (
      <div class="lab">
        <View name={name} history={history} onClose={() => setOpened(null)} />
      </div>
    );
  }
  const lanes = recording?.lanes.map(({ lane }) => lane) ?? [];
  const isReady = recording !== null;
  const ways = (
    <div class="lab-ways">
      {view === "first" && <PlayButton playhead={playhead} isReady={isReady} />}
      <button type="button" onClick={() => show(view === "all" ? "first" : "all")}>
        {view === "all" ? "Two ways only" : "All four ways"}
      </button>
    </div>
  );
  return (
    <div class={`lab lab-${view}`}>
      <LiveSection />
      <header class="lab-head">
        <h1>{`One answer over one bad network, sent in ${view === "all" ? "four" : "two"} ways`}</h1>
        <p>
          Each reader gets the same words from the same model, and the network loses packets at the same moments. Grey text has left the
          model and has not arrived.
        </p>
      </header>
      {ignored.length > 0 && <p class="lab-note">{`The link has settings that do not exist or are out of bounds: ${ignored.join(", ")}.`}</p>}
      {run.is === "failed" && <Failure why={run.why} wantsKey={run.wantsKey} />}
      {recording && <Sentence lanes={firstOf(recording).map(({ lane }) => lane)} playhead={playhead} />}
      {view === "all" && ways}
      {view === "all" && <Player playhead={playhead} isReady={isReady} onStep={step} />}
      <div class="lab-stage">
        <Panes recording={recording} playhead={playhead} view={view} />
        {view === "all" && <Legend />}
      </div>
      {view === "first" && ways}
      <p class="unseen" role="status">
        {told}
      </p>
      <details class="lab-details" open={view === "all"}>
        <summary>Details</summary>
        <p>
          Everything here is the project’s own simulator; Loquent’s pane runs the code that ships.{" "}
          <a href="docs/eloquent">How it works, and how it is measured</a>
        </p>
        {view === "first" && <Player playhead={playhead} isReady={isReady} onStep={step} hasPlayButton={false} />}
        <Controls parameters={parameters} onChange={change} />
        <HistoryOpener onOpen={setOpened} />
      </details>
      {recording?.isCut && <p class="lab-note">The run was longer than the server tells; the rest is left out.</p>}
      {view === "all" && recording && <ComparisonTable lanes={lanes} playhead={playhead} />}
    </div>
  );
}

/** The lanes that the page opens with. */
function firstOf({ lanes }: Recording): Recording["lanes"] {
  return lanes.filter(({ scheme }) => FIRST_SCHEMES.includes(scheme));
}

/** What the panes show, in a sentence that follows them. */
function Sentence({ lanes, playhead }: { readonly lanes: readonly Lane[]; readonly playhead: Playhead }): VNode {
  const line = useRef<HTMLParagraphElement>(null);
  useLayoutEffect(() => {
    const follow = (): void => {
      const text = playhead.time === 0 ? "Play it, and watch which one stands still." : describeStalls(lanes, playhead.time);
      if (line.current && line.current.textContent !== text) line.current.textContent = text;
    };
    follow();
    return playhead.subscribe(follow);
  }, [lanes, playhead]);
  return <p class="lab-sentence" ref={line} />;
}

/** The run under `parameters`, asked for anew when they have settled. */
function useRun(parameters: Parameters, playhead: Playhead): RunState {
  const [run, setRun] = useState<RunState>({ is: "loading" });
  const asked = write(parameters);
  const { apiKey } = settings.value;
  useEffect(() => {
    const abort = new AbortController();
    const ask = async (): Promise<void> => {
      try {
        const recording = await fetchRun({ parameters, headers: authorization(), signal: abort.signal });
        setRun({ is: "ready", recording });
        show(recording, playhead);
      } catch (error) {
        if (abort.signal.aborted) return;
        const why = error instanceof Error ? error.message : String(error);
        setRun({ is: "failed", why, wantsKey: error instanceof RunRefused && error.status === 401 });
      }
    };
    const timer = setTimeout(() => void ask(), run.is === "loading" ? 0 : SETTLED_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [asked, apiKey]);
  return run;
}

/** Goes on in a new recording where the old one was; from the beginning if that was over. */
function show(recording: Recording, playhead: Playhead): void {
  const { state } = playhead;
  const isFirst = playhead.end === 0;
  if (state === "ended") playhead.seek(0);
  playhead.end = recording.end;
  const moves = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (state === "ended" || (isFirst && moves)) playhead.play();
}

function stepTo(recording: Recording | null, playhead: Playhead, direction: 1 | -1): void {
  const lanes = recording?.lanes.map(({ lane }) => lane) ?? [];
  const times = lanes.map((lane) => (direction > 0 ? lane.nextAfter(playhead.time) : lane.lastBefore(playhead.time)));
  const time = direction > 0 ? Math.min(...times) : Math.max(...times);
  playhead.seek(Number.isFinite(time) ? time : direction > 0 ? playhead.end : 0);
}

/** Says how things stand each time that the playhead comes to rest, and not while it runs. */
function tellWhenItStands(playhead: Playhead, recording: Recording | null, tell: (text: string) => void): () => void {
  const lanes = recording?.lanes.map(({ lane }) => lane) ?? [];
  return playhead.subscribe(() => {
    if (playhead.state === "playing" || lanes.length === 0) return;
    const events = lanes.map((lane) => describeEvents(lane, playhead.time)).filter((text) => text !== "");
    tell([describeLanes(lanes, playhead.time), ...events].join(" "));
  });
}

interface PanesProps {
  readonly recording: Recording | null;
  readonly playhead: Playhead;
  readonly view: View;
}

function Panes({ recording, playhead, view }: PanesProps): VNode {
  const lanes = recording === null ? [] : view === "all" ? recording.lanes : firstOf(recording);
  return (
    <div class="lab-panes" aria-busy={recording === null}>
      {lanes.map(({ lane, scheme }) => (
        <Pane
          key={scheme}
          lane={lane}
          about={view === "all" ? aboutScheme(scheme) : simplyScheme(scheme)}
          moment={playhead}
          weather={recording?.weather ?? []}
          onLook={() => playhead.pause()}
        />
      ))}
    </div>
  );
}

/** What the marks mean, in the order of importance. */
const LEGEND: readonly (readonly [mark: string, meaning: string])[] = [
  ["news", "packet with new text"],
  ["repeat", "repetition"],
  ["lost", "lost"],
  ["ack", "acknowledgement"],
  ["weather", "losses: a packet that leaves now hardly arrives"],
  ["stall", "stall: more than 200 ms without text"],
];

function Legend(): VNode {
  return (
    <ul class="lab-legend" aria-label="Legend">
      {LEGEND.map(([mark, meaning]) => (
        <li key={mark}>
          <span class={`lab-swatch lab-swatch-${mark}`} aria-hidden="true" />
          {meaning}
        </li>
      ))}
      <li>
        <span class="lab-pending" aria-hidden="true">
          text
        </span>{" "}
        generated, but not here yet
      </li>
    </ul>
  );
}

function Failure({ why, wantsKey }: { readonly why: string; readonly wantsKey: boolean }): VNode {
  const [key, setKey] = useState("");
  const enter = (event: Event): void => {
    event.preventDefault();
    changeSettings({ apiKey: key });
  };
  return (
    <div class="lab-failure" role="alert">
      <p>{why}</p>
      {wantsKey && (
        <form onSubmit={enter}>
          <label>
            API key
            <input type="password" autocomplete="off" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
          </label>
          <button type="submit">Use it</button>
        </form>
      )}
    </div>
  );
}
