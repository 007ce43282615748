//! When the next certificate is ordered. Time is an argument: nothing here reads a clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::validity::Validity;

const HOUR: Duration = Duration::from_secs(3600);
/// Wait after the first order that failed; each further one doubles it, up to the maximum.
const FIRST_WAIT: Duration = Duration::from_secs(60);
const MAX_WAIT: Duration = Duration::from_secs(6 * 3600);
/// Longest wait that an authority may ask for.
const MAX_TOLD_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Time of the next order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RenewalPlan {
    /// There is no certificate that can be used: it is ordered at once.
    Lacks,
    /// There is one, and it is renewed when two thirds of its life are over: thirty days before
    /// the end of one for ninety, as authorities recommend.
    Holds { renew_at: SystemTime },
    /// The last orders failed, with or without an older certificate.
    Failed { times: u32, retry_at: SystemTime },
}

impl RenewalPlan {
    /// Plans the renewal of a certificate.
    pub(super) fn holding(validity: Validity) -> Self {
        let life = validity.until.duration_since(validity.from).unwrap_or_default();
        Self::Holds { renew_at: validity.from + life * 2 / 3 }
    }

    /// Returns when the next order is due; what lies in the past is due at once.
    pub(super) fn due_at(self) -> SystemTime {
        match self {
            Self::Lacks => UNIX_EPOCH,
            Self::Holds { renew_at } => renew_at,
            Self::Failed { retry_at, .. } => retry_at,
        }
    }

    /// Plans what follows an order that brought a certificate `now`. One that is due at once would
    /// be followed by orders without end, so that it counts as a failure: the clock is wrong.
    pub(super) fn obtained(self, now: SystemTime, validity: Validity) -> Self {
        let plan = Self::holding(validity);
        if plan.due_at() > now { plan } else { self.failed(now, None) }
    }

    /// Plans the next try after an order that failed `now`; `told` is the time for which the
    /// authority wants no other.
    pub(super) fn failed(self, now: SystemTime, told: Option<Duration>) -> Self {
        let before = match self {
            Self::Failed { times, .. } => times,
            Self::Lacks | Self::Holds { .. } => 0,
        };
        let doubled = 2_u32.checked_pow(before).and_then(|factor| FIRST_WAIT.checked_mul(factor));
        let wait = doubled.unwrap_or(MAX_WAIT).min(MAX_WAIT);
        // A mistake of the authority's must not leave the certificate to expire.
        let told = told.unwrap_or_default().min(MAX_TOLD_WAIT);
        Self::Failed { times: before.saturating_add(1), retry_at: now + wait.max(told) }
    }
}

/// Times of the latest orders for one certificate. They are kept in a file, so that a server which
/// is started again and again stays within the bound as well.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RecentOrders(Vec<SystemTime>);

impl RecentOrders {
    /// Maximum orders within an hour. Let's Encrypt allows five failed validations of a name.
    pub(super) const MAX_PER_HOUR: usize = 5;

    /// Reads the Unix times in `text`, one a line. What is none is left out: at worst an authority
    /// refuses an order itself.
    pub(super) fn parse(text: &str) -> Self {
        let seconds = text.lines().filter_map(|line| line.parse().ok());
        let times = seconds.filter_map(|s| UNIX_EPOCH.checked_add(Duration::from_secs(s)));
        Self(times.take(Self::MAX_PER_HOUR).collect())
    }

    /// Returns the text for [`Self::parse`].
    pub(super) fn text(&self) -> String {
        let seconds = self.0.iter().filter_map(|at| at.duration_since(UNIX_EPOCH).ok());
        seconds.map(|at| format!("{}\n", at.as_secs())).collect()
    }

    /// Returns the time from which on there may be another order: `now`, or later.
    pub(super) fn free_at(&self, now: SystemTime) -> SystemTime {
        let recent: Vec<_> = self.0.iter().filter(|&&at| is_recent(at, now)).collect();
        match recent.len().checked_sub(Self::MAX_PER_HOUR) {
            Some(oldest) => *recent[oldest] + HOUR,
            None => now,
        }
    }

    /// Notes an order.
    pub(super) fn note(&mut self, now: SystemTime) {
        // A time in the future goes for good: later it would pass for a recent one.
        self.0.retain(|&at| is_recent(at, now));
        self.0.push(now);
        self.0.drain(..self.0.len().saturating_sub(Self::MAX_PER_HOUR));
    }
}

/// Returns true if `at` is within the hour before `now`. A time in the future is none: the clock
/// was put back, and nobody could say how long to wait.
fn is_recent(at: SystemTime, now: SystemTime) -> bool {
    now.duration_since(at).is_ok_and(|ago| ago < HOUR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
    }

    #[test]
    fn a_certificate_is_renewed_when_two_thirds_of_its_life_are_over() {
        for (life, renewed_after) in [(90 * DAY, 60 * DAY), (6 * DAY, 4 * DAY)] {
            let plan = RenewalPlan::holding(Validity { from: at(0), until: at(0) + life });
            assert_eq!(plan.due_at(), at(0) + renewed_after);
        }
        let reversed = Validity { from: at(9), until: at(0) };
        assert_eq!(RenewalPlan::holding(reversed).due_at(), at(9));
        assert!(RenewalPlan::Lacks.due_at() < at(0));
    }

    #[test]
    fn each_failure_doubles_the_wait_up_to_six_hours() {
        let mut plan = RenewalPlan::Lacks;
        let waits: Vec<_> = (0..40)
            .map(|_| {
                plan = plan.failed(at(0), None);
                plan.due_at().duration_since(at(0)).unwrap().as_secs() / 60
            })
            .collect();
        assert_eq!(waits[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 360]);
        assert!(waits[10..].iter().all(|&minutes| minutes == 360));
        let renewed = RenewalPlan::holding(Validity { from: at(0), until: at(0) + DAY });
        assert_eq!(renewed.failed(at(0), None).due_at(), at(60), "the count begins again");
    }

    #[test]
    fn a_clock_that_is_wrong_by_months_does_not_order_without_end() {
        let validity = Validity { from: at(0), until: at(0) + 90 * DAY };
        let plan = RenewalPlan::Lacks.obtained(at(60), validity);
        assert_eq!(plan, RenewalPlan::holding(validity));
        let now = at(0) + 70 * DAY;
        let mut plan = RenewalPlan::Lacks;
        for minutes in [1, 2, 4] {
            plan = plan.obtained(now, validity);
            assert_eq!(plan.due_at(), now + Duration::from_secs(minutes * 60));
        }
    }

    #[test]
    fn the_authority_may_ask_for_a_longer_wait_but_not_for_ever() {
        let told = |seconds| {
            let plan = RenewalPlan::Lacks.failed(at(0), Some(Duration::from_secs(seconds)));
            plan.due_at()
        };
        assert_eq!(told(5), at(60));
        assert_eq!(told(7200), at(7200));
        assert_eq!(told(u64::MAX), at(0) + DAY);
    }

    #[test]
    fn there_are_at_most_five_orders_in_any_hour_also_over_restarts() {
        let (mut orders, mut placed, mut now) = (RecentOrders::default(), Vec::new(), at(0));
        while placed.len() < 40 {
            now = orders.free_at(now + Duration::from_secs(7));
            orders.note(now);
            placed.push(now);
            orders = RecentOrders::parse(&orders.text());
        }
        for six in placed.windows(RecentOrders::MAX_PER_HOUR + 1) {
            assert!(*six.last().unwrap() >= six[0] + HOUR, "{six:?}");
        }
        assert_eq!(placed[4], at(5 * 7), "the first five need not wait");
    }

    #[test]
    fn a_clock_that_was_put_back_and_a_damaged_file_stop_nothing() {
        let mut orders = RecentOrders::default();
        (0..5).for_each(|_| orders.note(at(0) + DAY));
        assert_eq!(orders.free_at(at(0)), at(0));
        let damaged = RecentOrders::parse(&format!("x\n\n-1\n{}\n{}", u64::MAX, "9".repeat(99)));
        assert_eq!(damaged.free_at(at(0)), at(0));
        let many = RecentOrders::parse(&"1800000000\n".repeat(1000));
        assert_eq!(many.free_at(at(1)), at(3600));
    }
}
