//! Number of compute threads, and the pool that keeps them.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroU16;
use std::path::Path;
use std::ptr::NonNull;

use super::neighbours::{Neighbours, allowed_processors};
use super::sys;

/// Number of physical cores that this process may use: a second hardware thread per core gains
/// nothing in matrix products and makes barriers slower.
pub fn physical_cores() -> NonZeroU16 {
    let cores = fs::read_to_string("/proc/cpuinfo").map_or(0, |text| distinct_cores(&text));
    // A container may be allowed fewer processors than the machine has cores.
    let usable = usable_processors();
    u16::try_from(cores).ok().and_then(NonZeroU16::new).map_or(usable, |cores| cores.min(usable))
}

/// Returns `threads`, or the number of usable processors if that is smaller, with a warning:
/// threads without a processor of their own make a step wait for time slices.
pub fn at_most_processors(threads: NonZeroU16) -> NonZeroU16 {
    let usable = usable_processors();
    if threads > usable {
        tracing::warn!(
            "{threads} threads on {usable} processors would wait for each other; computing with \
             {usable}"
        );
    }
    threads.min(usable)
}

/// Number of processors that this process may use, second hardware threads included. A container's
/// quota is rounded up: with one processor and a half, two threads compute faster than one.
fn usable_processors() -> NonZeroU16 {
    let allowed = match allowed_processors().len() {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        allowed => allowed,
    };
    let quota = cpu_quota().map_or(allowed, |quota| quota.ceil() as usize);
    u16::try_from(allowed.min(quota)).ok().and_then(NonZeroU16::new).unwrap_or(NonZeroU16::MIN)
}

/// Number of processors whose time the control groups of this process allow it; `None` without a
/// quota.
fn cpu_quota() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let quotas = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next().unwrap_or(""), parts.next().unwrap_or("/"));
        let is_cpu = controllers.split(',').any(|controller| controller == "cpu");
        // Version 2 has one tree of groups and no controllers in this file.
        let (root, read): (_, fn(&Path) -> Option<f64>) = match is_cpu {
            true => (Path::new("/sys/fs/cgroup/cpu"), quota_of_version_1),
            false => (Path::new("/sys/fs/cgroup"), quota_of_version_2),
        };
        let is_read = is_cpu || controllers.is_empty();
        // Inside a container the root is often the group itself.
        let folders = Path::new(group.trim_start_matches('/')).ancestors();
        folders.filter(move |_| is_read).filter_map(move |folder| read(&root.join(folder)))
    });
    quotas.min_by(f64::total_cmp)
}

/// Reads the quota of a group of version 2: a quota or `max`, and its period.
fn quota_of_version_2(folder: &Path) -> Option<f64> {
    let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    processors_of(quota, period)
}

/// Reads the quota of a group of version 1, -1 for none, and its period.
fn quota_of_version_1(folder: &Path) -> Option<f64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    processors_of(read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim())
}

/// Processors that a quota of time in each period stands for.
fn processors_of(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.parse::<u32>().ok()?, period.parse::<u32>().ok()?);
    (quota > 0 && period > 0).then(|| f64::from(quota) / f64::from(period))
}

/// Number of distinct pairs of package and core in the text of `/proc/cpuinfo`; 0 if it has no such
/// fields, as in some virtual machines and on ARM.
fn distinct_cores(cpuinfo: &str) -> usize {
    let (mut package, mut cores) = ("", BTreeSet::new());
    for line in cpuinfo.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        match key.trim() {
            "physical id" => package = value.trim(),
            "core id" => _ = cores.insert((package, value.trim())),
            _ => {}
        }
    }
    cores.len()
}

/// A pool of compute threads that outlives single decodes. Without one, ggml starts and
/// joins its threads in every call.
pub(super) struct ThreadPool {
    pool: NonNull<sys::ggml_threadpool>,
    neighbours: Neighbours,
}

// SAFETY: the pool is used by one context at a time, which is itself moved as a whole.
unsafe impl Send for ThreadPool {}

impl ThreadPool {
    /// Creates a pool of `threads` threads, the calling one included. `poll` is the level of
    /// spinning of idle threads before they sleep, from 0 (none) to 100.
    pub(super) fn new(threads: NonZeroU16, poll: u32) -> Option<Self> {
        // SAFETY: plain values in, plain struct out.
        let mut params = unsafe { sys::ggml_threadpool_params_default(threads.get().into()) };
        params.poll = poll.min(100);
        // SAFETY: `params` is initialised and lives through the call.
        let pool = NonNull::new(unsafe { sys::ggml_threadpool_new(&mut params) })?;
        Some(Self { pool, neighbours: Neighbours::new(threads.get()) })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.pool.as_ptr()
    }

    /// Computes with all threads, whatever other programs use.
    pub(super) fn ignore_neighbours(&mut self) {
        self.neighbours.ignore();
    }

    /// Returns the number of threads for the next step: fewer than the pool has while other
    /// programs use the processors.
    pub(super) fn threads(&mut self) -> u16 {
        self.neighbours.threads()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        loquent_kernels::forget(self.pool.as_ptr());
        // SAFETY: created by `ggml_threadpool_new` and freed once; the context that used
        // it has been dropped before (field order of `Context`).
        unsafe { sys::ggml_threadpool_free(self.pool.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    //! Cores are counted once, regardless of their hardware threads.
    use super::*;

    #[test]
    fn hyperthreads_count_once() {
        let cpu =
            |package: u8, core: u8| format!("physical id\t: {package}\ncore id\t\t: {core}\n\n");
        let text = [cpu(0, 0), cpu(0, 1), cpu(0, 0), cpu(1, 0)].concat();
        assert_eq!(distinct_cores(&text), 3);
        assert_eq!(distinct_cores("processor : 0\n"), 0);
        assert!(physical_cores().get() >= 1);
        assert_eq!(at_most_processors(NonZeroU16::MAX), usable_processors());
        assert_eq!(at_most_processors(NonZeroU16::MIN), NonZeroU16::MIN);
    }

    #[test]
    fn quotas_are_read_in_both_versions() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(quota_of_version_2(folder.path()), None, "a group without a quota's file");
        write("cpu.max", "150000 100000\n");
        assert_eq!(quota_of_version_2(folder.path()), Some(1.5));
        for none in ["max 100000\n", "150000\n", "150000 0\n", "-1 100000\n", ""] {
            write("cpu.max", none);
            assert_eq!(quota_of_version_2(folder.path()), None, "{none:?}");
        }
        write("cpu.cfs_quota_us", "50000\n");
        write("cpu.cfs_period_us", "100000\n");
        assert_eq!(quota_of_version_1(folder.path()), Some(0.5));
        write("cpu.cfs_quota_us", "-1\n");
        assert_eq!(quota_of_version_1(folder.path()), None);
    }
}
