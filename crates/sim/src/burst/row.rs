//! One line of the table of bursts.

use super::search::LargestBurst;

/// One line of the table.
pub struct BurstRow<'a> {
    /// The machine's name.
    pub machine: &'a str,
    /// The length of the prompts.
    pub prompt_tokens: u32,
    /// What first come, first served reaches.
    pub first_come: LargestBurst,
    /// What service by need reaches.
    pub by_need: LargestBurst,
    /// What no order of service exceeds.
    pub bound: usize,
}

impl BurstRow<'_> {
    /// What the figure shows of it, in the order of its bars.
    pub fn values(&self) -> [f64; 3] {
        [self.first_come.readers, self.by_need.readers, self.bound].map(|value| value as f64)
    }

    /// The largest burst by need, divided by that of first come, first served.
    pub fn ratio(&self) -> f64 {
        // A machine on which nobody is content counts as one for one.
        self.by_need.readers as f64 / self.first_come.readers.max(1) as f64
    }
}
