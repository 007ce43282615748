//! The messages between stages, as bytes: `spec/stages.md`.
//!
//! Every message is a frame: its length in four bytes, its kind in one, its body. Numbers
//! are little-endian. Nothing here trusts a length: bytes are taken from a slice that has
//! been received, and lists are read item by item from it.

use half::f16;
use half::slice::HalfFloatSliceExt;
use loquent_infer::runner::{RunError, Sampled, Slot, Span};
use loquent_infer::sampling::{Logprobs, SampledToken, Sampler, Sampling};
use loquent_infer::token::{RowError, TokenId};

use super::StageSizes;
use super::auth::PROOF_BYTES;
use crate::KvType;
use crate::gguf::split::StageKeys;

/// First bytes of every connection, from both ends.
pub const MAGIC: [u8; 4] = *b"LQST";
/// Version of this format; both ends must have the same.
pub const VERSION: u16 = 1;
/// Longest frame before a session is open, in bytes.
pub const SMALL_FRAME_BYTES: usize = 64 << 10;
/// What a frame of an open session may have beside hidden states, in bytes: a sampler with
/// penalties lists the tokens of its sequence.
const MORE_FRAME_BYTES: usize = 4 << 20;
/// Floats that share a scale in [`Dtype::Q8`].
const BLOCK: usize = 32;
/// Longest text in a message, in bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// Bytes that are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// How hidden states travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dtype {
    /// As they are computed: every answer equals the unsplit model's.
    #[default]
    F32,
    /// Rounded to 16 bits.
    F16,
    /// Rounded to 8 bits, with a scale for every 32 floats.
    Q8,
}

impl std::str::FromStr for Dtype {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "q8" => Ok(Self::Q8),
            other => Err(format!("f32, f16 or q8, not {other}")),
        }
    }
}

impl Dtype {
    /// Bytes of `floats` floats.
    pub fn bytes(self, floats: usize) -> usize {
        match self {
            Self::F32 => floats * 4,
            Self::F16 => floats * 2,
            Self::Q8 => floats + floats.div_ceil(BLOCK) * 4,
        }
    }

    fn number(self) -> u8 {
        self as u8
    }

    fn from_number(n: u8) -> Result<Self, Malformed> {
        [Self::F32, Self::F16, Self::Q8]
            .into_iter()
            .find(|dtype| dtype.number() == n)
            .ok_or(Malformed("an unknown type of floats"))
    }

    /// Appends `floats` to `out`.
    pub fn encode(self, floats: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::F32 => out.extend(floats.iter().flat_map(|x| x.to_le_bytes())),
            Self::F16 => {
                let limit = f16::MAX.to_f32();
                let clamped: Vec<f32> = floats.iter().map(|x| x.clamp(-limit, limit)).collect();
                let mut halves = vec![f16::ZERO; floats.len()];
                halves.convert_from_f32_slice(&clamped);
                out.extend(halves.iter().flat_map(|x| x.to_le_bytes()));
            }
            Self::Q8 => floats.chunks(BLOCK).for_each(|block| encode_block(block, out)),
        }
    }

    /// The `floats` floats that `bytes` hold, all of them.
    ///
    /// # Errors
    /// When the length is another.
    pub fn decode(self, bytes: &[u8], floats: usize) -> Result<Vec<f32>, Malformed> {
        if bytes.len() != self.bytes(floats) {
            return Err(Malformed("rows of another size"));
        }
        Ok(match self {
            Self::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Self::F16 => {
                let halves = bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b));
                let mut out = vec![0.0; floats];
                halves.collect::<Vec<_>>().convert_to_f32_slice(&mut out);
                out
            }
            Self::Q8 => bytes.chunks(BLOCK + 4).flat_map(decode_block).collect(),
        })
    }
}

fn encode_block(block: &[f32], out: &mut Vec<u8>) {
    let most = block.iter().fold(0f32, |most, x| most.max(x.abs()));
    // One broken number breaks its block, so that it is noticed at the other end.
    let broken = block.iter().any(|x| !x.is_finite());
    let scale = if broken { f32::NAN } else { most / 127.0 };
    out.extend_from_slice(&scale.to_le_bytes());
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    out.extend(block.iter().map(|x| (x * inverse).round() as i8 as u8));
}

fn decode_block(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let (scale, values) = bytes.split_at(bytes.len().min(4));
    let scale = scale.try_into().map_or(0.0, f32::from_le_bytes);
    values.iter().map(move |&value| f32::from(value as i8) * scale)
}

/// Who opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The runner.
    Head,
    /// The stage before.
    Peer,
}

/// How a session is to be; from the runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// The stage's number, from 0, and how many there are.
    pub index: u16,
    /// Stages.
    pub count: u16,
    /// Where the next stage listens; empty for the last.
    pub next: String,
    /// Whether that is in the runner's own process, as this stage is then: the link between
    /// them needs no certificates.
    pub next_is_inside: bool,
    /// How hidden states travel.
    pub dtype: Dtype,
    /// Sequences with KV at once.
    pub slots: u16,
    /// KV cells of all slots together.
    pub kv_cells: u32,
    /// Longest sequence in tokens.
    pub context_tokens: u32,
    /// Most rows in one batch.
    pub batch_tokens: u32,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Artificial delay of everything sent, in µs.
    pub delay_us: u32,
    /// Artificial rate of everything sent, in bytes/s; 0 for no limit.
    pub bytes_per_s: u64,
}

/// A batch on its way through the stages.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// Its number, rising by one within a session.
    pub id: u64,
    /// The sequences; `tokens` numbers their rows.
    pub spans: Vec<Span>,
    /// Sequences that failed on the way.
    pub failed: Vec<(Slot, RowError)>,
    /// What each stage so far took.
    pub trace: Vec<Lap>,
    /// Hidden states, a row for each position.
    pub rows: Vec<f32>,
}

/// A batch's stay in one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lap {
    /// From arrival to the native call, in µs.
    pub wait_us: u32,
    /// The native call and sampling, in µs.
    pub compute_us: u32,
}

/// What a batch came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    /// The batch's number.
    pub id: u64,
    /// What each stage took.
    pub trace: Vec<Lap>,
    /// A row per sampling span, and one per span that failed.
    pub outcome: Result<Vec<Sampled>, RunError>,
}

/// Totals of a stage since its process began.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Totals {
    /// Native calls.
    pub batches: u64,
    /// Sequences in them.
    pub spans: u64,
    /// Time in them with sampling, in µs.
    pub busy_us: u64,
    /// Waits of batches, summed, in µs.
    pub wait_us: u64,
    /// Longest wait, in µs.
    pub longest_wait_us: u64,
    /// Largest batch in sequences.
    pub most_spans: u64,
    /// Bytes sent to the next stage, or the answers of the last.
    pub sent_bytes: u64,
    /// Age of the process's first session, in µs.
    pub up_us: u64,
}

/// What makes a sampler.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerParts {
    /// How it samples.
    pub sampling: Sampling,
    /// Completion tokens so far.
    pub generated: u64,
    /// Tokens that penalties concern, with their occurrences.
    pub seen: Vec<(TokenId, u32)>,
}

impl From<&Sampler> for SamplerParts {
    fn from(sampler: &Sampler) -> Self {
        Self {
            sampling: sampler.sampling().clone(),
            generated: sampler.generated(),
            seen: sampler.seen().collect(),
        }
    }
}

impl From<SamplerParts> for Sampler {
    fn from(parts: SamplerParts) -> Self {
        Sampler::restore(parts.sampling, parts.generated, parts.seen)
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// First, from the end that accepted: its challenge.
    Greeting([u8; PROOF_BYTES]),
    /// The answer to it, with a challenge of its own.
    Hello {
        /// Who.
        role: Role,
        /// The session's number, chosen by the runner.
        session: u64,
        /// Proof of the key.
        proof: [u8; PROOF_BYTES],
        /// A challenge.
        challenge: [u8; PROOF_BYTES],
    },
    /// The answer to that.
    Welcome([u8; PROOF_BYTES]),
    /// No, and why; the connection ends.
    Refused(String),
    /// How the session is to be.
    Open(Box<Open>),
    /// It is; what the stage holds.
    Opened(StageSizes),
    /// A batch.
    Rows(Rows),
    /// A batch that failed on the way.
    Aborted {
        /// Its number.
        id: u64,
        /// What each stage so far took.
        trace: Vec<Lap>,
        /// Why.
        error: RunError,
    },
    /// `Runner::fork`.
    Fork {
        /// The donor.
        from: Slot,
        /// The heir, empty so far.
        to: Slot,
        /// Positions.
        len: u32,
    },
    /// What the next token of a sequence may be; before the rows that choose it.
    Allow {
        /// The sequence.
        slot: Slot,
        /// As `Constraint::allowed` gives it.
        allowed: Vec<u32>,
    },
    /// `Runner::truncate`.
    Truncate {
        /// The sequence.
        slot: Slot,
        /// Positions that stay.
        len: u32,
    },
    /// `Runner::assign`.
    Assign {
        /// The sequence.
        slot: Slot,
        /// Its sampler.
        sampler: Box<SamplerParts>,
    },
    /// Forget everything, and what the cells held.
    Wipe,
    /// What a batch came to, from the last stage to the runner.
    Done(Done),
    /// Are you there?
    Ping(u64),
    /// I am.
    Pong(u64, Totals),
}

/// What both ends of a connection must know to read each other's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// How hidden states travel.
    pub dtype: Dtype,
    /// Floats of a hidden state; 0 before a session is open.
    pub width: usize,
    /// Most rows in a batch.
    pub batch_tokens: usize,
}

impl Format {
    /// Before a session is open.
    pub const CLOSED: Self = Self { dtype: Dtype::F32, width: 0, batch_tokens: 0 };

    /// Longest frame that makes sense, in bytes.
    pub fn frame_bytes(&self) -> usize {
        match self.width {
            0 => SMALL_FRAME_BYTES,
            width => self
                .dtype
                .bytes(width)
                .saturating_mul(self.batch_tokens)
                .saturating_add(MORE_FRAME_BYTES),
        }
    }
}

impl Message {
    /// Appends the message's frame to `out`.
    pub fn encode(&self, format: &Format, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.push(self.kind());
        self.encode_body(format, &mut Writer(out));
        let len = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }

    fn kind(&self) -> u8 {
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
            Self::Allow { .. } => 23,
            Self::Done(_) => 22,
            Self::Ping(_) => 32,
            Self::Pong(..) => 33,
        }
    }

    fn encode_body(&self, format: &Format, out: &mut Writer<'_>) {
        match self {
            Self::Greeting(challenge) => {
                out.bytes(&MAGIC);
                out.u16(VERSION);
                out.bytes(challenge);
            }
            Self::Hello { role, session, proof, challenge } => {
                out.u8(u8::from(*role == Role::Peer));
                out.u64(*session);
                out.bytes(proof);
                out.bytes(challenge);
            }
            Self::Welcome(proof) => out.bytes(proof),
            Self::Refused(why) => out.text(why),
            Self::Open(open) => out.open(open),
            Self::Opened(sizes) => out.sizes(sizes),
            Self::Rows(rows) => out.rows(rows, format),
            Self::Aborted { id, trace, error } => {
                out.u64(*id);
                out.trace(trace);
                out.run_error(error);
            }
            Self::Fork { from, to, len } => {
                out.u16(from.0);
                out.u16(to.0);
                out.u32(*len);
            }
            Self::Truncate { slot, len } => {
                out.u16(slot.0);
                out.u32(*len);
            }
            Self::Assign { slot, sampler } => {
                out.u16(slot.0);
                out.sampler(sampler);
            }
            Self::Wipe => {}
            Self::Allow { slot, allowed } => {
                out.u16(slot.0);
                out.count(allowed.len());
                allowed.iter().for_each(|word| out.u32(*word));
            }
            Self::Done(done) => out.done(done),
            Self::Ping(number) => out.u64(*number),
            Self::Pong(number, totals) => {
                out.u64(*number);
                out.totals(totals);
            }
        }
    }

    /// The message in `frame`: kind and body, without the length before them.
    ///
    /// # Errors
    /// When it is none, or has bytes left over.
    pub fn decode(frame: &[u8], format: &Format) -> Result<Self, Malformed> {
        let mut input = Reader(frame);
        let kind = input.u8()?;
        let message = Self::decode_body(kind, &mut input, format)?;
        if input.0.is_empty() { Ok(message) } else { Err(Malformed("bytes after a message")) }
    }

    fn decode_body(kind: u8, input: &mut Reader<'_>, format: &Format) -> Result<Self, Malformed> {
        Ok(match kind {
            1 => Self::Greeting(input.greeting()?),
            2 => Self::Hello {
                role: if input.bool()? { Role::Peer } else { Role::Head },
                session: input.u64()?,
                proof: input.array()?,
                challenge: input.array()?,
            },
            3 => Self::Welcome(input.array()?),
            4 => Self::Refused(input.text()?),
            5 => Self::Open(Box::new(input.open()?)),
            6 => Self::Opened(input.sizes()?),
            16 => Self::Rows(input.rows(format)?),
            17 => {
                let (id, trace) = (input.u64()?, input.trace()?);
                Self::Aborted { id, trace, error: input.run_error()? }
            }
            18 => {
                let (from, to) = (input.slot()?, input.slot()?);
                Self::Fork { from, to, len: input.u32()? }
            }
            19 => Self::Truncate { slot: input.slot()?, len: input.u32()? },
            20 => Self::Assign { slot: input.slot()?, sampler: Box::new(input.sampler()?) },
            21 => Self::Wipe,
            23 => Self::Allow { slot: input.slot()?, allowed: input.list(4, Reader::u32)? },
            22 => Self::Done(input.done()?),
            32 => Self::Ping(input.u64()?),
            33 => Self::Pong(input.u64()?, input.totals()?),
            _ => return Err(Malformed("an unknown kind of message")),
        })
    }
}

/// Appends fields to a frame.
struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn u8(&mut self, n: u8) {
        self.0.push(n);
    }

    fn kv_type(&mut self, kv_type: KvType) {
        let number = KvType::ALL.iter().position(|kind| *kind == kv_type);
        self.u8(number.expect("`ALL` has every type") as u8);
    }

    fn u16(&mut self, n: u16) {
        self.bytes(&n.to_le_bytes());
    }

    fn u32(&mut self, n: u32) {
        self.bytes(&n.to_le_bytes());
    }

    fn u64(&mut self, n: u64) {
        self.bytes(&n.to_le_bytes());
    }

    fn f32(&mut self, x: f32) {
        self.bytes(&x.to_le_bytes());
    }

    fn count(&mut self, n: usize) {
        self.u32(u32::try_from(n).expect("lists in messages are short"));
    }

    /// At most [`MAX_TEXT_BYTES`] of it.
    fn text(&mut self, text: &str) {
        let longest = text.len().min(MAX_TEXT_BYTES);
        let end = (0..=longest).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        self.count(end);
        self.bytes(&text.as_bytes()[..end]);
    }

    fn open(&mut self, open: &Open) {
        self.u16(open.index);
        self.u16(open.count);
        self.text(&open.next);
        self.u8(open.next_is_inside.into());
        self.u8(open.dtype.number());
        self.u16(open.slots);
        self.u32(open.kv_cells);
        self.u32(open.context_tokens);
        self.u32(open.batch_tokens);
        self.kv_type(open.kv_type);
        self.u32(open.delay_us);
        self.u64(open.bytes_per_s);
    }

    fn sizes(&mut self, sizes: &StageSizes) {
        self.u64(sizes.keys.fingerprint);
        self.u32(sizes.keys.first_layer);
        self.u32(sizes.keys.layers);
        self.u32(sizes.keys.all_layers);
        self.u32(sizes.width as u32);
        self.u32(sizes.vocab);
        self.u16(sizes.slots);
        self.u32(sizes.kv_cells);
        self.u32(sizes.context_tokens);
        self.u32(sizes.batch_tokens);
        self.u8(sizes.shares_prefix.into());
    }

    fn rows(&mut self, rows: &Rows, format: &Format) {
        self.u64(rows.id);
        self.trace(&rows.trace);
        self.count(rows.spans.len());
        for span in &rows.spans {
            self.u16(span.slot.0);
            self.u32(span.start);
            self.count(span.tokens.len());
            self.u8(span.sample.into());
        }
        self.count(rows.failed.len());
        for (slot, error) in &rows.failed {
            self.u16(slot.0);
            self.u8(row_error_number(error));
        }
        format.dtype.encode(&rows.rows, self.0);
    }

    fn trace(&mut self, trace: &[Lap]) {
        self.count(trace.len());
        for lap in trace {
            self.u32(lap.wait_us);
            self.u32(lap.compute_us);
        }
    }

    fn run_error(&mut self, error: &RunError) {
        let (number, text) = match error {
            RunError::CacheFull => (0, ""),
            RunError::Backend(text) => (1, text.as_str()),
            RunError::Lost(text) => (2, text.as_str()),
        };
        self.u8(number);
        self.text(text);
    }

    /// Names every field, so that a new one cannot be forgotten here.
    fn sampler(&mut self, parts: &SamplerParts) {
        let SamplerParts { sampling, generated, seen } = parts;
        let Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            seed,
            logit_bias,
            logprobs,
            forbidden,
            grammar: _, // stays with the runner, which sends what it allows
        } = sampling;
        self.f32(*temperature);
        self.u32(*top_k);
        for share in [top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty] {
            self.f32(*share);
        }
        self.u64(*seed);
        self.u8(logprobs.is_some().into());
        self.u8(logprobs.unwrap_or(0));
        self.count(logit_bias.len());
        for (token, bias) in logit_bias {
            self.u32(*token);
            self.f32(*bias);
        }
        self.count(forbidden.len());
        forbidden.iter().for_each(|token| self.u32(*token));
        self.u64(*generated);
        self.count(seen.len());
        for (token, count) in seen {
            self.u32(*token);
            self.u32(*count);
        }
    }

    fn done(&mut self, done: &Done) {
        self.u64(done.id);
        self.trace(&done.trace);
        match &done.outcome {
            Err(error) => {
                self.u8(0);
                self.run_error(error);
            }
            Ok(sampled) => {
                self.u8(1);
                self.count(sampled.len());
                sampled.iter().for_each(|row| self.sampled(row));
            }
        }
    }

    fn sampled(&mut self, row: &Sampled) {
        self.u16(row.slot.0);
        match &row.outcome {
            Err(error) => {
                self.u8(0);
                self.u8(row_error_number(error));
            }
            Ok(SampledToken { token, logprobs: None }) => {
                self.u8(1);
                self.u32(*token);
            }
            Ok(SampledToken { token, logprobs: Some(logprobs) }) => {
                self.u8(2);
                self.u32(*token);
                self.f32(logprobs.chosen);
                self.count(logprobs.top.len());
                for (token, logprob) in &logprobs.top {
                    self.u32(*token);
                    self.f32(*logprob);
                }
            }
        }
    }

    fn totals(&mut self, totals: &Totals) {
        let Totals {
            batches,
            spans,
            busy_us,
            wait_us,
            longest_wait_us,
            most_spans,
            sent_bytes,
            up_us,
        } = *totals;
        for n in [batches, spans, busy_us, wait_us, longest_wait_us, most_spans, sent_bytes, up_us]
        {
            self.u64(n);
        }
    }
}

fn row_error_number(error: &RowError) -> u8 {
    match error {
        RowError::NonFiniteLogits => 0,
        RowError::NothingAllowed => 1,
        RowError::OutOfStep => 2,
        RowError::Constraint(_) => unreachable!("stages sample without grammars"),
    }
}

/// Takes fields from a frame.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Malformed("a short message"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("as many as were taken"))
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a truth value other than 0 and 1")),
        }
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn f32(&mut self) -> Result<f32, Malformed> {
        Ok(f32::from_le_bytes(self.array()?))
    }

    fn slot(&mut self) -> Result<Slot, Malformed> {
        Ok(Slot(self.u16()?))
    }

    /// A list of items that take at least `item_bytes` each, so that no length is believed
    /// that the rest of the message could not hold.
    fn list<T>(
        &mut self,
        item_bytes: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u32()? as usize;
        if count > self.0.len() / item_bytes {
            return Err(Malformed("a list longer than its message"));
        }
        (0..count).map(|_| item(self)).collect()
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let len = self.u32()? as usize;
        if len > MAX_TEXT_BYTES {
            return Err(Malformed("a long text"));
        }
        let text = std::str::from_utf8(self.take(len)?);
        text.map(str::to_owned).map_err(|_| Malformed("a text that is not UTF-8"))
    }

    fn greeting(&mut self) -> Result<[u8; PROOF_BYTES], Malformed> {
        if self.array()? != MAGIC {
            return Err(Malformed("no stage listens there"));
        }
        if self.u16()? != VERSION {
            return Err(Malformed("another version of the stage protocol"));
        }
        self.array()
    }

    fn kv_type(&mut self) -> Result<KvType, Malformed> {
        let kind = KvType::ALL.get(usize::from(self.u8()?));
        kind.copied().ok_or(Malformed("an unknown type of KV cache"))
    }

    fn open(&mut self) -> Result<Open, Malformed> {
        Ok(Open {
            index: self.u16()?,
            count: self.u16()?,
            next: self.text()?,
            next_is_inside: self.bool()?,
            dtype: Dtype::from_number(self.u8()?)?,
            slots: self.u16()?,
            kv_cells: self.u32()?,
            context_tokens: self.u32()?,
            batch_tokens: self.u32()?,
            kv_type: self.kv_type()?,
            delay_us: self.u32()?,
            bytes_per_s: self.u64()?,
        })
    }

    fn sizes(&mut self) -> Result<StageSizes, Malformed> {
        let keys = StageKeys {
            fingerprint: self.u64()?,
            first_layer: self.u32()?,
            layers: self.u32()?,
            all_layers: self.u32()?,
        };
        Ok(StageSizes {
            keys,
            width: self.u32()? as usize,
            vocab: self.u32()?,
            slots: self.u16()?,
            kv_cells: self.u32()?,
            context_tokens: self.u32()?,
            batch_tokens: self.u32()?,
            shares_prefix: self.bool()?,
        })
    }

    fn rows(&mut self, format: &Format) -> Result<Rows, Malformed> {
        let (id, trace) = (self.u64()?, self.trace()?);
        let mut end = 0usize;
        let spans = self.list(11, |input| {
            let (slot, start) = (input.slot()?, input.u32()?);
            let from = end;
            end = end.saturating_add(input.u32()? as usize);
            let sample = input.bool()?;
            match from < end && end <= format.batch_tokens {
                true => Ok(Span { slot, start, tokens: from..end, draft: 0, sample }),
                false => Err(Malformed("a span outside the batch")),
            }
        })?;
        let failed = self.list(3, |input| Ok((input.slot()?, input.row_error()?)))?;
        let floats = end.checked_mul(format.width).ok_or(Malformed("too many floats"))?;
        let rows = format.dtype.decode(std::mem::take(&mut self.0), floats)?;
        Ok(Rows { id, spans, failed, trace, rows })
    }

    fn trace(&mut self) -> Result<Vec<Lap>, Malformed> {
        self.list(8, |input| Ok(Lap { wait_us: input.u32()?, compute_us: input.u32()? }))
    }

    fn row_error(&mut self) -> Result<RowError, Malformed> {
        match self.u8()? {
            0 => Ok(RowError::NonFiniteLogits),
            1 => Ok(RowError::NothingAllowed),
            2 => Ok(RowError::OutOfStep),
            _ => Err(Malformed("an unknown failure of a sequence")),
        }
    }

    fn run_error(&mut self) -> Result<RunError, Malformed> {
        let (number, text) = (self.u8()?, self.text()?);
        match number {
            0 => Ok(RunError::CacheFull),
            1 => Ok(RunError::Backend(text)),
            2 => Ok(RunError::Lost(text)),
            _ => Err(Malformed("an unknown failure of a batch")),
        }
    }

    fn sampler(&mut self) -> Result<SamplerParts, Malformed> {
        // Fields are read in the order in which they stand here.
        let sampling = Sampling {
            temperature: self.f32()?,
            top_k: self.u32()?,
            top_p: self.f32()?,
            min_p: self.f32()?,
            presence_penalty: self.f32()?,
            frequency_penalty: self.f32()?,
            repetition_penalty: self.f32()?,
            seed: self.u64()?,
            logprobs: {
                let (wanted, top) = (self.bool()?, self.u8()?);
                wanted.then_some(top)
            },
            logit_bias: self.list(8, |input| Ok((input.u32()?, input.f32()?)))?,
            forbidden: self.list(4, Self::u32)?,
            grammar: None,
        };
        let generated = self.u64()?;
        let seen = self.list(8, |input| Ok((input.u32()?, input.u32()?)))?;
        Ok(SamplerParts { sampling, generated, seen })
    }

    fn done(&mut self) -> Result<Done, Malformed> {
        let (id, trace) = (self.u64()?, self.trace()?);
        let outcome = match self.bool()? {
            false => Err(self.run_error()?),
            true => Ok(self.list(4, Self::sampled)?),
        };
        Ok(Done { id, trace, outcome })
    }

    fn sampled(&mut self) -> Result<Sampled, Malformed> {
        let slot = self.slot()?;
        let outcome = match self.u8()? {
            0 => Err(self.row_error()?),
            1 => Ok(SampledToken { token: self.u32()?, logprobs: None }),
            2 => {
                let (token, chosen) = (self.u32()?, self.f32()?);
                let top = self.list(8, |input| Ok((input.u32()?, input.f32()?)))?;
                Ok(SampledToken { token, logprobs: Some(Box::new(Logprobs { chosen, top })) })
            }
            _ => return Err(Malformed("an unknown outcome of a row")),
        };
        Ok(Sampled { slot, outcome })
    }

    fn totals(&mut self) -> Result<Totals, Malformed> {
        Ok(Totals {
            batches: self.u64()?,
            spans: self.u64()?,
            busy_us: self.u64()?,
            wait_us: self.u64()?,
            longest_wait_us: self.u64()?,
            most_spans: self.u64()?,
            sent_bytes: self.u64()?,
            up_us: self.u64()?,
        })
    }
}

#[cfg(test)]
mod tests;
