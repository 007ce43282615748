// Play, pause, step, scrub and speed.

import type { VNode } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { seconds } from "./describe.js";
import type { Playhead, PlayState } from "./playhead.js";

const SPEEDS: readonly number[] = [0.1, 0.25, 0.5, 1, 2, 4];

/** How finely the playhead can be moved by hand, in ms; steps go finer. */
const SCRUB_MS = 50;

export interface PlayerProps {
  readonly playhead: Playhead;
  readonly isReady: boolean;
  /** Moves to the next moment at which something happens, or to the last one. */
  readonly onStep: (direction: 1 | -1) => void;
  /** Off where the play button stands elsewhere. Default on. */
  readonly hasPlayButton?: boolean;
}

/** What the play button would do. */
const PLAY_LABELS: Readonly<Record<PlayState, string>> = { playing: "Pause", paused: "Play", ended: "Play again" };

/** The play button alone. */
export function PlayButton({ playhead, isReady }: { readonly playhead: Playhead; readonly isReady: boolean }): VNode {
  const [state, setState] = useState(playhead.state);
  useLayoutEffect(() => {
    const follow = (): void => setState(playhead.state);
    follow();
    return playhead.subscribe(follow);
  }, [playhead]);
  const toggle = (): void => (state === "playing" ? playhead.pause() : playhead.play());
  return (
    <button type="button" class="primary" disabled={!isReady} onClick={toggle}>
      {PLAY_LABELS[state]}
    </button>
  );
}

export function Player({ playhead, isReady, onStep, hasPlayButton = true }: PlayerProps): VNode {
  const [speed, setSpeed] = useState(playhead.speed);
  const scrub = useRef<HTMLInputElement>(null);
  const time = useRef<HTMLSpanElement>(null);

  useLayoutEffect(() => {
    const follow = (): void => {
      if (!scrub.current || !time.current) return;
      // Changed by hand: a render for each frame would cost more than the panes.
      scrub.current.max = String(Math.ceil(playhead.end / SCRUB_MS) * SCRUB_MS);
      scrub.current.value = String(Math.round(playhead.time));
      scrub.current.setAttribute("aria-valuetext", seconds(playhead.time));
      time.current.textContent = `${seconds(playhead.time)} of ${seconds(playhead.end)}`;
    };
    follow();
    return playhead.subscribe(follow);
  }, [playhead]);

  const step = (direction: 1 | -1): void => {
    playhead.pause();
    onStep(direction);
  };
  const chooseSpeed = (event: Event): void => {
    const chosen = SPEEDS.find((one) => String(one) === (event.currentTarget as HTMLSelectElement).value) ?? 1;
    playhead.speed = chosen;
    setSpeed(chosen);
  };
  return (
    <div class="lab-player" role="group" aria-label="Playback">
      {hasPlayButton && <PlayButton playhead={playhead} isReady={isReady} />}
      <button type="button" disabled={!isReady} title="To the moment before at which something happened" onClick={() => step(-1)}>
        Step back
      </button>
      <button type="button" disabled={!isReady} title="To the next moment at which something happens" onClick={() => step(1)}>
        Step
      </button>
      <input
        ref={scrub}
        type="range"
        class="lab-scrub"
        min={0}
        max={0}
        step={SCRUB_MS}
        aria-label="Moment"
        disabled={!isReady}
        onInput={(event) => playhead.seek(event.currentTarget.valueAsNumber)}
      />
      <span ref={time} class="lab-time" />
      <label class="lab-speed">
        <span>Speed</span>
        <select value={String(speed)} onChange={chooseSpeed}>
          {SPEEDS.map((one) => (
            <option key={one} value={String(one)}>{`${one}×`}</option>
          ))}
        </select>
      </label>
    </div>
  );
}
