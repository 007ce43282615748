//! OpenAI's Responses API: `/v1/responses` and what belongs to it.
//!
//! A response is an answer's records and what its request said. The records alone decide its
//! events, their numbers and its object ([`events`]), so a response that is read again, while it is
//! generated or from the store, gives the same events with the same numbers.

mod events;
mod generation;
mod input;
mod item;
mod live;
mod object;
mod paging;
mod record_log;
pub mod request;
mod resolve;
mod routes;
mod stored;
mod storing;
mod stream;
mod takeover;
mod tools;
mod truncate;

pub use live::LiveResponses;
pub use routes::routes;
