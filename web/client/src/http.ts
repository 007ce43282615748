// Requests by HTTP, made as the app wants them: with its `fetch`, its headers, its cookies.

import type { HttpOptions } from "./answer.js";
import { LoquentError, abortReason, refusal } from "./errors.js";
import type { FetchInit, FetchLike, ResponseLike } from "./platform.js";
import { PathLost } from "./source.js";

/** A request's parts; its headers stand above the app's. */
export interface HttpRequest {
  readonly method: "GET" | "POST" | "DELETE";
  readonly headers?: Record<string, string>;
  readonly body?: string;
  readonly keepalive?: boolean;
}

/** Makes requests. */
export class Http {
  readonly #options: HttpOptions;

  constructor(options: HttpOptions) {
    this.#options = options;
  }

  /**
   * Whether requests may go past `fetch`: a session of WebTransport carries no cookies, and
   * whoever gives a `fetch` of their own wants to see the requests.
   */
  get allowsOtherTransports(): boolean {
    return this.#options.fetch === undefined && this.#options.credentials !== "include";
  }

  /** The app's own headers, named in lower case. */
  get headers(): Record<string, string> {
    const given = Object.entries(this.#options.headers ?? {});
    return Object.fromEntries(given.map(([name, value]) => [name.toLowerCase(), value]));
  }

  /** Makes a request; rejects as `fetch` does. */
  async request(url: URL, request: HttpRequest, signal: AbortSignal | null = null): Promise<ResponseLike> {
    const { fetch = globalThis.fetch as unknown as FetchLike, credentials } = this.#options;
    const init = {
      cache: "no-store",
      ...request,
      headers: { ...this.headers, ...request.headers },
      ...(credentials && { credentials }),
      ...(signal && { signal }),
    } as unknown as FetchInit;
    return await fetch(url.href, init);
  }

  /**
   * A request whose failure is a lost path. `signal` ends it; `stopped` says whether that
   * was what the reader wanted.
   */
  async reach(url: URL, request: HttpRequest, signal: AbortSignal, stopped = signal): Promise<ResponseLike> {
    try {
      return await this.request(url, request, signal);
    } catch (error) {
      if (stopped.aborted) throw abortReason(stopped);
      if (error instanceof LoquentError) throw error;
      throw new PathLost(`The server does not answer.${corsHint(url)}`, { cause: error });
    }
  }
}

/** Browsers do not tell pages of other origins why a request failed; CORS is why as often as not. */
function corsHint(url: URL): string {
  const origin = (globalThis as { location?: { origin?: string } }).location?.origin;
  if (origin === undefined || origin === url.origin) return "";
  return ` Or it does not allow pages of ${origin} (CORS): a Loquent server does with --cors-origin ${origin}.`;
}

/** The refusal that a response is. */
export async function refusedBy(response: ResponseLike): Promise<LoquentError> {
  const body = await response.text().catch(() => "");
  return refusal(response.status, response.headers.get("retry-after"), body);
}
