//! All tests of this crate that use it from outside, as one binary, which links once.

mod coalesce;
mod fallback;
mod frames;
mod hostile;
mod log;
mod messages;
mod padding;
mod pair;
mod readers;
mod receiver;
mod seeded_sessions;
mod sender;
mod sessions;
mod spec;
mod two_paths;
mod vectors;
