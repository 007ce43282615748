// The conversation as it is shown, which follows its end while somebody reads there.

import { signal } from "@preact/signals";
import { Fragment, type VNode } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { IconButton } from "../shell/controls.js";
import { current } from "./chats.js";
import { shownPath } from "./conversation.js";
import { TurnView } from "./turn.js";
import { Welcome } from "./welcome.js";

/** As near to the end as this, one is at it, px. */
const NEAR = 80;

const atEnd = signal(true);

function distanceToEnd(): number {
  const page = document.scrollingElement ?? document.documentElement;
  return page.scrollHeight - page.scrollTop - page.clientHeight;
}

function goToEnd(behavior: ScrollBehavior = "instant"): void {
  const page = document.scrollingElement ?? document.documentElement;
  page.scrollTo({ top: page.scrollHeight, behavior });
  atEnd.value = true;
}

export function Thread(): VNode {
  const log = useRef<HTMLDivElement | null>(null);
  const path = shownPath(current.value);
  const { id, leaf, seenFrom } = current.value;
  useEffect(() => (log.current === null ? undefined : followEnd(log.current)), []);
  useLayoutEffect(() => goToEnd(), [id, leaf]);
  return (
    <>
      <div id="log" ref={log} class="log" role="log" aria-label="Conversation" aria-live="off">
        {path.length === 0 && <Welcome />}
        {path.map((turn) => (
          <Fragment key={turn.id}>
            {turn.id === seenFrom && <p class="forgotten">The model no longer sees what is above.</p>}
            <TurnView turn={turn} isLast={turn.id === leaf} />
          </Fragment>
        ))}
      </div>
      {!atEnd.value && path.length > 0 && (
        <div class="jump">
          <IconButton icon="down" label="Go to the end" onClick={() => goToEnd("smooth")} />
        </div>
      )}
    </>
  );
}

/** Keeps the end of `log` in view as it grows, unless the reader has scrolled away. */
function followEnd(log: HTMLElement): () => void {
  const noteScroll = (): void => void (atEnd.value = distanceToEnd() < NEAR);
  const growth = new ResizeObserver(() => {
    if (atEnd.peek()) goToEnd();
    else noteScroll();
  });
  growth.observe(log);
  document.addEventListener("scroll", noteScroll, { passive: true });
  return () => {
    growth.disconnect();
    document.removeEventListener("scroll", noteScroll);
  };
}
