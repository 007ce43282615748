//! Entry points through which llama.cpp's graphs use the kernels: called from native/kernels.cpp by
//! ggml's compute threads, all of them for every operation.

use std::sync::Once;

use super::attention::Attention;
use super::float_matmul::{self, FloatMatMul};
use super::graph_masks;
use super::matmul::MatMul;
use super::weight_format::WeightFormat;
use super::work_queue::WorkQueue;
use super::{Isa, avx2, avx512, sys, write_order};
use crate::amx::Amx;
use crate::operation_times::{self, OperationKind};

unsafe extern "C" {
    fn loquent_kernels_register();
}

/// Registers the kernels with ggml, once per process, if this processor can run them.
pub fn register() {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        if Isa::used().is_none() {
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

/// Forgets what is known of the context that was computed by `pool`, which is gone.
pub fn forget(pool: *const sys::ggml_threadpool) {
    write_order::forget(pool);
    graph_masks::forget_pool(pool);
}

/// Returns true if the kernels read weights of ggml's type `kind`.
pub fn reads(kind: sys::ggml_type) -> bool {
    WeightFormat::of(kind).is_some() || float_matmul::reads(kind)
}

/// An operation of the graph that the kernels compute.
pub(super) enum Operation<'a> {
    MatMul(MatMul<'a>),
    FloatMatMul(FloatMatMul<'a>),
    Attention(Attention<'a>),
}

impl<'a> Operation<'a> {
    pub(super) fn of(op: &'a sys::ggml_tensor) -> Option<Self> {
        let matmul = MatMul::of(op).map(Operation::MatMul);
        let floats = || FloatMatMul::of(op).map(Operation::FloatMatMul);
        matmul.or_else(floats).or_else(|| Attention::of(op).map(Operation::Attention))
    }

    fn kind(&self) -> OperationKind {
        match self {
            Self::MatMul(_) | Self::FloatMatMul(_) => OperationKind::Products,
            Self::Attention(_) => OperationKind::Attention,
        }
    }

    /// Work memory in bytes.
    pub(super) fn memory_bytes(&self, isa: Isa, threads: usize) -> usize {
        match (self, isa) {
            (Self::MatMul(op), Isa::Amx | Isa::Avx512Vnni) => {
                avx512::matmul::memory_bytes(op, threads)
            }
            (Self::Attention(op), Isa::Amx | Isa::Avx512Vnni) => {
                avx512::attention::memory_bytes(op, threads)
            }
            (Self::MatMul(op), Isa::AvxVnni | Isa::Avx2) => avx2::matmul::memory_bytes(op),
            (Self::FloatMatMul(op), Isa::Amx | Isa::Avx512Vnni) => avx512::floats::memory_bytes(op),
            (Self::FloatMatMul(_), Isa::AvxVnni | Isa::Avx2) => 0,
            (Self::Attention(op), Isa::AvxVnni | Isa::Avx2) => {
                avx2::attention::memory_bytes(op, threads)
            }
        }
    }

    /// Computes one thread's share.
    ///
    /// # Safety
    /// The processor has `isa`; all threads of `queue` call this with the same `memory` of
    /// [`Operation::memory_bytes`]; the tensors have their data.
    pub(super) unsafe fn compute(&self, isa: Isa, queue: &WorkQueue, memory: *mut u8) {
        // SAFETY: the preconditions are those of the kernels, and the caller guarantees them for
        // `isa`.
        unsafe {
            match (self, isa) {
                (Self::MatMul(op), Isa::Amx | Isa::Avx512Vnni) => {
                    let unit = (isa == Isa::Amx).then(Amx::default);
                    avx512::matmul::compute(op, queue, memory, unit);
                }
                (Self::Attention(op), Isa::Amx | Isa::Avx512Vnni) => {
                    avx512::attention::compute(op, queue, memory);
                }
                (Self::MatMul(op), Isa::AvxVnni | Isa::Avx2) => {
                    avx2::matmul::compute(op, queue, memory, isa == Isa::AvxVnni);
                }
                (Self::FloatMatMul(op), Isa::Amx | Isa::Avx512Vnni) => {
                    avx512::floats::compute(op, queue, memory);
                }
                (Self::FloatMatMul(op), Isa::AvxVnni | Isa::Avx2) => {
                    avx2::floats::compute(op, queue);
                }
                (Self::Attention(op), Isa::AvxVnni | Isa::Avx2) => {
                    avx2::attention::compute(op, queue, memory);
                }
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_kernel_wanted(op: *const sys::ggml_tensor) -> bool {
    // SAFETY: ggml passes a tensor of the graph.
    unsafe { op.as_ref() }.and_then(Operation::of).is_some()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_rows_watched(op: *const sys::ggml_tensor) -> bool {
    // SAFETY: ggml passes a tensor of the graph.
    unsafe { op.as_ref() }.is_some_and(write_order::is_write)
}

/// Called by one thread, before the rows are written.
#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_rows_written(op: *const sys::ggml_tensor) {
    // SAFETY: a tensor of the graph with its data, for which `loquent_rows_watched` held.
    unsafe {
        if let Some(op) = op.as_ref() {
            write_order::note(op);
        }
    }
}

/// Called when a graph is planned, before each time that it is computed.
#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_kernel_memory(threads: i32, op: *const sys::ggml_tensor) -> usize {
    // SAFETY: ggml passes a tensor of the graph.
    let operation = unsafe { op.as_ref() }.and_then(Operation::of);
    if let Some(Operation::Attention(op)) = &operation {
        graph_masks::forget_mask(op.mask);
    }
    let threads = usize::try_from(threads).unwrap_or(1);
    let bytes = |(operation, isa): (Operation<'_>, Isa)| operation.memory_bytes(isa, threads);
    operation.zip(Isa::used()).map_or(0, bytes)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_kernel_compute(
    thread: i32,
    threads: i32,
    memory_bytes: usize,
    memory: *mut u8,
    pool: *mut sys::ggml_threadpool,
    op: *mut sys::ggml_tensor,
) -> bool {
    // SAFETY: ggml passes a tensor of the graph.
    let operation = unsafe { op.as_ref() }.and_then(Operation::of);
    let Some((operation, isa)) = operation.zip(Isa::used()) else {
        return false;
    };
    let (thread, threads) = (thread as usize, threads as usize);
    assert!(memory_bytes >= operation.memory_bytes(isa, threads), "room that was asked for");
    let queue = WorkQueue::new(thread, threads, pool);
    let began = operation_times::begin(thread);
    // SAFETY: the processor has what is used; tensors have data when a graph is computed; every
    // thread of the pool comes here, with the same memory.
    unsafe { operation.compute(isa, &queue, memory) };
    operation_times::end(operation.kind(), began);
    true
}
