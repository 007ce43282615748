// What an answer's end means: it is whole, somebody stopped it, or something went wrong.

export type Failure =
  | { readonly is: "none" }
  | { readonly is: "stopped" }
  | { readonly is: "failed"; readonly error: string; readonly retry: boolean };

/** Longer messages are cut: they come from servers. */
const LONGEST = 1_000;

/** Refusals that the same question would meet again. */
const FINAL_STATUSES = new Set([400, 403, 404, 405, 413, 415, 422]);

/** `error` as the client library throws it; `null`: none. */
export function failureOf(error: unknown): Failure {
  if (error === null || error === undefined) return { is: "none" };
  if (!(error instanceof Error)) return { is: "failed", error: String(error).slice(0, LONGEST), retry: true };
  if (error.name === "AbortError") return { is: "stopped" };
  const status = "status" in error ? error.status : undefined;
  const retry = typeof status !== "number" || !FINAL_STATUSES.has(status);
  return { is: "failed", error: error.message.slice(0, LONGEST), retry };
}
