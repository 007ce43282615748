// The delivery protocol without I/O, for other transports and for tests.

export * from "./wire.js";
export * from "./frame.js";
export * from "./record.js";
export * from "./assembler.js";
export * from "./pace.js";
export * from "./receiver.js";
export * from "./session.js";
