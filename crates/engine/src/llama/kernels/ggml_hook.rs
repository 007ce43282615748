//! The entry points that make llama.cpp's graphs use the kernels: called from native/kernels.cpp
//! by ggml's compute threads, all of them for every operation.

use std::sync::Once;

use super::attention::Attention;
use super::matmul::MatMul;
use super::unpack::WeightFormat;
use super::work_queue::WorkQueue;
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
    fn loquent_kernels_register();
}

/// Offers the kernels to ggml, once per process, if this processor can run them.
pub(in crate::llama) fn register() {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        if !supported() {
            return;
        }
        // ggml copies the list when it is first asked where weights may be kept. It must do so
        // before our entry is in the list, since no weights can be kept in that.
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
            loquent_kernels_register();
        }
    });
}

/// Whether most weights of a model are in formats that the kernels read, so that it should be
/// loaded as the file is.
pub(in crate::llama) fn covers(header: &Header) -> bool {
    let matrices = || header.tensors.iter().filter(|tensor| tensor.dims.len() == 2);
    // By weights, not by tensors: a large head in another format counts for what it costs.
    let elements = |own: bool| -> u64 {
        let counted = matrices().filter(|t| !own || WeightFormat::of(t.kind.0).is_some());
        counted.map(|tensor| tensor.elements().unwrap_or(0)).sum()
    };
    supported() && 2 * elements(true) > elements(false)
}

/// An operation of the graph that the kernels compute.
enum Operation<'a> {
    MatMul(MatMul<'a>),
    Attention(Attention<'a>),
}

impl<'a> Operation<'a> {
    fn of(op: &'a sys::ggml_tensor) -> Option<Self> {
        let matmul = || MatMul::of(op).map(Operation::MatMul);
        matmul().or_else(|| Attention::of(op).map(Operation::Attention))
    }

    fn memory_bytes(&self, threads: usize) -> usize {
        match self {
            Operation::MatMul(matmul) => matmul.memory_bytes(),
            Operation::Attention(attention) => attention.memory_bytes(threads),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_kernel_wanted(op: *const sys::ggml_tensor) -> bool {
    // SAFETY: ggml passes a tensor of the graph.
    unsafe { op.as_ref() }.and_then(Operation::of).is_some()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_kernel_memory(threads: i32, op: *const sys::ggml_tensor) -> usize {
    // SAFETY: as above.
    let operation = unsafe { op.as_ref() }.and_then(Operation::of);
    operation.map_or(0, |operation| operation.memory_bytes(usize::try_from(threads).unwrap_or(1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_kernel_compute(
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
    let queue = WorkQueue::new(thread, threads, params.pool);
    // SAFETY: the processor was checked by `register`; tensors have data when a graph is
    // computed; every thread of the pool comes here, with the same memory.
    unsafe {
        match operation {
            Operation::MatMul(matmul) => matmul.compute(&queue, params.memory),
            Operation::Attention(attention) => attention.compute(&queue, params.memory),
        }
    }
    true
}
