//! OpenAI's Responses API: `/v1/responses` and related routes.
//!
//! A response consists of an answer's records and the parameters of its request. The records alone
//! determine its events, their numbers and its object ([`events`]). A response that is read again,
//! during generation or from the store, thus gives the same events with the same numbers.

pub mod compact;
pub mod events;
pub mod input;
mod item;
mod namespaces;
pub mod object;
pub mod paging;
pub mod request;
mod summary;
mod tools;
pub mod truncate;
