//! Times of the operations that our own kernels compute, for measurements.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
#[cfg(own_kernels)]
use std::time::Instant;

/// True while times are measured: reading the clock costs little, but there are hundreds of
/// operations per step.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// Nanoseconds by kind, in this process.
static SPENT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Kinds of operations.
#[cfg(own_kernels)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperationKind {
    Products,
    Attention,
}

/// Time that one of the threads spent in operations, including waits for the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperationTimes {
    /// In matrix products.
    pub products: Duration,
    /// In attention.
    pub attention: Duration,
}

/// Runs `work` while times are measured, and returns them: of all contexts of this process, and of
/// Loquent's own kernels only.
pub fn with_operation_times<T>(work: impl FnOnce() -> T) -> (T, OperationTimes) {
    let spent = || SPENT.each_ref().map(|spent| spent.load(Ordering::Relaxed));
    let before = spent();
    IS_ON.store(true, Ordering::Relaxed);
    let outcome = work();
    IS_ON.store(false, Ordering::Relaxed);
    let [products, attention] = spent();
    let since = |now: u64, before: u64| Duration::from_nanos(now.saturating_sub(before));
    let times = OperationTimes {
        products: since(products, before[0]),
        attention: since(attention, before[1]),
    };
    (outcome, times)
}

/// Notes the beginning of an operation while times are measured; only for the first thread.
#[cfg(own_kernels)]
pub(super) fn begin(thread: usize) -> Option<Instant> {
    (thread == 0 && IS_ON.load(Ordering::Relaxed)).then(Instant::now)
}

/// Notes the end of an operation of this kind that began at `began`.
#[cfg(own_kernels)]
pub(super) fn end(kind: OperationKind, began: Option<Instant>) {
    if let Some(began) = began {
        let spent = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        SPENT[kind as usize].fetch_add(spent, Ordering::Relaxed);
    }
}
