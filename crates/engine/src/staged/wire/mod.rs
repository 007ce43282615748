//! Messages between stages, as bytes: `spec/stages.md`.
//!
//! Every message is a frame: its length in four bytes, its kind in one byte, its body. Numbers
//! are little-endian. The decoder trusts no length: it takes bytes from a slice that has been
//! received, and reads lists from it item by item.

mod hidden_states;
mod malformed;
mod message;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use hidden_states::{Dtype, RowFormat, SMALL_FRAME_BYTES};
pub use malformed::Malformed;
pub use message::{
    DialerRole, Done, MAGIC, OpenSession, Rows, SamplerParts, StageMessage, StageTiming,
    StageTotals, VERSION,
};
pub(crate) use reader::BodyReader;
pub(crate) use writer::BodyWriter;
