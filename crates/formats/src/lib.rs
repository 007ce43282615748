//! Formats of models: GGUF files, chat templates and grammars, read without an engine.
//!
//! A model file is one of the largest inputs that a server takes, and it comes from strangers.
//! This crate reads what the server must know before any engine touches the file, and turns what
//! a request says into what a model reads:
//!
//! - [`gguf`] reads and writes the headers of GGUF files, within limits on their numbers, and
//!   plans how a model is split into stages.
//! - [`template`] renders messages with a model's chat template and encodes them, so that text of
//!   a user never becomes a control token.
//! - [`grammar`] compiles JSON schemas, tools, regular expressions, GBNF and Lark into masks over
//!   a vocabulary, within a bound on time and memory.
//!
//! Three types carry most of it: [`gguf::Header`], what a file says of itself;
//! [`template::ChatTemplate`], from messages to prompt segments; [`grammar::Compiler`], from the
//! shape of an answer to its constraint.
//!
//! ```
//! use loquent_formats::template::{CHATML, ChatMessage, ChatTemplate, Conversation, PromptEnding};
//!
//! let template = ChatTemplate::new(CHATML)?;
//! let messages = [ChatMessage::new("user", "What is a token?")];
//! let conversation = Conversation {
//!     messages: &messages,
//!     tools: &[],
//!     ending: PromptEnding::NewAnswer,
//!     bos_token: "",
//!     eos_token: "<|im_end|>",
//!     now_unix_s: 0,
//!     nonce: 1,
//!     extra: &[],
//! };
//! let segments = template.render(&conversation, &|text| text.contains("<|im_"), 1 << 20)?;
//! let prompt: String = segments.iter().map(|segment| segment.text.as_str()).collect();
//! assert!(prompt.starts_with("<|im_start|>user\nWhat is a token?<|im_end|>"));
//! # Ok::<(), loquent_formats::template::TemplateError>(())
//! ```

#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod gguf;
pub mod grammar;
mod sync;
pub mod template;
