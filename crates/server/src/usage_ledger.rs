//! Usage by key in the ledger of the store: what each owner's requests used, by day (UTC).
//!
//! Requests only add to their key's counters. Every [`RECORD_EVERY`] one task writes what was added
//! to the ledger, and reads there what the owners with budgets have spent at all replicas. A
//! process that is killed loses the counts since the last write.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use loquent_serving::auth::ApiKeys;
use loquent_serving::budget::{BudgetPeriod, DAY_S, SpentTokens};
use loquent_serving::clock::unix_time_s;
use loquent_serving::identity::{ApiKey, KeyUsage, Owner};
use loquent_serving::usage::UsageCounts;
use loquent_store::ledger::{UsageQuery, UsageRow};
use loquent_store::{Store, StoreError};

/// Interval at which usage is written.
pub const RECORD_EVERY: Duration = Duration::from_secs(2);
/// Time for which the sum of a month's days before today is reused: only late writes change it.
const REUSE_EARLIER_S: u64 = 60;
/// Number of owners whose tokens are read at the same time: a shared store answers many in hardly
/// more time than one. Chosen by hand.
const READS_AT_ONCE: usize = 32;
/// Time limit for the last write at shutdown.
const LAST_WRITE_LIMIT: Duration = Duration::from_secs(2);
/// Maximum rows that wait for a store that is away. Beyond them counts of days that are over may be
/// lost.
const MAX_PENDING: usize = 40_000;

/// Writes the usage of keys to the store. Cheap to clone.
#[derive(Clone)]
pub struct UsageLedger {
    keys: ApiKeys,
    store: Store,
    days: Arc<Mutex<DayCounts>>,
}

/// The sums of this process for the current day, and the rows that are not written yet.
#[derive(Debug, Default)]
struct DayCounts {
    /// The day that is counted; `None` until it is known what earlier processes counted on it.
    day: Option<u32>,
    /// Also of owners that only an earlier process has seen, as the subjects of tokens are.
    owners: HashMap<Owner, OwnerCounts>,
    pending: BTreeMap<(u32, Owner), UsageRow>,
}

#[derive(Debug)]
struct OwnerCounts {
    name: Option<String>,
    usage: Arc<KeyUsage>,
    /// The key's counters as of the last look.
    seen: UsageCounts,
    today: UsageCounts,
}

/// Tokens of each owner in a month's days before today.
type EarlierDays = HashMap<Owner, EarlierTokens>;

/// Sum of the days up to `day`, read at `read_s` (Unix time in seconds).
#[derive(Clone, Copy)]
struct EarlierTokens {
    day: u32,
    read_s: u64,
    tokens: u64,
}

/// Returns the day of `unix_s`, as the number of days since 1970-01-01.
pub fn day_of(unix_s: u64) -> u32 {
    u32::try_from(unix_s / DAY_S).unwrap_or(u32::MAX)
}

impl OwnerCounts {
    fn new(name: Option<String>, usage: Arc<KeyUsage>) -> Self {
        Self { name, usage, seen: UsageCounts::default(), today: UsageCounts::default() }
    }
}

impl DayCounts {
    /// Begins `day`, on which `stored` was counted before: by an earlier process or, if the clock
    /// was set back, by this one.
    fn begin(&mut self, day: u32, stored: Vec<UsageRow>) {
        // Who left yesterday takes no memory today.
        self.owners.retain(|_, one| Arc::strong_count(&one.usage) > 1);
        self.owners.values_mut().for_each(|one| one.today = UsageCounts::default());
        let waiting = self.pending.range((day, Owner([0; 16]))..=(day, Owner([255; 16])));
        let waiting = waiting.map(|(_, row)| row.clone());
        for UsageRow { owner, name, counts, .. } in stored.into_iter().chain(waiting) {
            // Whoever is not seen yet gets counters when the owner's key is.
            let unseen = || OwnerCounts::new(name, Arc::default());
            self.owners.entry(owner).or_insert_with(unseen).today = counts;
        }
        self.day = Some(day);
    }

    /// Adds what the owners of `keys` have used since the last look.
    fn note(&mut self, keys: &[Arc<ApiKey>]) {
        // The counters of a key that is removed from the file still grow for a moment.
        self.add_up();
        for key in keys {
            let unseen = || OwnerCounts::new(key.name.clone(), key.usage.clone());
            let counts = self.owners.entry(key.owner()).or_insert_with(unseen);
            if !Arc::ptr_eq(&counts.usage, &key.usage) {
                // It was removed, or used with an earlier process, and its counters begin anew.
                (counts.usage, counts.seen) = (key.usage.clone(), UsageCounts::default());
            }
        }
        self.add_up();
        // Memory stays bounded, even if the store is away for weeks.
        while self.pending.len() > MAX_PENDING {
            self.pending.pop_first();
        }
    }

    /// Adds what was used since the last look to the rows of the current day.
    fn add_up(&mut self) {
        let Some(day) = self.day else { return };
        for (&owner, counts) in &mut self.owners {
            let now = counts.usage.counts();
            if now != counts.seen {
                counts.today = counts.today.plus(now.since(counts.seen));
                counts.seen = now;
                let (name, counts) = (counts.name.clone(), counts.today);
                self.pending.insert((day, owner), UsageRow { day, owner, name, counts });
            }
        }
    }

    /// Removes `rows`, which are written, from those that wait.
    fn written(&mut self, rows: &[UsageRow]) {
        for row in rows {
            // What has grown meanwhile is written once more.
            if self.pending.get(&(row.day, row.owner)) == Some(row) {
                self.pending.remove(&(row.day, row.owner));
            }
        }
    }

    /// Tokens of `owner` that the rows written so far include.
    fn counted(&self, owner: Owner) -> u64 {
        self.owners.get(&owner).map_or(0, |one| one.seen.tokens())
    }
}

impl UsageLedger {
    /// Returns a ledger of `keys` in `store`.
    pub fn new(keys: ApiKeys, store: Store) -> Self {
        Self { keys, store, days: Arc::default() }
    }

    /// Writes usage periodically. Never returns.
    pub async fn keep_recorded(self) {
        if self.keys.is_empty() {
            // Nothing to count: usage belongs to keys.
            return std::future::pending().await;
        }
        let mut tick = interval(RECORD_EVERY);
        // A store that was away gets no burst of writes.
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut earlier = EarlierDays::new();
        loop {
            tick.tick().await;
            // What cannot be written now is written later; the store says why in the log.
            if self.record().await.is_ok() {
                let _ = self.read_spent(&mut earlier, unix_time_s()).await;
            }
        }
    }

    /// Writes what is not written yet, because the server ends.
    pub async fn finish(&self) {
        if !self.keys.is_empty()
            && tokio::time::timeout(LAST_WRITE_LIMIT, self.record()).await.is_err()
        {
            tracing::warn!("the last counts of usage could not be stored");
        }
    }

    async fn record(&self) -> Result<(), StoreError> {
        let mut days = self.days.lock().await;
        self.record_on(day_of(unix_time_s()), &mut days).await
    }

    async fn record_on(&self, today: u32, days: &mut DayCounts) -> Result<(), StoreError> {
        if days.day.is_none() {
            days.begin(today, self.stored(today).await?);
        }
        // What was used around midnight counts for the day on which the interval began.
        days.note(&self.keys.owners());
        let written = self.write(days).await;
        if days.day != Some(today) {
            // While this cannot be read, what is used counts for the day before.
            days.begin(today, self.stored(today).await?);
        }
        written
    }

    /// Reads what is counted on `day` in a store that is this process's alone, of at most
    /// [`MAX_USAGE_ROWS`](loquent_store::ledger::MAX_USAGE_ROWS) owners.
    async fn stored(&self, day: u32) -> Result<Vec<UsageRow>, StoreError> {
        match self.store.shared() {
            // A replica's rows in a shared store are new ones.
            Some(_) => Ok(Vec::new()),
            None => self.store.usage(UsageQuery { days: day..=day, owner: None }).await,
        }
    }

    async fn write(&self, days: &mut DayCounts) -> Result<(), StoreError> {
        let rows: Vec<_> = days.pending.values().cloned().collect();
        if !rows.is_empty() {
            self.store.record_usage(rows.clone()).await?;
            days.written(&rows);
        }
        Ok(())
    }

    /// Reads what the owners with budgets have spent at all replicas up to `now_s`.
    async fn read_spent(&self, earlier: &mut EarlierDays, now_s: u64) -> Result<(), StoreError> {
        let mut keys = self.keys.owners();
        keys.retain(|key| !key.budgets.is_empty());
        if keys.is_empty() {
            return Ok(());
        }
        // Before the reading: what is counted meanwhile comes on top.
        let counted: HashMap<_, _> = {
            let days = self.days.lock().await;
            keys.iter().map(|key| (key.owner(), days.counted(key.owner()))).collect()
        };
        for some in keys.chunks(READS_AT_ONCE) {
            let mut reads = JoinSet::new();
            for key in some {
                let known = earlier.get(&key.owner()).copied();
                let (ledger, key) = (self.clone(), key.clone());
                reads.spawn(async move {
                    let read = ledger.spent(&key, known, now_s).await;
                    read.map(|(day, before)| (key, day, before))
                });
            }
            while let Some(read) = reads.join_next().await {
                // The runtime ends.
                let Ok(read) = read else { continue };
                let (key, day, before) = read?;
                let owner = key.owner();
                let month = day.saturating_add(before.map_or(0, |one| one.tokens));
                earlier.extend(before.map(|one| (owner, one)));
                let counted = counted[&owner];
                key.usage.set_spent(SpentTokens { read_s: now_s, day, month, counted });
            }
        }
        Ok(())
    }

    /// Returns the tokens of the owner of `key` today, and in this month's days before, if there is
    /// a budget of them. `known`: the latter as read last.
    async fn spent(
        &self,
        key: &ApiKey,
        known: Option<EarlierTokens>,
        now_s: u64,
    ) -> Result<(u64, Option<EarlierTokens>), StoreError> {
        let (today, first) = (day_of(now_s), day_of(BudgetPeriod::Month.start_s(now_s)));
        let owner = key.owner();
        let day = self.tokens(today..=today, owner).await?;
        let before = match key.budgets.per_month {
            Some(_) if first < today => {
                Some(self.earlier(known, first..=today - 1, owner, now_s).await?)
            }
            _ => None,
        };
        Ok((day, before))
    }

    /// Returns the tokens of `owner` in `days`, at all replicas.
    async fn tokens(&self, days: RangeInclusive<u32>, owner: Owner) -> Result<u64, StoreError> {
        let rows = self.store.usage(UsageQuery { days, owner: Some(owner) }).await?;
        Ok(rows.iter().map(|row| row.counts.tokens()).fold(0, u64::saturating_add))
    }

    /// [`Self::tokens`] of days before today: as `known`, or read again if they may have changed.
    async fn earlier(
        &self,
        known: Option<EarlierTokens>,
        days: RangeInclusive<u32>,
        owner: Owner,
        now_s: u64,
    ) -> Result<EarlierTokens, StoreError> {
        let day = *days.end();
        let is_fresh = |one: &EarlierTokens| {
            one.day == day && now_s.saturating_sub(one.read_s) < REUSE_EARLIER_S
        };
        match known.filter(is_fresh) {
            Some(one) => Ok(one),
            None => {
                let tokens = self.tokens(days, owner).await?;
                Ok(EarlierTokens { day, read_s: now_s, tokens })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Sums are those of the counters, whatever fails in between, and each day begins anew.
    use std::sync::atomic::Ordering;

    use loquent_store::StoreLimits;

    use super::*;

    fn use_tokens(keys: &ApiKeys, prompt: u64) {
        let usage = keys.owners()[0].usage.clone();
        usage.requests.fetch_add(1, Ordering::Relaxed);
        usage.prompt_tokens.fetch_add(prompt, Ordering::Relaxed);
    }

    fn rows(days: &DayCounts) -> Vec<(u32, u64, u64)> {
        let row = |row: &UsageRow| (row.day, row.counts.requests, row.counts.prompt_tokens);
        days.pending.values().map(row).collect()
    }

    #[test]
    fn a_day_that_could_not_be_written_waits_beside_the_next() {
        let keys = ApiKeys::new(["sk-a".to_owned()]);
        let mut days = DayCounts { day: Some(7), ..DayCounts::default() };
        days.note(&keys.owners());
        assert_eq!(rows(&days), [], "a key that was not used has no row");
        use_tokens(&keys, 10);
        days.note(&keys.owners());
        use_tokens(&keys, 5);
        days.note(&keys.owners());
        assert_eq!(rows(&days), [(7, 2, 15)]);
        use_tokens(&keys, 1);
        days.note(&keys.owners());
        days.begin(8, Vec::new());
        use_tokens(&keys, 2);
        days.note(&keys.owners());
        assert_eq!(rows(&days), [(7, 3, 16), (8, 1, 2)]);
        days.begin(7, Vec::new());
        use_tokens(&keys, 4);
        days.note(&keys.owners());
        assert_eq!(rows(&days), [(7, 4, 20), (8, 1, 2)], "after the clock was set back");
    }

    #[test]
    fn a_key_that_comes_back_is_counted_on() {
        let (before, after) =
            (ApiKeys::new(["sk-a".to_owned()]), ApiKeys::new(["sk-a".to_owned()]));
        let mut days = DayCounts { day: Some(7), ..DayCounts::default() };
        use_tokens(&before, 10);
        days.note(&before.owners());
        use_tokens(&before, 5);
        days.note(&[]);
        use_tokens(&after, 1);
        days.note(&after.owners());
        assert_eq!(rows(&days), [(7, 3, 16)]);
        drop(before);
        days.begin(8, Vec::new());
        assert_eq!(days.owners.len(), 1);
        drop(after);
        days.begin(9, Vec::new());
        assert_eq!(days.owners.len(), 0, "who is gone takes no memory");
    }

    #[test]
    fn what_changed_while_it_was_written_is_written_again() {
        let keys = ApiKeys::new(["sk-a".to_owned()]);
        let mut days = DayCounts { day: Some(7), ..DayCounts::default() };
        use_tokens(&keys, 10);
        days.note(&keys.owners());
        let first: Vec<_> = days.pending.values().cloned().collect();
        use_tokens(&keys, 10);
        days.note(&keys.owners());
        days.written(&first);
        assert_eq!(rows(&days), [(7, 2, 20)]);
        let second: Vec<_> = days.pending.values().cloned().collect();
        days.written(&second);
        assert_eq!(rows(&days), []);
    }

    fn row(owner: Owner, day: u32, tokens: u64) -> UsageRow {
        let counts = UsageCounts { prompt_tokens: tokens, ..UsageCounts::default() };
        UsageRow { day, owner, name: None, counts }
    }

    async fn prompt_tokens(store: &Store, days: RangeInclusive<u32>) -> u64 {
        let rows = store.usage(UsageQuery { days, owner: None }).await.unwrap();
        rows.iter().map(|row| row.counts.prompt_tokens).sum()
    }

    #[tokio::test]
    async fn a_process_goes_on_counting_where_the_last_one_ended() {
        let store = Store::in_memory(StoreLimits::default());
        let first_day = day_of(unix_time_s());
        for expected in [10, 20] {
            // Counters of a new process begin at 0.
            let keys = ApiKeys::new(["sk-a".to_owned()]);
            let ledger = UsageLedger::new(keys.clone(), store.clone());
            use_tokens(&keys, 10);
            ledger.finish().await;
            assert_eq!(prompt_tokens(&store, first_day..=first_day + 1).await, expected);
        }
        // This one knows the owner only later, as it does a token's subject.
        let mut ledger = UsageLedger::new(ApiKeys::new(["sk-b".to_owned()]), store.clone());
        ledger.record().await.unwrap();
        ledger.keys = ApiKeys::new(["sk-a".to_owned()]);
        use_tokens(&ledger.keys, 10);
        ledger.finish().await;
        assert_eq!(prompt_tokens(&store, first_day..=first_day + 1).await, 30);
    }

    #[tokio::test]
    async fn a_clock_that_is_set_back_over_midnight_loses_no_counts() {
        let store = Store::in_memory(StoreLimits::default());
        let ledger = UsageLedger::new(ApiKeys::new(["sk-a".to_owned()]), store.clone());
        let mut days = DayCounts::default();
        for day in [7, 8, 7, 8] {
            ledger.record_on(day, &mut days).await.unwrap();
            use_tokens(&ledger.keys, 10);
            ledger.record_on(day, &mut days).await.unwrap();
        }
        assert_eq!(prompt_tokens(&store, 7..=7).await, 20);
        assert_eq!(prompt_tokens(&store, 8..=8).await, 20);
    }

    #[tokio::test]
    async fn a_months_earlier_days_are_read_seldom_and_anew_each_day() {
        let store = Store::in_memory(StoreLimits::default());
        let ledger = UsageLedger::new(ApiKeys::new(["sk-a".to_owned()]), store.clone());
        let owner = ledger.keys.owners()[0].owner();
        let rows = vec![row(owner, 1, 10), row(owner, 2, 20), row(owner, 3, 40)];
        store.record_usage(rows).await.unwrap();
        let first = ledger.earlier(None, 1..=2, owner, 100).await.unwrap();
        assert_eq!(first.tokens, 30);
        store.record_usage(vec![row(owner, 1, 11)]).await.unwrap();
        for (days, now_s, tokens) in [(1..=2, 159, 30), (1..=2, 160, 31), (1..=3, 101, 71)] {
            let read = ledger.earlier(Some(first), days, owner, now_s).await.unwrap();
            assert_eq!(read.tokens, tokens, "at {now_s}");
        }
    }

    #[tokio::test]
    async fn each_of_many_owners_learns_what_it_has_spent() {
        let count = 2 * READS_AT_ONCE + 1;
        let table = |at: usize| {
            let budgets = "tokens_per_day = 9\ntokens_per_month = 9";
            format!("[[key]]\nname = \"u{at}\"\nkey = \"sk-{at}\"\n{budgets}\n")
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        std::fs::write(&path, (0..count).map(table).collect::<String>()).unwrap();
        let keys = ApiKeys::load(&[], Some(path), None).unwrap();
        let store = Store::in_memory(StoreLimits::default());
        let ledger = UsageLedger::new(keys.clone(), store.clone());
        // In the middle of a month.
        let now_s = 1_700_000_000;
        let today = day_of(now_s);
        let owners = keys.owners();
        let rows = owners.iter().zip(1..).flat_map(|(key, tokens)| {
            [row(key.owner(), today, tokens), row(key.owner(), today - 1, 1000)]
        });
        store.record_usage(rows.collect()).await.unwrap();
        let mut earlier = EarlierDays::new();
        ledger.read_spent(&mut earlier, now_s).await.unwrap();
        assert_eq!(earlier.len(), count);
        for (key, tokens) in owners.iter().zip(1..) {
            let spent: Vec<u64> = key.budget_status(now_s).map(|one| one.spent).collect();
            assert_eq!(spent, [tokens, 1000 + tokens], "{key:?}");
        }
    }
}
