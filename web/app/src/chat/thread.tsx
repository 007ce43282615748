// The conversation as it is shown, which follows its end while somebody reads there.

import { Fragment, type VNode } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { current } from "./chats.js";
import { shownPath } from "./conversation.js";
import { followEnd, goToEnd } from "./end.js";
import { TurnView } from "./turn.js";
import { Welcome } from "./welcome.js";

export function Thread(): VNode {
  const log = useRef<HTMLDivElement | null>(null);
  const path = shownPath(current.value);
  const { id, leaf, seenFrom } = current.value;
  useEffect(() => (log.current === null ? undefined : followEnd(log.current)), []);
  useLayoutEffect(() => goToEnd(), [id, leaf]);
  return (
    <div id="log" ref={log} class="log" role="log" aria-label="Conversation" aria-live="off">
      {path.length === 0 && <Welcome />}
      {path.map((turn) => (
        <Fragment key={turn.id}>
          {turn.id === seenFrom && <p class="forgotten">The model no longer sees what is above.</p>}
          <TurnView turn={turn} isLast={turn.id === leaf} />
        </Fragment>
      ))}
    </div>
  );
}
