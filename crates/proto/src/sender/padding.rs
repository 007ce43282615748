//! Lengths of frames: few different ones, so that they reveal little of the log bytes within
//! (D-2.7).

use super::config::SenderConfig;
use super::schedule::Schedule;

impl SenderConfig {
    /// Length to which a frame with `log_bytes` and `header_bytes` around them is padded if nothing
    /// else limits it; `None` if the frame is not padded.
    pub(super) fn padded_bytes(&self, log_bytes: u64, header_bytes: usize) -> Option<usize> {
        let is_padded = self.padding_step_bytes > 0 && log_bytes > 0;
        let bytes = log_bytes as usize + header_bytes;
        is_padded.then(|| bytes.next_multiple_of(self.padding_step_bytes))
    }
}

impl Schedule<'_> {
    /// Length of the next frame if it carries `log_bytes`.
    pub fn frame_bytes(&self, log_bytes: u64) -> usize {
        let bytes = log_bytes as usize + self.header_bytes;
        let Some(padded) = self.config.padded_bytes(log_bytes, self.header_bytes) else {
            return bytes;
        };
        // In a queue each byte delays the text, and lengths swing less.
        let steady = match self.is_queueing() {
            true => padded,
            false => self.lengths.steadied(padded, self.config.padding_step_bytes),
        };
        steady.min(self.config.max_datagram_bytes).max(bytes)
    }

    /// Log bytes that fit a datagram.
    pub fn max_log_bytes(&self) -> u64 {
        self.config.max_datagram_bytes.saturating_sub(self.header_bytes).max(1) as u64
    }

    /// Log bytes that fit the frame for `log_bytes`, including those that would replace its
    /// padding.
    pub fn room_bytes(&self, log_bytes: u64) -> u64 {
        (self.frame_bytes(log_bytes) - self.header_bytes) as u64
    }

    /// Most log bytes, up to `log_bytes`, that fill a frame without padding. If `log_bytes` do not
    /// fill the shortest frame, the bytes of that frame.
    pub fn unpadded_bytes(&self, log_bytes: u64) -> u64 {
        let step = self.config.padding_step_bytes;
        if step == 0 {
            return log_bytes;
        }
        let frame = (log_bytes as usize + self.header_bytes) / step * step;
        let log = frame.checked_sub(self.header_bytes).filter(|&bytes| bytes > 0);
        log.map_or_else(|| self.room_bytes(1), |bytes| bytes as u64).min(self.max_log_bytes())
    }
}
