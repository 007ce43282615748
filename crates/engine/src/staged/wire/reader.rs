//! Bytes to messages.

use loquent_infer::runner::{RunError, Sampled, Slot, Span};
use loquent_infer::sampling::{Logprobs, SampledToken, Sampling};
use loquent_infer::token::RowError;

use super::hidden_states::{Dtype, RowFormat};
use super::malformed::Malformed;
use super::message::{
    DialerRole, Done, MAGIC, MAX_TEXT_BYTES, OpenSession, Rows, SamplerParts, StageMessage,
    StageTiming, StageTotals, VERSION,
};
use crate::KvType;
use crate::staged::StageSizes;
use crate::staged::auth::PROOF_BYTES;
use loquent_formats::gguf::split::StageKeys;

impl StageMessage {
    /// Decodes a frame: kind and body, without the length before them.
    ///
    /// # Errors
    /// [`Malformed`] if the frame is not a message, or has bytes after it.
    pub fn decode(frame: &[u8], format: &RowFormat) -> Result<Self, Malformed> {
        let mut input = BodyReader(frame);
        let kind = input.u8()?;
        let message = Self::decode_body(kind, &mut input, format)?;
        if input.0.is_empty() { Ok(message) } else { Err(Malformed("bytes after a message")) }
    }

    fn decode_body(
        kind: u8,
        input: &mut BodyReader<'_>,
        format: &RowFormat,
    ) -> Result<Self, Malformed> {
        Ok(match kind {
            1 => Self::Greeting(input.greeting()?),
            2 => input.hello()?,
            3 => Self::Welcome(input.array()?),
            4 => Self::Refused(input.text()?),
            5 => Self::Open(Box::new(input.open()?)),
            6 => Self::Opened(input.sizes()?),
            16 => Self::Rows(input.rows(format)?),
            17 => input.aborted()?,
            // Fields are read in the order in which they are written here.
            18 => Self::Fork { from: input.slot()?, to: input.slot()?, len: input.u32()? },
            19 => Self::Truncate { slot: input.slot()?, len: input.u32()? },
            20 => Self::Assign { slot: input.slot()?, sampler: Box::new(input.sampler()?) },
            21 => Self::Wipe,
            22 => Self::Done(input.done()?),
            23 => Self::Allow { slot: input.slot()?, allowed: input.list(4, BodyReader::u32)? },
            32 => Self::Ping(input.u64()?),
            33 => Self::Pong(input.u64()?, input.totals()?),
            _ => return Err(Malformed("an unknown kind of message")),
        })
    }
}

/// Takes the fields of a body from a frame.
pub(crate) struct BodyReader<'a>(pub(crate) &'a [u8]);

impl<'a> BodyReader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) =
            self.0.split_at_checked(len).ok_or(Malformed("a message that ends too early"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("as many as were taken"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a truth value other than 0 and 1")),
        }
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn f32(&mut self) -> Result<f32, Malformed> {
        Ok(f32::from_le_bytes(self.array()?))
    }

    pub(crate) fn slot(&mut self) -> Result<Slot, Malformed> {
        Ok(Slot(self.u16()?))
    }

    /// Reads a list of items that take at least `item_bytes` each. A count that the rest of the
    /// message could not hold is an error, so that no count makes the reader reserve memory.
    pub(crate) fn list<T>(
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

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let len = self.u32()? as usize;
        // Texts end up in logs and errors, where long ones do harm.
        if len > MAX_TEXT_BYTES {
            return Err(Malformed("a text that is too long"));
        }
        let text = std::str::from_utf8(self.take(len)?);
        text.map(str::to_owned).map_err(|_| Malformed("a text that is not UTF-8"))
    }

    fn kv_type(&mut self) -> Result<KvType, Malformed> {
        let kind = KvType::ALL.get(usize::from(self.u8()?));
        kind.copied().ok_or(Malformed("an unknown type of KV cache"))
    }

    fn greeting(&mut self) -> Result<[u8; PROOF_BYTES], Malformed> {
        if self.array()? != MAGIC {
            return Err(Malformed("the other end is not a stage"));
        }
        if self.u16()? != VERSION {
            return Err(Malformed("another version of the stage protocol"));
        }
        self.array()
    }

    fn hello(&mut self) -> Result<StageMessage, Malformed> {
        Ok(StageMessage::Hello {
            role: if self.bool()? { DialerRole::Peer } else { DialerRole::Runner },
            session: self.u64()?,
            proof: self.array()?,
            challenge: self.array()?,
        })
    }

    fn aborted(&mut self) -> Result<StageMessage, Malformed> {
        let (id, timings) = (self.u64()?, self.timings()?);
        Ok(StageMessage::Aborted { id, timings, error: self.run_error()? })
    }

    fn open(&mut self) -> Result<OpenSession, Malformed> {
        Ok(OpenSession {
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
        // Fields are read in the order in which they are written here, below too.
        let keys = StageKeys {
            fingerprint: self.u64()?,
            first_layer: self.u32()?,
            layers: self.u32()?,
            all_layers: self.u32()?,
        };
        if !keys.is_consistent() {
            return Err(Malformed("layers that the model does not have"));
        }
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

    fn rows(&mut self, format: &RowFormat) -> Result<Rows, Malformed> {
        let (id, timings) = (self.u64()?, self.timings()?);
        let mut end = 0usize;
        let spans = self.list(11, |input| {
            let (slot, start) = (input.slot()?, input.u32()?);
            let from = end;
            // The rows of all spans are numbered one after the other, so only lengths travel.
            end = end.saturating_add(input.u32()? as usize);
            let sample = input.bool()?;
            match from < end && end <= format.batch_tokens {
                true => Ok(Span { slot, start, tokens: from..end, draft: 0, sample }),
                false => Err(Malformed("a span outside the batch")),
            }
        })?;
        let failed = self.list(3, |input| Ok((input.slot()?, input.row_error()?)))?;
        // The rows have no count of their own: they are the rest of the frame.
        let floats = end.checked_mul(format.width).ok_or(Malformed("too many floats"))?;
        let rows = format.dtype.decode(std::mem::take(&mut self.0), floats)?;
        Ok(Rows { id, spans, failed, timings, rows })
    }

    fn timings(&mut self) -> Result<Vec<StageTiming>, Malformed> {
        self.list(8, |input| Ok(StageTiming { wait_us: input.u32()?, compute_us: input.u32()? }))
    }

    fn row_error(&mut self) -> Result<RowError, Malformed> {
        match self.u8()? {
            0 => Ok(RowError::NonFiniteLogits),
            1 => Ok(RowError::NothingAllowed),
            2 => Ok(RowError::OutOfStep),
            _ => Err(Malformed("an unknown failure of a sequence")),
        }
    }

    pub(crate) fn run_error(&mut self) -> Result<RunError, Malformed> {
        let (number, text) = (self.u8()?, self.text()?);
        match number {
            0 => Ok(RunError::CacheFull),
            1 => Ok(RunError::Backend(text)),
            2 => Ok(RunError::Lost(text)),
            _ => Err(Malformed("an unknown failure of a batch")),
        }
    }

    pub(crate) fn sampler(&mut self) -> Result<SamplerParts, Malformed> {
        // Fields are read in the order in which they are written here.
        let sampling = Sampling {
            temperature: self.f32()?,
            top_k: self.u32()?,
            top_p: self.f32()?,
            min_p: self.f32()?,
            presence_penalty: self.f32()?,
            frequency_penalty: self.f32()?,
            repetition_penalty: self.f32()?,
            repeat_last_n: self.u32()?,
            seed: self.u64()?,
            logprobs: {
                let (wanted, top) = (self.bool()?, self.u8()?);
                wanted.then_some(top)
            },
            logit_bias: self.list(8, |input| Ok((input.u32()?, input.f32()?)))?.into(),
            forbidden: self.list(4, Self::u32)?,
            grammar: None,
        };
        let generated = self.u64()?;
        let seen = self.list(8, |input| Ok((input.u32()?, input.u32()?)))?;
        let latest = self.list(4, Self::u32)?;
        Ok(SamplerParts { sampling, generated, seen, latest })
    }

    fn done(&mut self) -> Result<Done, Malformed> {
        let (id, timings) = (self.u64()?, self.timings()?);
        let outcome = match self.bool()? {
            false => Err(self.run_error()?),
            true => Ok(self.list(4, Self::sampled)?),
        };
        Ok(Done { id, timings, outcome })
    }

    pub(crate) fn sampled(&mut self) -> Result<Sampled, Malformed> {
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

    fn totals(&mut self) -> Result<StageTotals, Malformed> {
        Ok(StageTotals {
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
