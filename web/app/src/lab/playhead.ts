// The moment that all panes show. It runs with the screen's frames, stands, or is moved by hand.

/** What a pane needs of a clock: the moment to show, in ms, and to be told when it has changed. */
export interface Moment {
  readonly time: number;
  /** Calls `listener` after each change until the returned function is called. */
  subscribe(listener: () => void): () => void;
}

/** A clock's state as controls show it. */
export type PlayState = "playing" | "paused" | "ended";

/** How the playhead asks for frames; a test can bring its own. */
export interface Frames {
  request(callback: (now: number) => void): number;
  cancel(handle: number): void;
}

const SCREEN: Frames = {
  request: (callback) => requestAnimationFrame(callback),
  cancel: (handle) => cancelAnimationFrame(handle),
};

/** No frame moves the playhead by more than this, so that a page that was hidden goes on where it was. */
const LONGEST_FRAME_MS = 250;

/** Plays a recording whose end may still move. */
export class Playhead implements Moment {
  #time = 0;
  #end = 0;
  #speed = 1;
  #frame: number | null = null;
  #before: number | null = null;
  readonly #listeners = new Set<() => void>();
  readonly #frames: Frames;

  constructor(frames: Frames = SCREEN) {
    this.#frames = frames;
  }

  get time(): number {
    return this.#time;
  }

  /** Where the recording ends, as far as is known. */
  get end(): number {
    return this.#end;
  }

  get speed(): number {
    return this.#speed;
  }

  get state(): PlayState {
    if (this.#frame !== null) return "playing";
    return this.#time >= this.#end && this.#end > 0 ? "ended" : "paused";
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Plays on; from the beginning if it has ended. */
  play(): void {
    if (this.#frame !== null) return;
    if (this.state === "ended") this.#time = 0;
    this.#before = null;
    this.#ask();
    this.#tell();
  }

  pause(): void {
    if (this.#frame === null) return;
    this.#frames.cancel(this.#frame);
    this.#frame = null;
    this.#tell();
  }

  /** Shows the moment `time`, playing or not. */
  seek(time: number): void {
    this.#time = Math.min(Math.max(0, time), this.#end);
    this.#tell();
  }

  set speed(speed: number) {
    this.#speed = speed;
    this.#tell();
  }

  set end(end: number) {
    this.#end = Math.max(0, end);
    this.#time = Math.min(this.#time, this.#end);
    this.#tell();
  }

  #ask(): void {
    this.#frame = this.#frames.request((now) => this.#advance(now));
  }

  #advance(now: number): void {
    const passed = this.#before === null ? 0 : Math.min(Math.max(0, now - this.#before), LONGEST_FRAME_MS);
    this.#before = now;
    this.#time = Math.min(this.#time + passed * this.#speed, this.#end);
    if (this.#time >= this.#end) this.#frame = null;
    else this.#ask();
    this.#tell();
  }

  #tell(): void {
    for (const listener of [...this.#listeners]) listener();
  }
}
