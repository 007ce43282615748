//! Number of threads that compute while other programs use the processors.
//!
//! The threads of a computation meet after each operation, some hundred times in a step. If one of
//! them shares its processor with another program, all others wait for it each time, up to a whole
//! time slice: beside one busy program, two threads on two processors are slower than one. A
//! computation therefore uses only as many threads as other programs leave processors for.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

/// Minimum time between two measurements: the kernel counts processor time in ticks of up to 10 ms.
const WINDOW: Duration = Duration::from_millis(100);
/// Minimum time between two measurements, in times that a measurement takes: a machine with many
/// processors takes long to sum its counters up.
const WINDOWS_PER_COST: u32 = 200;
/// Gain of speed for which threads are added.
const GAIN: f64 = 1.2;
/// Windows in a row that must promise that gain. A neighbour noticed too late costs more than one
/// that has just left, so one measurement is enough to take threads away.
const WINDOWS_BEFORE_MORE: u32 = 4;

/// Processor time used up to a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ProcessorTime {
    /// Seconds of all programs, the kernel and other virtual machines, summed over the processors
    /// that this process may use. Programs of lower priority (`nice`) do not count: they yield.
    all: f64,
    /// Seconds of this process.
    own: f64,
}

/// Rule that finds the number of threads from the processors that others use.
#[derive(Debug)]
struct ThreadCount {
    processors: f64,
    limit: u16,
    now: u16,
    /// Windows in a row that promised a gain from more threads.
    promising: u32,
}

impl ThreadCount {
    fn new(processors: usize, limit: u16) -> Self {
        Self { processors: processors as f64, limit, now: limit, promising: 0 }
    }

    /// Expected speed of `threads`, in units of one thread, while others use `others` processors:
    /// a thread that shares its processor stops all threads for the others' part of the time.
    fn speed(&self, threads: u16, others: f64) -> f64 {
        match threads {
            // It waits for nobody.
            1 => 1.0,
            _ => {
                let shared = f64::from(threads) + others - self.processors;
                f64::from(threads) * (1.0 - shared.clamp(0.0, 1.0))
            }
        }
    }

    /// Takes a measurement over `windows` windows into account: others used `others` processors on
    /// average.
    fn observe(&mut self, others: f64, windows: u32) {
        let by_speed = |a: &u16, b: &u16| self.speed(*a, others).total_cmp(&self.speed(*b, others));
        let best = (1..=self.limit).max_by(by_speed).unwrap_or(1);
        let gain = self.speed(best, others) / self.speed(self.now, others).max(f64::MIN_POSITIVE);
        match best.cmp(&self.now) {
            Ordering::Less if gain > 1.0 => self.now = best,
            Ordering::Greater if gain > GAIN => {
                self.promising = self.promising.saturating_add(windows);
                if self.promising < WINDOWS_BEFORE_MORE {
                    return;
                }
                self.now = best;
            }
            _ => {}
        }
        self.promising = 0;
    }
}

/// Number of threads of one computation, adapted from step to step.
#[derive(Debug)]
pub(super) struct Neighbours {
    count: ThreadCount,
    /// Numbers of the processors that this process may use.
    processors: Vec<usize>,
    /// Last measurement; `None` if processor times cannot be measured here.
    last: Option<(Instant, ProcessorTime)>,
    next_at: Instant,
}

impl Neighbours {
    /// Creates the number for a computation of up to `limit` threads.
    pub(super) fn new(limit: u16) -> Self {
        let processors = allowed_processors();
        let now = Instant::now();
        let is_useful = limit > 1 && !processors.is_empty();
        let usage = is_useful.then(|| ProcessorTime::measure(&processors)).flatten();
        let last = usage.map(|usage| (now, usage));
        let count = ThreadCount::new(processors.len(), limit);
        Self { count, processors, last, next_at: now + WINDOW }
    }

    /// Stops adapting: the threads are always as many as at first.
    pub(super) fn ignore(&mut self) {
        self.last = None;
    }

    /// Returns the number of threads for the next step.
    pub(super) fn threads(&mut self) -> u16 {
        let now = Instant::now();
        if let Some((at, before)) = self.last
            && now >= self.next_at
        {
            self.last = ProcessorTime::measure(&self.processors).map(|usage| (now, usage));
            let cost = now.elapsed();
            self.next_at = now + WINDOW.max(cost * WINDOWS_PER_COST);
            if let Some((_, usage)) = self.last {
                self.observe(usage.others_since(&before, now - at), now - at);
            }
        }
        self.count.now
    }

    /// Takes a measurement over `elapsed` into account. A server without requests does not
    /// measure, so the first one of the next request tells of all the time since.
    fn observe(&mut self, others: f64, elapsed: Duration) {
        let before = self.count.now;
        let windows = elapsed.as_millis() / WINDOW.as_millis();
        self.count.observe(others, u32::try_from(windows).unwrap_or(u32::MAX));
        if self.count.now != before {
            tracing::debug!(
                threads = self.count.now,
                limit = self.count.limit,
                others,
                "the number of compute threads follows the processors that others leave"
            );
        }
    }
}

impl ProcessorTime {
    /// Number of processors that others used on average since `before`, `elapsed` ago.
    fn others_since(&self, before: &Self, elapsed: Duration) -> f64 {
        let used = (self.all - before.all) - (self.own - before.own);
        (used / elapsed.as_secs_f64().max(f64::MIN_POSITIVE)).max(0.0)
    }

    #[cfg(target_os = "linux")]
    fn measure(processors: &[usize]) -> Option<Self> {
        // SAFETY: a plain question about the system.
        let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        let all = busy_ticks(&std::fs::read_to_string("/proc/stat").ok()?, processors)?;
        let mut own = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure lives through the call.
        let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut own) };
        let own = own.tv_sec as f64 + own.tv_nsec as f64 / 1e9;
        (status == 0 && ticks > 0).then_some(Self { all: all as f64 / ticks as f64, own })
    }

    #[cfg(not(target_os = "linux"))]
    fn measure(_processors: &[usize]) -> Option<Self> {
        None
    }
}

/// Ticks that `processors` were busy, from the text of `/proc/stat` (`proc_stat(5)`): the fields
/// user, system, irq, softirq and steal. `None` if a processor is missing.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "Linux's own file"))]
fn busy_ticks(stat: &str, processors: &[usize]) -> Option<u64> {
    let mut busy = vec![None; processors.len()];
    for line in stat.lines() {
        let mut fields = line.split_ascii_whitespace();
        let Some(number) = fields.next().and_then(|name| name.strip_prefix("cpu")) else {
            break;
        };
        let Ok(number) = number.parse::<usize>() else {
            continue;
        };
        if let Some(at) = processors.iter().position(|&processor| processor == number) {
            let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
            let field = |i: usize| ticks.get(i).copied().unwrap_or(0);
            busy[at] = Some([0, 2, 5, 6, 7].into_iter().map(field).sum::<u64>());
        }
    }
    busy.into_iter().sum()
}

/// Numbers of the processors that this process may use; empty where that is not known.
#[cfg(target_os = "linux")]
pub(super) fn allowed_processors() -> Vec<usize> {
    // SAFETY: a plain set of bits, all zero.
    let mut set = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
    // SAFETY: 0 is this thread; the set lives through the call.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: the numbers are within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&i| unsafe { libc::CPU_ISSET(i, &set) }).collect()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn allowed_processors() -> Vec<usize> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(processors: usize, limit: u16, measurements: &[f64]) -> u16 {
        let mut count = ThreadCount::new(processors, limit);
        measurements.iter().for_each(|&others| count.observe(others, 1));
        count.now
    }

    #[test]
    fn a_busy_neighbour_takes_a_thread_at_once() {
        assert_eq!(after(2, 2, &[1.0]), 1);
        assert_eq!(after(8, 8, &[1.0]), 7);
        assert_eq!(after(8, 8, &[3.0]), 5);
        assert_eq!(after(4, 4, &[0.3]), 3, "four threads would wait a third of the time");
    }

    #[test]
    fn a_machine_without_a_processor_left_has_one_thread() {
        assert_eq!(after(2, 2, &[2.0]), 1);
        assert_eq!(after(8, 8, &[8.0]), 1);
        assert_eq!(after(2, 2, &[64.0]), 1);
    }

    #[test]
    fn what_the_server_itself_or_a_light_neighbour_uses_takes_none() {
        assert_eq!(after(2, 2, &[0.0, 0.3, 0.4]), 2);
        assert_eq!(after(8, 4, &[4.0]), 4, "the second hardware thread of each core is free");
        assert_eq!(after(2, 1, &[1.0]), 1);
    }

    #[test]
    fn threads_return_only_after_some_quiet_measurements() {
        let quiet = WINDOWS_BEFORE_MORE as usize;
        let with = |measurements: &[f64]| after(2, 2, &[&[1.0], measurements].concat());
        assert_eq!(with(&vec![0.0; quiet - 1]), 1);
        assert_eq!(with(&vec![0.0; quiet]), 2);
        let interrupted = [vec![0.0; quiet - 1], vec![1.0], vec![0.0; quiet - 1]].concat();
        assert_eq!(with(&interrupted), 1, "in a row");
        assert_eq!(with(&[0.45; 10]), 1, "no gain worth the change");
    }

    #[test]
    fn a_long_quiet_measurement_returns_threads_at_once() {
        let mut count = ThreadCount::new(2, 2);
        count.observe(1.0, 1);
        count.observe(0.0, WINDOWS_BEFORE_MORE - 1);
        assert_eq!(count.now, 1);
        count.observe(0.0, u32::MAX);
        assert_eq!(count.now, 2);
    }

    #[test]
    fn only_the_allowed_processors_count() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\n\
                    cpu0 1 100 2 1000 1000 4 8 16 0 0\n\
                    cpu1 32 100 64 1000\n\
                    cpu12 5000 0 0 0 0 0 0 0 0 0\n\
                    intr 5\ncpu9 7 7 7\n";
        assert_eq!(busy_ticks(stat, &[0]), Some(31));
        assert_eq!(busy_ticks(stat, &[0, 1]), Some(31 + 96));
        assert_eq!(busy_ticks(stat, &[12]), Some(5000));
        assert_eq!(busy_ticks(stat, &[0, 2]), None, "a processor that is not listed");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn processor_times_of_this_machine_grow() {
        let processors = allowed_processors();
        let before = ProcessorTime::measure(&processors).unwrap();
        let begun = Instant::now();
        while ProcessorTime::measure(&processors).unwrap().own - before.own < 0.05 {
            assert!(begun.elapsed() < Duration::from_secs(60), "no processor time within a minute");
        }
        let after = ProcessorTime::measure(&processors).unwrap();
        assert!(after.all > before.all && after.others_since(&before, begun.elapsed()) >= 0.0);
    }
}
