//! How llama.cpp's graphs come to use the kernels: called from native/products.cpp by ggml's
//! compute threads, all of them for every operation.

use std::sync::Once;

use super::attention::Attention;
use super::product::Product;
use super::unpack::Format;
use super::{supported, sys};
use crate::gguf::Header;

/// `ggml_compute_params` of ggml-cpu-impl.h.
#[repr(C)]
struct ComputeParams {
    thread: i32,
    threads: i32,
    memory_bytes: usize,
    memory: *mut u8,
    pool: *mut sys::ggml_threadpool,
    reference: bool,
}

unsafe extern "C" {
    fn loquent_products_register();
    fn ggml_barrier(pool: *mut sys::ggml_threadpool);
    fn ggml_threadpool_chunk_set(pool: *mut sys::ggml_threadpool, value: i32);
    fn ggml_threadpool_chunk_add(pool: *mut sys::ggml_threadpool, value: i32) -> i32;
}

/// Offers the kernels to ggml, once per process, if this processor can run them.
pub(in crate::llama) fn register() {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        if !supported() {
            return;
        }
        // ggml copies the list when it is first asked where weights may be kept. It must do so
        // before our entry stands there, which keeps no weights.
        // SAFETY: the processor's back end is linked in; its registry gives the function of
        // this name and type, which is called once here with a device that it ignores.
        unsafe {
            let device = sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU);
            let registry = sys::ggml_backend_dev_backend_reg(device);
            let name = c"ggml_backend_dev_get_extra_bufts".as_ptr();
            let get = sys::ggml_backend_reg_get_proc_address(registry, name);
            if get.is_null() {
                return;
            }
            type Get = unsafe extern "C" fn(sys::ggml_backend_dev_t) -> *mut core::ffi::c_void;
            std::mem::transmute::<*mut core::ffi::c_void, Get>(get)(device);
            loquent_products_register();
        }
    });
}

/// Whether most weights of a model are in formats that the kernels read, so that it should be
/// loaded as the file is.
pub(in crate::llama) fn covers(header: &Header) -> bool {
    let matrices = || header.tensors.iter().filter(|tensor| tensor.dims.len() == 2);
    let elements = |own: bool| -> u64 {
        let counted = matrices().filter(|t| !own || Format::of(t.kind.0).is_some());
        counted.map(|tensor| tensor.elements().unwrap_or(0)).sum()
    };
    supported() && 2 * elements(true) > elements(false)
}

/// The threads of one operation, and how they share its work.
pub(super) struct Turns {
    pub(super) thread: usize,
    pub(super) threads: usize,
    pool: *mut sys::ggml_threadpool,
}

impl Turns {
    /// Waits for all threads; then turns are counted from 0.
    pub(super) fn begin(&self) {
        // SAFETY: the pool computes this operation; all its threads come here.
        unsafe {
            if self.thread == 0 {
                ggml_threadpool_chunk_set(self.pool, 0);
            }
            ggml_barrier(self.pool);
        }
    }

    /// The next turn below `count` that no thread has taken.
    pub(super) fn next(&self, count: usize) -> Option<usize> {
        // SAFETY: as in `begin`.
        let turn = unsafe { ggml_threadpool_chunk_add(self.pool, 1) };
        usize::try_from(turn).ok().filter(|&turn| turn < count)
    }
}

/// What the kernels compute.
enum Operation<'a> {
    Product(Product<'a>),
    Attention(Attention<'a>),
}

impl<'a> Operation<'a> {
    fn of(op: &'a sys::ggml_tensor) -> Option<Self> {
        let product = || Product::of(op).map(Operation::Product);
        product().or_else(|| Attention::of(op).map(Operation::Attention))
    }

    fn memory_bytes(&self, threads: usize) -> usize {
        match self {
            Operation::Product(product) => product.memory_bytes(),
            Operation::Attention(attention) => attention.memory_bytes(threads),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_product_wanted(op: *const sys::ggml_tensor) -> bool {
    // SAFETY: ggml passes a tensor of the graph.
    unsafe { op.as_ref() }.and_then(Operation::of).is_some()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_product_memory(threads: i32, op: *const sys::ggml_tensor) -> usize {
    // SAFETY: as above.
    let operation = unsafe { op.as_ref() }.and_then(Operation::of);
    operation.map_or(0, |operation| operation.memory_bytes(usize::try_from(threads).unwrap_or(1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_product_compute(
    params: *const ComputeParams,
    op: *mut sys::ggml_tensor,
) -> bool {
    // SAFETY: ggml passes its parameters and a tensor of the graph.
    let (params, operation) = unsafe { (&*params, Operation::of(&*op)) };
    let Some(operation) = operation else {
        return false;
    };
    let (thread, threads) = (params.thread as usize, params.threads as usize);
    assert!(params.memory_bytes >= operation.memory_bytes(threads), "room that was asked for");
    let turns = Turns { thread, threads, pool: params.pool };
    // SAFETY: the processor was checked by `register`; tensors have data when a graph is
    // computed; every thread of the pool comes here, with the same memory.
    unsafe {
        match operation {
            Operation::Product(product) => product.compute(&turns, params.memory),
            Operation::Attention(attention) => attention.compute(&turns, params.memory),
        }
    }
    true
}
