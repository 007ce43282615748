//! Number of compute threads, and the pool that keeps them.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroU16;
use std::ptr::NonNull;

use super::sys;

/// Number of physical cores that this process may use: a second hardware thread per core gains
/// nothing in matrix products and makes barriers slower.
pub fn physical_cores() -> NonZeroU16 {
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
    let cores = fs::read_to_string("/proc/cpuinfo").map_or(0, |text| distinct_cores(&text));
    // A container may be allowed fewer processors than the machine has cores.
    let cores = if cores == 0 { allowed } else { cores.min(allowed) };
    u16::try_from(cores).ok().and_then(NonZeroU16::new).unwrap_or(NonZeroU16::MIN)
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
pub(super) struct ThreadPool(NonNull<sys::ggml_threadpool>);

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
        NonNull::new(unsafe { sys::ggml_threadpool_new(&mut params) }).map(Self)
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.0.as_ptr()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        #[cfg(own_kernels)]
        super::kernels::forget(self.0.as_ptr());
        // SAFETY: created by `ggml_threadpool_new` and freed once; the context that used
        // it has been dropped before (field order of `Context`).
        unsafe { sys::ggml_threadpool_free(self.0.as_ptr()) }
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
    }
}
