//! What this crate publishes of the protocol by example: a whole session and event streams, as
//! vectors and as appendices of the Internet-Draft.
//!
//! `UPDATE_VECTORS=1 cargo test -p loquent-proto --test spec` writes them anew.

mod draft;
mod events;
mod vector_file;
mod whole_session;
