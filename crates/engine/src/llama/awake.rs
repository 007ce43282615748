//! Keeps processors awake between the batches of a stage.
//!
//! A stage computes for some milliseconds and then waits for links and other stages. A processor with nothing
//! to do sleeps meanwhile, lowers its clock and, in a virtual machine, is handed to others; the next batch
//! takes up to twice as long for it. Here threads of the lowest scheduling class spin until that batch comes.
//! Whatever else wants to run displaces them at once, so they cost energy, not time.

use std::hint;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Turns between two looks at the clock: about 10 µs.
const TURNS: usize = 256;
/// A thread that was displaced for so long has no one to keep awake: somebody else computes
/// there, such as another stage.
const DISPLACED: Duration = Duration::from_millis(1);
/// Spinning for less than this keeps nobody awake: the batch came at once, or others computed meanwhile.
const USEFUL: Duration = Duration::from_millis(1);
/// After so many waits in a row that were of no use come so many without spinning.
const USELESS_WAITS: u32 = 8;
const WAITS_OFF: u32 = 64;

/// When the threads spin, for all of them to see.
struct Watch {
    epoch: Instant,
    /// Microseconds after `epoch` at which spinning ends; [`STOPPED`] ends the threads.
    until_us: AtomicU64,
    /// The longest that a thread spun in this wait, in microseconds.
    spun_us: AtomicU64,
}

const STOPPED: u64 = u64::MAX;

impl Watch {
    fn new() -> Arc<Self> {
        let (until_us, spun_us) = Default::default();
        Arc::new(Self { epoch: Instant::now(), until_us, spun_us })
    }

    fn now_us(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64
    }
}

/// Threads that keep as many processors awake. Nothing where the system has no class of
/// threads that disturb nobody.
pub(super) struct Awake {
    watch: Arc<Watch>,
    longest: Duration,
    threads: Vec<JoinHandle<()>>,
    useless: u32,
    off: u32,
}

impl Awake {
    /// For `threads` processors, each time for at most `longest`; zero is never.
    pub(super) fn new(threads: NonZeroU16, longest: Duration) -> Self {
        let watch = Watch::new();
        let count = if longest.is_zero() { 0 } else { threads.get() };
        let spawn = |_| {
            let watch = watch.clone();
            let named = thread::Builder::new().name("awake".into());
            named.spawn(move || keep_awake(&watch)).ok()
        };
        let threads = (0..count).filter_map(spawn).collect();
        Self { watch, longest, threads, useless: 0, off: 0 }
    }

    /// Another batch may come: threads spin from now on, unless that was of no use lately.
    pub(super) fn wait(&mut self) {
        if self.off > 0 {
            self.off -= 1;
            return;
        }
        let spun_us = self.watch.spun_us.swap(0, Ordering::Relaxed);
        let was_useful = spun_us >= USEFUL.as_micros() as u64;
        self.useless = if was_useful { 0 } else { self.useless + 1 };
        if self.useless == USELESS_WAITS {
            (self.useless, self.off) = (0, WAITS_OFF);
        }
        let until = self.watch.now_us() + self.longest.as_micros() as u64;
        self.watch.until_us.store(until, Ordering::Relaxed);
        self.threads.iter().for_each(|thread| thread.thread().unpark());
    }

    /// The batch has come: the processors have enough to do.
    pub(super) fn rest(&self) {
        self.watch.until_us.store(0, Ordering::Relaxed);
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.watch.until_us.store(STOPPED, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic there has said why already.
            let _ = thread.join();
        }
    }
}

fn keep_awake(watch: &Watch) {
    if !yield_to_all() {
        return tracing::debug!("threads cannot be made idle here: processors may sleep");
    }
    loop {
        match watch.until_us.load(Ordering::Relaxed) {
            STOPPED => return,
            until => spin(watch, until),
        }
        thread::park();
    }
}

/// Spins until `until_us`, or until there is no reason to any more.
fn spin(watch: &Watch, until_us: u64) {
    let start_us = watch.now_us();
    let mut now_us = start_us;
    while now_us < until_us && watch.until_us.load(Ordering::Relaxed) == until_us {
        for _ in 0..TURNS {
            hint::spin_loop();
        }
        let before_us = std::mem::replace(&mut now_us, watch.now_us());
        if now_us - before_us > DISPLACED.as_micros() as u64 {
            return;
        }
        watch.spun_us.fetch_max(now_us - start_us, Ordering::Relaxed);
    }
}

/// Puts this thread into the class that runs only where nothing else wants to; whether that worked.
#[cfg(target_os = "linux")]
fn yield_to_all() -> bool {
    // SAFETY: a plain structure of numbers.
    let priority = unsafe { std::mem::zeroed::<libc::sched_param>() };
    // SAFETY: 0 is this thread; the structure lives through the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const priority) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn yield_to_all() -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    //! When the threads run, by their processor time.
    use super::*;

    /// Fields of `proc_pid_stat(5)` after the name, which is in parentheses.
    const STATE: usize = 0;
    const POLICY: usize = 38;

    fn field(thread: &str, number: usize) -> String {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        let fields = stat.rsplit(')').next().unwrap();
        fields.split_whitespace().nth(number).unwrap().to_owned()
    }

    /// Processor time of a thread so far.
    fn ran_us(thread: &str) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
        stat.split(' ').next().unwrap().parse::<u64>().unwrap() / 1_000
    }

    fn awake_threads() -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap());
        let is_awake = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "awake\n")
        };
        tasks.filter(is_awake).map(|task| task.file_name().into_string().unwrap()).collect()
    }

    /// Polls until `seen` holds.
    fn until(mut seen: impl FnMut() -> bool) {
        let start = Instant::now();
        while !seen() {
            assert!(start.elapsed() < Duration::from_secs(20), "it never happened");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn waits_that_were_of_no_use_are_not_spun_through_for_a_while() {
        let (watch, longest) = (Watch::new(), Duration::from_secs(1));
        let mut awake = Awake { watch, longest, threads: Vec::new(), useless: 0, off: 0 };
        // How many of the next waits would be spun through.
        let mut spun = |waits: u32, spun_us: u64| {
            let is_spun = |awake: &mut Awake| {
                awake.watch.spun_us.store(spun_us, Ordering::Relaxed);
                awake.rest();
                awake.wait();
                awake.watch.until_us.load(Ordering::Relaxed) > 0
            };
            (0..waits).filter(|_| is_spun(&mut awake)).count() as u32
        };
        assert_eq!(spun(100, 5_000), 100);
        assert_eq!(spun(USELESS_WAITS + WAITS_OFF, 50), USELESS_WAITS);
        assert_eq!(spun(100, 5_000), 100, "it is tried again");
    }

    #[test]
    fn threads_spin_while_a_batch_may_come_and_end_when_dropped() {
        let one = NonZeroU16::MIN;
        assert!(Awake::new(one, Duration::ZERO).threads.is_empty(), "never means no threads");
        let mut awake = Awake::new(one, Duration::from_secs(3600));
        until(|| awake_threads().len() == 1);
        let id = awake_threads().remove(0);
        until(|| {
            awake.wait(); // anew: it gives up where others compute
            ran_us(&id) > 2_000
        });
        assert_eq!(field(&id, POLICY), libc::SCHED_IDLE.to_string());
        awake.rest();
        until(|| field(&id, STATE) == "S");
        drop(awake);
        assert!(awake_threads().is_empty());
    }
}
