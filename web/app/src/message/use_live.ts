// Draws a component anew when its message changes, once a frame at most.

import { useEffect, useReducer } from "preact/hooks";
import type { Change, LiveMessage } from "./live.js";
import type { Message } from "./model.js";

/** The message as it stands; the component is drawn anew at changes of `kinds`. */
export function useMessage(live: LiveMessage, ...kinds: readonly Change["is"][]): Message {
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    let frame: number | null = null;
    const draw = (): void => {
      frame = null;
      redraw(undefined);
    };
    const unsubscribe = live.subscribe(({ is }) => {
      if (kinds.includes(is)) frame ??= requestAnimationFrame(draw);
    });
    // What changed between drawing and subscribing.
    redraw(undefined);
    return () => {
      unsubscribe();
      if (frame !== null) cancelAnimationFrame(frame);
    };
  }, [live]);
  return live.message;
}
