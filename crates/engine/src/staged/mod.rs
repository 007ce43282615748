//! One model over several processes: each computes some of the layers.
//!
//! A [`StagedRunner`] is a runner like any other. It turns tokens into hidden states and
//! sends them to the first stage; each stage computes its layers for the whole batch in one
//! native call and passes the rows on; the last one samples and answers the runner
//! directly. Everything that changes a sequence travels the same way in the same order, so
//! the stages agree without asking each other. `spec/stages.md` has the wire format.

mod auth;
pub mod groups;
mod head;
mod link;
pub mod model;
mod runner;
mod server;
mod stage;
mod stays;
mod tls;
pub mod wire;

pub use auth::{Key, Trust};
pub use groups::Groups;
pub use head::{Cluster, HeadOptions};
pub use link::Shape;
pub use runner::{Embed, StagedRunner};
pub use server::{MakeLayers, StageServer, StopHandle};
pub use stage::Stage;
pub use tls::Tls;
pub use wire::Dtype;

use loquent_infer::runner::{RunError, Slot, Span};

use crate::gguf::split::StageKeys;

/// Most batches in flight through the stages at once.
pub const MAX_GROUPS: usize = 16;

/// Why a stage refuses a second runner; it may be free a moment later.
const BUSY: &str = "this stage works for another";

/// What a stage holds and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageSizes {
    /// Its place in the model.
    pub keys: StageKeys,
    /// Floats of a hidden state.
    pub width: usize,
    /// Logits of a row; 0 where the head is elsewhere.
    pub vocab: u32,
    /// Sequences with KV at once.
    pub slots: u16,
    /// KV cells of all slots together.
    pub kv_cells: u32,
    /// Longest sequence in tokens.
    pub context_tokens: u32,
    /// Most rows in one call.
    pub batch_tokens: u32,
    /// Whether pasts can be shared and cut.
    pub shares_prefix: bool,
}

/// Consecutive layers with their KV cache. All methods are called from one thread, with
/// arguments that [`Stage`] has checked.
pub trait Layers: Send {
    /// What they hold.
    fn sizes(&self) -> StageSizes;

    /// A batch has come: waits until the processors are free for it.
    fn begin(&mut self) {}

    /// The batch is computed, and its tokens are chosen.
    fn end(&mut self) {}

    /// Computes a row of hidden states for each position of `spans`, in their order.
    ///
    /// # Errors
    /// [`RunError::CacheFull`] when nothing was computed, [`RunError::Backend`] otherwise.
    fn compute(&mut self, rows: &[f32], spans: &[Span]) -> Result<(), RunError>;

    /// The hidden states after the last computation, a row for each of its rows; only where
    /// the head is elsewhere.
    fn hidden(&self) -> &[f32];

    /// The logits of the last computation's row number `row`, the last of a span; only where
    /// the head is here.
    fn logits(&mut self, row: usize) -> &mut [f32];

    /// Makes the empty slot `to` share the first `len` positions of `from`.
    fn fork(&mut self, from: Slot, to: Slot, len: u32);

    /// Forgets all positions of `slot` from `len` on; false when that cannot be.
    fn truncate(&mut self, slot: Slot, len: u32) -> bool;

    /// Forgets everything and overwrites what the cells held.
    fn wipe(&mut self);
}

/// Why stages do not work together.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The connection broke, or could not be made.
    #[error("{peer}: {source}")]
    Io {
        /// The other end.
        peer: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The other end broke the protocol.
    #[error("{peer} broke the protocol: {what}")]
    Protocol {
        /// The other end.
        peer: String,
        /// How.
        what: String,
    },
    /// The other end does not know the key.
    #[error("{peer} has another key; start both ends with the same --stage-key")]
    Key {
        /// The other end.
        peer: String,
    },
    /// The other end could not be made sure of, or does not speak TLS.
    #[error("{peer}: {what}")]
    Tls {
        /// The other end.
        peer: String,
        /// What is wrong.
        what: String,
    },
    /// Certificates or keys cannot be used.
    #[error("{0}")]
    Certificates(String),
    /// The other end said no.
    #[error("{peer} refused: {why}")]
    Refused {
        /// The other end.
        peer: String,
        /// Its reason.
        why: String,
    },
    /// The stages are no parts of one model in order.
    #[error("these stages do not make a model: {0}")]
    Mismatch(String),
    /// A stage stopped answering.
    #[error("{peer} does not answer since {silent_ms} ms")]
    Stalled {
        /// The stage.
        peer: String,
        /// How long.
        silent_ms: u64,
    },
}
