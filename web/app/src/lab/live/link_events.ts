// What happens to packets on the demonstration's link, as its server tells it.

import type { LaneEvent } from "../events.js";
import { LIVE_PATH, isBetween, record } from "./offer.js";

/** The two lanes, in the server's order. */
export type LaneName = "tcp" | "loquent";
export const LANES: readonly LaneName[] = ["tcp", "loquent"];

/** No event has more packets; further ones are ignored. */
const MAX_PACKETS = 10_000;
/** A run is over long before this, in ms. */
const LATEST_MS = 24 * 3_600_000;
const MAX_PACKET_BYTES = 1 << 17;

/** A packet's way, and what became of it. Times are ms after the run's beginning. */
export interface LinkPacket {
  readonly lane: LaneName;
  readonly way: "down" | "up";
  readonly at: number;
  readonly bytes: number;
  /** `null` if it was lost. */
  readonly arrivesAt: number | null;
}

/** What one event tells. */
export interface LinkNews {
  readonly run: number;
  readonly packets: readonly LinkPacket[];
}

/** Reads the data of an event; `null` if it is none that this page understands. */
export function readNews(data: string): LinkNews | null {
  const { run, packets } = record(parse(data));
  if (!isBetween(run, 0, Number.MAX_SAFE_INTEGER) || !Array.isArray(packets)) return null;
  const rows: readonly unknown[] = packets.slice(0, MAX_PACKETS);
  return { run, packets: rows.map(readPacket).filter((packet) => packet !== null) };
}

function parse(data: string): unknown {
  try {
    return JSON.parse(data);
  } catch {
    return null;
  }
}

function readPacket(row: unknown): LinkPacket | null {
  const [number, up, at, bytes, arrivesAt]: readonly unknown[] = Array.isArray(row) ? row : [];
  const lane = isBetween(number, 0, LANES.length - 1) ? LANES[number] : undefined;
  if (lane === undefined || !isBetween(at, 0, LATEST_MS) || !isBetween(bytes, 0, MAX_PACKET_BYTES)) return null;
  if (!isBetween(arrivesAt, -1, LATEST_MS)) return null;
  return { lane, way: up === 1 ? "up" : "down", at, bytes, arrivesAt: arrivesAt < 0 ? null : arrivesAt };
}

/** A packet as events of its lane; nobody can look into it, because it is encrypted or the kernel's. */
export function laneEvents(packet: LinkPacket, number: number): readonly LaneEvent[] {
  const { at, way, bytes, arrivesAt } = packet;
  const sent = { kind: "sent", at, packet: number, way, bytes, carried: null } as const;
  const fate = arrivesAt === null ? { kind: "lost", at } : { kind: "arrived", at: arrivesAt };
  return [sent, { ...fate, packet: number } as LaneEvent];
}

/** Calls `listener` with all news from now on, until the returned function is called. */
export function watchLink(listener: (news: LinkNews) => void): () => void {
  const source = new EventSource(`${LIVE_PATH}/events`);
  source.addEventListener("packets", ({ data }: MessageEvent<unknown>) => {
    const news = typeof data === "string" ? readNews(data) : null;
    if (news) listener(news);
  });
  return () => source.close();
}
