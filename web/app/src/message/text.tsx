// A message's text, or its reasoning: pieces go straight onto the page, past the view library.

import type { VNode } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { LiveMessage } from "./live.js";
import { TextStream } from "./markdown/stream.js";
import { type Pause, isOpen } from "./model.js";
import { pauseMark, showCause } from "./pause_mark.js";

export interface LiveTextProps {
  readonly live: LiveMessage;
  readonly part: "text" | "reasoning";
  readonly markdown: boolean;
  /** Told whether all of an answer that is over is on the page. */
  readonly onShown?: (isShown: boolean) => void;
}

export function LiveText({ live, part, markdown, onShown }: LiveTextProps): VNode {
  const root = useRef<HTMLDivElement | null>(null);
  useLayoutEffect(() => (root.current === null ? undefined : show(root.current, live, part, markdown, onShown)), [live, part, markdown]);
  return <div ref={root} class={part === "text" ? "text" : "text reasoned"} />;
}

/** Shows `part` of `live` inside `root` for as long as it grows; returns how to end that. */
function show(root: HTMLElement, live: LiveMessage, part: "text" | "reasoning", markdown: boolean, onShown?: (isShown: boolean) => void): () => void {
  root.replaceChildren();
  onShown?.(false);
  const stream = new TextStream(root, markdown, () => onShown?.(true));
  const marks: HTMLElement[] = [];
  const addMark = (pause: Pause): void => {
    const mark = pauseMark(pause);
    marks[live.message.facts.pauses.indexOf(pause)] = mark;
    stream.mark(mark);
  };
  replay(live, part, stream, addMark);
  const unsubscribe = live.subscribe((change) => {
    if (change.is === part) stream.write(change.piece);
    else if (change.is === "pause" && change.pause.part === part) addMark(change.pause);
    else if (change.is === "cause") showClearCause(live, marks, change.pause);
    else if (change.is === "state" && !isOpen(live.message.state)) stream.end();
  });
  if (!isOpen(live.message.state)) stream.end();
  stream.showNow();
  return () => {
    unsubscribe();
    stream.stop();
  };
}

/** What is there already, with its pauses where they were. */
function replay(live: LiveMessage, part: "text" | "reasoning", stream: TextStream, addMark: (pause: Pause) => void): void {
  const text = live.message[part];
  let at = 0;
  for (const pause of live.message.facts.pauses) {
    if (pause.part !== part || pause.at < at) continue;
    stream.write(text.slice(at, pause.at));
    addMark(pause);
    at = pause.at;
  }
  stream.write(text.slice(at));
}

function showClearCause(live: LiveMessage, marks: readonly HTMLElement[], pause: Pause): void {
  const mark = marks[live.message.facts.pauses.indexOf(pause)];
  if (mark) showCause(mark, pause);
}
