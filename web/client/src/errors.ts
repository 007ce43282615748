// Everything that can go wrong with an answer, for programs and for people.

/**
 * - `refused`: the server said no before it began; see `status`, `code`, `retryAfter_s`.
 * - `failed`: the server began and reports that it cannot finish.
 * - `gone`: the rest is not kept any more, or never was under this name.
 * - `superseded`: the answer has too many readers, and another one has this one's place.
 * - `unreadable`: what came is not the protocol.
 * - `broken`: the connection is lost and the answer could not be resumed; `cause` has more.
 * - `detached`: the program has left the answer by `detach()`; the server goes on with it.
 * - `unsupported`: this platform's `fetch` gives no streams.
 */
export type ErrorKind =
  | "refused"
  | "failed"
  | "gone"
  | "superseded"
  | "unreadable"
  | "broken"
  | "detached"
  | "unsupported";

/** Further facts about a {@link LoquentError}. */
export interface ErrorFacts {
  /** HTTP status of a refusal. */
  readonly status?: number;
  /** The server's word for programs. */
  readonly code?: string;
  /** When to try again, seconds. */
  readonly retryAfter_s?: number;
  /** What was behind it, such as the error of `fetch`. */
  readonly cause?: unknown;
}

/** Why an answer is incomplete. What was yielded before is correct. */
export class LoquentError extends Error {
  override readonly name = "LoquentError";
  readonly status: number | undefined;
  readonly code: string | undefined;
  readonly retryAfter_s: number | undefined;

  constructor(
    readonly kind: ErrorKind,
    message: string,
    facts: ErrorFacts = {},
  ) {
    super(message, facts.cause === undefined ? {} : { cause: facts.cause });
    this.status = facts.status;
    this.code = facts.code;
    this.retryAfter_s = facts.retryAfter_s;
  }
}

/**
 * The answer is being read already, or was: one question is asked once. `finalText()` gives the
 * text however often it is called.
 */
export class AlreadyReadError extends TypeError {
  override readonly name = "AlreadyReadError";

  constructor() {
    super("This answer was iterated already. Use finalText() or text, or ask again by streamChat().");
  }
}

/** Whether `error` says that the program has left the answer. */
export function isDetached(error: unknown): boolean {
  return error instanceof LoquentError && error.kind === "detached";
}

/** A refusal, from an HTTP response's parts; the body is OpenAI's error object, if it is one. */
export function refusal(status: number, retryAfter: string | null, body: string): LoquentError {
  const { message, code, type } = errorObject(body);
  const seconds = Number(retryAfter ?? NaN);
  return new LoquentError("refused", message ?? `The server answered ${status}.`, {
    status,
    ...((code ?? type) && { code: (code ?? type) as string }),
    ...(Number.isFinite(seconds) && { retryAfter_s: seconds }),
  });
}

function errorObject(body: string): { message?: string; code?: string; type?: string } {
  try {
    const { error } = JSON.parse(body) as { error?: unknown };
    if (typeof error !== "object" || error === null) return {};
    const strings = Object.entries(error).filter(([, value]) => typeof value === "string");
    return Object.fromEntries(strings);
  } catch {
    return {};
  }
}

/** What `signal.throwIfAborted()` throws, for callers that want the same from an event. */
export function abortReason(signal: { readonly reason?: unknown }): unknown {
  return signal.reason ?? new DOMException("The answer was stopped.", "AbortError");
}
