//! The estimate of the round trip and the retransmission timer that follows from it.

/// Linux's least wait for an acknowledgement beyond the round trip (`TCP_RTO_MIN`).
const MIN_RTO_MARGIN_US: f64 = 200_000.0;

/// RFC 6298, section 2, with Linux's least margin.
#[derive(Debug, Clone, Copy)]
pub(super) struct RttEstimate {
    /// The smoothed round trip.
    pub(super) srtt_us: f64,
    var_us: f64,
}

impl RttEstimate {
    /// After one sample (RFC 6298, section 2.2).
    pub(super) fn new(rtt_us: u64) -> Self {
        Self { srtt_us: rtt_us as f64, var_us: rtt_us as f64 / 2.0 }
    }

    pub(super) fn sample(&mut self, rtt_us: f64) {
        self.var_us = 0.75 * self.var_us + 0.25 * (self.srtt_us - rtt_us).abs();
        self.srtt_us = 0.875 * self.srtt_us + 0.125 * rtt_us;
    }

    /// Linux adds the 200 ms to srtt instead of raising the sum to them.
    pub(super) fn rto_us(&self) -> u64 {
        (self.srtt_us + MIN_RTO_MARGIN_US.max(4.0 * self.var_us)) as u64
    }
}
