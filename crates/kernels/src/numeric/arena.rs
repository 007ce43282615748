//! Tensors and operations of ggml for tests, computed by our kernels or by llama.cpp's.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicUsize;

use super::super::avx512;
use super::super::ggml_hook::Operation;
use super::super::graph_masks;
use super::super::work_queue::WorkQueue;
use super::{Isa, sys};
use crate::amx::SoftTiles;

/// Bytes of a context: room for some graphs and the descriptions of their tensors.
const ROOM: usize = 8 << 20;
/// Alignment of a tensor's elements, on which kernels may rely: ggml's for those of a context.
const ALIGNMENT: usize = 16;
/// Number and value of the guard bytes after the work memory, which must not be written.
const GUARD: (usize, u8) = (256, 0xa5);

/// Kernels that compute an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelSide {
    Own(Isa),
    /// Ours for AMX, with the model of its tiles; requires that many rows use them.
    SoftTiles,
    Llama,
}

/// A tensor of an [`Arena`].
#[derive(Clone, Copy)]
pub(super) struct ArenaTensor<'a>(NonNull<sys::ggml_tensor>, PhantomData<&'a Arena>);

impl ArenaTensor<'_> {
    pub(super) fn as_ptr(self) -> *mut sys::ggml_tensor {
        self.0.as_ptr()
    }

    pub(super) fn get(&self) -> &sys::ggml_tensor {
        // SAFETY: lives as long as the arena.
        unsafe { self.0.as_ref() }
    }

    /// Returns true if our kernels support this operation.
    pub(super) fn is_ours(&self) -> bool {
        Operation::of(self.get()).is_some()
    }

    /// Returns the numbers, which are f32 without gaps.
    pub(super) fn floats(&self) -> Vec<f32> {
        let tensor = self.get();
        assert_eq!(tensor.type_, sys::GGML_TYPE_F32);
        let count = tensor.ne.iter().product::<i64>() as usize;
        // SAFETY: the arena gave it memory for its elements.
        unsafe { std::slice::from_raw_parts(tensor.data.cast::<f32>(), count).to_vec() }
    }
}

/// A context of ggml, which owns tensors and graphs. The elements of a tensor are an allocation of
/// exactly their size, so that AddressSanitizer sees a kernel that reads or writes beyond them.
pub(super) struct Arena {
    context: *mut sys::ggml_context,
    elements: RefCell<Vec<(NonNull<u8>, Layout)>>,
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: made by `new` and `allocate`, freed once; tensors borrow the arena.
        unsafe {
            sys::ggml_free(self.context);
            for (elements, layout) in self.elements.take() {
                dealloc(elements.as_ptr(), layout);
            }
        }
    }
}

impl Arena {
    pub(super) fn new() -> Self {
        let room =
            sys::ggml_init_params { mem_size: ROOM, mem_buffer: ptr::null_mut(), no_alloc: true };
        // SAFETY: prepares ggml's tables, any number of times; then a plain allocation.
        let context = unsafe {
            sys::ggml_cpu_init();
            sys::ggml_init(room)
        };
        Self { context, elements: RefCell::default() }
    }

    /// Creates a tensor in this context with `make`.
    pub(super) fn make(
        &self,
        make: impl FnOnce(*mut sys::ggml_context) -> *mut sys::ggml_tensor,
    ) -> ArenaTensor<'_> {
        let tensor = NonNull::new(make(self.context)).expect("room for a tensor");
        // SAFETY: a tensor of this context, which nothing else refers to yet.
        unsafe {
            // A view has its source's elements.
            if (*tensor.as_ptr()).data.is_null() {
                (*tensor.as_ptr()).data = self.allocate(sys::ggml_nbytes(tensor.as_ptr())).cast();
            }
        }
        ArenaTensor(tensor, PhantomData)
    }

    /// Returns memory of so many bytes, at least one, which lives as long as the arena.
    fn allocate(&self, bytes: usize) -> *mut u8 {
        let layout = Layout::from_size_align(bytes, ALIGNMENT).expect("a tensor's size");
        // SAFETY: the layout has a size that is not 0: every tensor has an element.
        let memory = NonNull::new(unsafe { alloc(layout) });
        let memory = memory.unwrap_or_else(|| handle_alloc_error(layout));
        self.elements.borrow_mut().push((memory, layout));
        memory.as_ptr()
    }

    /// Creates a tensor of these sizes with the data `bytes`.
    pub(super) fn tensor(
        &self,
        kind: sys::ggml_type,
        sizes: [i64; 4],
        bytes: &[u8],
    ) -> ArenaTensor<'_> {
        // SAFETY: four sizes; then a copy into the tensor's own memory.
        unsafe {
            let tensor =
                self.make(|context| sys::ggml_new_tensor(context, kind, 4, sizes.as_ptr()));
            assert_eq!(sys::ggml_nbytes(tensor.as_ptr()), bytes.len(), "a number for each element");
            ptr::copy_nonoverlapping(bytes.as_ptr(), tensor.get().data.cast(), bytes.len());
            tensor
        }
    }

    pub(super) fn floats(&self, sizes: [i64; 4], values: &[f32]) -> ArenaTensor<'_> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.tensor(sys::GGML_TYPE_F32, sizes, &bytes)
    }

    /// Swaps dimensions 1 and 2 of the tensor: rows of different heads are then side by side, as in
    /// caches and queries.
    pub(super) fn heads_first<'a>(&'a self, tensor: ArenaTensor<'a>) -> ArenaTensor<'a> {
        // SAFETY: a view of a tensor of this context.
        self.make(|context| unsafe { sys::ggml_permute(context, tensor.as_ptr(), 0, 2, 1, 3) })
    }

    /// Computes `op` as a graph, ours with `threads` threads: with one if tools/amx-emulated runs
    /// it, whose machine has no others. Any number that is not written is NaN.
    pub(super) fn compute(
        &self,
        op: ArenaTensor<'_>,
        side: KernelSide,
        threads: usize,
    ) -> Vec<f32> {
        let numbers = self.compute_layer(op, side, threads);
        if let Some(Operation::Attention(op)) = Operation::of(op.get()) {
            graph_masks::forget_mask(op.mask);
        }
        numbers
    }

    /// Computes `op` as part of a graph that is not at its end.
    pub(super) fn compute_layer(
        &self,
        op: ArenaTensor<'_>,
        side: KernelSide,
        threads: usize,
    ) -> Vec<f32> {
        let threads = if cfg!(target_feature = "crt-static") { 1 } else { threads };
        let count = op.get().ne.iter().product::<i64>() as usize;
        // SAFETY: the output's own memory, not read by anyone now.
        unsafe { std::slice::from_raw_parts_mut(op.get().data.cast::<f32>(), count) }
            .fill(f32::NAN);
        match side {
            // Its results do not depend on threads, which wait for each other on a busy machine.
            KernelSide::Llama => self.run(op, 1, ptr::null_mut()),
            KernelSide::Own(isa) => self.run_own(op, isa, None, threads),
            KernelSide::SoftTiles => {
                let products = AtomicUsize::new(0);
                self.run_own(op, Isa::Amx, Some(&products), threads);
                assert!(products.into_inner() > 0, "tiles were used");
            }
        }
        op.floats()
    }

    /// Computes `op` on our kernels, and nothing else.
    pub(super) fn run_own(
        &self,
        op: ArenaTensor<'_>,
        isa: Isa,
        soft_products: Option<&AtomicUsize>,
        threads: usize,
    ) {
        let operation = Operation::of(op.get()).expect("an operation that the kernels compute");
        let needed = operation.memory_bytes(isa, threads);
        // Filled with what is NaN as a float and -1 as a byte: whoever reads it before it was
        // written gives himself away. Not on a cache line, as ggml does not promise that.
        let mut memory = vec![0xffu8; 8 + needed + GUARD.0];
        memory[8 + needed..].fill(GUARD.1);
        let mut call = OwnCall {
            op: op.as_ptr(),
            isa,
            soft_products: soft_products.map(ptr::from_ref),
            memory: memory[8..].as_mut_ptr(),
            pool: ptr::null_mut(),
        };
        let data: *mut OwnCall = &raw mut call;
        let all_threads = -1; // GGML_N_TASKS_MAX, whose macro is not in the bindings
        // SAFETY: no operands; `call` outlives the computation.
        let custom = self.make(|context| unsafe {
            let (kind, function) = (sys::GGML_TYPE_F32, Some(compute_own as _));
            let none = ptr::null_mut();
            sys::ggml_custom_4d(
                context,
                kind,
                1,
                1,
                1,
                1,
                none,
                0,
                function,
                all_threads,
                data.cast(),
            )
        });
        self.run(custom, threads, &raw mut call.pool);
        assert!(
            memory[8 + needed..].iter().all(|byte| *byte == GUARD.1),
            "beyond the memory asked for"
        );
    }

    /// Computes the graph of `op` with its own pool, whose address is first stored in `tell`.
    pub(super) fn run(
        &self,
        op: ArenaTensor<'_>,
        threads: usize,
        tell: *mut *mut sys::ggml_threadpool,
    ) {
        // SAFETY: graph, pool and work memory live until the computation has ended; `tell` is
        // null or a place that lives as long.
        unsafe {
            let graph = sys::ggml_new_graph(self.context);
            sys::ggml_build_forward_expand(graph, op.as_ptr());
            let mut parameters = sys::ggml_threadpool_params_default(threads as i32);
            let pool = sys::ggml_threadpool_new(&raw mut parameters);
            if let Some(tell) = tell.as_mut() {
                *tell = pool;
            }
            let mut plan = sys::ggml_graph_plan(graph, threads as i32, pool);
            let mut work = vec![0u8; plan.work_size];
            plan.work_data = work.as_mut_ptr();
            let status = sys::ggml_graph_compute(graph, &raw mut plan);
            sys::ggml_threadpool_free(pool);
            assert_eq!(status, sys::GGML_STATUS_SUCCESS);
        }
    }
}

/// Argument of [`compute_own`]: the operation and its memory.
struct OwnCall {
    op: *mut sys::ggml_tensor,
    isa: Isa,
    /// Counter of products with a model of tiles, if that is to compute.
    soft_products: Option<*const AtomicUsize>,
    memory: *mut u8,
    pool: *mut sys::ggml_threadpool,
}

/// Called by each of ggml's threads.
unsafe extern "C" fn compute_own(
    _output: *mut sys::ggml_tensor,
    thread: i32,
    threads: i32,
    call: *mut c_void,
) {
    // SAFETY: `run_own` passes its `OwnCall`, which outlives the computation; the tests ask for
    // the processor first; all threads of the pool come here.
    unsafe {
        let OwnCall { op, isa, soft_products, memory, pool } = &*call.cast::<OwnCall>();
        let operation = Operation::of(&**op).expect("asked before");
        let queue = WorkQueue::new(thread as usize, threads as usize, *pool);
        match (operation, soft_products) {
            (Operation::MatMul(op), Some(products)) => {
                let unit = Some(SoftTiles::new(&**products));
                avx512::matmul::compute(&op, &queue, *memory, unit);
            }
            (operation, _) => operation.compute(*isa, &queue, *memory),
        }
    }
}
