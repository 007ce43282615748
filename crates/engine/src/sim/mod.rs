//! A simulated engine: text without a model, at a given pace, with faults on request.
//!
//! The text is a function of the prompt alone. A request's i-th token is computed from (hash of its
//! prompt tokens, i), so that equal requests get equal text, no matter what else runs, whether a
//! prefix was shared or a sequence was recomputed. The text is English words, punctuation and, now
//! and then, an emoji spread over four tokens of one byte each, because half characters are what
//! breaks streaming code.
//!
//! An answer ends after [`DEFAULT_LENGTH`] tokens, or after N if the prompt contains `tokens=N`
//! (the last one counts), unless end tokens are forbidden. If the prompt contains `say=TEXT`, the
//! answer is that text, up to the end of the message.
//!
//! The engine accounts for KV cells as llama.cpp's unified cache does, shared ones once, and panics
//! if a scheduler breaks the rules of [`loquent_infer::runner::Runner`].

mod cells;
mod embedder;
mod pace;
mod runner;
mod text;

pub use embedder::{EMBEDDING_WIDTH, SimEmbedder, token_vector};
pub use pace::{StepPace, WorkTimes};
pub use runner::{Fault, SimOptions, SimRunner};

/// Length in tokens of an answer whose prompt does not contain `tokens=N`.
pub const DEFAULT_LENGTH: u64 = 10_000;
