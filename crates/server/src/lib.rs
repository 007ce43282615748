//! The OpenAI-compatible HTTP server: admission, the engine thread, delivery.
