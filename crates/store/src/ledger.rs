//! The ledger of usage: requests and tokens of each owner and day (UTC). Unlike objects, its rows
//! are never evicted for room: they are kept for [`USAGE_DAYS`].
//!
//! A process writes the sums of its own day, not what was added, so that a row written twice counts
//! once. In a store that replicas share each replica has rows of its own, and reading sums them up.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

use loquent_serving::identity::Owner;
use loquent_serving::usage::UsageCounts;

/// Days for which rows are kept: a year, and the month in which it is counted up.
pub const USAGE_DAYS: u32 = 400;
/// Maximum rows read at once.
pub const MAX_USAGE_ROWS: usize = 20_000;

/// Usage of one owner on one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// The day, as the number of days since 1970-01-01.
    pub day: u32,
    /// The owner.
    pub owner: Owner,
    /// The owner's name in the file of keys; `None` for a key without one.
    pub name: Option<String>,
    /// Sums of the day.
    pub counts: UsageCounts,
}

/// Rows to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageQuery {
    /// The days, as numbers of days since 1970-01-01.
    pub days: RangeInclusive<u32>,
    /// The owner; `None` for all.
    pub owner: Option<Owner>,
}

impl UsageQuery {
    /// Returns true if the row of `day` and `owner` is wanted.
    pub(crate) fn wants(&self, day: u32, owner: Owner) -> bool {
        self.days.contains(&day) && self.owner.is_none_or(|one| one == owner)
    }
}

/// Returns the first day that is kept once `day` has begun.
pub(crate) const fn first_kept_day(day: u32) -> u32 {
    day.saturating_sub(USAGE_DAYS)
}

/// A ledger in this process's memory, lost at its end.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryLedger(Arc<Mutex<BTreeMap<(u32, Owner), UsageRow>>>);

impl MemoryLedger {
    /// Replaces the rows of the same days and owners.
    pub fn record(&self, rows: Vec<UsageRow>) {
        let mut all = self.0.lock().expect("nothing panics under this lock");
        for row in rows {
            all.insert((row.day, row.owner), row);
        }
        let last = all.last_key_value().map_or(0, |((day, _), _)| *day);
        // Rows are in the order of their days: one cut forgets the old ones.
        *all = all.split_off(&(first_kept_day(last), Owner::default()));
    }

    /// Returns the first rows of `query`, one more than [`MAX_USAGE_ROWS`] if there are more.
    pub fn read(&self, query: &UsageQuery) -> Vec<UsageRow> {
        let all = self.0.lock().expect("nothing panics under this lock");
        let wanted = all.values().filter(|row| query.wants(row.day, row.owner));
        wanted.take(MAX_USAGE_ROWS + 1).cloned().collect()
    }
}
