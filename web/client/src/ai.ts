// The AI SDK's `ChatTransport`: `useChat` asks a Loquent server itself, without a route of the
// app's own, goes on after reloads, and `stop()` ends the generation. The types are shapes, so
// that nothing of the SDK is needed to read them; a test holds them to the SDK's own.

import type { Answer, AnswerOptions, ApiKey } from "./answer.js";
import { resumeChat, streamChat } from "./chat.js";
import type { Json } from "./chunk.js";
import type { Delta } from "./delta.js";
import { isDetached } from "./errors.js";
import type { AbortSignalLike, UrlLike } from "./platform.js";
import type { ChatMessage, ChatRequest } from "./request.js";
import { type UiMessageLike, chatMessages } from "./ui_messages.js";
import { type UiChunk, UiChunkWriter } from "./ui_chunks.js";

export type { UiChunk } from "./ui_chunks.js";
export type { UiMessageLike, UiPartLike } from "./ui_messages.js";

/** What a {@link LoquentChatTransport} needs. */
export interface ChatTransportOptions
  extends Pick<
    AnswerOptions,
    "fetch" | "headers" | "credentials" | "transport" | "pace" | "storage" | "onTransport" | "onPause"
  > {
  /** The endpoint: `.../v1/chat/completions`. */
  readonly url: UrlLike;
  readonly apiKey?: ApiKey | undefined;
  /** Parameters of every question, such as `model`, `temperature` or `tools`. */
  readonly body?: Partial<ChatRequest> | undefined;
  /** How often to ask again when the server is overloaded or not reached. Default 0. */
  readonly retries?: number | undefined;
}

/** What the SDK says with each request. */
interface RequestOptions {
  readonly headers?: Readonly<Record<string, string>> | Iterable<[string, string]> | undefined;
  readonly body?: object | undefined;
  readonly metadata?: unknown;
}

/** For `useChat({ transport: new LoquentChatTransport({ url }) })`. */
export class LoquentChatTransport {
  readonly #options: ChatTransportOptions;
  readonly #active = new Set<Answer>();

  constructor(options: ChatTransportOptions) {
    this.#options = options;
  }

  /** Asks; the stream is the answer. */
  sendMessages = async (
    request: {
      readonly chatId: string;
      readonly messages: readonly UiMessageLike[];
      readonly abortSignal: AbortSignalLike | undefined;
    } & RequestOptions,
  ): Promise<ReadableStream<UiChunk>> => {
    const { url, apiKey, body, retries } = this.#options;
    const messages: ChatMessage[] = chatMessages(request.messages);
    return this.#stream(
      streamChat({
        ...this.#answerOptions(request.chatId, request),
        url,
        apiKey,
        retries,
        body: { return_progress: true, ...body, messages },
        extraBody: request.body as Json | undefined,
      }),
    );
  };

  /** Goes on with the chat's answer that a reload cut; `null` if there is none. */
  reconnectToStream = async (
    request: { readonly chatId: string; readonly abortSignal?: AbortSignalLike | undefined } & RequestOptions,
  ): Promise<ReadableStream<UiChunk> | null> => {
    const options = { ...this.#answerOptions(request.chatId, request), apiKey: this.#options.apiKey };
    const answer = resumeChat(options);
    return answer && this.#stream(answer);
  };

  /** Leaves all answers under way; the server goes on with them. */
  close = (): void => {
    for (const answer of this.#active) answer.detach();
  };

  #answerOptions(
    chatId: string,
    { headers, abortSignal }: RequestOptions & { readonly abortSignal?: AbortSignalLike | undefined },
  ): AnswerOptions & { readonly remember: string } {
    const { url: _url, apiKey: _key, body: _body, retries: _retries, ...options } = this.#options;
    const own = headers === undefined ? [] : Symbol.iterator in headers ? [...headers] : Object.entries(headers);
    return {
      ...options,
      headers: { ...options.headers, ...Object.fromEntries(own) },
      remember: `ai:${chatId}`,
      signal: abortSignal,
    };
  }

  #stream(answer: Answer): ReadableStream<UiChunk> {
    this.#active.add(answer);
    const writer = new UiChunkWriter();
    const deltas = answer[Symbol.asyncIterator]();
    const end = (controller: ReadableStreamDefaultController<UiChunk>, chunks: UiChunk[]): void => {
      this.#active.delete(answer);
      for (const chunk of chunks) controller.enqueue(chunk);
      controller.close();
    };
    return new ReadableStream<UiChunk>({
      start: (controller) => {
        for (const chunk of writer.begin(answer)) controller.enqueue(chunk);
      },
      pull: async (controller) => {
        try {
          const chunks = await nextChunks(deltas, writer);
          if (chunks === null) end(controller, writer.end(answer));
          else for (const chunk of chunks) controller.enqueue(chunk);
        } catch (error) {
          end(controller, endOf(error, writer));
        }
      },
      cancel: () => {
        this.#active.delete(answer);
        answer.detach();
      },
    });
  }
}

/** Chunks of the next deltas that have any; `null` at the end. */
async function nextChunks(deltas: AsyncIterator<Delta>, writer: UiChunkWriter): Promise<UiChunk[] | null> {
  for (;;) {
    const next = await deltas.next();
    if (next.done) return null;
    const chunks = writer.chunks(next.value);
    if (chunks.length > 0) return chunks;
  }
}

/** How a stream ends whose answer did not: stopped, left, or failed. */
function endOf(error: unknown, writer: UiChunkWriter): UiChunk[] {
  if (isDetached(error)) return [];
  if (error instanceof DOMException && error.name === "AbortError") return [...writer.close(), { type: "abort" }];
  return [...writer.close(), { type: "error", errorText: error instanceof Error ? error.message : String(error) }];
}
