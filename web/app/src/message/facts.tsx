// The last line of a message: what it waits for, how it came, and when each token was shown.

import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { LiveMessage } from "./live.js";
import { useMessage } from "./use_live.js";
import { factsOf, standing } from "./words.js";

/** What is going on while nothing comes. */
export function Standing({ live }: { readonly live: LiveMessage }): VNode | null {
  const { state } = useMessage(live, "state");
  const found = standing(state);
  if (found === null) return null;
  return (
    <div class={`standing ${state.is}`} data-cause={state.is === "paused" ? state.cause : undefined}>
      <span>{found.text}</span>
      {found.share !== null && <progress aria-label="Prompt read" max={1} value={found.share} />}
    </div>
  );
}

interface FactsProps {
  readonly live: LiveMessage;
  /** The user wants event streams. */
  readonly wantsSse: boolean;
}

/** How the message came. It unfolds into the strip of token times. */
export function Facts({ live, wantsSse }: FactsProps): VNode | null {
  const message = useMessage(live, "facts", "state");
  const [isUnfolded, unfold] = useState(false);
  const facts = factsOf(message);
  if (facts.length === 0) return null;
  const line = facts.map(({ text, about }, index) => (
    <span key={index}>
      <span title={about}>{text}</span>
      {index < facts.length - 1 && <span class="separator"> ·</span>}
      {index < facts.length - 1 && " "}
    </span>
  ));
  if (message.facts.times.length < 4) return <div class="facts">{line}</div>;
  return (
    <details class="facts" onToggle={(event) => unfold(event.currentTarget.open)}>
      <summary title="When each token was shown">{line}</summary>
      {isUnfolded && <LoadedTiming live={live} wantsSse={wantsSse} />}
    </details>
  );
}

type TimingModule = typeof import("./timing.js");

/** The strip is loaded when it is first wanted. */
function LoadedTiming(props: FactsProps): VNode | null {
  const [module, setModule] = useState<TimingModule | null>(null);
  useEffect(() => void import("./timing.js").then(setModule, () => {}), []);
  return module && <module.Timing {...props} />;
}
