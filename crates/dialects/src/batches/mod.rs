//! OpenAI's files and batches: uploads, the lines of a batch, and its states.

pub mod batch;
pub mod file;
pub mod lines;
pub mod upload;
