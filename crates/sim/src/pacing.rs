//! The reader's side of time: when a client that paces its display shows each token.

/// Shows tokens evenly from a small buffer.
///
/// The law of delivery.md: a step of 1.5 gaps while the buffer is below its target, one gap near
/// it, half a gap above. The first token is never delayed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pacer {
    /// Buffer aimed at, in µs of generation.
    pub target_us: f64,
    /// The generator's mean gap between tokens in µs.
    pub gap_us: f64,
}

impl Pacer {
    /// Display times of tokens that are ready at `ready_us`, in order.
    pub fn display(&self, ready_us: &[u64]) -> Vec<u64> {
        let mut shown_us: Vec<u64> = Vec::with_capacity(ready_us.len());
        let mut arrived = 0;
        for (index, &ready) in ready_us.iter().enumerate() {
            let Some(&previous_us) = shown_us.last() else {
                shown_us.push(ready);
                continue;
            };
            while ready_us.get(arrived).is_some_and(|&at| at <= previous_us) {
                arrived += 1;
            }
            let buffer_us = (arrived - index) as f64 * self.gap_us;
            let step_us = (self.step(buffer_us) * self.gap_us) as u64;
            shown_us.push(ready.max(previous_us + step_us));
        }
        shown_us
    }

    fn step(&self, buffer_us: f64) -> f64 {
        if buffer_us < self.target_us {
            1.5
        } else if buffer_us < self.target_us + 2.0 * self.gap_us {
            1.0
        } else {
            0.5
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_hides_a_gap_that_is_shorter_than_it() {
        let pacer = Pacer {
            target_us: 300_000.0,
            gap_us: 100_000.0,
        };
        // Tokens every 100 ms; between 5.0 s and 5.3 s nothing comes.
        let ready: Vec<u64> = (0..100)
            .map(|i| i * 100_000)
            .map(|t| {
                if (5_000_000..5_300_000).contains(&t) {
                    5_300_000
                } else {
                    t
                }
            })
            .collect();
        let shown = pacer.display(&ready);
        assert_eq!(shown[0], ready[0]);
        let longest = shown.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(longest <= Some(200_000), "{longest:?}");
        assert!(
            shown
                .iter()
                .zip(&ready)
                .all(|(shown, ready)| shown >= ready)
        );
    }

    #[test]
    fn without_a_target_nothing_waits_for_a_buffer() {
        let pacer = Pacer {
            target_us: 0.0,
            gap_us: 100_000.0,
        };
        let ready: Vec<u64> = (0..10).map(|i| i * 100_000).collect();
        assert_eq!(pacer.display(&ready), ready);
    }
}
