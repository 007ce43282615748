// Streams answers of a Loquent server, or of any OpenAI-compatible one.

export { Answer, forgetChat, prepare, resumeChat, streamChat } from "./chat.js";
export type { AnswerOptions, AnswerState, ChatOptions } from "./chat.js";
export type { Chunk, ChunkChoice, ChunkUsage } from "./chunk.js";
export type { PlayoutChoice } from "./quic.js";
export { LoquentError } from "./errors.js";
export type { ErrorFacts, ErrorKind } from "./errors.js";
export type { Playout } from "./playout.js";
export type { Delta, PromptProgress } from "./delta.js";
export type { AnswerHandle, TransportName } from "./source.js";
