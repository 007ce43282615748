//! Progress of an answer before its first token: its position in the queue, the computed part of
//! the prompt, and the expected time of the first token (D-3.4). In event streams it is a chunk for
//! clients that asked for it, under llama-server's names (S-6.7).

use alloc::vec::Vec;

use crate::Error;
use crate::json::put_number;
use crate::wire::{FieldReader, put_int};

/// Progress of an answer before its first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Position in the queue, from 1; 0 once the prompt is being computed.
    pub queued: u32,
    /// Predicted time from now to the first token, ms; `None` if unknown.
    pub eta_ms: Option<u32>,
    /// Tokens of the prompt; 0 while the model is being loaded and they are unknown.
    pub total: u32,
    /// Prompt tokens that came from a cache.
    pub cached: u32,
    /// Prompt tokens known to the model, including those from the cache.
    pub processed: u32,
    /// Time since the request was accepted, ms.
    pub elapsed_ms: u32,
}

impl Progress {
    /// Appends the fields of the record.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let eta = self.eta_ms.map_or(0, |eta_ms| u64::from(eta_ms.min(u32::MAX - 1)) + 1);
        put_int(out, u64::from(self.queued));
        put_int(out, eta);
        for field in [self.total, self.cached, self.processed, self.elapsed_ms] {
            put_int(out, u64::from(field));
        }
    }

    /// Decodes the fields of the record.
    ///
    /// # Errors
    /// [`Error::Truncated`] or [`Error::Malformed`].
    pub(crate) fn decode(r: &mut FieldReader<'_>) -> Result<Self, Error> {
        let (queued, eta) = (r.int32()?, r.int32()?);
        Ok(Self {
            queued,
            eta_ms: eta.checked_sub(1),
            total: r.int32()?,
            cached: r.int32()?,
            processed: r.int32()?,
            elapsed_ms: r.int32()?,
        })
    }

    /// Appends the object for `prompt_progress` in a chunk.
    pub fn put_json(&self, out: &mut Vec<u8>) {
        let members: [(&[u8], u32); 5] = [
            (b"{\"total\":", self.total),
            (b",\"cache\":", self.cached),
            (b",\"processed\":", self.processed),
            (b",\"time_ms\":", self.elapsed_ms),
            (b",\"queued\":", self.queued),
        ];
        for (name, value) in members {
            out.extend_from_slice(name);
            put_number(out, u64::from(value));
        }
        out.extend_from_slice(b",\"eta_ms\":");
        match self.eta_ms {
            Some(eta_ms) => put_number(out, u64::from(eta_ms)),
            None => out.extend_from_slice(b"null"),
        }
        out.push(b'}');
    }
}

/// Appends an event-stream comment with the reason for a pause: `: paused, …`.
pub(crate) fn put_pause(why: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b": paused, ");
    // A line end would begin another line of the stream.
    out.extend(why.bytes().filter(|byte| !byte.is_ascii_control()));
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_one_comment_whatever_it_says() {
        let mut out = Vec::new();
        put_pause("the engine\n\ndata: is\r gone", &mut out);
        assert_eq!(out, b": paused, the enginedata: is gone\n\n");
    }

    #[test]
    fn chunks_have_the_names_of_llama_server() {
        let progress =
            Progress { total: 9, cached: 2, processed: 5, elapsed_ms: 7, ..Progress::default() };
        let mut out = Vec::new();
        progress.put_json(&mut out);
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let expected = serde_json::json!({
            "total": 9, "cache": 2, "processed": 5, "time_ms": 7, "queued": 0, "eta_ms": null,
        });
        assert_eq!(json, expected);
    }
}
