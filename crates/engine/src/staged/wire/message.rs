//! The types of the messages between the runner and its stages.

use loquent_infer::runner::{RunError, Sampled, Slot, Span};
use loquent_infer::sampling::{Sampler, Sampling};
use loquent_infer::token::{RowError, TokenId};

use super::hidden_states::Dtype;
use crate::KvType;
use crate::staged::StageSizes;
use crate::staged::auth::PROOF_BYTES;

/// First bytes of a greeting, which distinguish a stage from other servers.
pub const MAGIC: [u8; 4] = *b"LQST";
/// Version of the stage protocol; both ends must have the same.
pub const VERSION: u16 = 2;
/// Maximum bytes of a text in a message.
pub(super) const MAX_TEXT_BYTES: usize = 1024;

/// The process that dialled a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialerRole {
    /// The runner: a control connection.
    Runner,
    /// The previous stage: a connection that carries its hidden states.
    Peer,
}

/// The runner's request to open a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// Index of the receiving stage, from 0.
    pub index: u16,
    /// Number of stages of the model.
    pub count: u16,
    /// Address of the next stage; empty for the last.
    pub next: String,
    /// True if the next stage is in the runner's own process. This stage is then too, and the link
    /// between them needs no certificates.
    pub next_is_inside: bool,
    /// Number format of hidden states.
    pub dtype: Dtype,
    /// Maximum sequences with KV at once.
    pub slots: u16,
    /// KV cells of all slots together.
    pub kv_cells: u32,
    /// Maximum tokens of a sequence.
    pub context_tokens: u32,
    /// Maximum rows of a batch.
    pub batch_tokens: u32,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Emulated delay of everything that this stage sends, in µs.
    pub delay_us: u32,
    /// Emulated rate of everything that this stage sends, in bytes/s; 0 for no limit.
    pub bytes_per_s: u64,
}

/// A batch between two stages.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// Number of the batch, rising by one within a session.
    pub id: u64,
    /// The sequences; `tokens` numbers their rows.
    pub spans: Vec<Span>,
    /// Sequences that failed in an earlier stage.
    pub failed: Vec<(Slot, RowError)>,
    /// Times in the stages so far, in order.
    pub timings: Vec<StageTiming>,
    /// Hidden states, a row for each position.
    pub rows: Vec<f32>,
}

/// Time of a batch in one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageTiming {
    /// From arrival to the native call, in µs.
    pub wait_us: u32,
    /// The native call and sampling, in µs.
    pub compute_us: u32,
}

/// The result of a batch, from the last stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    /// Number of the batch.
    pub id: u64,
    /// Times in all stages, in order.
    pub timings: Vec<StageTiming>,
    /// A row for each span that samples and for each that failed.
    pub outcome: Result<Vec<Sampled>, RunError>,
}

/// Totals of a stage since its process began.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageTotals {
    /// Native calls, each for one batch.
    pub batches: u64,
    /// Sequences in all native calls.
    pub spans: u64,
    /// Time in native calls and sampling, in µs.
    pub busy_us: u64,
    /// Sum of the batches' waits for their native call, in µs.
    pub wait_us: u64,
    /// Longest such wait, in µs.
    pub longest_wait_us: u64,
    /// Sequences of the largest batch.
    pub most_spans: u64,
    /// Bytes sent to the next stage and to the runner.
    pub sent_bytes: u64,
    /// Age of the process's first session, in µs.
    pub up_us: u64,
}

/// State of a sampler, from which the last stage restores it.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerParts {
    /// Sampling parameters, without the grammar: the runner follows it.
    pub sampling: Sampling,
    /// Completion tokens generated so far: the position in the random sequence.
    pub generated: u64,
    /// Tokens that penalties apply to, with their occurrences.
    pub seen: Vec<(TokenId, u32)>,
    /// Tokens in the window of the repetition penalty, the oldest first.
    pub latest: Vec<TokenId>,
}

impl From<&Sampler> for SamplerParts {
    fn from(sampler: &Sampler) -> Self {
        Self {
            sampling: sampler.sampling().clone(),
            generated: sampler.generated(),
            seen: sampler.seen().collect(),
            latest: sampler.latest().collect(),
        }
    }
}

impl From<SamplerParts> for Sampler {
    fn from(parts: SamplerParts) -> Self {
        Sampler::restore(parts.sampling, parts.generated, parts.seen, &parts.latest)
    }
}

/// A message of the stage protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum StageMessage {
    /// First message, from the end that accepted: its challenge.
    Greeting([u8; PROOF_BYTES]),
    /// The dialler's answer to a greeting.
    Hello {
        /// Role of the dialler: the runner or a stage.
        role: DialerRole,
        /// Number of the session, chosen by the runner.
        session: u64,
        /// Answer to the greeting's challenge: proof of the key.
        proof: [u8; PROOF_BYTES],
        /// The dialler's own challenge.
        challenge: [u8; PROOF_BYTES],
    },
    /// Answer to the hello's challenge: proves that the accepting end knows the key too.
    Welcome([u8; PROOF_BYTES]),
    /// Reason for refusing; the connection ends.
    Refused(String),
    /// Request to open a session.
    Open(Box<OpenSession>),
    /// The session is open; sizes of the stage.
    Opened(StageSizes),
    /// A batch to compute.
    Rows(Rows),
    /// A batch that an earlier stage could not compute.
    Aborted {
        /// Number of the batch.
        id: u64,
        /// Times in the stages so far, in order.
        timings: Vec<StageTiming>,
        /// The earlier stage's error.
        error: RunError,
    },
    /// Share a past, as `Runner::fork` does.
    Fork {
        /// Slot whose past is shared.
        from: Slot,
        /// Empty slot that gets it.
        to: Slot,
        /// Number of positions to share, from the first on.
        len: u32,
    },
    /// Tokens that a sequence may choose next; sent before the rows that sample.
    Allow {
        /// Slot of the sequence.
        slot: Slot,
        /// A bit for each token, as `Constraint::allowed` returns it.
        allowed: Vec<u32>,
    },
    /// Forget positions, as `Runner::truncate` does.
    Truncate {
        /// Slot of the sequence.
        slot: Slot,
        /// Number of positions to keep, from the first on.
        len: u32,
    },
    /// Give a slot a sampler, as `Runner::assign` does.
    Assign {
        /// Slot of the sequence.
        slot: Slot,
        /// State of its sampler.
        sampler: Box<SamplerParts>,
    },
    /// Forget all sequences and overwrite the KV cells.
    Wipe,
    /// The result of a batch, from the last stage to the runner.
    Done(Done),
    /// Liveness probe with a number, from the runner.
    Ping(u64),
    /// Answer to a ping: its number, and the stage's totals.
    Pong(u64, StageTotals),
}

impl StageMessage {
    /// The number of the message's kind on the wire.
    pub(super) fn kind(&self) -> u8 {
        match self {
            Self::Greeting(_) => 1,
            Self::Hello { .. } => 2,
            Self::Welcome(_) => 3,
            Self::Refused(_) => 4,
            Self::Open(_) => 5,
            Self::Opened(_) => 6,
            Self::Rows(_) => 16,
            Self::Aborted { .. } => 17,
            Self::Fork { .. } => 18,
            Self::Truncate { .. } => 19,
            Self::Assign { .. } => 20,
            Self::Wipe => 21,
            Self::Done(_) => 22,
            Self::Allow { .. } => 23,
            Self::Ping(_) => 32,
            Self::Pong(..) => 33,
        }
    }
}
