// What the package takes from the platform it runs on, by shape: its declarations then need
// neither the DOM library nor Node's, and whatever has the shape fits.

/** A URL, as text or as an object such as `URL`. */
export type UrlLike = string | { readonly href: string };

/** What is needed of an `AbortSignal`. */
export interface AbortSignalLike {
  readonly aborted: boolean;
  readonly reason?: unknown;
  addEventListener(type: "abort", listener: () => void): void;
  removeEventListener(type: "abort", listener: () => void): void;
}

/** What is needed of a `Response`; without `body` nothing can be streamed. */
export interface ResponseLike {
  readonly ok: boolean;
  readonly status: number;
  readonly headers: { get(name: string): string | null };
  readonly body?: ByteStreamLike | null;
  text(): Promise<string>;
  json(): Promise<unknown>;
}

/** What is needed of a `ReadableStream` of bytes. */
export interface ByteStreamLike {
  getReader(): ByteReaderLike;
}

/** What is needed of a reader of bytes. */
export interface ByteReaderLike {
  read(): Promise<{ readonly done: boolean; readonly value?: Uint8Array | undefined }>;
  cancel(reason?: unknown): Promise<void>;
}

/** What a {@link FetchLike} is told of a request. */
export interface FetchInit {
  readonly method: string;
  readonly headers: Record<string, string>;
  readonly body?: string;
  /** An `AbortSignal`, whose class each platform declares for itself: hand it on. */
  readonly signal?: never;
  readonly cache?: "no-store";
  readonly credentials?: Credentials;
  readonly keepalive?: boolean;
}

/** Whether requests carry cookies, as in `fetch`. */
export type Credentials = "omit" | "same-origin" | "include";

/** A `fetch`: the platform's, or one with its signature. */
export type FetchLike = (url: string, init: FetchInit) => Promise<ResponseLike>;

/** What is needed of a `Storage`: `sessionStorage` and `localStorage` have it. */
export interface StorageLike {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}
