// The strip of token times with its words: what it shows, what is under the pointer, and its
// gaps in numbers.

import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { adoptStyles } from "../shell/adopted.js";
import { WithFlags } from "../shell/with_flags.js";
import type { LiveMessage } from "./live.js";
import { type Message, isOpen } from "./model.js";
import styles from "./timing.css" with { type: "text" };
import { type Moment, type StripContents, drawStrip, gapsOf, momentAt, nearest, rangeOf } from "./strip.js";
import { useMessage } from "./use_live.js";
import { causeWord, duration } from "./words.js";
import { surroundings, whyEventStream } from "./why_sse.js";

adoptStyles(styles);

export function Timing({ live, wantsSse }: { readonly live: LiveMessage; readonly wantsSse: boolean }): VNode {
  const message = useMessage(live, "facts", "state", "pause", "cause");
  const canvas = useRef<HTMLCanvasElement | null>(null);
  const [cursor, setCursor] = useState<Moment | null>(null);
  const contents = contentsOf(live);
  useEffect(() => {
    const strip = canvas.current;
    if (strip === null) return;
    const draw = (): void => drawStrip(strip, contentsOf(live), cursor);
    draw();
    const resized = new ResizeObserver(draw);
    resized.observe(strip);
    return () => resized.disconnect();
  });
  const point = (event: PointerEvent): void => {
    const { left, width } = (event.currentTarget as HTMLCanvasElement).getBoundingClientRect();
    const { from, to } = rangeOf(contents);
    setCursor(nearest(contents.times, from + ((event.clientX - left) / Math.max(1, width)) * (to - from)));
  };
  return (
    <div class="timing">
      <p class="timing-title">
        When tokens were shown{" "}
        <span>{isOpen(message.state) ? "each line is a token; the last 12 s" : "each line is a token; seconds after the question"}</span>
      </p>
      <canvas
        ref={canvas}
        class="strip"
        tabIndex={0}
        role="img"
        aria-label={`When tokens were shown. ${gapsSentence(message)}`}
        onPointerMove={point}
        onPointerLeave={() => setCursor(null)}
        onKeyDown={(event) => step(event, contents.times, cursor, setCursor)}
      />
      <p class="timing-words">{cursor ? momentSentence(message, cursor) : gapsSentence(message)}</p>
      {message.facts.transport === "sse" && (
        <p class="timing-why">
          <WithFlags text={whyEventStream(surroundings(wantsSse))} />
        </p>
      )}
    </div>
  );
}

function contentsOf(live: LiveMessage): StripContents {
  const { facts, state } = live.message;
  return { times: facts.times, pauses: facts.pauses, now: isOpen(state) ? performance.now() - live.askedAt : null };
}

/** Arrow keys go from token to token. */
function step(event: KeyboardEvent, times: readonly number[], cursor: Moment | null, setCursor: (moment: Moment | null) => void): void {
  const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
  if (by === 0) return;
  event.preventDefault();
  let index = 0;
  while (cursor && index < times.length / 2 && (times[2 * index] ?? 0) < cursor.at) index += 1;
  setCursor(momentAt(times, cursor ? index + by : 0) ?? cursor);
}

function momentSentence({ facts }: Message, { at, tokens, gap, total }: Moment): string {
  const which = tokens === 1 ? `Token ${total}` : `Tokens ${total - tokens + 1} to ${total}`;
  const since = gap === null ? "" : `, ${duration(gap)} after the one before`;
  const pause = facts.pauses.find(({ from, ms }) => Math.abs(from + ms - at) < 2);
  return `${which} at ${(at / 1_000).toFixed(2)} s${since}${pause ? ` (${causeWord(pause.cause)})` : ""}`;
}

function gapsSentence({ facts }: Message): string {
  const gaps = gapsOf(facts.times);
  if (gaps === null) return "One token.";
  return `Gaps: half under ${duration(Math.max(1, gaps.median))}, 95 % under ${duration(Math.max(1, gaps.p95))}, the longest ${duration(gaps.longest)}`;
}
