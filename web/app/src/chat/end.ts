// The end of the conversation, which the page keeps in view while somebody reads there.

import { signal } from "@preact/signals";

/** As near to the end as this, one is at it, px. */
const NEAR = 80;

/** Whether the end is in view. */
export const atEnd = signal(true);

function distanceToEnd(): number {
  const page = document.scrollingElement ?? document.documentElement;
  return page.scrollHeight - page.scrollTop - page.clientHeight;
}

export function goToEnd(behavior: ScrollBehavior = "instant"): void {
  const page = document.scrollingElement ?? document.documentElement;
  page.scrollTo({ top: page.scrollHeight, behavior });
  atEnd.value = true;
}

/** Keeps the end of `log` in view as it grows, unless the reader has scrolled away. */
export function followEnd(log: HTMLElement): () => void {
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
