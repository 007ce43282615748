//! Messages to bytes.

use loquent_infer::runner::{RunError, Sampled, Slot};
use loquent_infer::sampling::{SampledToken, Sampling};
use loquent_infer::token::RowError;

use super::hidden_states::RowFormat;
use super::message::{
    DialerRole, Done, MAGIC, MAX_TEXT_BYTES, OpenSession, Rows, SamplerParts, StageMessage,
    StageTiming, StageTotals, VERSION,
};
use crate::KvType;
use crate::staged::StageSizes;
use crate::staged::auth::PROOF_BYTES;

impl StageMessage {
    /// Appends the message's frame to `out`.
    pub fn encode(&self, format: &RowFormat, out: &mut Vec<u8>) {
        let start = out.len();
        // The length is known only after the body is written: its place is filled in below.
        out.extend_from_slice(&[0; 4]);
        out.push(self.kind());
        self.encode_body(format, &mut BodyWriter(out));
        let len = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }

    fn encode_body(&self, format: &RowFormat, out: &mut BodyWriter<'_>) {
        match self {
            Self::Greeting(challenge) => out.greeting(challenge),
            Self::Hello { role, session, proof, challenge } => {
                out.hello(*role, *session, [proof, challenge]);
            }
            Self::Welcome(proof) => out.bytes(proof),
            Self::Refused(why) => out.text(why),
            Self::Open(open) => out.open(open),
            Self::Opened(sizes) => out.sizes(sizes),
            Self::Rows(rows) => out.rows(rows, format),
            Self::Aborted { id, timings, error } => out.aborted(*id, timings, error),
            Self::Fork { from, to, len } => out.fork(*from, *to, *len),
            Self::Truncate { slot, len } => out.truncate(*slot, *len),
            Self::Assign { slot, sampler } => out.assign(*slot, sampler),
            Self::Wipe => {}
            Self::Allow { slot, allowed } => out.allow(*slot, allowed),
            Self::Done(done) => out.done(done),
            Self::Ping(number) => out.u64(*number),
            Self::Pong(number, totals) => out.pong(*number, totals),
        }
    }
}

/// Appends the fields of a body to a frame.
pub(crate) struct BodyWriter<'a>(pub(crate) &'a mut Vec<u8>);

impl BodyWriter<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, n: u8) {
        self.0.push(n);
    }

    pub(crate) fn u16(&mut self, n: u16) {
        self.bytes(&n.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, n: u32) {
        self.bytes(&n.to_le_bytes());
    }

    fn u64(&mut self, n: u64) {
        self.bytes(&n.to_le_bytes());
    }

    fn f32(&mut self, x: f32) {
        self.bytes(&x.to_le_bytes());
    }

    pub(crate) fn count(&mut self, n: usize) {
        self.u32(u32::try_from(n).expect("lists in messages are short"));
    }

    /// Writes at most [`MAX_TEXT_BYTES`] of `text`, cut between two characters.
    pub(crate) fn text(&mut self, text: &str) {
        let longest = text.len().min(MAX_TEXT_BYTES);
        let end = (0..=longest).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        self.count(end);
        self.bytes(&text.as_bytes()[..end]);
    }

    /// Writes the index in [`KvType::ALL`]: its order is part of the protocol.
    fn kv_type(&mut self, kv_type: KvType) {
        let number = KvType::ALL.iter().position(|kind| *kind == kv_type);
        self.u8(number.expect("`ALL` has every type") as u8);
    }

    fn greeting(&mut self, challenge: &[u8]) {
        self.bytes(&MAGIC);
        self.u16(VERSION);
        self.bytes(challenge);
    }

    fn hello(&mut self, role: DialerRole, session: u64, proofs: [&[u8; PROOF_BYTES]; 2]) {
        self.u8(u8::from(role == DialerRole::Peer));
        self.u64(session);
        proofs.iter().for_each(|proof| self.bytes(*proof));
    }

    fn aborted(&mut self, id: u64, timings: &[StageTiming], error: &RunError) {
        self.u64(id);
        self.timings(timings);
        self.run_error(error);
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        self.u16(from.0);
        self.u16(to.0);
        self.u32(len);
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        self.u16(slot.0);
        self.u32(len);
    }

    fn assign(&mut self, slot: Slot, sampler: &SamplerParts) {
        self.u16(slot.0);
        self.sampler(sampler);
    }

    fn allow(&mut self, slot: Slot, allowed: &[u32]) {
        self.u16(slot.0);
        self.count(allowed.len());
        allowed.iter().for_each(|word| self.u32(*word));
    }

    fn pong(&mut self, number: u64, totals: &StageTotals) {
        self.u64(number);
        self.totals(totals);
    }

    fn open(&mut self, open: &OpenSession) {
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

    fn rows(&mut self, rows: &Rows, format: &RowFormat) {
        self.u64(rows.id);
        self.timings(&rows.timings);
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
        // Last and without a count: the reader knows it from the spans.
        format.dtype.encode(&rows.rows, self.0);
    }

    fn timings(&mut self, timings: &[StageTiming]) {
        self.count(timings.len());
        for timing in timings {
            self.u32(timing.wait_us);
            self.u32(timing.compute_us);
        }
    }

    pub(crate) fn run_error(&mut self, error: &RunError) {
        let (number, text) = match error {
            RunError::CacheFull => (0, ""),
            RunError::Backend(text) => (1, text.as_str()),
            // Stages have no spare batches.
            RunError::Preempted => (1, "the batch was given up"),
            RunError::Lost(text) => (2, text.as_str()),
        };
        self.u8(number);
        self.text(text);
    }

    pub(crate) fn sampler(&mut self, parts: &SamplerParts) {
        // Names every field, so that the compiler reports a new one that is missing here.
        let SamplerParts { sampling, generated, seen, latest } = parts;
        let Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            repeat_last_n,
            seed,
            logit_bias,
            logprobs,
            forbidden,
            // It stays with the runner, which sends the allowed tokens before each batch.
            grammar: _,
        } = sampling;
        self.f32(*temperature);
        self.u32(*top_k);
        for share in [top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty] {
            self.f32(*share);
        }
        self.u32(*repeat_last_n);
        self.u64(*seed);
        self.u8(logprobs.is_some().into());
        self.u8(logprobs.unwrap_or(0));
        self.count(logit_bias.len());
        for (token, bias) in logit_bias.iter() {
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
        self.count(latest.len());
        latest.iter().for_each(|token| self.u32(*token));
    }

    fn done(&mut self, done: &Done) {
        self.u64(done.id);
        self.timings(&done.timings);
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

    pub(crate) fn sampled(&mut self, row: &Sampled) {
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

    fn totals(&mut self, totals: &StageTotals) {
        // Names every field, as above.
        let StageTotals {
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
        RowError::Constraint(_) | RowError::TooSlow => unreachable!("a stage has no grammars"),
    }
}
