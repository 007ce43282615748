// A history of the world of replicas as a table: who did what to whom, and what was out of order meanwhile.

import type { VNode } from "preact";
import { useState } from "preact/hooks";

import { PLACES } from "./history.js";
import type { Place, WorldEvent, WorldHistory } from "./history.js";

export interface HistoryViewProps {
  readonly name: string;
  readonly history: WorldHistory;
  readonly onClose: () => void;
}

export function HistoryView({ name, history, onClose }: HistoryViewProps): VNode {
  const [subject, setSubject] = useState("");
  // Faults explain what happens to all.
  const isShown = ({ subjects, fault }: WorldEvent): boolean => subject === "" || fault !== null || subjects.includes(subject);
  const shown = history.events.filter(isShown);
  return (
    <section class="world" aria-labelledby="world-title">
      <header class="lab-head">
        <h1 id="world-title">{`A world of replicas: ${name}`}</h1>
        <p>
          Three replicas, their store and their clients in virtual time. A column is red while something is wrong there.{" "}
          <a href="docs/world">What the world is</a>
        </p>
      </header>
      {history.outcome.map((line) => (
        <p key={line} class={line.startsWith("broken:") ? "world-broken" : "world-outcome"}>
          {line}
        </p>
      ))}
      {history.isCut && <p class="lab-note">The history is longer than a page can show; its beginning is left out.</p>}
      <div class="lab-ways">
        <label>
          Show{" "}
          <select value={subject} onChange={(event) => setSubject(event.currentTarget.value)}>
            <option value="">everything</option>
            {history.subjects.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <button type="button" onClick={onClose}>
          Back to the laboratory
        </button>
      </div>
      <div class="world-window" tabIndex={0} role="group" aria-labelledby="world-title">
        <table>
          <thead>
            <tr>
              <th scope="col">s</th>
              {PLACES.map((place) => (
                <th key={place} scope="col">
                  {place}
                </th>
              ))}
              <th scope="col">event</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((event, at) => (
              <Row key={at} event={event} />
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Row({ event }: { readonly event: WorldEvent }): VNode {
  return (
    <tr class={event.fault === null ? "" : "world-fault"}>
      <td class="world-time">{(event.at / 1_000).toFixed(3)}</td>
      {PLACES.map((place) => (
        <td key={place} class={marks(event, place)}>
          {event.faulty.includes(place) && <span class="unseen">disturbed</span>}
        </td>
      ))}
      <td class="world-text">{event.text}</td>
    </tr>
  );
}

/** The classes of the cell of `place`: its state, and its part in the event. */
function marks({ from, to, fault, faulty }: WorldEvent, place: Place): string {
  const ends = [PLACES.indexOf(from), PLACES.indexOf(to)];
  const [first, last, at] = [Math.min(...ends), Math.max(...ends), PLACES.indexOf(place)];
  const classes = ["world-cell"];
  if (faulty.includes(place)) classes.push("world-faulty");
  if (place === from && fault === null) classes.push("world-from");
  if (place === to && from !== to) classes.push("world-to");
  if (at > first && at <= last) classes.push("world-left");
  if (at >= first && at < last) classes.push("world-right");
  return classes.join(" ");
}
