//! Consecutive layers of a model in a llama.cpp context: hidden states in, hidden states or logits
//! out.
//!
//! Stages before the last end the computation after their own last layer: an evaluation callback
//! requests the tensor `l_out-N`, copies it and stops the graph before its head. The KV cache is
//! written all the same. llama.cpp returns rows for output positions only, so every position is
//! marked as one.

use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use loquent_infer::runner::{RunError, Slot, Span};

use super::compute_lock::ComputeLock;
use super::context::Context;
use super::cpu_keepalive::CpuKeepalive;
use super::runner::{check, params, threads};
use super::threads::ThreadPool;
use super::{History, LlamaModel, LoadError, RunnerOptions, sys};
use crate::staged::{Layers, StageSizes};
use loquent_formats::gguf::split::StageKeys;

/// Buffer into which the callback copies hidden states. Boxed, because llama.cpp keeps its address.
struct HiddenCapture {
    /// Name of the tensor to copy.
    name: String,
    width: usize,
    rows: Vec<f32>,
    /// True if a tensor of that name did not consist of rows of `width` floats.
    is_foreign: bool,
}

/// Settings for processors that other processes may need too.
#[derive(Debug, Clone, Default)]
pub struct CpuSharing {
    /// Maximum time to keep the processors awake while waiting for the next batch; zero turns it
    /// off.
    pub keep_awake: Duration,
    /// Held while a batch is computed, so that stages of one machine compute one at a time.
    pub compute_lock: Option<Arc<ComputeLock>>,
}

/// Layers of a stage file.
pub struct LlamaLayers {
    // Before `capture`, into which it points: fields are dropped in order.
    context: Context,
    /// `None` if the head is in this stage.
    capture: Option<Box<HiddenCapture>>,
    sizes: StageSizes,
    input: Vec<f32>,
    keepalive: CpuKeepalive,
    compute_lock: Option<Arc<ComputeLock>>,
}

// SAFETY: `capture` is reached by the context only while `decode` runs, which needs
// `&mut self`; everything moves as a whole.
unsafe impl Send for LlamaLayers {}

impl LlamaLayers {
    /// Creates a context of the stage file `model` with memory for everything that `options`
    /// allows.
    ///
    /// # Errors
    /// [`LoadError::Backend`] if `model` is not a stage file, or if its architecture does not end
    /// its layers in `l_out-N`; otherwise as for a whole model.
    pub fn new(
        model: Arc<LlamaModel>,
        options: &RunnerOptions,
        cpu: &CpuSharing,
    ) -> Result<Self, LoadError> {
        let refuse = |why: String| Err(LoadError::Backend(why));
        check(&model, options)?;
        let Some(keys) = StageKeys::of(model.header()).filter(|keys| !keys.is_entry()) else {
            return refuse("this is not a stage file; create one with loquent split".into());
        };
        let width = model.header().model_number("embedding_length").unwrap_or(0) as usize;
        let info = model.info();
        let mut sizes = StageSizes {
            keys,
            width,
            vocab: if keys.is_last() { info.vocab_size } else { 0 },
            slots: options.slots,
            kv_cells: options.kv_cells,
            context_tokens: options.context_tokens,
            batch_tokens: options.batch_tokens,
            shares_prefix: options.kv_unified && info.history == History::Whole,
        };
        let threads = threads(&model, options);
        let mut pool = ThreadPool::new(threads, options.poll);
        if let Some(pool) = pool.as_mut().filter(|_| cpu.compute_lock.is_some()) {
            // The other stages use the processors while this one waits for the lock.
            pool.ignore_neighbours();
        }
        let mut params = params(options, threads);
        let mut capture = (!keys.is_last()).then(|| capture(&keys, width));
        if let Some(capture) = &mut capture {
            // Every row is passed on, so every row is an output.
            params.n_outputs_max = params.n_batch;
            params.cb_eval = Some(handle_tensor);
            params.cb_eval_user_data = (&raw mut **capture).cast::<c_void>();
        }
        let context = Context::new(model, params, pool).map_err(LoadError::Backend)?;
        // llama.cpp rounds cells up; all stages must agree, so the result is what is reported.
        let (kv_cells, context_cells, batch_tokens) = context.sizes();
        sizes.kv_cells = kv_cells;
        sizes.context_tokens = sizes.context_tokens.min(context_cells);
        sizes.batch_tokens = sizes.batch_tokens.min(batch_tokens);
        let keepalive = CpuKeepalive::new(threads, cpu.keep_awake);
        let compute_lock = cpu.compute_lock.clone();
        let mut layers =
            Self { context, capture, sizes, input: Vec::new(), keepalive, compute_lock };
        layers.warm_up()?;
        Ok(layers)
    }

    /// Computes one row, so that the first request does not wait for pages and buffers, and checks
    /// that the architecture is as expected.
    fn warm_up(&mut self) -> Result<(), LoadError> {
        let row = vec![0.0; self.sizes.width];
        let span = Span { slot: Slot(0), start: 0, tokens: 0..1, draft: 0, sample: true };
        let outcome = self.compute(&row, &[span]);
        self.context.wipe();
        outcome.map_err(|error| LoadError::Backend(error.to_string()))
    }
}

impl Layers for LlamaLayers {
    fn sizes(&self) -> StageSizes {
        self.sizes
    }

    fn begin(&mut self) {
        self.keepalive.rest();
        if let Some(lock) = &self.compute_lock {
            lock.lock();
        }
    }

    fn end(&mut self) {
        if let Some(lock) = &self.compute_lock {
            lock.unlock();
        }
        self.keepalive.wait();
    }

    fn compute(&mut self, rows: &[f32], spans: &[Span]) -> Result<(), RunError> {
        // llama.cpp's batch holds a mutable pointer, so the caller's rows are copied.
        self.input.clear();
        self.input.extend_from_slice(rows);
        if let Some(capture) = &mut self.capture {
            capture.rows.clear();
        }
        let (width, all) = (self.sizes.width, self.capture.is_some());
        self.context.decode_rows(&mut self.input, width, spans, all)?;
        match &self.capture {
            // Wrong numbers of rows mean that the graph ended elsewhere: a wrong answer, not a
            // crash, were it not refused.
            Some(capture) if capture.is_foreign || capture.rows.len() != rows.len() => {
                let name = &capture.name;
                let why = format!("the architecture does not end its layers in {name} as expected");
                Err(RunError::Backend(why))
            }
            _ => Ok(()),
        }
    }

    fn hidden(&self) -> &[f32] {
        self.capture.as_ref().map_or(&[], |capture| &capture.rows)
    }

    fn logits(&mut self, row: usize) -> &mut [f32] {
        self.context.logits(row).expect("the last position of a span has logits")
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        self.context.copy(from.0, to.0, len);
    }

    fn truncate(&mut self, slot: Slot, len: u32) -> bool {
        self.context.remove(slot.0, len)
    }

    fn wipe(&mut self) {
        self.context.wipe();
    }
}

fn capture(keys: &StageKeys, width: usize) -> Box<HiddenCapture> {
    let name = format!("l_out-{}", keys.layers - 1);
    Box::new(HiddenCapture { name, width, rows: Vec::new(), is_foreign: false })
}

/// llama.cpp's evaluation callback. It is called with `ask` to find out whether a tensor is wanted,
/// and again when that tensor is computed; returning false then ends the computation.
unsafe extern "C" fn handle_tensor(
    tensor: *mut sys::ggml_tensor,
    ask: bool,
    capture: *mut c_void,
) -> bool {
    // SAFETY: `LlamaLayers::new` passes a pointer to its boxed capture, which outlives the
    // context and is not used while the context computes.
    let capture = unsafe { &mut *capture.cast::<HiddenCapture>() };
    // SAFETY: llama.cpp passes a live tensor whose name ends in NUL.
    let name = unsafe { CStr::from_ptr((*tensor).name.as_ptr()) };
    let is_wanted = name.to_bytes() == capture.name.as_bytes();
    if ask || !is_wanted {
        // A tensor that was computed but not wanted: the computation goes on.
        return if ask { is_wanted } else { true };
    }
    // A panic (out of memory) must not unwind into C.
    let copied = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the tensor is live and computed.
        unsafe { copy_rows(tensor, capture) }
    }));
    capture.is_foreign |= copied.is_err();
    false
}

/// Appends the tensor's rows.
///
/// # Safety
/// `tensor` must be live and computed.
unsafe fn copy_rows(tensor: *const sys::ggml_tensor, capture: &mut HiddenCapture) {
    // SAFETY: by the caller; plain numbers out.
    let (kind, width, bytes) =
        unsafe { ((*tensor).type_, (*tensor).ne[0], sys::ggml_nbytes(tensor)) };
    if kind != sys::GGML_TYPE_F32 || width != capture.width as i64 || bytes % 4 != 0 {
        capture.is_foreign = true;
        return;
    }
    let from = capture.rows.len();
    capture.rows.resize(from + bytes / 4, 0.0);
    let to = capture.rows[from..].as_mut_ptr().cast::<c_void>();
    // SAFETY: `to` has room for all of the tensor's bytes.
    unsafe { sys::ggml_backend_tensor_get(tensor, to, 0, bytes) }
}
