// Streams answers of a Loquent server, or of any OpenAI-compatible one.

export { forgetChat, prepare, resumeChat, streamChat } from "./chat.js";
export type {
  Answer,
  AnswerOptions,
  AnswerState,
  ApiKey,
  ChatOptions,
  HttpOptions,
  ReferredOptions,
  RememberedOptions,
} from "./answer.js";
export type { Chunk, ChatChunk, ChunkUsage, Json, TextChunk } from "./chunk.js";
export type { Delta, PromptProgress, ToolCall } from "./delta.js";
export { AlreadyReadError, LoquentError } from "./errors.js";
export type { ErrorFacts, ErrorKind } from "./errors.js";
export type { Pause } from "./pause.js";
export type { AbortSignalLike, Credentials, FetchInit, FetchLike, ResponseLike, StorageLike, UrlLike } from "./platform.js";
export type { Playout, PlayoutChoice } from "./playout.js";
export type { ChatMessage, ChatRequest, CompletionRequest, ContentPart, Tool } from "./request.js";
export type { AnswerReference, TransportName } from "./source.js";
export { cachedToken } from "./token.js";
export type { FetchedToken } from "./token.js";
