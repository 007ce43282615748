//! The round-trip estimate and the retransmission timer derived from it.

/// Linux's minimum wait for an acknowledgement beyond the round trip (`TCP_RTO_MIN`).
const MIN_RTO_MARGIN_US: f64 = 200_000.0;

/// Estimate by RFC 6298, section 2, with Linux's minimum margin.
#[derive(Debug, Clone, Copy)]
pub(super) struct RttEstimate {
    /// Smoothed round trip.
    pub(super) srtt_us: f64,
    var_us: f64,
}

impl RttEstimate {
    /// Creates the estimate from one sample (RFC 6298, section 2.2).
    pub(super) fn new(rtt_us: u64) -> Self {
        Self { srtt_us: rtt_us as f64, var_us: rtt_us as f64 / 2.0 }
    }

    pub(super) fn sample(&mut self, rtt_us: f64) {
        self.var_us = 0.75 * self.var_us + 0.25 * (self.srtt_us - rtt_us).abs();
        self.srtt_us = 0.875 * self.srtt_us + 0.125 * rtt_us;
    }

    /// Returns the retransmission timeout. Linux adds at least 200 ms to srtt instead of raising
    /// the sum to 200 ms.
    pub(super) fn rto_us(&self) -> u64 {
        (self.srtt_us + MIN_RTO_MARGIN_US.max(4.0 * self.var_us)) as u64
    }
}
