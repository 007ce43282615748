// Why nothing of an answer comes just now, as far as this end can know.

import type { Delta, PromptProgress } from "./delta.js";

/** How long nothing may come before it is called a pause, ms: readers begin to take it for a stall. */
const PAUSE_AFTER_MS = 700;

/** How often that is looked at, ms. */
const LOOK_EVERY_MS = 250;

/**
 * A server over WebTransport is asked after 1 s of silence whether it lives, and answers within
 * a round trip: what stays silent for this long, ms, is not just generating nothing.
 */
const SILENT_AFTER_MS = 2_000;

/**
 * Why an answer stands still, since when (`Date.now()`), and what is known about it.
 *
 * - `connecting`: the server has not begun to answer.
 * - `retrying`: the server refused for now, or was not reached; `at_ms` is when it is asked again.
 * - `queue`: the question waits for its turn; `position` counts from 1.
 * - `prompt`: the model reads the question.
 * - `engine`: the server is heard, and has generated nothing since. `why`: what it says of that, or `null`; so it
 *   says that the engine was lost and is being started again, and that the answer then goes on where it stopped.
 * - `network`: the connection is lost and another is being tried; `why` is for logs.
 * - `silence`: nothing is heard of the server at all: the network's fault or the server's.
 * - `hidden`: the page is hidden, and what comes comes late.
 * - `unknown`: nothing tells. Event streams carry signs of life only every few seconds.
 */
export type Pause =
  | { readonly cause: "connecting"; readonly since_ms: number }
  | { readonly cause: "retrying"; readonly since_ms: number; readonly at_ms: number }
  | { readonly cause: "queue"; readonly since_ms: number; readonly position: number; readonly eta_ms: number | null }
  | {
      readonly cause: "prompt";
      readonly since_ms: number;
      readonly processed: number;
      readonly total: number;
      readonly cached: number;
      readonly eta_ms: number | null;
    }
  | { readonly cause: "engine"; readonly since_ms: number; readonly why: string | null }
  | { readonly cause: "network"; readonly since_ms: number; readonly why: string; readonly attempts: number }
  | { readonly cause: "silence"; readonly since_ms: number; readonly heardAt_ms: number }
  | { readonly cause: "hidden"; readonly since_ms: number }
  | { readonly cause: "unknown"; readonly since_ms: number };

/** What is known of the path by which an answer comes. */
export interface PathSigns {
  readonly transport: "webtransport" | "sse";
  readonly heardAt_ms: number;
}

type Stage =
  | { readonly is: "idle" }
  /** Something else than the path stands in the way, told from outside. */
  | { readonly is: "told"; readonly pause: Pause }
  | { readonly is: "streaming"; readonly path: PathSigns };

/** Watches one answer, and reports whenever the reason for its pause changes. */
export class PauseWatch {
  #stage: Stage = { is: "idle" };
  #timer: ReturnType<typeof setInterval> | null = null;
  #reported: Pause | null = null;
  /** When the answer last moved on, and where it stood before its first token. */
  #movedAt_ms = 0;
  #progress: PromptProgress | null = null;
  /** What the server said of the pause that lasts. */
  #why: string | null = null;

  constructor(
    /** Receives the reason, or `null` when the answer moves again. */
    readonly report: (pause: Pause | null) => void,
    readonly clock: () => number = Date.now,
    readonly isHidden: () => boolean = isPageHidden,
  ) {}

  /** The server is asked, and has not begun. */
  handleConnecting(): void {
    this.#tell({ cause: "connecting", since_ms: this.clock() });
  }

  /** The server is asked again at `at_ms`. */
  handleRetry(at_ms: number): void {
    this.#tell({ cause: "retrying", since_ms: this.clock(), at_ms });
  }

  /** The path is lost; `attempts` at another have failed. */
  handleLoss(why: string, attempts: number): void {
    const before = this.#reported?.cause === "network" ? this.#reported.since_ms : this.clock();
    this.#tell({ cause: "network", since_ms: before, why, attempts });
  }

  /** The answer comes by `path` from here on. */
  handlePath(path: PathSigns): void {
    this.#stage = { is: "streaming", path };
    this.#movedAt_ms = this.clock();
    this.#set(null);
    this.#timer ??= watchTimer(() => this.#look());
  }

  /** A delta has come. */
  handleDelta(delta: Delta): void {
    if (delta.kind === "progress") {
      if (this.#progress === null || this.#progress.queued !== delta.queued) this.#movedAt_ms = this.clock();
      this.#progress = delta;
      return this.#look();
    }
    if (delta.kind === "pause") {
      this.#why = delta.why;
      return this.#look();
    }
    if (delta.kind === "open") return;
    this.#why = null;
    this.#progress = null;
    this.#movedAt_ms = this.clock();
    this.#set(null);
  }

  /** The answer is over. */
  handleEnd(): void {
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#timer = null;
    this.#stage = { is: "idle" };
    this.#set(null);
  }

  #tell(pause: Pause): void {
    this.#stage = { is: "told", pause };
    this.#set(pause);
  }

  #look(): void {
    if (this.#stage.is === "streaming") this.#set(this.#pauseOf(this.#stage.path));
  }

  #pauseOf(path: PathSigns): Pause | null {
    const [now, since_ms] = [this.clock(), this.#movedAt_ms];
    const isSilent = path.transport === "webtransport" && now - path.heardAt_ms > SILENT_AFTER_MS;
    if (isSilent) return { cause: "silence", since_ms, heardAt_ms: path.heardAt_ms };
    if (this.#why !== null) return { cause: "engine", since_ms, why: this.#why };
    if (this.#progress) return standing(this.#progress, since_ms);
    if (now - since_ms < PAUSE_AFTER_MS) return null;
    if (this.isHidden()) return { cause: "hidden", since_ms };
    if (path.heardAt_ms - since_ms > PAUSE_AFTER_MS) return { cause: "engine", since_ms, why: null };
    return { cause: "unknown", since_ms };
  }

  #set(pause: Pause | null): void {
    if (JSON.stringify(pause) === JSON.stringify(this.#reported)) return;
    this.#reported = pause;
    this.report(pause);
  }
}

function standing({ queued, eta_ms, processed, total, cached }: PromptProgress, since_ms: number): Pause {
  if (queued > 0) return { cause: "queue", since_ms, position: queued, eta_ms };
  return { cause: "prompt", since_ms, processed, total, cached, eta_ms };
}

/** In Node, watching is no reason to live: an answer that nobody reads on holds no process. */
function watchTimer(look: () => void): ReturnType<typeof setInterval> {
  const timer = setInterval(look, LOOK_EVERY_MS);
  (timer as unknown as { unref?: () => void }).unref?.();
  return timer;
}

function isPageHidden(): boolean {
  return globalThis.document?.visibilityState === "hidden";
}
