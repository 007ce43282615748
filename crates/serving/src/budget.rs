//! Token budgets of an owner by the calendar, in UTC. An owner that has spent a budget gets 429
//! until the next day or month begins.

use time::{Date, OffsetDateTime, Time};

/// Seconds of a day.
pub const DAY_S: u64 = 24 * 60 * 60;

/// A period of the calendar that a budget is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetPeriod {
    /// A day.
    Day,
    /// A month.
    Month,
}

/// Token budgets of an owner. Prompts and answers count together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenBudgets {
    /// Tokens of a day.
    pub per_day: Option<u64>,
    /// Tokens of a month.
    pub per_month: Option<u64>,
}

/// Tokens that an owner has used at all replicas, as the ledger had them when it was last read.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpentTokens {
    /// Time of the reading, Unix time in seconds.
    pub read_s: u64,
    /// Tokens of that day.
    pub day: u64,
    /// Tokens of that month.
    pub month: u64,
    /// Count of this process that they include.
    pub counted: u64,
}

/// A budget and what is spent of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetStatus {
    /// Period of the budget.
    pub period: BudgetPeriod,
    /// Tokens of the budget.
    pub limit: u64,
    /// Tokens spent in the current period, which may be more.
    pub spent: u64,
    /// Beginning of the next period, Unix time in seconds.
    pub resets_s: u64,
}

impl BudgetPeriod {
    /// Name of the period.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// Returns the first second of the period that contains `unix_s`.
    pub fn start_s(self, unix_s: u64) -> u64 {
        match self {
            Self::Day => unix_s - unix_s % DAY_S,
            Self::Month => begin_s(date_of(unix_s).replace_day(1).expect("each month has it")),
        }
    }

    /// Returns the first second of the period after the one that contains `unix_s`.
    pub fn end_s(self, unix_s: u64) -> u64 {
        match self {
            Self::Day => self.start_s(unix_s) + DAY_S,
            // No month has more days, and two have no 32.
            Self::Month => self.start_s(self.start_s(unix_s) + 31 * DAY_S),
        }
    }
}

impl SpentTokens {
    /// Returns the tokens spent in the current period at `now_s`; this process has counted `own`
    /// since its start.
    fn in_period(&self, period: BudgetPeriod, own: u64, now_s: u64) -> u64 {
        let read = match period {
            // A period that is over since the reading leaves nothing.
            _ if period.start_s(self.read_s) != period.start_s(now_s) => 0,
            BudgetPeriod::Day => self.day,
            BudgetPeriod::Month => self.month,
        };
        read.saturating_add(own.saturating_sub(self.counted))
    }
}

impl TokenBudgets {
    /// Returns true if there is none.
    pub const fn is_empty(&self) -> bool {
        self.per_day.is_none() && self.per_month.is_none()
    }

    /// Returns the state of each budget at `now_s`, where this process has counted `own` tokens.
    pub fn status(
        &self,
        spent: SpentTokens,
        own: u64,
        now_s: u64,
    ) -> impl Iterator<Item = BudgetStatus> + use<> {
        let both = [(BudgetPeriod::Day, self.per_day), (BudgetPeriod::Month, self.per_month)];
        both.into_iter().filter_map(move |(period, limit)| {
            let limit = limit?;
            let (spent, resets_s) = (spent.in_period(period, own, now_s), period.end_s(now_s));
            Some(BudgetStatus { period, limit, spent, resets_s })
        })
    }
}

/// Returns the day in UTC that contains `unix_s`.
pub fn date_of(unix_s: u64) -> Date {
    let time = i64::try_from(unix_s).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
    time.unwrap_or(OffsetDateTime::UNIX_EPOCH).date()
}

/// Returns the first second of a day in UTC, as Unix time; 0 before 1970.
pub fn begin_s(date: Date) -> u64 {
    u64::try_from(date.with_time(Time::MIDNIGHT).assume_utc().unix_timestamp()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    //! Periods follow the calendar, and counts of a period that is over do not hold in the next.
    use super::*;

    /// 2024-02-29T12:34:56Z, a leap day.
    const LEAP: u64 = 1_709_210_096;

    #[test]
    fn periods_follow_the_calendar() {
        let at = |unix_s| date_of(unix_s).to_string();
        assert_eq!(at(BudgetPeriod::Day.start_s(LEAP)), "2024-02-29");
        assert_eq!(at(BudgetPeriod::Day.end_s(LEAP)), "2024-03-01");
        assert_eq!(at(BudgetPeriod::Month.start_s(LEAP)), "2024-02-01");
        for (now, next) in [
            (LEAP, "2024-03-01"),
            (LEAP + 307 * DAY_S, "2025-02-01"),
            (LEAP + 276 * DAY_S, "2025-01-01"),
            (0, "1970-02-01"),
        ] {
            let end = BudgetPeriod::Month.end_s(now);
            assert_eq!((at(end), end % DAY_S), (next.to_owned(), 0));
            assert!(BudgetPeriod::Month.end_s(end - 1) == end && end > now);
        }
    }

    #[test]
    fn a_new_day_begins_with_nothing_spent() {
        let budgets = TokenBudgets { per_day: Some(100), per_month: Some(1000) };
        let spent = SpentTokens { read_s: LEAP, day: 60, month: 700, counted: 500 };
        let spent_at = |own, now_s| {
            let all: Vec<_> = budgets.status(spent, own, now_s).map(|one| one.spent).collect();
            (all[0], all[1])
        };
        assert_eq!(spent_at(500, LEAP), (60, 700));
        assert_eq!(spent_at(530, LEAP + 60), (90, 730));
        assert_eq!(spent_at(530, LEAP + DAY_S), (30, 30), "the month ends as well");
        assert_eq!(spent_at(0, LEAP), (60, 700), "a count never falls");
        assert_eq!(TokenBudgets::default().status(spent, 9, LEAP).count(), 0);
    }
}
