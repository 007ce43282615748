//! CPU time, memory and context switches of a local process.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::BenchError;

/// Interval of memory samples during a run.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// A process that can be measured.
#[derive(Debug, Clone)]
pub struct Process {
    pid: u32,
    dir: PathBuf,
}

/// The counters of a process at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessReading {
    cpu_s: f64,
    rss_bytes: u64,
    voluntary_switches: u64,
}

/// The resources that a process used during a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ResourceUsage {
    /// CPU time, user and system, in seconds.
    pub cpu_s: f64,
    /// Resident memory before the run, in bytes.
    pub rss_before_bytes: u64,
    /// Largest resident memory seen during the run, in bytes.
    pub rss_peak_bytes: u64,
    /// Number of times its threads gave up their core to wait.
    pub voluntary_switches: u64,
}

impl Process {
    /// Opens the process `pid`.
    ///
    /// # Errors
    /// If there is no such process, or this user may not read its counters.
    pub fn open(pid: u32) -> Result<Self, BenchError> {
        let process = Process { pid, dir: PathBuf::from(format!("/proc/{pid}")) };
        process.read().map(|_| process)
    }

    /// Reads the counters.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn read(&self) -> Result<ProcessReading, BenchError> {
        let refuse = |reason: String| BenchError::Process { pid: self.pid, reason };
        let file = |name: &str| {
            std::fs::read_to_string(self.dir.join(name))
                .map_err(|error| refuse(format!("cannot read /proc/{}/{name}: {error}", self.pid)))
        };
        let cpu_s = cpu_s(self.pid).map_err(|error| refuse(format!("no CPU clock: {error}")))?;
        let rss_bytes = field_kib(&file("status")?, "VmRSS:").unwrap_or(0) * 1024;
        Ok(ProcessReading { cpu_s, rss_bytes, voluntary_switches: self.voluntary_switches() })
    }

    /// Starts a measurement; memory is sampled until [`UsageWatch::stop`].
    ///
    /// # Errors
    /// If the process has ended.
    pub fn watch(&self) -> Result<UsageWatch, BenchError> {
        let before = self.read()?;
        let peak = Arc::new(AtomicU64::new(before.rss_bytes));
        let stopped = Arc::new(AtomicBool::new(false));
        let (process, seen, end) = (self.clone(), Arc::clone(&peak), Arc::clone(&stopped));
        // A thread of its own: a busy runtime must not delay the samples.
        let sampler = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let status = std::fs::read_to_string(process.dir.join("status"));
                let kib = status.ok().and_then(|status| field_kib(&status, "VmRSS:"));
                seen.fetch_max(kib.unwrap_or(0) * 1024, Ordering::Relaxed);
                std::thread::park_timeout(SAMPLE_EVERY);
            }
        });
        Ok(UsageWatch { process: self.clone(), before, peak, stopped, sampler })
    }

    /// Returns the context switches, summed over the current threads.
    fn voluntary_switches(&self) -> u64 {
        let Ok(tasks) = std::fs::read_dir(self.dir.join("task")) else {
            return 0;
        };
        let count = |entry: std::io::Result<std::fs::DirEntry>| {
            let status = std::fs::read_to_string(entry.ok()?.path().join("status")).ok()?;
            field_kib(&status, "voluntary_ctxt_switches:")
        };
        tasks.filter_map(count).sum()
    }
}

/// A measurement in progress.
#[derive(Debug)]
pub struct UsageWatch {
    process: Process,
    before: ProcessReading,
    peak: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
    sampler: std::thread::JoinHandle<()>,
}

impl UsageWatch {
    /// Ends the measurement.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn stop(self) -> Result<ResourceUsage, BenchError> {
        self.stopped.store(true, Ordering::Relaxed);
        self.sampler.thread().unpark();
        let after = self.process.read();
        // The sampler cannot panic, so joining it cannot fail.
        let _ = self.sampler.join();
        let after = after?;
        Ok(ResourceUsage {
            cpu_s: after.cpu_s - self.before.cpu_s,
            rss_before_bytes: self.before.rss_bytes,
            rss_peak_bytes: self.peak.load(Ordering::Relaxed).max(after.rss_bytes),
            voluntary_switches: after
                .voluntary_switches
                .saturating_sub(self.before.voluntary_switches),
        })
    }
}

/// Returns the CPU time of all threads of `pid`, including those that have ended.
#[cfg(target_os = "linux")]
fn cpu_s(pid: u32) -> std::io::Result<f64> {
    let pid = i32::try_from(pid).map_err(std::io::Error::other)?;
    let clock = nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(pid))?;
    Ok(Duration::from(clock.now()?).as_secs_f64())
}

/// Unsupported: only Linux exposes another process's CPU clock.
#[cfg(not(target_os = "linux"))]
fn cpu_s(_pid: u32) -> std::io::Result<f64> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Raises the limit of open files to the hard limit: a connection per stream needs more than the
/// customary 1024.
pub fn raise_open_files_limit() {
    #[cfg(target_os = "linux")]
    {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
            // If this fails, a load that needs more fails with a clear connection error later.
            let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        }
    }
}

/// Returns the number after `name` in a `status` file.
fn field_kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_fields() {
        assert_eq!(field_kib("Name:\tx\nVmRSS:\t  12 kB\n", "VmRSS:"), Some(12));
        assert_eq!(field_kib("", "VmRSS:"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn our_own_work_is_seen() {
        let watch = Process::open(std::process::id()).unwrap().watch().unwrap();
        let began = std::time::Instant::now();
        let mut sum = 0u64;
        while began.elapsed() < Duration::from_millis(150) {
            sum = sum.wrapping_mul(31).wrapping_add(std::hint::black_box(7));
        }
        std::hint::black_box(sum);
        let usage = watch.stop().unwrap();
        // Other tests may run at the same time, so its share of a core is not known.
        assert!(usage.cpu_s > 0.001, "no CPU time seen: {usage:?}");
        assert!(usage.rss_peak_bytes >= usage.rss_before_bytes && usage.rss_before_bytes > 0);
    }

    #[test]
    fn a_process_that_is_not_there_is_refused() {
        assert!(Process::open(u32::MAX).is_err());
    }
}
