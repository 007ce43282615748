//! How llama.cpp's graphs come to use the kernels: called from native/products.cpp by ggml's
//! compute threads, all of them for every product.

use std::sync::Once;

use super::kernel::products;
use super::pack::pack;
use super::unpack::Format;
use super::{ActivationBlock, BLOCK, LANES, WeightBlock, supported, sys};
use crate::gguf::Header;

/// Most weight rows that are unpacked before they are multiplied: with many activations the
/// rows stay in the first-level cache while the activations pass by.
const ROWS_AT_ONCE: usize = 16;
/// Weight rows that a thread takes at a time; enough of them that a thread held up by other
/// work leaves the rest to the others.
const ROWS_PER_TURN: usize = 32;

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
        let counted = matrices().filter(|t| !own || format(t.kind.0).is_some());
        counted.map(|tensor| tensor.elements().unwrap_or(0)).sum()
    };
    supported() && 2 * elements(true) > elements(false)
}

fn format(kind: u32) -> Option<Format> {
    match kind {
        sys::GGML_TYPE_Q4_K => Some(Format::Q4K),
        sys::GGML_TYPE_Q5_K => Some(Format::Q5K),
        sys::GGML_TYPE_Q6_K => Some(Format::Q6K),
        _ => None,
    }
}

/// A product as the graph describes it, checked.
struct Product<'a> {
    format: Format,
    weights: &'a sys::ggml_tensor,
    activations: &'a sys::ggml_tensor,
    output: &'a sys::ggml_tensor,
    /// Blocks of a row of weights or activations.
    blocks: usize,
    /// Rows of weights: values per row of output.
    weight_rows: usize,
    /// Rows of activations and of output.
    rows: usize,
}

impl<'a> Product<'a> {
    /// The product that `op` is, if the kernels compute it.
    fn of(op: &'a sys::ggml_tensor) -> Option<Self> {
        if op.op != sys::GGML_OP_MUL_MAT {
            return None;
        }
        // SAFETY: a matrix product has two operands that live as long as it does.
        let (weights, activations) = unsafe { (op.src[0].as_ref()?, op.src[1].as_ref()?) };
        let format = format(weights.type_)?;
        let is_matrix = |t: &sys::ggml_tensor| t.ne[2] == 1 && t.ne[3] == 1;
        let row_blocks = usize::try_from(weights.ne[0]).ok()? / BLOCK;
        let fits = weights.extra.is_null() // another back end's own layout otherwise
            && weights.ne[0] % BLOCK as i64 == 0
            && weights.nb[0] == format.block_bytes()
            && weights.nb[1] == row_blocks * format.block_bytes()
            && activations.type_ == sys::GGML_TYPE_F32
            && op.type_ == sys::GGML_TYPE_F32
            && activations.nb[0] == size_of::<f32>()
            && op.nb[0] == size_of::<f32>()
            && [weights, activations, op].into_iter().all(is_matrix);
        fits.then_some(Self {
            format,
            weights,
            activations,
            output: op,
            blocks: row_blocks,
            weight_rows: usize::try_from(weights.ne[1]).ok()?,
            rows: usize::try_from(activations.ne[1]).ok()?,
        })
    }

    /// Groups of [`LANES`] activation rows.
    fn groups(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    fn rows_at_once(&self) -> usize {
        if self.rows <= LANES { 1 } else { ROWS_AT_ONCE }
    }

    /// Blocks of packed activations, and of unpacked weights for each thread.
    fn memory_blocks(&self) -> (usize, usize) {
        (self.groups() * LANES * self.blocks, self.rows_at_once() * self.blocks)
    }

    fn memory_bytes(&self, threads: usize) -> usize {
        let (packed, unpacked) = self.memory_blocks();
        let packed_bytes = packed * size_of::<ActivationBlock>();
        let unpacked_bytes = threads * unpacked * size_of::<WeightBlock>();
        packed_bytes + unpacked_bytes + align_of::<ActivationBlock>()
    }

    /// Packs this thread's share of the activations.
    ///
    /// # Safety
    /// `packed` has room for all of them and no other thread writes this thread's share; the
    /// tensors' data is there.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn pack(&self, packed: *mut ActivationBlock, thread: usize, threads: usize) {
        for index in (thread..self.rows * self.blocks).step_by(threads) {
            let (row, block) = (index / self.blocks, index % self.blocks);
            let place = (row / LANES * self.blocks + block) * LANES + row % LANES;
            // SAFETY: the row and block are within the tensor, the place within `packed`.
            unsafe {
                let row = self.activations.data.byte_add(row * self.activations.nb[1]);
                let values = row.cast::<f32>().add(block * BLOCK).cast::<[f32; BLOCK]>();
                pack(&*values, &mut *packed.add(place));
            }
        }
    }

    /// The weight rows `first..first + count`, times all activations.
    ///
    /// # Safety
    /// The rows exist, their part of the output is written by no other thread, and the packed
    /// activations are complete.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
    unsafe fn compute(
        &self,
        packed: &[[ActivationBlock; LANES]],
        unpacked: &mut [WeightBlock],
        first: usize,
        count: usize,
    ) {
        let row_bytes = self.weights.nb[1];
        for (i, into) in unpacked.chunks_exact_mut(self.blocks).take(count).enumerate() {
            // SAFETY: the row exists and has this many bytes.
            let bytes = unsafe {
                let start = self.weights.data.byte_add((first + i) * row_bytes);
                std::slice::from_raw_parts(start.cast::<u8>(), row_bytes)
            };
            self.format.unpack_row(bytes, into);
        }
        let mut values = [0.0; LANES];
        for (group, lanes) in packed.chunks_exact(self.blocks).enumerate() {
            let rows = LANES.min(self.rows - group * LANES);
            for (i, row) in unpacked.chunks_exact(self.blocks).take(count).enumerate() {
                products(row, lanes, rows, &mut values);
                for (lane, value) in values[..rows].iter().enumerate() {
                    // SAFETY: the row and column are within the output.
                    unsafe {
                        let row = (group * LANES + lane) * self.output.nb[1];
                        *self.output.data.byte_add(row).cast::<f32>().add(first + i) = *value;
                    }
                }
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_product_wanted(op: *const sys::ggml_tensor) -> bool {
    // SAFETY: ggml passes a tensor of the graph.
    unsafe { op.as_ref() }.and_then(Product::of).is_some()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_product_memory(threads: i32, op: *const sys::ggml_tensor) -> usize {
    // SAFETY: as above.
    let product = unsafe { op.as_ref() }.and_then(Product::of);
    product.map_or(0, |product| product.memory_bytes(usize::try_from(threads).unwrap_or(1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn loquent_product_compute(
    params: *const ComputeParams,
    op: *mut sys::ggml_tensor,
) -> bool {
    // SAFETY: ggml passes its parameters and a tensor of the graph.
    let (params, product) = unsafe { (&*params, Product::of(&*op)) };
    let Some(product) = product.filter(|_| !params.reference) else {
        return false;
    };
    // SAFETY: `wanted` held, so the processor has been checked by `register`; the tensors have
    // data when a graph is computed; every thread of the pool calls this once.
    unsafe { run(params, &product) };
    true
}

/// One thread's part of a product.
///
/// # Safety
/// The processor is [`supported`]; all threads of the pool call this with their own `params`;
/// the product's tensors have their data.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn run(params: &ComputeParams, product: &Product<'_>) {
    let (thread, threads) = (params.thread as usize, params.threads as usize);
    assert!(params.memory_bytes >= product.memory_bytes(threads), "room that was asked for");
    let (packed_blocks, unpacked_blocks) = product.memory_blocks();
    // SAFETY: within the memory by the assertion; weights follow activations, both of the same
    // alignment; threads have parts of their own.
    unsafe {
        let memory = params.memory.add(params.memory.align_offset(align_of::<ActivationBlock>()));
        let packed = memory.cast::<ActivationBlock>();
        product.pack(packed, thread, threads);
        if thread == 0 {
            ggml_threadpool_chunk_set(params.pool, 0);
        }
        ggml_barrier(params.pool);
        let unpacked = packed.add(packed_blocks).cast::<WeightBlock>();
        let unpacked = unpacked.add(thread * unpacked_blocks);
        let unpacked = std::slice::from_raw_parts_mut(unpacked, unpacked_blocks);
        let packed = packed.cast::<[ActivationBlock; LANES]>();
        let packed = std::slice::from_raw_parts(packed, packed_blocks / LANES);
        let turns = product.weight_rows.div_ceil(ROWS_PER_TURN);
        loop {
            let turn = ggml_threadpool_chunk_add(params.pool, 1) as usize;
            if turn >= turns {
                break;
            }
            let (mut row, end) = (turn * ROWS_PER_TURN, (turn + 1) * ROWS_PER_TURN);
            let end = end.min(product.weight_rows);
            while row < end {
                let count = product.rows_at_once().min(end - row);
                product.compute(packed, unpacked, row, count);
                row += count;
            }
        }
    }
}
