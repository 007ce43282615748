//! The interface of the kernels in a build without them.

use super::sys;

/// AMX, which nothing here could use.
pub mod amx {
    /// Products of two bytes in one product of full tiles.
    pub const FULL_PRODUCTS: usize = 0;

    /// Returns false: nobody has looked.
    pub fn is_there() -> bool {
        false
    }

    /// Returns false.
    pub fn is_usable() -> bool {
        false
    }

    /// Multiplies nothing.
    pub fn multiply_full_tiles(_times: usize) {
        unreachable!("AMX is not usable");
    }
}

/// Does nothing.
pub fn register() {}

/// Returns false: there are no kernels.
pub fn reads(_kind: sys::ggml_type) -> bool {
    false
}

/// Does nothing.
pub fn note_copied_rows(_tensor: &sys::ggml_tensor, _offset: usize, _bytes: usize) {}

/// Does nothing.
pub fn forget(_pool: *const sys::ggml_threadpool) {}
