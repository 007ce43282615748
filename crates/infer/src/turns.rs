//! Turns of tenants at a few workers: jobs of unknown cost, in a fair order.
//!
//! The tenant that was served for the least time comes first, as in fair queueing by virtual time;
//! its own jobs are taken in their order. A tenant that joins begins level with the least served
//! one, so that being idle earns nothing. A job cannot be interrupted. So jobs that may take long
//! leave one of several workers free: a short job never waits for more than short ones.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::share::{Overflow, PoolKind, ShareRefusal, SharedPool};
use crate::tenant::{Tenant, TenantId};

/// Service that a running job counts for until its time is known.
const RUNNING_US: u64 = 10_000;
/// Tenants without jobs whose service is remembered.
const MAX_REMEMBERED: usize = 1024;

/// Kind of a job, known before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Takes milliseconds.
    Short,
    /// May take long: it never occupies the last free worker of several.
    Long,
}

/// A job that was taken, to be told to [`Turns::finish`].
#[derive(Debug, PartialEq, Eq)]
pub struct Turn {
    tenant: TenantId,
    kind: JobKind,
}

/// Waiting jobs of all tenants.
#[derive(Debug)]
pub struct Turns<J> {
    lines: BTreeMap<TenantId, Line<J>>,
    waiting: SharedPool,
    /// Maximum long jobs that run at once.
    long_limit: usize,
    long_running: usize,
    /// Service of the tenant whose job was taken last: where newcomers begin.
    floor_us: u64,
    /// Number of the next job, for the order in which jobs came.
    next: u64,
}

/// Jobs of one tenant.
#[derive(Debug)]
struct Line<J> {
    weight: u64,
    /// Time for which the tenant was served, divided by its weight.
    served_us: u64,
    running: u64,
    short: VecDeque<(u64, J)>,
    long: VecDeque<(u64, J)>,
}

impl<J> Line<J> {
    /// Returns the kind of the job that is taken next, and its number.
    fn next(&self, takes_long: bool) -> Option<(u64, JobKind)> {
        let short = self.short.front().map(|(number, _)| (*number, JobKind::Short));
        let long = self.long.front().filter(|_| takes_long);
        let long = long.map(|(number, _)| (*number, JobKind::Long));
        [short, long].into_iter().flatten().min_by_key(|(number, _)| *number)
    }

    fn is_idle(&self) -> bool {
        self.running == 0 && self.short.is_empty() && self.long.is_empty()
    }

    fn standing_us(&self) -> u64 {
        self.served_us.saturating_add(self.running * RUNNING_US / self.weight)
    }
}

impl<J> Turns<J> {
    /// Creates an empty queue before `workers`, in which `limit` jobs may wait.
    pub fn new(workers: usize, limit: usize) -> Self {
        Self {
            lines: BTreeMap::new(),
            waiting: SharedPool::new(PoolKind::WaitingPrompts, limit, Overflow::EqualParts),
            long_limit: workers.saturating_sub(1).max(1),
            long_running: 0,
            floor_us: 0,
            next: 0,
        }
    }

    /// Returns the number of waiting jobs.
    pub fn waiting(&self) -> usize {
        self.waiting.held()
    }

    /// Adds a job of `tenant`.
    ///
    /// # Errors
    /// [`ShareRefusal`] if too many jobs wait already.
    pub fn push(&mut self, tenant: Tenant, kind: JobKind, job: J) -> Result<(), ShareRefusal> {
        self.waiting.take(tenant.id, 1)?;
        let floor_us = self.floor_us;
        let line = self.lines.entry(tenant.id).or_insert_with(|| Line {
            weight: 1,
            served_us: floor_us,
            running: 0,
            short: VecDeque::new(),
            long: VecDeque::new(),
        });
        line.weight = u64::from(tenant.weight.max(1));
        if line.is_idle() {
            line.served_us = line.served_us.max(floor_us);
        }
        let jobs = match kind {
            JobKind::Short => &mut line.short,
            JobKind::Long => &mut line.long,
        };
        jobs.push_back((self.next, job));
        self.next += 1;
        Ok(())
    }

    /// Takes the job whose turn it is; `None` if none may run now.
    pub fn take(&mut self) -> Option<(Turn, J)> {
        let takes_long = self.long_running < self.long_limit;
        let candidates = self.lines.iter().filter_map(|(&tenant, line)| {
            let (number, kind) = line.next(takes_long)?;
            Some(((line.standing_us(), number), tenant, kind))
        });
        let (_, tenant, kind) = candidates.min_by_key(|(order, ..)| *order)?;
        let line = self.lines.get_mut(&tenant)?;
        let jobs = match kind {
            JobKind::Short => &mut line.short,
            JobKind::Long => &mut line.long,
        };
        let (_, job) = jobs.pop_front()?;
        line.running += 1;
        self.floor_us = self.floor_us.max(line.served_us);
        self.long_running += usize::from(kind == JobKind::Long);
        self.waiting.give_back(tenant, 1);
        Some((Turn { tenant, kind }, job))
    }

    /// Records that a taken job has ended after `took`.
    pub fn finish(&mut self, turn: Turn, took: Duration) {
        let Turn { tenant, kind } = turn;
        self.long_running -= usize::from(kind == JobKind::Long);
        if let Some(line) = self.lines.get_mut(&tenant) {
            line.running -= 1;
            let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            line.served_us = line.served_us.saturating_add(took_us / line.weight);
        }
        self.forget();
    }

    /// Forgets tenants without jobs that are owed nothing and owe nothing.
    fn forget(&mut self) {
        let floor_us = self.floor_us;
        if self.lines.values().all(Line::is_idle) {
            // Nobody waits for anybody: all are even.
            self.lines.clear();
        }
        self.lines.retain(|_, line| !line.is_idle() || line.served_us > floor_us);
        let idle = || self.lines.iter().filter(|(_, line)| line.is_idle());
        if idle().count() > MAX_REMEMBERED {
            let least = idle().min_by_key(|(_, line)| line.served_us).map(|(&tenant, _)| tenant);
            least.map(|tenant| self.lines.remove(&tenant));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GREEDY: u64 = 1;
    const HONEST: u64 = 2;

    fn tenant(id: u64) -> Tenant {
        Tenant { id: TenantId(id), ..Tenant::default() }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Takes the next job, lets it run for `took`, and returns whose it was.
    fn run(turns: &mut Turns<u64>, took: Duration) -> Option<u64> {
        let (turn, job) = turns.take()?;
        turns.finish(turn, took);
        Some(job)
    }

    #[test]
    fn an_honest_tenant_comes_next_however_many_jobs_a_greedy_one_has() {
        let mut turns = Turns::new(1, 4000);
        (0..1000).for_each(|_| turns.push(tenant(GREEDY), JobKind::Long, GREEDY).unwrap());
        for _ in 0..20 {
            assert_eq!(run(&mut turns, ms(500)), Some(GREEDY));
            turns.push(tenant(HONEST), JobKind::Short, HONEST).unwrap();
            assert_eq!(run(&mut turns, ms(1)), Some(HONEST));
        }
    }

    #[test]
    fn time_is_divided_by_weight() {
        let mut turns = Turns::new(1, 4000);
        let heavy = Tenant { weight: 3, ..tenant(HONEST) };
        let mut served = [0; 2];
        for _ in 0..400 {
            turns.push(tenant(GREEDY), JobKind::Short, GREEDY).unwrap();
            turns.push(heavy, JobKind::Short, HONEST).unwrap();
        }
        for _ in 0..400 {
            let job = run(&mut turns, ms(5)).unwrap();
            served[usize::from(job == HONEST)] += 1;
        }
        assert!((95..=105).contains(&served[0]), "{served:?}");
    }

    #[test]
    fn long_jobs_leave_one_of_several_workers_free() {
        let mut turns = Turns::new(2, 100);
        (0..5).for_each(|_| turns.push(tenant(GREEDY), JobKind::Long, GREEDY).unwrap());
        let (long, _) = turns.take().unwrap();
        assert_eq!(turns.take(), None, "the other worker is for short jobs");
        turns.push(tenant(GREEDY), JobKind::Short, GREEDY).unwrap();
        turns.push(tenant(HONEST), JobKind::Short, HONEST).unwrap();
        assert_eq!(run(&mut turns, ms(1)), Some(HONEST));
        assert_eq!(run(&mut turns, ms(1)), Some(GREEDY));
        turns.finish(long, ms(500));
        assert_eq!(run(&mut turns, ms(1)), Some(GREEDY));
    }

    #[test]
    fn jobs_wait_within_a_share_of_their_tenant() {
        let mut turns = Turns::new(1, 400);
        let mut push_all = |id| {
            let mut pushed = 0;
            while turns.push(tenant(id), JobKind::Short, id).is_ok() {
                pushed += 1;
            }
            pushed
        };
        assert_eq!((push_all(GREEDY), push_all(HONEST)), (300, 75));
        let refused = turns.push(tenant(GREEDY), JobKind::Short, GREEDY);
        assert_eq!(refused, Err(ShareRefusal::Share { held: 300 }));
    }

    proptest! {
        /// Whatever the jobs cost, all run, and nothing is remembered when the queue is empty.
        #[test]
        fn everything_is_worked_off(
            jobs in prop::collection::vec((0u64..9, any::<bool>(), 0u64..900), 1..200),
            workers in 1usize..4,
        ) {
            let (mut turns, mut running, mut ended) = (Turns::new(workers, 1000), Vec::new(), 0);
            for &(id, is_long, took) in &jobs {
                let kind = if is_long { JobKind::Long } else { JobKind::Short };
                turns.push(tenant(id), kind, took).unwrap();
                if running.len() < workers {
                    running.extend(turns.take());
                }
                if took % 2 == 0 && !running.is_empty() {
                    let (turn, took) = running.remove(0);
                    turns.finish(turn, ms(took));
                    ended += 1;
                }
            }
            loop {
                for (turn, took) in running.drain(..) {
                    turns.finish(turn, ms(took));
                    ended += 1;
                }
                let Some(next) = turns.take() else { break };
                running.push(next);
            }
            prop_assert_eq!((ended, turns.waiting()), (jobs.len(), 0));
            prop_assert!(turns.lines.is_empty());
        }
    }
}
