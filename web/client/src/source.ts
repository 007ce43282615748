// What both transports give: an answer's deltas from some offset on, until it ends or the
// path does.

import type { Delta } from "./delta.js";

/** Where a server names the parameters of a request that had no effect. */
export const IGNORED_HEADER = "x-loquent-ignored-parameters";

/** By this a server knows a question that is asked again (S-4.9). */
export const REPEAT_HEADER = "idempotency-key";

/** How an answer travels. */
export type TransportName = "webtransport" | "sse";

/** What proves the right to go on with an answer. */
export interface AnswerReference {
  /** 32 hex digits. */
  readonly id: string;
  /** 32 hex digits. */
  readonly token: string;
}

/** A delta, and the log offset from which another path goes on; `null`: none can. */
export interface Item {
  readonly offset: number | null;
  readonly delta: Delta;
}

/** The path is dead; another may go on where the items ended. Anything else thrown is final. */
export class PathLost extends Error {
  override readonly name = "PathLost";

  constructor(
    message: string,
    options: ErrorOptions = {},
    /** The same by the same transport would fail again (S-2.6). */
    readonly isTransportUseless = false,
  ) {
    super(message, options);
  }
}

/**
 * One path of an answer. Iterating it yields items up to the last delta (`done`, or
 * `error`), or throws {@link PathLost}, or a `LoquentError`.
 */
export interface Source extends AsyncIterable<Item> {
  readonly transport: TransportName;
  /** Known once the server has begun; `null` where the answer cannot be resumed. */
  readonly reference: AnswerReference | null;
  /** Names of the request's parameters that the server ignored, if it said so. */
  readonly ignoredParameters: string | null;
  /** When the server was last heard from, be it only to say that it lives: `Date.now()`. */
  readonly heardAt_ms: number;
  /** The reader wants no more: ends the generation, not only the path. */
  cancel(): void;
  /** The reader leaves; the server goes on for others, and for its grace period. */
  leave(): void;
}
