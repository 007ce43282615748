// The lanes side by side as a table: what the panes show, for those who compare figures or cannot see
// pictures.

import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";

import { bytes, seconds } from "./describe.js";
import type { Lane } from "./lane.js";
import type { Playhead } from "./playhead.js";

/** How often the figures change while the lanes run, in ms. */
const EVERY_MS = 250;

export function ComparisonTable({ lanes, playhead }: { readonly lanes: readonly Lane[]; readonly playhead: Playhead }): VNode {
  const time = useSlowTime(playhead);
  return (
    <section class="lab-table" aria-labelledby="lab-table-title">
      <h2 id="lab-table-title">{`Side by side at ${seconds(time)}`}</h2>
      <div class="lab-table-window" tabIndex={0} role="group" aria-labelledby="lab-table-title">
        <table>
          <thead>
            <tr>
              {["", "tokens shown", "stalls", "time stalled", "mean delay", "sent", "acknowledged with", "packets", "lost"].map((title) => (
                <th key={title} scope="col">
                  {title === "" ? <span class="unseen">Way</span> : title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {lanes.map((lane) => (
              <Row key={lane.name} lane={lane} time={time} />
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Row({ lane, time }: { readonly lane: Lane; readonly time: number }): VNode {
  const now = lane.moment(time);
  const cells = [
    `${now.shownTokens} of ${lane.generated.length}`,
    String(now.stalls),
    seconds(now.stalledMs),
    now.delayMs === null ? "–" : `${Math.round(now.delayMs)} ms`,
    bytes(now.bytesDown),
    bytes(now.bytesUp),
    String(now.packets),
    String(now.lost),
  ];
  return (
    <tr>
      <th scope="row">{lane.name}</th>
      {cells.map((cell, index) => (
        <td key={index}>{cell}</td>
      ))}
    </tr>
  );
}

/** The playhead's time, a few times a second and always when it stands. */
function useSlowTime(playhead: Playhead): number {
  const [time, setTime] = useState(playhead.time);
  useEffect(() => {
    let before = Number.NEGATIVE_INFINITY;
    const follow = (): void => {
      const now = performance.now();
      if (playhead.state === "playing" && now - before < EVERY_MS) return;
      before = now;
      setTime(playhead.time);
    };
    follow();
    return playhead.subscribe(follow);
  }, [playhead]);
  return time;
}
