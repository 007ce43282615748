//! An answer that arrives: over whichever transport works, step by step, exactly once,
//! and complete only when its Done was read (D-3.6).
//!
//! A task of its own ([`driver`]) drives each answer, so that acknowledgements leave while nobody
//! asks for the next step. It holds a bounded number of steps; a reader that stops reading stops
//! the transport too.

mod ask;
mod driver;
mod quic;
mod reader;
mod reading_again;
mod sse;
mod state;
mod step;

pub(crate) use ask::ask_over_quic;
pub(crate) use driver::{resume, start_sse};
pub use reader::{Answer, Asked};
pub(crate) use sse::{SsePath, handle_of};
pub use step::{Content, Step, chunk_deltas};
