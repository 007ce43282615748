//! Parts of masks: found by one layer of a graph, and kept for those that have the same masks.
//!
//! A mask stays as it is while its graph is computed. Before that ggml plans the graph, and asks
//! for the work memory of each operation: from then on the mask is another one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sys;

/// Maximum masks of a pool. A graph has one, or two if some of its layers have a window.
const MOST_MASKS: usize = 4;

/// The parts of one mask.
struct KeptParts {
    /// Address of the mask's tensor: different in each mask of a graph.
    mask: usize,
    cells: usize,
    parts: Arc<[u64]>,
    /// The pool that computes the mask's graph.
    pool: usize,
}

/// Oldest first.
static KEPT: Mutex<Vec<KeptParts>> = Mutex::new(Vec::new());

fn kept() -> MutexGuard<'static, Vec<KeptParts>> {
    // A list that is sound after each call.
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn address(mask: &sys::ggml_tensor) -> usize {
    std::ptr::from_ref(mask).addr()
}

/// Forgets `mask`, since a graph is planned that reads it.
pub(super) fn forget_mask(mask: &sys::ggml_tensor) {
    kept().retain(|kept| kept.mask != address(mask));
}

/// Forgets all masks of graphs that `pool` computed.
pub(super) fn forget_pool(pool: *const sys::ggml_threadpool) {
    kept().retain(|kept| kept.pool != pool.addr());
}

/// Returns the `len` numbers that an earlier layer kept for `mask` over `cells` cells.
pub(super) fn parts_of(mask: &sys::ggml_tensor, cells: usize, len: usize) -> Option<Arc<[u64]>> {
    let fits = |kept: &&KeptParts| {
        (kept.mask, kept.cells, kept.parts.len()) == (address(mask), cells, len)
    };
    kept().iter().find(fits).map(|kept| kept.parts.clone())
}

/// Keeps the parts of `mask` over `cells` cells for the layers that follow.
pub(super) fn keep(
    mask: &sys::ggml_tensor,
    cells: usize,
    parts: &[u64],
    pool: *const sys::ggml_threadpool,
) {
    let (mask, pool, parts) = (address(mask), pool.addr(), parts.into());
    let mut kept = kept();
    kept.retain(|kept| kept.mask != mask);
    let of_pool = |kept: &KeptParts| kept.pool == pool;
    if kept.iter().filter(|kept| of_pool(kept)).count() >= MOST_MASKS {
        let oldest = kept.iter().position(of_pool);
        oldest.map(|oldest| kept.remove(oldest));
    }
    kept.push(KeptParts { mask, cells, parts, pool });
}

#[cfg(test)]
mod tests {
    //! What is kept of a mask is for that mask, its cells and its graph.
    use super::*;

    /// Returns a mask without numbers, whose address alone counts.
    fn mask() -> Box<sys::ggml_tensor> {
        // SAFETY: plain numbers and pointers, for which zeros are values.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    fn pool(number: usize) -> *const sys::ggml_threadpool {
        std::ptr::without_provenance(number)
    }

    #[test]
    fn parts_are_those_of_the_mask_until_its_graph_is_planned_anew() {
        let (mask, other) = (mask(), mask());
        let found = |mask, cells, len| parts_of(mask, cells, len).map(|parts| parts.to_vec());
        keep(&mask, 64, &[1, 2], pool(1));
        keep(&other, 64, &[3], pool(1));
        assert_eq!(found(&mask, 64, 2), Some(vec![1, 2]));
        assert_eq!(found(&mask, 96, 2), None, "layers may see more of the cache");
        assert_eq!(found(&mask, 64, 3), None, "or have more queries");
        keep(&mask, 96, &[4, 5], pool(1));
        assert_eq!((found(&mask, 64, 2), found(&mask, 96, 2)), (None, Some(vec![4, 5])));
        forget_mask(&mask);
        assert_eq!((found(&mask, 96, 2), found(&other, 64, 1)), (None, Some(vec![3])));
        forget_mask(&other);
    }

    #[test]
    fn a_pool_keeps_few_masks_and_none_when_it_is_gone() {
        let masks: Vec<_> = std::iter::repeat_with(mask).take(MOST_MASKS + 2).collect();
        let [others, own @ ..] = &masks[..] else { unreachable!() };
        keep(others, 64, &[7], pool(2));
        own.iter().for_each(|mask| keep(mask, 64, &[8], pool(3)));
        let found = |mask: &sys::ggml_tensor| parts_of(mask, 64, 1).is_some();
        let kept: Vec<bool> = masks.iter().map(|mask| found(mask)).collect();
        assert_eq!(kept, [true, false, true, true, true, true]);
        forget_pool(pool(3));
        assert!(found(others) && !own.iter().any(|mask| found(mask)));
        forget_pool(pool(2));
        assert!(!found(others));
    }
}
