// What the dashboard shows at the moment, for all its parts.

import { signal } from "@preact/signals";
import type { Details } from "./events.js";
import type { FeedState } from "./feed.js";
import { History } from "./history.js";

/** Where the page stands with its server. */
export const feedState = signal<FeedState>({ is: "connecting" });

/** What has no history; `null` before the first second. */
export const details = signal<Details | null>(null);

/** The last minutes. It changes in place: `second` says when. */
export const history = new History();

/** Counts what `history` has been given. */
export const second = signal(0);

/** How much of it the charts show, seconds. */
export const span_s = signal(300);
