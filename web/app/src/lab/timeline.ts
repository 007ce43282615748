// The picture of a lane's packets: time goes to the right, the server is the upper line and the reader
// the lower one. A packet is a line from when it left to when it arrived; a lost one ends half way.

import type { Lane, Packet, Stall } from "./lane.js";

/** A span in which packets that leave are lost with this probability. */
export interface Weather {
  readonly from: number;
  readonly to: number;
  readonly loss: number;
}

/** Height of the picture in CSS pixels. */
export const TIMELINE_HEIGHT = 128;

const SERVER_Y = 20;
const READER_Y = 92;
const TICKS_Y = 97;
const TICKS_HEIGHT = 10;
const AXIS_Y = 122;
/** Where the present is, as a share of the width. */
const NOW = 0.92;
/** Milliseconds of time per CSS pixel. */
const MS_PER_PX = 7;
/** Packets that have left so long before the picture's left edge are not looked for. */
const LONGEST_FLIGHT_MS = 3_000;
/** How far from a packet's line a pointer still means it, in CSS pixels. */
const REACH_PX = 9;

/** Colours, read from the page's style so that they follow its theme. */
interface Ink {
  readonly text: string;
  readonly rule: string;
  readonly news: string;
  readonly repeat: string;
  readonly ack: string;
  readonly lost: string;
  readonly weather: string;
  readonly stall: string;
}

interface Line {
  readonly x1: number;
  readonly y1: number;
  readonly x2: number;
  readonly y2: number;
  /** Ends half way because the packet is lost. */
  readonly isLost: boolean;
}

/** Draws one lane on a canvas. */
export class Timeline {
  readonly #canvas: HTMLCanvasElement;
  readonly #context: CanvasRenderingContext2D;
  #ink: Ink;
  #width = 0;
  #from = 0;

  constructor(canvas: HTMLCanvasElement) {
    const context = canvas.getContext("2d");
    if (!context) throw new Error("this browser has no canvas");
    this.#canvas = canvas;
    this.#context = context;
    this.#ink = readInk(canvas);
    this.resize();
  }

  /** Fits the picture to the element's width and the screen's pixels. */
  resize(): void {
    const scale = Math.min(window.devicePixelRatio || 1, 3);
    this.#width = this.#canvas.clientWidth;
    this.#canvas.width = Math.round(this.#width * scale);
    this.#canvas.height = Math.round(TIMELINE_HEIGHT * scale);
    this.#context.setTransform(scale, 0, 0, scale, 0, 0);
  }

  /** Reads the colours again: the theme has changed. */
  recolour(): void {
    this.#ink = readInk(this.#canvas);
  }

  /** Draws `lane` as it was at `time`, with `marked` standing out. */
  draw(lane: Lane, time: number, weather: readonly Weather[], marked: Packet | null): void {
    const context = this.#context;
    const ink = this.#ink;
    this.#from = time - this.#width * NOW * MS_PER_PX;
    context.clearRect(0, 0, this.#width, TIMELINE_HEIGHT);
    this.#drawWeather(weather, time, ink);
    this.#drawFrame(time, ink);
    this.#drawStalls(lane.stalls, time, ink);
    this.#drawPackets(lane, time, ink);
    this.#drawTicks(lane.generated, SERVER_Y - 11, 5, time, ink.text);
    this.#drawTicks(lane.changes, TICKS_Y, TICKS_HEIGHT, time, ink.news);
    if (marked) this.#stroke([this.#line(marked, lane, time)], ink.text, 3);
  }

  /** The packet whose line is nearest to a point of the picture, if one is near. */
  packetAt(x: number, y: number, lane: Lane, time: number): Packet | null {
    let nearest: Packet | null = null;
    let least = REACH_PX;
    for (const packet of this.#visible(lane, time)) {
      const distance = distanceTo(this.#line(packet, lane, time), x, y);
      if (distance < least) [nearest, least] = [packet, distance];
    }
    return nearest;
  }

  #x(time: number): number {
    return (time - this.#from) / MS_PER_PX;
  }

  #visible(lane: Lane, time: number): readonly Packet[] {
    return lane.packets.slice(lane.packetsBy(this.#from - LONGEST_FLIGHT_MS), lane.packetsBy(time));
  }

  #line(packet: Packet, lane: Lane, time: number): Line {
    const [start, end] = packet.way === "down" ? [SERVER_Y, READER_Y] : [READER_Y, SERVER_Y];
    const flight = Number.isNaN(packet.arrivedAt) ? lane.flightMs : packet.arrivedAt - packet.sentAt;
    const passed = (time - packet.sentAt) / Math.max(flight, 1);
    // A packet that nothing is known of yet waits just before its end.
    const furthest = packet.isLost ? 0.5 : Number.isNaN(packet.arrivedAt) ? 0.95 : 1;
    const share = Math.min(passed, furthest);
    return {
      x1: this.#x(packet.sentAt),
      y1: start,
      x2: this.#x(packet.sentAt + share * flight),
      y2: start + share * (end - start),
      isLost: packet.isLost && passed >= furthest,
    };
  }

  #drawWeather(weather: readonly Weather[], time: number, ink: Ink): void {
    const context = this.#context;
    context.fillStyle = ink.weather;
    for (const span of weather) {
      if (span.from > time) break;
      if (span.to < this.#from || span.loss <= 0) continue;
      const left = Math.max(0, this.#x(span.from));
      context.globalAlpha = Math.min(1, 0.25 + span.loss * 0.75);
      context.fillRect(left, SERVER_Y, this.#x(Math.min(span.to, time)) - left, READER_Y - SERVER_Y);
    }
    context.globalAlpha = 1;
  }

  #drawFrame(time: number, ink: Ink): void {
    const context = this.#context;
    context.lineWidth = 1;
    context.strokeStyle = ink.rule;
    context.beginPath();
    for (const y of [SERVER_Y, READER_Y]) {
      context.moveTo(0, y + 0.5);
      context.lineTo(this.#width, y + 0.5);
    }
    const now = this.#x(time);
    context.moveTo(now, SERVER_Y - 12);
    context.lineTo(now, TICKS_Y + TICKS_HEIGHT);
    context.stroke();
    context.fillStyle = ink.text;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.fillText("server", this.#width, SERVER_Y - 5);
    context.fillText("reader", this.#width, READER_Y - 5);
    context.textAlign = "center";
    for (let second = Math.ceil(Math.max(0, this.#from) / 1_000); second * 1_000 <= time; second++) {
      context.fillText(`${second} s`, this.#x(second * 1_000), AXIS_Y);
    }
  }

  #drawStalls(stalls: readonly Stall[], time: number, ink: Ink): void {
    const context = this.#context;
    context.fillStyle = ink.stall;
    for (const stall of stalls) {
      if (stall.noticedAt > time || stall.to < this.#from) continue;
      const left = Math.max(0, this.#x(stall.since));
      context.fillRect(left, TICKS_Y, this.#x(Math.min(stall.to, time)) - left, TICKS_HEIGHT);
    }
  }

  #drawPackets(lane: Lane, time: number, ink: Ink): void {
    const kinds: Record<"news" | "repeat" | "ack" | "lost", Line[]> = { news: [], repeat: [], ack: [], lost: [] };
    for (const packet of this.#visible(lane, time)) {
      const line = this.#line(packet, lane, time);
      if (line.x2 < 0) continue;
      if (line.isLost) kinds.lost.push(line);
      else if (packet.way === "up") kinds.ack.push(line);
      else kinds[packet.isNews ? "news" : "repeat"].push(line);
    }
    this.#stroke(kinds.ack, ink.ack, 0.75);
    this.#stroke(kinds.repeat, ink.repeat, 1);
    this.#stroke(kinds.news, ink.news, 1.5);
    this.#stroke(kinds.lost, ink.lost, 1.25);
    this.#crosses(kinds.lost, ink.lost);
  }

  #stroke(lines: readonly Line[], colour: string, width: number): void {
    const context = this.#context;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.beginPath();
    for (const line of lines) {
      context.moveTo(line.x1, line.y1);
      context.lineTo(line.x2, line.y2);
    }
    context.stroke();
  }

  #crosses(lines: readonly Line[], colour: string): void {
    const context = this.#context;
    context.strokeStyle = colour;
    context.lineWidth = 1.5;
    context.beginPath();
    for (const { x2, y2 } of lines) {
      context.moveTo(x2 - 2.5, y2 - 2.5);
      context.lineTo(x2 + 2.5, y2 + 2.5);
      context.moveTo(x2 - 2.5, y2 + 2.5);
      context.lineTo(x2 + 2.5, y2 - 2.5);
    }
    context.stroke();
  }

  #drawTicks(times: readonly number[], y: number, height: number, time: number, colour: string): void {
    const context = this.#context;
    context.fillStyle = colour;
    for (let index = times.length - 1; index >= 0; index--) {
      const at = times[index] as number;
      if (at > time) continue;
      if (at < this.#from) break;
      context.fillRect(this.#x(at) - 0.75, y, 1.5, height);
    }
  }
}

function readInk(element: Element): Ink {
  const style = getComputedStyle(element);
  const colour = (name: string) => style.getPropertyValue(`--lab-${name}`).trim() || "gray";
  return {
    text: colour("ink"),
    rule: colour("rule"),
    news: colour("news"),
    repeat: colour("repeat"),
    ack: colour("ack"),
    lost: colour("lost"),
    weather: colour("weather"),
    stall: colour("stall"),
  };
}

/** The distance of a point from the nearest point of a line. */
function distanceTo(line: Line, x: number, y: number): number {
  const [dx, dy] = [line.x2 - line.x1, line.y2 - line.y1];
  const length = dx * dx + dy * dy;
  const along = length === 0 ? 0 : ((x - line.x1) * dx + (y - line.y1) * dy) / length;
  const share = Math.min(1, Math.max(0, along));
  return Math.hypot(x - line.x1 - share * dx, y - line.y1 - share * dy);
}
