//! OpenAI's JSON: requests in, answers out.

mod closed_schema;
pub mod embeddings;
pub mod fields;
pub mod forms;
pub mod head;
pub mod json;
pub mod logprobs;
pub mod media;
pub mod message;
pub mod parameter_table;
pub mod part_text;
pub mod reasoning;
pub mod request;
pub mod sampling;
pub mod stored_chat;
pub mod tools;
