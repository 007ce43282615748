//! OpenAI's JSON: requests in, answers out.

pub mod fields;
pub mod full_response;
pub mod head;
pub mod json;
pub mod logprobs;
pub mod message;
#[cfg(test)]
pub mod parameters;
pub mod request;
pub mod tools;
