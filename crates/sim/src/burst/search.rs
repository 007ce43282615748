//! Searches for the largest burst of which nearly all readers are content.

use serde::Serialize;

use super::plan::{BurstPlan, MAX_READERS, Machine, Policy};
use super::world::play;
use crate::study::ProgressReport;

/// Largest burst of a policy on a machine with prompts of one length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LargestBurst {
    /// Index of the machine in the plan.
    pub machine: usize,
    /// Length of the prompts.
    pub prompt_tokens: u32,
    /// Order in which requests are served.
    pub policy: Policy,
    /// Number of readers in the largest burst.
    pub readers: usize,
    /// Batch size with which it was reached, the smallest if several are equal.
    pub batch_size: usize,
}

/// Searches for the largest burst of each machine, prompt length and policy.
pub fn run(plan: &BurstPlan, progress: &dyn ProgressReport) -> Vec<LargestBurst> {
    let mut found = Vec::new();
    for machine in 0..plan.machine.len() {
        for &prompt_tokens in &plan.prompt_tokens {
            for policy in Policy::ALL {
                found.push(best(plan, machine, prompt_tokens, policy));
                progress.advance(1, 0.0);
            }
        }
    }
    found
}

fn best(plan: &BurstPlan, machine: usize, prompt_tokens: u32, policy: Policy) -> LargestBurst {
    let mut best = LargestBurst { machine, prompt_tokens, policy, readers: 0, batch_size: 0 };
    for &batch_size in &plan.batch_sizes {
        // A larger batch is not always better: it lets everybody begin, and makes steps longer.
        let readers = largest(|readers| {
            let machine = &plan.machine[machine];
            let outcome = play(plan, machine, prompt_tokens, policy, batch_size, readers);
            plan.content.is_met(&outcome.readers)
        });
        if readers > best.readers {
            best = LargestBurst { readers, batch_size, ..best };
        }
    }
    best
}

/// Returns the largest number up to [`MAX_READERS`] that `holds`, if all below it do.
fn largest(holds: impl Fn(usize) -> bool) -> usize {
    // Doubling first: most bursts that are tried are then small, and so are quick to play.
    let (mut low, mut high) = (0, 1);
    while high <= MAX_READERS && holds(high) {
        (low, high) = (high, high * 2);
    }
    high = high.min(MAX_READERS + 1);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if holds(middle) { low = middle } else { high = middle }
    }
    low
}

/// Returns the largest burst that `machine` has time for, in any order of service: all prompts
/// within the time to the first token, and all tokens before they are read, each in a batch of the
/// size with the highest token rate.
pub fn bound(plan: &BurstPlan, machine: &Machine, prompt_tokens: u32) -> usize {
    let ttft_ms = plan.content.ttft_s * 1_000.0 - plan.rtt_ms;
    let tokens = f64::from(plan.answer_tokens);
    let reading_ms =
        (tokens - 1.0) * 1_000.0 / plan.reading_tokens_per_s / (1.0 - plan.content.stall_share);
    let prompt_ms = machine.prompt_token_ms * f64::from(prompt_tokens);
    let row_ms = (1..=MAX_READERS).map(|rows| machine.step_ms(rows, 0) / rows as f64);
    let answer_ms = tokens * row_ms.fold(f64::INFINITY, f64::min);
    let prompts = ttft_ms / prompt_ms;
    let answers = (ttft_ms + reading_ms) / (prompt_ms + answer_ms);
    (prompts.min(answers) / plan.content.readers_share) as usize
}

#[cfg(test)]
mod tests {
    use super::largest;

    #[test]
    fn the_largest_is_found() {
        for most in [0, 1, 2, 3, 17, 64, 1_000, 1_024] {
            assert_eq!(largest(|readers| readers <= most), most);
        }
        assert_eq!(largest(|_| true), 1_024);
    }
}
