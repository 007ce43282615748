//! Axes: their ranges of values and their ticks.

/// Maximum number of steps between the labels of an axis. More than seven labels crowd a small
/// panel.
const STEPS: f64 = 7.0;

/// An axis: its range of values and its scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis {
    pub(super) low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    /// Creates an axis from zero to a round number above `highest`, with 4 % of room for its mark.
    pub fn from_zero(highest: f64) -> Self {
        let step = tick_step(highest.max(1e-6), STEPS - 0.5);
        Self { low: 0.0, high: (highest.max(1e-6) * 1.04 / step).ceil() * step, log: false }
    }

    /// Creates an axis from zero to the first tick at or above `highest`; to 1 if that is 0.
    pub fn from_zero_exactly(highest: f64) -> Self {
        let highest = if highest > 0.0 { highest } else { 1.0 };
        let step = tick_step(highest, STEPS);
        // The share forgives the rounding of a step such as 0.1.
        let steps = (highest / step - 1e-9).ceil();
        Self { low: 0.0, high: steps * step, log: false }
    }

    /// Creates an axis exactly from `low` to `high`.
    ///
    /// # Panics
    /// If the range is empty, or a logarithmic one does not start above 0.
    pub fn exact(low: f64, high: f64, log: bool) -> Self {
        assert!(low < high && (!log || low > 0.0), "an axis spans something");
        Self { low, high, log }
    }

    /// Creates a logarithmic axis between ticks around the positive ones of `values`; 1 to 2
    /// without any.
    pub fn log_over(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .filter(|value| *value > 0.0 && value.is_finite())
            .fold((f64::INFINITY, 0.0), |(low, high), value| (value.min(low), value.max(high)));
        if low > high {
            return Self::exact(1.0, 2.0, true);
        }
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32 + 1);
        let ticks: Vec<f64> = log_ticks(first, last).collect();
        // The factors forgive the rounding of powers of ten.
        let from = ticks.iter().rposition(|&tick| tick <= low * 1.0001).unwrap_or(0);
        let to = ticks.iter().position(|&tick| tick >= high * 0.9999).unwrap_or(ticks.len() - 1);
        Self::exact(ticks[from], ticks[to.max(from + 1)], true)
    }

    /// Returns the position of `value` between 0 and 1. A value that a logarithmic axis cannot show
    /// is at 0.
    pub(super) fn place(self, value: f64) -> f64 {
        if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }

    /// Returns the values to label, in order.
    pub(super) fn ticks(self) -> Vec<f64> {
        if self.log {
            let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
            let all = log_ticks(first, last);
            return all.filter(|v| (self.low * 0.999..=self.high * 1.001).contains(v)).collect();
        }
        // An axis of `STEPS` steps must find its own step again, rounded or not.
        let step = tick_step(self.high - self.low, STEPS + 1e-6);
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }
}

/// Returns 1, 2 and 5 of each decade; over more than four decades labels would overlap, so only the
/// 1.
fn log_ticks(first: i32, last: i32) -> impl Iterator<Item = f64> {
    let steps: &[f64] = if last - first <= 4 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    (first..=last).flat_map(move |decade| steps.iter().map(move |m| m * 10f64.powi(decade)))
}

/// Returns the smallest round step that cuts `span` into at most `most` parts.
fn tick_step(span: f64, most: f64) -> f64 {
    let decade = 10f64.powf((span / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let fits = steps.iter().find(|m| span / (*m * decade) <= most);
    fits.unwrap_or(&10.0) * decade
}

/// Formats a tick's label: without trailing zeros, and with an exponent where it would be long.
pub(super) fn tick_text(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e7).contains(&value.abs()) {
        return format!("{value:e}");
    }
    // Nine decimals undo the error of multiplying a step such as 0.1.
    format!("{}", (value * 1e9).round() / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for highest in [0.001, 0.03, 0.5, 0.72, 1.0, 3.4, 11.0, 950.0, 12345.6] {
            let axis = Axis::from_zero(highest);
            let ticks = axis.ticks();
            assert!((4..=9).contains(&ticks.len()), "{highest}: {ticks:?}");
            assert!(axis.place(highest) <= 1.0, "{highest} is above {axis:?}");
            let exact = Axis::from_zero_exactly(highest);
            assert!(exact.place(highest) <= 1.0 + 1e-9, "{highest} is above {exact:?}");
        }
        assert_eq!(Axis::from_zero_exactly(1.0).ticks().len(), 6);
        let log = Axis::exact(10.0, 100.0, true).ticks();
        assert_eq!(log, [10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn logarithmic_axes_cover_their_values() {
        for values in [[1.0, 1.0], [0.003, 4000.0], [27.0, 33.0], [10.0, 100.0], [0.0, 5.0]] {
            let axis = Axis::log_over(values.into_iter());
            assert!(axis.ticks().len() >= 2, "{values:?}: {:?}", axis.ticks());
            for value in values {
                assert!((-1e-3..=1.001).contains(&axis.place(value)), "{value} on {axis:?}");
            }
        }
        assert_eq!(Axis::log_over(std::iter::empty()).ticks(), [1.0, 2.0]);
    }

    #[test]
    fn tick_labels_are_short() {
        let shown = [0.0, 0.1 * 3.0, 1.0, 2500.0, 1e-4, 1e9].map(tick_text);
        assert_eq!(shown, ["0", "0.3", "1", "2500", "1e-4", "1e9"]);
    }
}
