//! One row of the table of bursts.

use super::search::LargestBurst;

/// One row of the table.
pub struct BurstRow<'a> {
    /// Name of the machine.
    pub machine: &'a str,
    /// Length of the prompts.
    pub prompt_tokens: u32,
    /// Largest burst served first come, first served.
    pub first_come: LargestBurst,
    /// Largest burst served by need.
    pub by_need: LargestBurst,
    /// Upper bound for any order of service.
    pub bound: usize,
}

impl BurstRow<'_> {
    /// Returns the values shown in the figure, in the order of its bars.
    pub fn values(&self) -> [f64; 3] {
        [self.first_come.readers, self.by_need.readers, self.bound].map(|value| value as f64)
    }

    /// Returns the ratio of the largest burst by need to that of first come, first served.
    pub fn ratio(&self) -> f64 {
        // A machine on which nobody is content counts as one for one.
        self.by_need.readers as f64 / self.first_come.readers.max(1) as f64
    }
}
