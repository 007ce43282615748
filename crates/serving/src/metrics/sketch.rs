//! Durations counted in narrow classes, so that two readings give the percentiles of the time
//! between them. The exported Prometheus buckets are too coarse for that: gaps of 26 ms and 49 ms
//! fall into the same one.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Classes per doubling: neighbours differ by at most a sixteenth.
const PER_OCTAVE: usize = 16;
/// Bits of the mantissa that select the class within a doubling.
const MANTISSA_BITS: u32 = 4;
/// Lower end of the first class in seconds, 2^-17: about 8 µs.
const LOWEST_S: f64 = 1.0 / 131_072.0;
/// Doublings from `LOWEST_S` to 128 s.
const OCTAVES: usize = 24;
/// Number of classes.
pub const CLASSES: usize = OCTAVES * PER_OCTAVE;

/// Number of durations in each class. Counts may overflow: only differences matter.
pub type SketchCounts = [u32; CLASSES];

/// Counts durations from any thread, without a lock.
#[derive(Debug)]
pub struct Sketch([AtomicU32; CLASSES]);

/// Durations of one thread, before they are added to a [`Sketch`].
#[derive(Debug)]
pub struct LocalSketch {
    counts: SketchCounts,
    /// Range of classes that contains all nonzero counts.
    touched: Range<usize>,
}

impl Default for Sketch {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }
}

impl Sketch {
    /// Counts one duration.
    pub fn observe(&self, seconds: f64) {
        self.0[class_of(seconds)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the current counts.
    pub fn read(&self) -> SketchCounts {
        std::array::from_fn(|class| self.0[class].load(Ordering::Relaxed))
    }
}

impl Default for LocalSketch {
    fn default() -> Self {
        Self { counts: [0; CLASSES], touched: 0..0 }
    }
}

impl LocalSketch {
    /// Counts one duration.
    pub fn observe(&mut self, seconds: f64) {
        let class = class_of(seconds);
        self.counts[class] += 1;
        self.touched = match self.touched.is_empty() {
            true => class..class + 1,
            false => self.touched.start.min(class)..self.touched.end.max(class + 1),
        };
    }

    /// Adds the local counts to `sketch` and resets them.
    pub fn publish(&mut self, sketch: &Sketch) {
        for class in std::mem::take(&mut self.touched) {
            match std::mem::take(&mut self.counts[class]) {
                0 => {}
                more => drop(sketch.0[class].fetch_add(more, Ordering::Relaxed)),
            }
        }
    }
}

/// Returns the counts between two readings.
pub fn difference(now: &SketchCounts, before: &SketchCounts) -> SketchCounts {
    std::array::from_fn(|class| now[class].wrapping_sub(before[class]))
}

/// Returns the duration in seconds that the fraction `quantile` of the counted durations does not
/// exceed; `None` without any. Durations are assumed to be evenly spread within a class.
pub fn quantile(counts: &SketchCounts, quantile: f64) -> Option<f64> {
    let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    let mut left = quantile * total as f64;
    for (class, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let count = f64::from(count);
        if left <= count {
            let (low, high) = (lower_end(class), lower_end(class + 1));
            return Some(low + (high - low) * (left / count));
        }
        left -= count;
    }
    None
}

/// Returns the class of a duration, from the exponent and the leading bits of the mantissa.
fn class_of(seconds: f64) -> usize {
    let shift = f64::MANTISSA_DIGITS - 1 - MANTISSA_BITS;
    let first = LOWEST_S.to_bits() >> shift;
    // Not a number and below zero, which no clock gives, count as nothing.
    let bits = seconds.max(0.0).to_bits() >> shift;
    (bits.saturating_sub(first) as usize).min(CLASSES - 1)
}

fn lower_end(class: usize) -> f64 {
    let (octave, part) = (class / PER_OCTAVE, class % PER_OCTAVE);
    LOWEST_S * 2f64.powi(octave as i32) * (1.0 + part as f64 / PER_OCTAVE as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_what_is_between_its_ends() {
        for class in 0..CLASSES - 1 {
            let (low, high) = (lower_end(class), lower_end(class + 1));
            assert_eq!(class_of(low), class);
            assert_eq!(class_of((low + high) / 2.0), class);
            assert_eq!(class_of(high), class + 1);
            assert!(high / low <= 1.0 + 1.0 / PER_OCTAVE as f64 + 1e-9, "{low} to {high}");
        }
        for (odd, class) in [(0.0, 0), (-1.0, 0), (f64::NAN, 0), (1e-9, 0), (1e9, CLASSES - 1)] {
            assert_eq!(class_of(odd), class, "{odd}");
        }
        assert_eq!(class_of(f64::INFINITY), CLASSES - 1);
    }

    #[test]
    fn quantiles_are_those_of_what_was_counted_since() {
        let sketch = Sketch::default();
        (0..500).for_each(|_| sketch.observe(9.0));
        let before = sketch.read();
        let mut local = LocalSketch::default();
        (1..=1000).for_each(|ms| local.observe(f64::from(ms) / 1e3));
        local.publish(&sketch);
        local.publish(&sketch);
        let since = difference(&sketch.read(), &before);
        assert_eq!(since.iter().sum::<u32>(), 1000, "published once");
        for (share, expected) in [(0.5, 0.5), (0.95, 0.95), (0.99, 0.99), (1.0, 1.0)] {
            let told = quantile(&since, share).unwrap();
            assert!((told / expected - 1.0).abs() < 0.07, "{told} for {expected}");
        }
        assert_eq!(quantile(&difference(&before, &before), 0.5), None);
    }

    #[test]
    fn counts_may_overflow() {
        let (mut before, mut now) = ([0; CLASSES], [0; CLASSES]);
        (before[7], now[7]) = (u32::MAX, 2);
        assert_eq!(difference(&now, &before)[7], 3);
    }
}
