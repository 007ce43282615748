// Packets and moments in words, for the line below a picture, for screen readers and for tables.

import type { Lane, LaneMoment, Packet } from "./lane.js";

/** How much of a packet's text is quoted. */
const QUOTED_CHARS = 80;

/** Seconds with two digits: "3.21 s". */
export function seconds(ms: number): string {
  return `${(ms / 1_000).toFixed(2)} s`;
}

/** Bytes in the unit that suits them: "812 B", "12.3 kB". */
export function bytes(count: number): string {
  return count < 1_000 ? `${count} B` : `${(count / 1_000).toFixed(1)} kB`;
}

/** "1 stall", "2 stalls". */
export function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** A packet, and what has become of it by `time`. */
export function describePacket(packet: Packet, lane: Lane, time: number): string {
  const what = packet.way === "up" ? "Acknowledgement" : packet.isNews ? "Packet with new text" : "Repetition";
  return `${what} ${packet.number}, ${packet.bytes} bytes, sent at ${seconds(packet.sentAt)}, ${fate(packet, lane, time)}.${carried(packet, lane)}`;
}

function fate(packet: Packet, lane: Lane, time: number): string {
  switch (lane.fate(packet, time)) {
    case "lost":
      return "lost";
    case "arrived":
      return `arrived at ${seconds(packet.arrivedAt)}`;
    case "flying":
      return "on its way";
  }
}

function carried(packet: Packet, lane: Lane): string {
  if (packet.way === "up" || packet.carried === null) return "";
  if (packet.carried.length === 0) return " No text.";
  const numbers = packet.carried.map(({ first, count }) => (count === 1 ? `${first + 1}` : `${first + 1}–${first + count}`));
  const text = packet.carried.map((run) => lane.textOf(run)).join(" … ").trim();
  const quoted = text.length > QUOTED_CHARS ? `…${text.slice(-QUOTED_CHARS)}` : text;
  const noun = packet.carried.length === 1 && packet.carried[0]?.count === 1 ? "Token" : "Tokens";
  return ` ${noun} ${numbers.join(", ")}${quoted ? `: “${quoted}”` : ""}`;
}

/** A lane's figures at one moment. */
export interface MomentInWords {
  readonly stalls: string;
  readonly stalled: string;
  readonly delay: string;
  readonly bytes: string;
  readonly packets: string;
  readonly lost: string;
  /** What stands behind the text while it does not go on. */
  readonly waiting: string;
}

export function describeMoment(now: LaneMoment, lane: Lane, time: number): MomentInWords {
  const stall = now.isStalled ? lane.stalls.find((one) => one.noticedAt <= time && one.to > time) : undefined;
  return {
    stalls: String(now.stalls),
    stalled: seconds(now.stalledMs),
    delay: now.delayMs === null ? "–" : `${Math.round(now.delayMs)} ms`,
    bytes: bytes(now.bytesDown),
    packets: String(now.packets),
    lost: String(now.lost),
    waiting: stall ? ` waiting ${((time - stall.since) / 1_000).toFixed(1)} s ` : "",
  };
}

/** Characters of a sentence about one lane at one moment. */
const TOLD_CHARS = 200;

/** What happened in `lane` at exactly `time`, as a sentence; empty if nothing did. */
export function describeEvents(lane: Lane, time: number): string {
  const sent = lane.packets.slice(lane.packetsBy(time - 0.001), lane.packetsBy(time)).filter((packet) => packet.sentAt === time);
  const down = sent.filter((packet) => packet.way === "down");
  const lost = down.filter((packet) => packet.isLost).length;
  const parts = [
    down.length > 0 ? `sends ${counted(down.length, "packet")}${lost > 0 ? `, ${lost} of them lost` : ""}` : "",
    lane.changes.includes(time) ? "shows new text" : "",
    sent.length > down.length ? "acknowledges" : "",
  ];
  const told = parts.filter((part) => part !== "").join(", ");
  return told === "" ? "" : `${lane.name} ${told}.`.slice(0, TOLD_CHARS);
}

/** How the lanes stand at `time`, in a sentence for those who cannot see the panes. */
export function describeLanes(lanes: readonly Lane[], time: number): string {
  const told = lanes.map((lane) => {
    const now = lane.moment(time);
    return `${lane.name}: ${counted(now.stalls, "stall")} of ${seconds(now.stalledMs)} together, ${bytes(now.bytesDown)} sent`;
  });
  return `At ${seconds(time)}. ${told.join(". ")}.`;
}

/** How often and how long each of `lanes` has stood still by `time`, in a sentence each. */
export function describeStalls(lanes: readonly Lane[], time: number): string {
  const told = lanes.map((lane) => {
    const { stalls, stalledMs } = lane.moment(time);
    const name = lane.name.replace(/, live$/, "");
    if (stalls === 0) return `${name} never stood still.`;
    return `${name} stood still ${stalls === 1 ? "once" : `${stalls} times`}, ${seconds(stalledMs)} in all.`;
  });
  return told.join(" ");
}
