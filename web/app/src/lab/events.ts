// What can happen while one answer is delivered in one way. A pane shows a stream of these,
// whether a simulator computed them or a live connection reports them.

/** A run of neighbouring tokens, by their numbers in the answer, from 0. */
export interface TokenRun {
  readonly first: number;
  readonly count: number;
}

/** A way of a packet: down to the reader, or up with an acknowledgement. */
export type Way = "down" | "up";

/**
 * One event. `at` is milliseconds since the delivery began; the events of one lane come in the order
 * of their times. Packets are numbered by their sender's order over both ways, from 0.
 */
export type LaneEvent =
  /** The model generated the next token. */
  | { readonly kind: "token"; readonly at: number; readonly text: string }
  /** A packet left. `carried` is null where nobody can look into it. */
  | {
      readonly kind: "sent";
      readonly at: number;
      readonly packet: number;
      readonly way: Way;
      /** Bytes on the wire, headers included. */
      readonly bytes: number;
      readonly carried: readonly TokenRun[] | null;
    }
  | { readonly kind: "arrived"; readonly at: number; readonly packet: number }
  | { readonly kind: "lost"; readonly at: number; readonly packet: number }
  /** The reader sees more of the answer: this text, which completes so many tokens. */
  | { readonly kind: "shown"; readonly at: number; readonly text: string; readonly tokens: number }
  /** The reader has waited since `since` for text, for longer than a pause that goes unnoticed. */
  | { readonly kind: "stalled"; readonly at: number; readonly since: number }
  /** The wait is over. */
  | { readonly kind: "resumed"; readonly at: number }
  /** Nothing follows; `complete` if the reader has the whole answer. */
  | { readonly kind: "ended"; readonly at: number; readonly complete: boolean };

/** The longest wait between two changes of the text that is no stall, in ms (the Eloquent paper). */
export const NOT_A_STALL_MS = 200;
