//! OpenAI's Responses API: `/v1/responses` and related routes.
//!
//! A response consists of an answer's records and the parameters of its request. The records alone
//! determine its events, their numbers and its object ([`events`]). A response that is read again,
//! during generation or from the store, thus gives the same events with the same numbers.

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
