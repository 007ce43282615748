//! Other servers that this one speaks to.

pub mod http_client;
