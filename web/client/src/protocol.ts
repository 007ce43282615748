// The delivery protocol without I/O, for other transports and for tests.

export * from "./wire.js";
export * from "./frame.js";
export * from "./delta.js";
export * from "./assembler.js";
export * from "./playout.js";
export * from "./receiver.js";
export * from "./message.js";
