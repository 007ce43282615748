// What went wrong with an answer, in words that say what to do about it.

import { LoquentError } from "@loquent/client";

/** What a failure means for the page. */
export type FailureKind =
  /** The conversation is longer than what the model can read. */
  | "context"
  /** A key is needed, or another one. */
  | "key"
  | "other";

export function failureKind(error: unknown): FailureKind {
  if (!(error instanceof LoquentError)) return "other";
  if (error.status === 401) return "key";
  return isContextError(error) ? "context" : "other";
}

function isContextError(error: LoquentError): boolean {
  return error.code === "context_length_exceeded" || (error.status === 400 && /context length|context window|context size/i.test(error.message));
}

/** `error` as it is shown: an error whose message is for people. */
export function explained(error: unknown): unknown {
  if (!(error instanceof LoquentError)) return error;
  const message = explanation(error);
  return message === error.message ? error : new LoquentError(error.kind, message, facts(error));
}

function explanation(error: LoquentError): string {
  if (error.status === 401) return `${error.message} Enter the API key in Settings.`;
  if (error.kind === "detached") return "Handed over: another device goes on with this answer.";
  if (error.retryAfter_s !== undefined) return `${error.message} Try again in ${error.retryAfter_s} s.`;
  if (error.kind === "broken") return `${error.message} Check that the server runs and that you are online.`;
  if (isContextError(error)) return `This is longer than the model can read at once${sizes(error.message)}.`;
  if (/unexpected EOF|chunk size|connection (reset|closed)|error reading a body/i.test(error.message)) {
    return "The server behind this one broke off in the middle of the answer. Try again.";
  }
  return error.message;
}

/** The numbers of a message about the context's length, if it names both. */
function sizes(message: string): string {
  const [, limit, used] = /length is (\d+) tokens\D+(\d+)/.exec(message) ?? [];
  return limit === undefined || used === undefined ? "" : `: ${Number(used).toLocaleString("en")} of ${Number(limit).toLocaleString("en")} tokens`;
}

function facts({ status, code, retryAfter_s }: LoquentError): ConstructorParameters<typeof LoquentError>[2] {
  return {
    ...(status !== undefined && { status }),
    ...(code !== undefined && { code }),
    ...(retryAfter_s !== undefined && { retryAfter_s }),
  };
}

/** Nothing has come for `seconds`. */
export function givenUp(seconds: number): LoquentError {
  return new LoquentError("broken", `Nothing came for ${seconds} s, so the page stopped waiting. Try again, or allow more time in Settings.`);
}
