//! Budget per minute, for requests or tokens. It fills evenly; spending beyond it must be paid back
//! before anything else is admitted.

use std::time::Duration;

/// Nanoseconds in which an empty budget fills.
const MINUTE_NS: i128 = 60_000_000_000;

/// A budget that starts full and holds at most one minute's worth.
#[derive(Debug, Clone)]
pub struct MinuteBudget {
    per_minute: u32,
    /// Units times [`MINUTE_NS`] at `at`, so that every rate is exact; negative if the budget was
    /// overspent.
    level: i128,
    at: Duration,
}

impl MinuteBudget {
    /// Creates a full budget of `per_minute` units, at least one.
    pub fn new(per_minute: u32, now: Duration) -> Self {
        let per_minute = per_minute.max(1);
        Self { per_minute, level: i128::from(per_minute) * MINUTE_NS, at: now }
    }

    /// Units per minute.
    pub fn per_minute(&self) -> u32 {
        self.per_minute
    }

    /// Changes the rate; what was spent stays spent.
    pub fn set_per_minute(&mut self, per_minute: u32, now: Duration) {
        self.fill(now);
        let spent = self.full() - self.level;
        self.per_minute = per_minute.max(1);
        self.level = self.full() - spent;
    }

    /// Time until `units` can be spent. More than a minute's worth counts as a full budget, or it
    /// could never be spent.
    pub fn wait_for(&self, units: u64, now: Duration) -> Duration {
        let wanted = (i128::from(units) * MINUTE_NS).min(self.full());
        self.until(wanted, now)
    }

    /// Time until the budget is full again.
    pub fn wait_until_full(&self, now: Duration) -> Duration {
        self.until(self.full(), now)
    }

    /// Units that can be spent at `now`.
    pub fn remaining(&self, now: Duration) -> u64 {
        (self.level_at(now).max(0) / MINUTE_NS) as u64
    }

    /// Spends `units`, even if the budget has fewer.
    pub fn spend(&mut self, units: u64, now: Duration) {
        self.fill(now);
        self.level -= i128::from(units) * MINUTE_NS;
    }

    /// Gives back `units` that were spent and not used.
    pub fn give_back(&mut self, units: u64, now: Duration) {
        self.fill(now);
        self.level = (self.level + i128::from(units) * MINUTE_NS).min(self.full());
    }

    fn until(&self, wanted: i128, now: Duration) -> Duration {
        let missing = (wanted - self.level_at(now)).max(0);
        let per_ns = i128::from(self.per_minute);
        Duration::from_nanos(u64::try_from((missing + per_ns - 1) / per_ns).unwrap_or(u64::MAX))
    }

    fn full(&self) -> i128 {
        i128::from(self.per_minute) * MINUTE_NS
    }

    fn level_at(&self, now: Duration) -> i128 {
        let since_ns = now.saturating_sub(self.at).as_nanos() as i128;
        (self.level + since_ns * i128::from(self.per_minute)).min(self.full())
    }

    fn fill(&mut self, now: Duration) {
        self.level = self.level_at(now);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NS: Duration = Duration::from_nanos(1);

    #[test]
    fn a_full_budget_is_spent_at_once_and_fills_evenly() {
        let mut budget = MinuteBudget::new(60, Duration::ZERO);
        budget.spend(60, Duration::ZERO);
        assert_eq!(budget.remaining(Duration::ZERO), 0);
        assert_eq!(budget.wait_for(1, Duration::ZERO), Duration::from_secs(1));
        assert_eq!(budget.remaining(Duration::from_secs(10)), 10);
        assert_eq!(budget.remaining(Duration::from_secs(1000)), 60, "no more than one minute's");
    }

    #[test]
    fn debts_are_paid_back_first() {
        let mut budget = MinuteBudget::new(100, Duration::ZERO);
        budget.spend(1100, Duration::ZERO);
        assert_eq!(budget.wait_for(0, Duration::ZERO), Duration::from_secs(600));
        assert_eq!(budget.wait_for(50, Duration::ZERO), Duration::from_secs(630));
        budget.give_back(1000, Duration::ZERO);
        assert_eq!(budget.wait_for(0, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn more_than_a_minutes_worth_waits_for_a_full_budget() {
        let mut budget = MinuteBudget::new(100, Duration::ZERO);
        assert_eq!(budget.wait_for(5000, Duration::ZERO), Duration::ZERO);
        budget.spend(1, Duration::ZERO);
        assert_eq!(budget.wait_for(5000, Duration::ZERO), Duration::from_millis(600));
    }

    #[test]
    fn a_new_rate_forgives_nothing() {
        let mut budget = MinuteBudget::new(60, Duration::ZERO);
        budget.spend(60, Duration::ZERO);
        budget.set_per_minute(120, Duration::ZERO);
        assert_eq!(budget.remaining(Duration::ZERO), 60);
        budget.set_per_minute(10, Duration::ZERO);
        assert_eq!(budget.wait_for(0, Duration::ZERO), Duration::from_secs(300));
    }

    proptest! {
        #[test]
        fn the_wait_is_exact(
            per_minute in 1u32..100_000,
            steps in prop::collection::vec((0u64..200_000, 0u64..90_000_000_000), 1..20),
            units in 1u64..1000,
        ) {
            let mut budget = MinuteBudget::new(per_minute, Duration::ZERO);
            let mut now = Duration::ZERO;
            for (spent, pause_ns) in steps {
                budget.spend(spent, now);
                now += Duration::from_nanos(pause_ns);
            }
            let wait = budget.wait_for(units, now);
            prop_assert_eq!(budget.wait_for(units, now + wait), Duration::ZERO);
            if wait > Duration::ZERO {
                prop_assert!(budget.wait_for(units, now + wait - NS) > Duration::ZERO);
            }
        }
    }
}
