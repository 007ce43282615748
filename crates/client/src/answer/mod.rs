//! An answer in transit: delivered over whichever transport works, step by step, exactly once, and
//! complete only once its Done has been read (D-3.6).
//!
//! A separate task ([`driver`]) drives each answer, so that acknowledgements are sent even while
//! nobody asks for the next step. It buffers a bounded number of steps; a reader that stops reading
//! stops the transport too.

mod ask;
mod driver;
mod quic;
mod quic_lanes;
mod reader;
mod reading_again;
mod spare;
mod sse;
mod state;
mod step;

pub(crate) use ask::ask_over_quic;
pub(crate) use driver::{resume, start_sse};
pub use reader::{Answer, Asked};
pub(crate) use sse::{SsePath, handle_of};
pub use step::{Content, Step, chunk_deltas};
