//! Order in which the cells of a KV cache were written, in which attention adds them.
//!
//! llama.cpp puts a token wherever a cell is free. If a shared cache has holes, later tokens of a
//! sequence may be before earlier ones, differently each time, and sums in the order of the cells
//! would differ in their last bits. Cells of one sequence are written in the order of its
//! positions, so the order of writing gives the same sums wherever its tokens are.
//!
//! The order is recorded when a graph writes rows (`GGML_OP_SET_ROWS`) into a tensor over which
//! attention has been computed before, and when rows are copied into it. A new cache needs no
//! record: it is filled from its beginning.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::sys;

/// A number for each row of a cache, higher in rows that were written later. One thread writes
/// them, in one operation of a graph; the others read them in a later one, after a barrier.
pub(super) struct WriteOrder {
    row_bytes: usize,
    written: Box<[AtomicU64]>,
    /// Number of rows written in total.
    total: AtomicU64,
    /// The pool whose context the cache belongs to: one pool computes one context.
    pool: usize,
}

/// The order of each cache, by its tensor's address.
static ORDERS: LazyLock<Mutex<HashMap<usize, Arc<WriteOrder>>>> = LazyLock::new(Mutex::default);

fn orders() -> MutexGuard<'static, HashMap<usize, Arc<WriteOrder>>> {
    // A map that is sound after each call.
    ORDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the tensor that `tensor` is a view of, or `tensor` itself.
fn root(tensor: &sys::ggml_tensor) -> &sys::ggml_tensor {
    // SAFETY: null, or a tensor that lives as long as its view.
    unsafe { tensor.view_src.as_ref() }.unwrap_or(tensor)
}

fn address(tensor: &sys::ggml_tensor) -> usize {
    std::ptr::from_ref(tensor).addr()
}

/// Forgets the caches of the context that was computed by `pool`, which is gone.
pub(super) fn forget(pool: *const sys::ggml_threadpool) {
    orders().retain(|_, order| order.pool != pool.addr());
}

/// Returns true if `op` writes rows, so that [`note`] must be called before it is computed.
pub(super) fn is_write(op: &sys::ggml_tensor) -> bool {
    op.op == sys::GGML_OP_SET_ROWS
}

/// Records the rows that `op`, for which [`is_write`] holds, writes.
///
/// # Safety
/// The operands of `op` have their data, and only one thread calls this.
pub(super) unsafe fn note(op: &sys::ggml_tensor) {
    let Some(order) = orders().get(&address(root(op))).cloned() else {
        return;
    };
    // SAFETY: null, or an operand that lives as long as the operation.
    let Some(rows) = (unsafe { op.src[1].as_ref() }) else { return };
    let count = usize::try_from(rows.ne[0]).unwrap_or(0);
    if op.nb[1] != order.row_bytes || rows.type_ != sys::GGML_TYPE_I64 || rows.nb[0] != 8 {
        return;
    }
    // SAFETY: it has so many numbers, without gaps, aligned as ggml aligns tensors.
    let rows = unsafe { std::slice::from_raw_parts(rows.data.cast::<i64>(), count) };
    order.note(rows);
}

/// Records that `bytes` bytes were copied into `tensor` from `offset` on, outside of a graph. If it
/// is a cache, its rows count as written one after the other.
pub fn note_copied_rows(tensor: &sys::ggml_tensor, offset: usize, bytes: usize) {
    let cache = root(tensor);
    let Some(order) = orders().get(&address(cache)).cloned() else {
        return;
    };
    let start = (tensor.data.addr() + offset).saturating_sub(cache.data.addr());
    let rows = start / order.row_bytes..(start + bytes) / order.row_bytes;
    order.note(&rows.filter_map(|row| i64::try_from(row).ok()).collect::<Vec<_>>());
}

impl WriteOrder {
    /// Returns the order of the cache that `keys` is a view of; a new cache is recorded from here
    /// on. `None` for a tensor that the graph has computed itself.
    pub(super) fn of(
        keys: &sys::ggml_tensor,
        pool: *const sys::ggml_threadpool,
    ) -> Option<Arc<Self>> {
        let cache = root(keys);
        if cache.op != sys::GGML_OP_NONE || keys.nb[1] == 0 {
            return None;
        }
        // SAFETY: a tensor whose sizes are set.
        let rows = unsafe { sys::ggml_nbytes(cache) } / keys.nb[1];
        let (row_bytes, pool) = (keys.nb[1], pool.addr());
        let mut orders = orders();
        let known = orders.get(&address(cache));
        let fits = |order: &&Arc<Self>| {
            (order.row_bytes, order.written.len(), order.pool) == (row_bytes, rows, pool)
        };
        if let Some(order) = known.filter(fits) {
            return Some(order.clone());
        }
        let written = (0..rows).map(|_| AtomicU64::new(0)).collect();
        let order = Arc::new(Self { row_bytes, written, total: AtomicU64::new(0), pool });
        orders.insert(address(cache), order.clone());
        Some(order)
    }

    fn note(&self, rows: &[i64]) {
        let before = self.total.fetch_add(rows.len() as u64, Ordering::Relaxed);
        for (number, &row) in (before + 1..).zip(rows) {
            let place = usize::try_from(row).ok().and_then(|row| self.written.get(row));
            if let Some(place) = place {
                place.store(number, Ordering::Relaxed);
            }
        }
    }

    /// Returns the order of the cells that `keys` begins with in stream number `stream`.
    pub(super) fn of_cells(&self, keys: &sys::ggml_tensor, stream: usize) -> &[AtomicU64] {
        let start = keys.data.addr() + stream * keys.nb[3];
        let first = start.saturating_sub(root(keys).data.addr()) / self.row_bytes;
        self.written.get(first..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    //! Rows that are written again come last.
    use super::*;

    #[test]
    fn rows_are_in_the_order_in_which_they_were_written_last() {
        let written = (0..6).map(|_| AtomicU64::new(0)).collect();
        let order = WriteOrder { row_bytes: 8, written, total: AtomicU64::new(0), pool: 0 };
        order.note(&[0, 1, 2, 3]);
        order.note(&[1, 5]);
        // Rows that are not there are nobody's.
        order.note(&[-1, 6, 0]);
        let mut rows = [0, 1, 2, 3, 4, 5];
        rows.sort_by_key(|&row| order.written[row].load(Ordering::Relaxed));
        assert_eq!(rows, [4, 2, 3, 1, 5, 0]);
    }
}
