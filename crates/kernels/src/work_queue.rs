//! Shares the work of one graph operation between its threads.

use super::sys;

unsafe extern "C" {
    fn ggml_barrier(pool: *mut sys::ggml_threadpool);
    fn ggml_threadpool_chunk_set(pool: *mut sys::ggml_threadpool, value: i32);
    fn ggml_threadpool_chunk_add(pool: *mut sys::ggml_threadpool, value: i32) -> i32;
}

/// One thread's view of an operation that all threads of a pool compute together.
///
/// Chunks are handed out one by one instead of in equal parts per thread: a thread that the system
/// displaced for a while takes fewer, and the others do not wait for it at the next barrier. The
/// counter is ggml's own, one per pool; ggml runs one operation at a time.
pub(super) struct WorkQueue {
    pub(super) thread: usize,
    pub(super) threads: usize,
    pub(super) pool: *mut sys::ggml_threadpool,
}

impl WorkQueue {
    pub(super) fn new(thread: usize, threads: usize, pool: *mut sys::ggml_threadpool) -> Self {
        Self { thread, threads, pool }
    }

    /// Waits for all threads; then chunks are counted from 0.
    pub(super) fn begin(&self) {
        // SAFETY: the pool computes this operation; all its threads come here.
        unsafe {
            // One thread resets the counter before the barrier, so that every thread sees 0
            // after it.
            if self.thread == 0 {
                ggml_threadpool_chunk_set(self.pool, 0);
            }
            ggml_barrier(self.pool);
        }
    }

    /// Returns the next chunk below `count` that no thread has taken.
    pub(super) fn next(&self, count: usize) -> Option<usize> {
        // SAFETY: the pool is alive, since it computes this operation, and its counter is atomic.
        let chunk = unsafe { ggml_threadpool_chunk_add(self.pool, 1) };
        usize::try_from(chunk).ok().filter(|&chunk| chunk < count)
    }
}
