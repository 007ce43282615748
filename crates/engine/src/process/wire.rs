//! Messages between server and engine process.
//!
//! Frames as between stages (`staged/wire`): a length in four bytes, a kind in one, a body. Both
//! ends are the same program, yet no length is trusted: a dying process may write anything.

use std::io::{self, Read};

use loquent_infer::runner::{Batch, Capacity, RunError, Sampled, Scores, Slot, Span};

use crate::staged::wire::{BodyReader, BodyWriter, Malformed, SamplerParts};

/// Maximum bytes of a frame. The largest are rows of log-probabilities of scored prompts, and
/// batches with grammars' masks; both stay far below.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// Facts that the server needs about an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFacts {
    /// Sizes.
    pub capacity: Capacity,
    /// Entries of the vocabulary.
    pub vocab_tokens: u32,
    /// [`Runner::verify_rows`](loquent_infer::runner::Runner::verify_rows) before any batch.
    pub verify_rows: Option<u32>,
    /// [`Runner::score_rows`](loquent_infer::runner::Runner::score_rows).
    pub score_rows: Option<u32>,
    /// Short description of the model and its engine, for people.
    pub summary: String,
    /// Further details, each with its heading.
    pub details: Vec<(String, String)>,
}

/// Tokens that a slot may choose next: a bit for each, as returned by `Constraint::allowed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Allowed {
    pub slot: Slot,
    pub tokens: Vec<u32>,
}

/// Message from the server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum EngineOrder {
    /// As `Runner::assign`. A sampler that follows a grammar gets the allowed tokens with each
    /// batch.
    Assign { slot: Slot, has_grammar: bool, sampler: Box<SamplerParts> },
    /// As `Runner::fork`.
    Fork { from: Slot, to: Slot, len: u32 },
    /// As `Runner::truncate`.
    Truncate { slot: Slot, len: u32 },
    /// As `Runner::run`.
    Run { batch: Batch, allowed: Vec<Allowed> },
}

/// Message from the engine's process.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum EngineReport {
    /// Loaded part of the model, in percent.
    Loading(u8),
    /// The engine is ready.
    Ready(Box<EngineFacts>),
    /// The model cannot be loaded, for this reason.
    Refused(String),
    /// Result of a batch, and `Runner::verify_rows` after it.
    Done { outcome: Result<Vec<Sampled>, RunError>, verify_rows: Option<u32> },
}

/// Appends a frame with the body that `write` writes.
fn put_frame(kind: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut BodyWriter<'_>)) {
    let start = out.len();
    // The length is known only after the body: its place is filled in below.
    out.extend_from_slice(&[0; 4]);
    out.push(kind);
    write(&mut BodyWriter(out));
    let len = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

/// Reads the next frame into `frame`: kind and body.
///
/// # Errors
/// Errors of the connection; `UnexpectedEof` if it has ended.
pub(super) fn read_frame(input: &mut impl Read, frame: &mut Vec<u8>) -> io::Result<()> {
    let mut len = [0; 4];
    input.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len == 0 || len > MAX_FRAME_BYTES {
        return Err(io::Error::other("a frame of an impossible length"));
    }
    frame.clear();
    // `take` and `read_to_end` reserve memory as bytes come, and not for what `len` claims.
    if input.take(len as u64).read_to_end(frame)? < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

impl EngineOrder {
    /// Appends the message's frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Assign { slot, has_grammar, sampler } => put_frame(1, out, |out| {
                out.u16(slot.0);
                out.u8((*has_grammar).into());
                out.sampler(sampler);
            }),
            Self::Fork { from, to, len } => put_frame(2, out, |out| {
                out.u16(from.0);
                out.u16(to.0);
                out.u32(*len);
            }),
            Self::Truncate { slot, len } => put_frame(3, out, |out| {
                out.u16(slot.0);
                out.u32(*len);
            }),
            Self::Run { batch, allowed } => put_frame(4, out, |out| put_run(batch, allowed, out)),
        }
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// [`Malformed`] if it is not an order.
    pub fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        let mut input = BodyReader(frame);
        // Fields are read in the order in which they are written here.
        let order = match input.u8()? {
            1 => Self::Assign {
                slot: input.slot()?,
                has_grammar: input.bool()?,
                sampler: Box::new(input.sampler()?),
            },
            2 => Self::Fork { from: input.slot()?, to: input.slot()?, len: input.u32()? },
            3 => Self::Truncate { slot: input.slot()?, len: input.u32()? },
            4 => take_run(&mut input)?,
            _ => return Err(Malformed("an unknown kind of message")),
        };
        end(&input, order)
    }
}

fn put_run(batch: &Batch, allowed: &[Allowed], out: &mut BodyWriter<'_>) {
    put_list(&batch.tokens, out, |token, out| out.u32(*token));
    put_list(&batch.spans, out, |span, out| {
        out.u16(span.slot.0);
        out.u32(span.start);
        // Spans follow each other, so that only lengths travel.
        out.u32(span.tokens.len() as u32);
        out.u32(span.draft as u32);
        out.u8(span.sample.into());
    });
    put_list(&batch.scores, out, |scores, out| {
        out.u32(scores.span as u32);
        out.u8(scores.top);
        put_list(&scores.targets, out, |token, out| out.u32(*token));
    });
    put_list(allowed, out, |allowed, out| {
        out.u16(allowed.slot.0);
        put_list(&allowed.tokens, out, |word, out| out.u32(*word));
    });
}

fn take_run(input: &mut BodyReader<'_>) -> Result<EngineOrder, Malformed> {
    let tokens = input.list(4, BodyReader::u32)?;
    let mut end = 0usize;
    let spans = input.list(15, |input| {
        let (slot, start, from) = (input.slot()?, input.u32()?, end);
        end = end.saturating_add(input.u32()? as usize);
        let (draft, sample) = (input.u32()? as usize, input.bool()?);
        match from < end && end <= tokens.len() && draft < end - from {
            true => Ok(Span { slot, start, tokens: from..end, draft, sample }),
            false => Err(Malformed("a span outside the batch")),
        }
    })?;
    let scores = input.list(9, |input| {
        let (span, top) = (input.u32()? as usize, input.u8()?);
        let targets = input.list(4, BodyReader::u32)?;
        match spans.get(span).is_some_and(|span| targets.len() <= span.tokens.len()) {
            true => Ok(Scores { span, top, targets }),
            false => Err(Malformed("scores outside the batch")),
        }
    })?;
    let allowed = input.list(6, |input| {
        Ok(Allowed { slot: input.slot()?, tokens: input.list(4, BodyReader::u32)? })
    })?;
    Ok(EngineOrder::Run { batch: Batch { tokens, spans, scores, is_spare: false }, allowed })
}

impl EngineReport {
    /// Appends the message's frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Loading(percent) => put_frame(1, out, |out| out.u8(*percent)),
            Self::Ready(facts) => put_frame(2, out, |out| put_facts(facts, out)),
            Self::Refused(why) => put_frame(3, out, |out| out.text(why)),
            Self::Done { outcome, verify_rows } => put_frame(4, out, |out| {
                put_rows(*verify_rows, out);
                out.u8(outcome.is_ok().into());
                match outcome {
                    Ok(sampled) => put_list(sampled, out, |row, out| out.sampled(row)),
                    Err(error) => out.run_error(error),
                }
            }),
        }
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// [`Malformed`] if it is not a report.
    pub fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        let mut input = BodyReader(frame);
        let report = match input.u8()? {
            1 => Self::Loading(input.u8()?),
            2 => Self::Ready(Box::new(take_facts(&mut input)?)),
            3 => Self::Refused(input.text()?),
            4 => {
                let verify_rows = take_rows(&mut input)?;
                let outcome = match input.bool()? {
                    true => Ok(input.list(4, BodyReader::sampled)?),
                    false => Err(input.run_error()?),
                };
                Self::Done { outcome, verify_rows }
            }
            _ => return Err(Malformed("an unknown kind of message")),
        };
        end(&input, report)
    }
}

fn put_facts(facts: &EngineFacts, out: &mut BodyWriter<'_>) {
    let Capacity { slots, kv_cells, context_tokens, batch_tokens, shares_prefix } = facts.capacity;
    out.u16(slots);
    for size in [kv_cells, context_tokens, batch_tokens, facts.vocab_tokens] {
        out.u32(size);
    }
    out.u8(shares_prefix.into());
    put_rows(facts.verify_rows, out);
    put_rows(facts.score_rows, out);
    out.text(&facts.summary);
    put_list(&facts.details, out, |(heading, text), out| {
        out.text(heading);
        out.text(text);
    });
}

fn take_facts(input: &mut BodyReader<'_>) -> Result<EngineFacts, Malformed> {
    let (slots, kv_cells, context_tokens) = (input.u16()?, input.u32()?, input.u32()?);
    let (batch_tokens, vocab_tokens) = (input.u32()?, input.u32()?);
    let shares_prefix = input.bool()?;
    let capacity = Capacity { slots, kv_cells, context_tokens, batch_tokens, shares_prefix };
    Ok(EngineFacts {
        capacity,
        vocab_tokens,
        verify_rows: take_rows(input)?,
        score_rows: take_rows(input)?,
        summary: input.text()?,
        details: input.list(8, |input| Ok((input.text()?, input.text()?)))?,
    })
}

/// Writes the rows of logits; 0 for `None`, since no engine has 0.
fn put_rows(rows: Option<u32>, out: &mut BodyWriter<'_>) {
    out.u32(rows.unwrap_or(0));
}

fn take_rows(input: &mut BodyReader<'_>) -> Result<Option<u32>, Malformed> {
    Ok(Some(input.u32()?).filter(|rows| *rows > 0))
}

fn put_list<T>(items: &[T], out: &mut BodyWriter<'_>, put: impl Fn(&T, &mut BodyWriter<'_>)) {
    out.count(items.len());
    items.iter().for_each(|item| put(item, out));
}

fn end<T>(input: &BodyReader<'_>, message: T) -> Result<T, Malformed> {
    if input.0.is_empty() { Ok(message) } else { Err(Malformed("bytes after a message")) }
}
