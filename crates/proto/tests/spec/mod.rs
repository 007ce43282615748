//! What this crate publishes of the protocol by example: a whole session and event streams, as
//! vectors and as appendices of the Internet-Draft.
//!
//! `UPDATE_VECTORS=1 cargo test -p loquent-proto spec` writes them anew.

mod draft;
mod events;
pub mod vector_file;
mod whole_session;
