// The demonstration model answers faster than anybody reads, so that its streaming could not be
// seen. Its answers are therefore read no faster than this; what they contain is untouched.

import type { Delta } from "@loquent/client";

const TOKENS_PER_S = 40;

/** Yields `deltas` at reading speed, but at once while nobody looks. `isOn` may change meanwhile. */
export async function* atReadingPace(deltas: AsyncIterable<Delta>, isOn: () => boolean): AsyncGenerator<Delta> {
  let due = 0;
  for await (const delta of deltas) {
    const now = performance.now();
    if (isOn() && document.visibilityState === "visible") {
      due = Math.max(due, now);
      if (due > now) await new Promise((resolve) => setTimeout(resolve, due - now));
      due += ("tokens" in delta ? delta.tokens : 0) * (1000 / TOKENS_PER_S);
    }
    yield delta;
  }
}
