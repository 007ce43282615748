//! Keeps processors awake between the batches of a stage.
//!
//! A stage computes for some milliseconds and then waits for links and other stages. An idle
//! processor sleeps meanwhile, lowers its clock and, in a virtual machine, is given to others, so
//! the next batch takes up to twice as long (`bench/stages.sh MODEL one`, which has links of 10
//! ms). Here threads of the lowest scheduling class spin until that batch comes. Any other thread
//! displaces them at once, so they cost energy, not time.

use std::hint;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Spin-loop hints between two looks at the clock: about 10 µs.
const SPINS: usize = 256;
/// A thread that was displaced for this long is not needed: something else, such as another stage,
/// computes on that processor. Chosen by hand, well above a timer interrupt.
const DISPLACED: Duration = Duration::from_millis(1);
/// Spinning for less than this is useless: the batch came at once, or others computed meanwhile.
const USEFUL: Duration = Duration::from_millis(1);
/// Useless waits in a row after which spinning stops for [`WAITS_OFF`] waits.
const USELESS_WAITS: u32 = 8;
/// Number of waits without spinning before it is tried again: at most a ninth of the waits are
/// useless.
const WAITS_OFF: u32 = 64;

/// Time until which threads spin, shared by all of them.
struct SpinControl {
    epoch: Instant,
    /// Microseconds after `epoch` at which spinning ends; [`STOPPED`] ends the threads.
    until_us: AtomicU64,
    /// Longest time that a thread spun in this wait, in microseconds.
    spun_us: AtomicU64,
}

const STOPPED: u64 = u64::MAX;

impl SpinControl {
    fn new() -> Arc<Self> {
        let (until_us, spun_us) = Default::default();
        Arc::new(Self { epoch: Instant::now(), until_us, spun_us })
    }

    fn now_us(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64
    }
}

/// Threads that keep the same number of processors awake. Does nothing on systems without a
/// scheduling class that yields to every other thread.
pub(super) struct CpuKeepalive {
    control: Arc<SpinControl>,
    longest: Duration,
    threads: Vec<JoinHandle<()>>,
    useless: u32,
    off: u32,
}

impl CpuKeepalive {
    /// Keeps `threads` processors awake, for at most `longest` after each batch; zero turns it off.
    pub(super) fn new(threads: NonZeroU16, longest: Duration) -> Self {
        let control = SpinControl::new();
        let count = if longest.is_zero() { 0 } else { threads.get() };
        let spawn = |_| {
            let control = control.clone();
            let named = thread::Builder::new().name("cpu-keepalive".into());
            named.spawn(move || keep_awake(&control)).ok()
        };
        let threads = (0..count).filter_map(spawn).collect();
        Self { control, longest, threads, useless: 0, off: 0 }
    }

    /// Starts spinning, because another batch may come; skipped if it was useless lately.
    pub(super) fn wait(&mut self) {
        if self.off > 0 {
            self.off -= 1;
            return;
        }
        // How long threads spun in the wait before shows whether they had a processor at all.
        let spun_us = self.control.spun_us.swap(0, Ordering::Relaxed);
        let was_useful = spun_us >= USEFUL.as_micros() as u64;
        self.useless = if was_useful { 0 } else { self.useless + 1 };
        if self.useless == USELESS_WAITS {
            (self.useless, self.off) = (0, WAITS_OFF);
        }
        let until = self.control.now_us() + self.longest.as_micros() as u64;
        self.control.until_us.store(until, Ordering::Relaxed);
        self.threads.iter().for_each(|thread| thread.thread().unpark());
    }

    /// Stops spinning: the batch has arrived, and needs the processors.
    pub(super) fn rest(&self) {
        self.control.until_us.store(0, Ordering::Relaxed);
    }
}

impl Drop for CpuKeepalive {
    fn drop(&mut self) {
        self.control.until_us.store(STOPPED, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic in the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn keep_awake(control: &SpinControl) {
    if !yield_to_all() {
        return tracing::debug!("no idle scheduling class here: processors may sleep");
    }
    loop {
        match control.until_us.load(Ordering::Relaxed) {
            STOPPED => return,
            until => spin(control, until),
        }
        thread::park();
    }
}

/// Spins until `until_us`, until that changes, or until something else needs the processor.
fn spin(control: &SpinControl, until_us: u64) {
    let start_us = control.now_us();
    let mut now_us = start_us;
    while now_us < until_us && control.until_us.load(Ordering::Relaxed) == until_us {
        // The clock is read once per round only; a jump in it shows that the thread was displaced.
        for _ in 0..SPINS {
            hint::spin_loop();
        }
        let before_us = std::mem::replace(&mut now_us, control.now_us());
        if now_us - before_us > DISPLACED.as_micros() as u64 {
            return;
        }
        control.spun_us.fetch_max(now_us - start_us, Ordering::Relaxed);
    }
}

/// Moves this thread to the scheduling class that runs only on otherwise idle processors; returns
/// true on success.
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
    //! Checks by processor time when the threads run.
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
            std::fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|name| name == "cpu-keepalive\n")
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
    fn after_useless_waits_spinning_stops_for_a_while() {
        let (control, longest) = (SpinControl::new(), Duration::from_secs(1));
        let mut awake = CpuKeepalive { control, longest, threads: Vec::new(), useless: 0, off: 0 };
        // How many of the next waits would be spun through.
        let mut spun = |waits: u32, spun_us: u64| {
            let is_spun = |awake: &mut CpuKeepalive| {
                awake.control.spun_us.store(spun_us, Ordering::Relaxed);
                awake.rest();
                awake.wait();
                awake.control.until_us.load(Ordering::Relaxed) > 0
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
        assert!(
            CpuKeepalive::new(one, Duration::ZERO).threads.is_empty(),
            "never means no threads"
        );
        let mut awake = CpuKeepalive::new(one, Duration::from_secs(3600));
        until(|| awake_threads().len() == 1);
        let id = awake_threads().remove(0);
        until(|| {
            awake.wait(); // again, since it stops where others compute
            ran_us(&id) > 2_000
        });
        assert_eq!(field(&id, POLICY), libc::SCHED_IDLE.to_string());
        awake.rest();
        until(|| field(&id, STATE) == "S");
        drop(awake);
        assert!(awake_threads().is_empty());
    }
}
