// Why an answer comes as an event stream and not over WebTransport, and what can be done about it.

/** What the browser and the page's address allow. */
export interface Surroundings {
  /** Browsers give WebTransport to https pages and to pages of this machine alone. */
  readonly isSecure: boolean;
  readonly hasWebTransport: boolean;
  /** The user wants event streams. */
  readonly isChosen: boolean;
}

/** The surroundings of this page. */
export function surroundings(isChosen: boolean): Surroundings {
  return { isSecure: globalThis.isSecureContext !== false, hasWebTransport: "WebTransport" in globalThis, isChosen };
}

/** The reason, and what to do, in a sentence or two. */
export function whyEventStream({ isSecure, hasWebTransport, isChosen }: Surroundings): string {
  if (isChosen) return "Event stream, because the settings ask for it: choose “automatic” there for WebTransport.";
  if (!isSecure) return `Event stream, because this page is open over plain http. ${SECURE_CONTEXT}`;
  if (!hasWebTransport) return "Event stream, because this browser has no WebTransport. Current Chromium, Edge and Firefox have it, and Safari from 26.4 on.";
  return "Event stream, because WebTransport did not get through: UDP to the server’s port may be blocked on the way.";
}

/** What a page that is open from another machine needs. */
export const SECURE_CONTEXT =
  "Browsers allow WebTransport only on https pages (a secure context) and on the server’s own machine. " +
  "Start the server with --tls-self-signed, or with a certificate of your own (--tls-cert and --tls-key), and open the page with https://.";
