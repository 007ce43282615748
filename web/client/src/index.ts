// Streams answers of a Loquent server, or of any OpenAI-compatible one.

export { Answer, forgetChat, prepare, resumeChat, streamChat } from "./chat.js";
export type { AnswerOptions, AnswerState, ChatOptions } from "./chat.js";
export type { Chunk, ChunkChoice, ChunkUsage } from "./chunk.js";
export type { PaceChoice } from "./datagram_answer.js";
export { LoquentError } from "./errors.js";
export type { ErrorFacts, ErrorKind } from "./errors.js";
export type { Pace } from "./pace.js";
export type { Delta } from "./record.js";
export type { Reference, TransportName } from "./source.js";
