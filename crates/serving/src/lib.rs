//! Serving: from a valid request to the flushes of its answer.
//!
//! A request passes the modules in this order. [`body`] receives it, charged to the memory of all
//! requests ([`memory`]). [`api`] parses it into a [`Request`](api::request::Request), which is
//! valid by construction. [`identity`] and [`auth`] say whose it is. [`admission`] gives it a
//! permit, or refuses it with a time after which to try again. [`prompts`] renders and tokenizes
//! it on threads of its own ([`prompt_threads`]). [`engine_thread`] runs the scheduler and the
//! model, one step after the other, and sends each step as one message to [`output`], where
//! [`completion`] makes text, reasoning and tool calls of tokens and merges them by the stream
//! interval. The caller reads [`Flush`](flush::Flush)es from an
//! [`ActiveRequest`](active_request::ActiveRequest), and drops it to cancel the request.
//!
//! The crate knows HTTP's types but neither sockets nor routes: `loquent-server` has those, and
//! `loquent-gateway` fills the same [`flush_channel`] from another server. Errors are
//! [`ApiError`](error::ApiError)s, and that module alone knows status codes.
//!
//! ```
//! use loquent_serving::api::request::{Endpoint, Request};
//!
//! let body = br#"{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 5}"#;
//! let request = Request::parse(Endpoint::Chat, body).expect("it is valid");
//! assert_eq!(request.max_tokens, Some(5));
//!
//! let error = Request::parse(Endpoint::Chat, br#"{"messages": 7}"#).unwrap_err();
//! assert_eq!(error.status(), 400);
//! ```

pub mod active_request;
pub mod admission;
pub mod answer_times;
pub mod api;
pub mod auth;
pub mod blocking_workers;
pub mod body;
pub mod budget;
pub mod cache_domain;
pub mod caller;
pub mod clock;
pub mod completion;
pub mod confine;
pub mod engine_thread;
pub mod engine_watch;
pub mod entropy;
pub mod error;
pub mod event_writer;
pub mod flush;
pub mod flush_channel;
pub mod forecast;
pub mod full_answer;
pub mod full_response;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod held_answer;
pub mod identity;
pub mod infill;
pub mod keep_alive;
pub mod loading_answer;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod obfuscation;
pub mod otel;
pub mod output;
pub mod peer;
pub mod pending_deltas;
pub mod prefix_store;
pub mod prompt_threads;
pub mod prompts;
pub mod query;
pub mod records;
pub mod request_log;
pub mod request_spans;
pub mod serving_config;
mod sync;
pub mod trace_context;
pub mod usage;
