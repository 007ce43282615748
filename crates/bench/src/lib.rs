//! Load generator and reports for any OpenAI-compatible server.
