//! OpenAI's JSON: requests in, answers out.

pub mod answer;
pub mod fields;
pub mod message;
pub mod request;
pub mod tools;
