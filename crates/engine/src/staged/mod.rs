//! One model over several processes: each computes some of the layers.
//!
//! A [`StagedRunner`] is a runner like any other. It converts tokens to hidden states and sends
//! them to the first stage; each stage computes its layers for the whole batch in one native call
//! and passes the rows on; the last one samples and answers the runner directly. Everything that
//! changes a sequence travels the same way in the same order, so the stages agree without asking
//! each other. `spec/stages.md` defines the wire format.

mod answer_check;
mod auth;
mod connection;
mod coordinator;
mod handshakes;
pub mod pipeline_depth;
mod places;
mod runner;
mod server;
mod stage;
mod stage_stats;
mod tls;
pub mod wire;

pub use auth::{Key, StageTrust};
pub use connection::LinkEmulation;
pub use coordinator::{Cluster, ClusterOptions};
pub use pipeline_depth::PipelineDepth;
pub use runner::{Embed, StagedRunner};
pub use server::{MakeLayers, StageServer, StopHandle};
pub use stage::Stage;
pub use tls::Tls;
pub use wire::Dtype;

use loquent_infer::runner::{RunError, Slot, Span};

use loquent_formats::gguf::split::StageKeys;

/// Maximum batches in flight through the stages at once. Chosen by hand: with 16 or 32 sequences,
/// greater depths would mean batches of one or two rows, which cost almost as much as larger ones.
pub const MAX_PIPELINE_DEPTH: usize = 16;

/// Reason for a stage to refuse a second runner; it may be free a moment later.
const BUSY: &str = "this stage works for another runner";

/// Layers of a stage, and the sizes that its memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageSizes {
    /// Position of the stage in the model.
    pub keys: StageKeys,
    /// Floats of a hidden state.
    pub width: usize,
    /// Logits of a row; 0 if another stage has the output head.
    pub vocab: u32,
    /// Maximum sequences with KV at once.
    pub slots: u16,
    /// KV cells of all slots together.
    pub kv_cells: u32,
    /// Maximum tokens of a sequence.
    pub context_tokens: u32,
    /// Maximum rows of a native call.
    pub batch_tokens: u32,
    /// True if the past of a sequence can be shared and cut.
    pub shares_prefix: bool,
}

/// Consecutive layers with their KV cache. All methods are called from one thread, with
/// arguments that [`Stage`] has checked.
pub trait Layers: Send {
    /// Place in the model, and sizes.
    fn sizes(&self) -> StageSizes;

    /// Called when a batch has arrived: waits until the processors are free for it.
    fn begin(&mut self) {}

    /// Called when the batch is computed and its tokens are chosen.
    fn end(&mut self) {}

    /// Computes a row of hidden states for each position of `spans`, in order.
    ///
    /// # Errors
    /// [`RunError::CacheFull`] if nothing was computed, [`RunError::Backend`] otherwise.
    fn compute(&mut self, rows: &[f32], spans: &[Span]) -> Result<(), RunError>;

    /// Returns the hidden states after the last computation, a row for each of its rows. Called
    /// only on stages without the output head.
    fn hidden(&self) -> &[f32];

    /// Returns the logits of row number `row` of the last computation, the last row of a span.
    /// Called only on the stage with the output head.
    fn logits(&mut self, row: usize) -> &mut [f32];

    /// Makes the empty slot `to` share the first `len` positions of `from`.
    fn fork(&mut self, from: Slot, to: Slot, len: u32);

    /// Drops all positions of `slot` from `len` on; returns false if it cannot.
    fn truncate(&mut self, slot: Slot, len: u32) -> bool;

    /// Drops everything and overwrites the KV cells.
    fn wipe(&mut self);
}

/// Reason why stages do not work together.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The connection broke, or could not be made.
    #[error("{peer}: {source}")]
    Io {
        /// Address of the other end.
        peer: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The other end violated the protocol.
    #[error("{peer} broke the stage protocol: {what}")]
    Protocol {
        /// Address of the other end.
        peer: String,
        /// The unexpected or missing message.
        what: String,
    },
    /// The other end has another key.
    #[error("{peer} has another key; start both ends with the same --stage-key")]
    Key {
        /// Address of the other end.
        peer: String,
    },
    /// The other end could not be authenticated, or does not speak TLS.
    #[error("{peer}: {what}")]
    Tls {
        /// Address of the other end.
        peer: String,
        /// The problem, and how to fix it.
        what: String,
    },
    /// Certificates or keys cannot be used, with the name of the file.
    #[error("{0}")]
    Certificates(String),
    /// The other end refused the connection or the session.
    #[error("{peer} refused: {why}")]
    Refused {
        /// Address of the other end.
        peer: String,
        /// The other end's reason.
        why: String,
    },
    /// The stages are not the parts of one model in order.
    #[error("these stages do not make a model: {0}; check the order and the files of --stages")]
    Mismatch(String),
    /// A stage stopped answering pings.
    #[error("{peer} has not answered for {silent_ms} ms")]
    Stalled {
        /// Address of the stage.
        peer: String,
        /// Time since its last answer.
        silent_ms: u64,
    },
}

impl StageError {
    /// Returns true if another attempt may succeed without any change.
    fn may_pass(&self) -> bool {
        match self {
            Self::Io { .. } | Self::Stalled { .. } => true,
            Self::Refused { why, .. } => why == BUSY,
            _ => false,
        }
    }
}
