//! Locks and atomics of the modules whose interleavings are explored: the standard
//! library's, or loom's in `make loom`, which runs a test once for each order of their operations.

#[cfg(loquent_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(loquent_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
