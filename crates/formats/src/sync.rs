//! Locks, channels and threads of the modules whose interleavings are explored: the standard
//! library's, or loom's in `make loom`, which runs a test once for each order of their operations.

#[cfg(loquent_loom)]
pub(crate) use loom::{
    sync::{Condvar, Mutex, MutexGuard, atomic, mpsc},
    thread,
};
#[cfg(not(loquent_loom))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic, mpsc},
    thread,
};
