// How each way of delivery works, in a sentence.

const ABOUT: Readonly<Record<string, string>> = {
  tcp: "What web services use today: each token is sent once, and again when it turns out to be lost. Everything behind it waits.",
  duplication: "Every packet leaves several times at once. The copies share one fate when losses come in bursts.",
  eloquent: "Each packet holds the new token and up to nine that are not acknowledged, so whichever arrives can be shown.",
  loquent: "Each packet holds all text that is not acknowledged, and copies leave while the path is losing packets. This is the code that ships.",
};

const SIMPLY: Readonly<Record<string, string>> = {
  tcp: "How websites send text today",
  loquent: "How Loquent sends it",
};

/** The two ways that the page opens with. */
export const FIRST_SCHEMES: readonly string[] = Object.keys(SIMPLY);

/** The scheme `scheme` for somebody who has heard of none. */
export function simplyScheme(scheme: string): string {
  return Object.hasOwn(SIMPLY, scheme) ? (SIMPLY[scheme] ?? "") : "";
}

/** A sentence about the scheme that the server calls `scheme`; empty for one that it knows alone. */
export function aboutScheme(scheme: string): string {
  return Object.hasOwn(ABOUT, scheme) ? (ABOUT[scheme] ?? "") : "";
}
