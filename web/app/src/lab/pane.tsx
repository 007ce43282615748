// One way of delivery as its reader sees it: the text, what it cost, and the packets behind it. A pane
// shows any lane, whatever fills it with events, at the moment that a clock gives.

import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { describePacket, describeMoment } from "./describe.js";
import type { Lane, LaneMoment, Packet } from "./lane.js";
import type { Moment } from "./playhead.js";
import { TIMELINE_HEIGHT, Timeline } from "./timeline.js";
import type { Weather } from "./timeline.js";

export interface PaneProps {
  readonly lane: Lane;
  /** A sentence about how this way works. */
  readonly about: string;
  readonly moment: Moment;
  /** When packets were lost, if the source knows. */
  readonly weather: readonly Weather[];
  /** Called when the reader looks into a packet. */
  readonly onLook?: () => void;
}

/** The elements that change with every frame, without a render. */
interface PaneElements {
  readonly shown: HTMLElement;
  readonly pending: HTMLElement;
  readonly waiting: HTMLElement;
  readonly figures: Record<FigureName, HTMLElement>;
}

const FIGURES = {
  stalls: "stalls",
  stalled: "time stalled",
  delay: "delay",
  bytes: "sent",
  packets: "packets",
  lost: "lost",
} as const;
type FigureName = keyof typeof FIGURES;

/** One way of delivery. */
export function Pane({ lane, about, moment, weather, onLook }: PaneProps) {
  const root = useRef<HTMLElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [looked, setLooked] = useState<Packet | null>(null);
  const drawing = useRef<PaneDrawing | null>(null);

  useLayoutEffect(() => {
    if (!root.current || !canvas.current) return;
    const made = new PaneDrawing(root.current, canvas.current, lane, moment, weather);
    drawing.current = made;
    setLooked(null);
    return () => made.close();
  }, [lane, moment, weather]);

  const look = (packet: Packet | null) => {
    setLooked(packet);
    drawing.current?.mark(packet);
    if (packet) onLook?.();
  };
  const point = (event: PointerEvent) => setHover(drawing.current, event, (packet) => setLooked(packet));
  const key = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || !drawing.current) return;
    event.preventDefault();
    look(drawing.current.neighbour(looked, step));
  };

  return (
    <section class="lab-pane" ref={root} aria-label={lane.name}>
      <header>
        <h2>{lane.name}</h2>
        <p class="lab-about">{about}</p>
      </header>
      <dl class="lab-figures">
        {Object.entries(FIGURES).map(([name, label]) => (
          <div key={name}>
            <dt>{label}</dt>
            <dd data-figure={name}>0</dd>
          </div>
        ))}
      </dl>
      <div class="lab-text" tabIndex={0} role="group" aria-label={`What the reader of ${lane.name} sees`}>
        <p>
          <span class="lab-shown" />
          <span class="lab-waiting" aria-hidden="true" />
          <span class="lab-pending" aria-hidden="true" />
        </p>
      </div>
      <canvas
        ref={canvas}
        class="lab-timeline"
        height={TIMELINE_HEIGHT}
        tabIndex={0}
        role="img"
        aria-label={`Packets of ${lane.name} over time. Left and right arrow keys go through them.`}
        onPointerMove={point}
        onPointerLeave={() => look(null)}
        onPointerDown={(event) => {
          point(event);
          onLook?.();
        }}
        onKeyDown={key}
        onBlur={() => look(null)}
      />
      <p class="lab-tip" aria-live="polite">
        {looked ? describePacket(looked, lane, moment.time) : "\u00a0"}
      </p>
    </section>
  );
}

function setHover(drawing: PaneDrawing | null, event: PointerEvent, then: (packet: Packet | null) => void): void {
  if (!drawing) return;
  const packet = drawing.packetAt(event.offsetX, event.offsetY);
  drawing.mark(packet);
  then(packet);
}

/** Keeps a pane's text, figures and picture at the moment of a clock. */
class PaneDrawing {
  readonly #elements: PaneElements;
  readonly #timeline: Timeline;
  readonly #lane: Lane;
  readonly #moment: Moment;
  readonly #weather: readonly Weather[];
  readonly #root: HTMLElement;
  readonly #resized: ResizeObserver;
  readonly #unsubscribe: readonly (() => void)[];
  #marked: Packet | null = null;

  constructor(root: HTMLElement, canvas: HTMLCanvasElement, lane: Lane, moment: Moment, weather: readonly Weather[]) {
    this.#root = root;
    this.#elements = elementsOf(root);
    this.#timeline = new Timeline(canvas);
    this.#lane = lane;
    this.#moment = moment;
    this.#weather = weather;
    this.#resized = new ResizeObserver(() => {
      this.#timeline.resize();
      this.#draw();
    });
    this.#resized.observe(canvas);
    const recolour = () => {
      this.#timeline.recolour();
      this.#draw();
    };
    this.#unsubscribe = [moment.subscribe(() => this.#draw()), onThemeChange(recolour)];
    this.#draw();
  }

  close(): void {
    this.#resized.disconnect();
    for (const unsubscribe of this.#unsubscribe) unsubscribe();
  }

  /** Makes a packet stand out, or none. */
  mark(packet: Packet | null): void {
    if (packet === this.#marked) return;
    this.#marked = packet;
    this.#draw();
  }

  packetAt(x: number, y: number): Packet | null {
    return this.#timeline.packetAt(x, y, this.#lane, this.#moment.time);
  }

  /** The packet `step` after `packet`, of those that have left; the last of them if there is none. */
  neighbour(packet: Packet | null, step: number): Packet | null {
    const left = this.#lane.packetsBy(this.#moment.time);
    const index = packet ? this.#lane.packets.indexOf(packet) + step : left - 1;
    return this.#lane.packets[Math.min(Math.max(index, 0), left - 1)] ?? null;
  }

  #draw(): void {
    const now = this.#lane.moment(this.#moment.time);
    this.#write(now);
    this.#timeline.draw(this.#lane, this.#moment.time, this.#weather, this.#marked);
  }

  #write(now: LaneMoment): void {
    const { shown, pending, waiting, figures } = this.#elements;
    const { text, generatedText } = this.#lane;
    setText(shown, text.slice(0, now.shownChars));
    setText(pending, generatedText.slice(now.shownChars, now.generatedChars));
    const described = describeMoment(now, this.#lane, this.#moment.time);
    setText(waiting, described.waiting);
    this.#root.classList.toggle("is-stalled", now.isStalled);
    this.#root.classList.toggle("is-complete", now.isComplete);
    for (const name of Object.keys(FIGURES) as FigureName[]) setText(figures[name], described[name]);
  }
}

function elementsOf(root: HTMLElement): PaneElements {
  const find = (selector: string) => {
    const found = root.querySelector<HTMLElement>(selector);
    if (!found) throw new Error(`a pane has no ${selector}`);
    return found;
  };
  const figure = (name: FigureName) => find(`[data-figure="${name}"]`);
  return {
    shown: find(".lab-shown"),
    pending: find(".lab-pending"),
    waiting: find(".lab-waiting"),
    figures: {
      stalls: figure("stalls"),
      stalled: figure("stalled"),
      delay: figure("delay"),
      bytes: figure("bytes"),
      packets: figure("packets"),
      lost: figure("lost"),
    },
  };
}

/** Calls `listener` when the page becomes dark or light, by the system or by its switch. */
function onThemeChange(listener: () => void): () => void {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = new MutationObserver(listener);
  system.addEventListener("change", listener);
  chosen.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  return () => {
    system.removeEventListener("change", listener);
    chosen.disconnect();
  };
}

/** Changes an element's text if it is another; what stays the same costs no layout. */
function setText(element: HTMLElement, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}
