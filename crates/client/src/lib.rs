//! The native client of Loquent and of any OpenAI-compatible server.
