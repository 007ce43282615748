//! Responses of `/v1/responses`: generated for a reader or in the background, stored, and taken
//! over from a replica that has ended. Routes call it; it knows no HTTP.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod generation;
pub mod live;
pub mod lookup;
pub mod record_log;
pub mod stored;
pub mod storing;
pub mod stream;
pub mod takeover;
