//! Exploring the interleavings of threads with loom (`make loom`).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::Notify;

/// Maximum switches away from a thread that could go on, in one order of operations. Few faults
/// need more, and each more multiplies the orders.
const PREEMPTIONS: usize = 2;

/// Runs `test` once for each order of its threads' operations, and says how many there were.
///
/// # Panics
/// If `test` panics in one of them, or leaves a thread asleep for ever.
pub fn explore(name: &str, test: impl Fn() + Send + Sync + 'static) {
    let runs = Arc::new(AtomicU64::new(0));
    let counted = runs.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(PREEMPTIONS));
    model.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        test();
    });
    println!("{name}: {} interleavings", runs.load(Ordering::Relaxed));
}

/// Waits for `future` on one of loom's threads, asleep until it is woken.
pub fn block_on<F: Future>(future: F) -> F::Output {
    // Not loom's `unpark`, which also wakes a thread that waits for something else by now.
    struct Woken(Notify);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.notify();
        }
    }

    let woken = Arc::new(Woken(Notify::new()));
    let waker = Waker::from(woken.clone());
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => woken.0.wait(),
        }
    }
}
