//! llama.cpp context: KV cache, compute buffers, decode.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use loquent_infer::runner::{Batch, Preemption, RunError, Span};

use super::threads::ThreadPool;
use super::{LlamaModel, guard, log, sys};

/// The arrays from which llama.cpp reads a batch; their memory is reused from step to step.
#[derive(Debug, Default)]
struct NativeBatch {
    tokens: Vec<sys::llama_token>,
    positions: Vec<sys::llama_pos>,
    slots: Vec<sys::llama_seq_id>,
    slot_counts: Vec<i32>,
    slot_pointers: Vec<*mut sys::llama_seq_id>,
    outputs: Vec<i8>,
}

impl NativeBatch {
    fn fill(&mut self, batch: &Batch) {
        self.tokens.clear();
        self.tokens.extend(batch.tokens.iter().map(|&token| token as sys::llama_token));
        // Logits of the last token of every span, of those that do not sample too: NaN in them
        // shows that the past is broken. And of draft tokens, to verify them.
        let scores = |span: &Span| {
            batch.scores.iter().any(|scores| batch.spans[scores.span].slot == span.slot)
        };
        // And of all tokens of a prompt that is scored.
        self.place(&batch.spans, |span, i| i + 1 + span.draft >= span.tokens.len() || scores(span));
    }

    /// Like [`Self::fill`], with an output for every token, as pooling needs them.
    fn fill_all(&mut self, batch: &Batch) {
        self.tokens.clear();
        self.tokens.extend(batch.tokens.iter().map(|&token| token as sys::llama_token));
        self.place(&batch.spans, |_, _| true);
    }

    /// Sets positions, slots and outputs; `has_output` decides for a span's token by its number.
    fn place(&mut self, spans: &[Span], has_output: impl Fn(&Span, usize) -> bool) {
        self.positions.clear();
        self.slots.clear();
        self.outputs.clear();
        for span in spans {
            let len = span.tokens.len();
            let start = span.start as sys::llama_pos;
            self.positions.extend((0..len).map(|i| start + i as sys::llama_pos));
            self.slots.extend(std::iter::repeat_n(i32::from(span.slot.0), len));
            self.outputs.extend((0..len).map(|i| i8::from(has_output(span, i))));
        }
        self.slot_counts.resize(self.positions.len(), 1);
        self.slot_pointers.clear();
        // Taken last: filling `slots` may have moved it.
        self.slot_pointers.extend(self.slots.iter_mut().map(|slot| &raw mut *slot));
    }

    /// Returns the batch with hidden states in place of tokens: `width` floats per position.
    fn view_of_rows(&mut self, rows: &mut [f32], width: usize) -> sys::llama_batch {
        assert_eq!(rows.len(), self.positions.len() * width, "a row for each position");
        self.tokens.resize(self.positions.len(), 0);
        let batch = self.view();
        sys::llama_batch { token: std::ptr::null_mut(), embd: rows.as_mut_ptr(), ..batch }
    }

    fn view(&mut self) -> sys::llama_batch {
        let len = self.tokens.len();
        assert!(
            self.positions.len() == len && self.slots.len() == len && self.outputs.len() == len,
            "the spans of a batch cover its tokens"
        );
        sys::llama_batch {
            n_tokens: len as i32,
            token: self.tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.slot_counts.as_mut_ptr(),
            seq_id: self.slot_pointers.as_mut_ptr(),
            logits: self.outputs.as_mut_ptr(),
        }
    }
}

/// A llama.cpp context with its dependencies. Fields are dropped in order: the context before its
/// threads and model.
pub(super) struct Context {
    handle: ContextHandle,
    batch: NativeBatch,
    vocab_size: usize,
    pool: Option<ThreadPool>,
    /// Threads of the last step.
    threads: u16,
    model: Arc<LlamaModel>,
}

// SAFETY: the context, its batch (whose pointers point into its own heap buffers) and its
// threads move as a whole, and `&mut self` is needed for every use.
unsafe impl Send for Context {}

struct ContextHandle(NonNull<sys::llama_context>);

impl Drop for ContextHandle {
    fn drop(&mut self) {
        // SAFETY: created by `llama_init_from_model`, freed once.
        unsafe { sys::llama_free(self.0.as_ptr()) }
    }
}

/// Callback of ggml, called after each operation of a graph.
///
/// # Safety
/// `preemption` points at a live [`Preemption`].
unsafe extern "C" fn is_asked(preemption: *mut c_void) -> bool {
    // SAFETY: by the contract of this function; it is only read, and shared between threads.
    unsafe { &*preemption.cast::<Preemption>() }.is_asked()
}

impl Context {
    /// Creates a context of `model` that computes in `pool`.
    ///
    /// # Errors
    /// llama.cpp's reason, for example too little memory.
    pub(super) fn new(
        model: Arc<LlamaModel>,
        params: sys::llama_context_params,
        pool: Option<ThreadPool>,
    ) -> Result<Self, String> {
        log::clear_errors();
        // SAFETY: the model is alive, `params` came from `llama_context_default_params`.
        let handle = unsafe { guard::context(model.as_ptr(), params) }?;
        // Owned at once, so that an error below frees it.
        let handle = ContextHandle(NonNull::new(handle).ok_or_else(log::take_reason)?);
        if let Some(pool) = &pool {
            // SAFETY: both are alive; the pool outlives the context by field order.
            unsafe {
                let null = std::ptr::null_mut();
                sys::llama_attach_threadpool(handle.0.as_ptr(), pool.as_ptr(), null);
            }
        }
        let vocab_size = model.info().vocab_size as usize;
        let batch = NativeBatch::default();
        Ok(Self { handle, batch, vocab_size, pool, threads: 0, model })
    }

    fn as_ptr(&self) -> *mut sys::llama_context {
        self.handle.0.as_ptr()
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: `self.handle` owns the context, which is freed only when it is dropped.
        unsafe { sys::llama_get_memory(self.as_ptr()) }
    }

    /// KV cells, cells of one sequence, tokens of a batch: as rounded by llama.cpp.
    pub(super) fn sizes(&self) -> (u32, u32, u32) {
        let ptr = self.as_ptr();
        // SAFETY: the context is alive; plain numbers out.
        unsafe { (sys::llama_n_ctx(ptr), sys::llama_n_ctx_seq(ptr), sys::llama_n_batch(ptr)) }
    }

    /// Computes `batch`, which the caller has checked: not empty, within the context's
    /// batch size, token and slot numbers in range, spans covering the tokens.
    ///
    /// # Errors
    /// [`RunError::CacheFull`] leaves the cache as it was; [`RunError::Backend`] may leave
    /// positions of the batch's own sequences in it.
    pub(super) fn decode(&mut self, batch: &Batch) -> Result<(), RunError> {
        self.batch.fill(batch);
        let view = self.batch.view();
        self.decode_view(view)
    }

    /// Like [`Context::decode`], but gives up between two operations once `preemption` is asked
    /// for.
    ///
    /// # Errors
    /// Same as [`Context::decode`], and [`RunError::Preempted`], which may leave positions of the
    /// batch's own sequences in the cache.
    pub(super) fn decode_unless(
        &mut self,
        preemption: &Preemption,
        batch: &Batch,
    ) -> Result<(), RunError> {
        let data = std::ptr::from_ref(preemption).cast_mut().cast();
        // SAFETY: the context is alive; `preemption` outlives the callback, which is taken back
        // before this returns.
        unsafe { sys::llama_set_abort_callback(self.as_ptr(), Some(is_asked), data) };
        let outcome = self.decode(batch);
        // SAFETY: the context is alive; without a callback the data is not read.
        unsafe { sys::llama_set_abort_callback(self.as_ptr(), None, std::ptr::null_mut()) };
        outcome
    }

    /// Computes `batch`, checked as for [`Context::decode`], with an output for every token.
    /// [`Context::embedding`] returns the result of a pooling context.
    ///
    /// # Errors
    /// Same as [`Context::decode`].
    pub(super) fn decode_all(&mut self, batch: &Batch) -> Result<(), RunError> {
        self.batch.fill_all(batch);
        let view = self.batch.view();
        self.decode_view(view)
    }

    /// Number of floats in an embedding.
    pub(super) fn embedding_width(&self) -> u32 {
        // SAFETY: the context holds its model alive; a plain number out.
        let width = unsafe { sys::llama_model_n_embd_out(self.model.as_ptr()) };
        u32::try_from(width).unwrap_or(0)
    }

    /// Returns the pooled vector of the tokens of `slot` in the last batch, which has `width`
    /// numbers; empty if the batch had none.
    pub(super) fn embedding(&mut self, slot: u16, width: u32) -> &[f32] {
        // SAFETY: the context is alive; null for sequences that the batch does not have.
        let vector = unsafe { sys::llama_get_embeddings_seq(self.as_ptr(), slot.into()) };
        match vector.is_null() {
            true => &[],
            // SAFETY: not null, so it points at one vector, of the model's output width, that
            // stays until the next decode, which needs `&mut self`.
            false => unsafe { std::slice::from_raw_parts(vector, width as usize) },
        }
    }

    /// Computes hidden states in place of tokens: `rows` has `width` floats, the model's own width,
    /// for each position of `spans`. Checked by the caller as for [`Context::decode`]. With
    /// `all_outputs` every row has an output, otherwise the last of each span.
    ///
    /// # Errors
    /// Same as [`Context::decode`].
    pub(super) fn decode_rows(
        &mut self,
        rows: &mut [f32],
        width: usize,
        spans: &[Span],
        all_outputs: bool,
    ) -> Result<(), RunError> {
        self.batch.place(spans, |span, i| all_outputs || i + 1 == span.tokens.len());
        let view = self.batch.view_of_rows(rows, width);
        self.decode_view(view)
    }

    fn decode_view(&mut self, view: sys::llama_batch) -> Result<(), RunError> {
        self.choose_threads();
        log::clear_errors();
        // SAFETY: the arrays of `view` have `n_tokens` items; they live in `self.batch` and
        // the caller's rows, neither of which is touched during the call.
        match unsafe { guard::decode(self.as_ptr(), view) } {
            Ok(0) => Ok(()),
            // The only failure after which the cache is as it was before.
            Ok(1) => Err(RunError::CacheFull),
            Ok(2) => Err(RunError::Preempted),
            Err(exception) => Err(RunError::Backend(exception)),
            Ok(code) => Err(RunError::Backend(format!("{} (code {code})", log::take_reason()))),
        }
    }

    /// Sets the number of threads of the next step. Results do not depend on it with Loquent's
    /// kernels.
    fn choose_threads(&mut self) {
        let Some(threads) = self.pool.as_mut().map(ThreadPool::threads) else { return };
        if threads != self.threads {
            self.threads = threads;
            let count = threads.into();
            // SAFETY: the context is alive; the pool has at least so many threads.
            unsafe { sys::llama_set_n_threads(self.as_ptr(), count, count) }
        }
    }

    /// Returns the logits after the batch's token `index`, if it is the last of its span or belongs
    /// to a draft. The caller may change them: the next decode overwrites them.
    pub(super) fn logits(&mut self, index: usize) -> Option<&mut [f32]> {
        let index = i32::try_from(index).ok()?;
        // SAFETY: the context is alive; null for tokens without logits.
        let logits = unsafe { sys::llama_get_logits_ith(self.as_ptr(), index) };
        // SAFETY: not null, so it points at a row of `vocab_size` floats that stays until
        // the next call that needs `&mut self`, by which this borrow has ended.
        (!logits.is_null())
            .then(|| unsafe { std::slice::from_raw_parts_mut(logits, self.vocab_size) })
    }

    /// Shares positions `0..len` of `from` with `to`.
    pub(super) fn copy(&mut self, from: u16, to: u16, len: u32) {
        // SAFETY: the memory belongs to the live context; slots were checked by the caller.
        unsafe {
            sys::llama_memory_seq_cp(self.memory(), from.into(), to.into(), 0, len as i32);
        }
    }

    /// Shares the positions `positions` of `from` with `to`.
    pub(super) fn copy_span(&mut self, from: u16, to: u16, positions: Range<u32>) {
        let (start, end) = (positions.start as i32, positions.end as i32);
        // SAFETY: the memory belongs to the live context; the caller checked the slots.
        unsafe { sys::llama_memory_seq_cp(self.memory(), from.into(), to.into(), start, end) }
    }

    /// Returns the positions of `slot`, if there is none missing between the first and the last.
    pub(super) fn positions(&self, slot: u16) -> Option<Range<u32>> {
        // SAFETY: the memory belongs to the live context; the caller checked the slot.
        let last = unsafe { sys::llama_memory_seq_pos_max(self.memory(), slot.into()) };
        Some(self.oldest(slot)?..u32::try_from(last).ok()? + 1)
    }

    /// Copies the keys and values of `slot`, in llama.cpp's format.
    ///
    /// # Errors
    /// The text of an exception, or llama.cpp's reason.
    pub(super) fn state(&mut self, slot: u16) -> Result<Vec<u8>, String> {
        log::clear_errors();
        // SAFETY: the context is alive; the caller checked the slot.
        let bytes = unsafe { guard::state_size(self.as_ptr(), slot) }?;
        let mut state = vec![0; bytes];
        // SAFETY: as above.
        let written = unsafe { guard::state(self.as_ptr(), slot, &mut state) }?;
        if written == 0 || written != bytes { Err(log::take_reason()) } else { Ok(state) }
    }

    /// Fills the empty `slot` with keys and values that [`Context::state`] returned.
    ///
    /// # Errors
    /// The text of an exception, or llama.cpp's reason; a part may be in the slot.
    pub(super) fn set_state(&mut self, slot: u16, state: &[u8]) -> Result<(), String> {
        log::clear_errors();
        // SAFETY: the context is alive; the caller checked the slot.
        let read = unsafe { guard::set_state(self.as_ptr(), slot, state) }?;
        if read == state.len() { Ok(()) } else { Err(log::take_reason()) }
    }

    /// Oldest position from which on `slot` holds everything, in all layers; `None` if it holds
    /// none.
    pub(super) fn oldest(&self, slot: u16) -> Option<u32> {
        // SAFETY: the memory belongs to the live context; the caller checked the slot.
        let oldest = unsafe { sys::llama_memory_seq_pos_min(self.memory(), slot.into()) };
        u32::try_from(oldest).ok()
    }

    /// Returns true if `slot` holds no position.
    pub(super) fn is_empty(&self, slot: u16) -> bool {
        // SAFETY: the memory belongs to the live context; the caller checked the slot.
        unsafe { sys::llama_memory_seq_pos_max(self.memory(), slot.into()) < 0 }
    }

    /// Clears everything and overwrites the cells, so that no NaN is left in them.
    pub(super) fn wipe(&mut self) {
        // SAFETY: the memory belongs to the live context, on which `&mut self` allows no other
        // call.
        unsafe { sys::llama_memory_clear(self.memory(), true) }
    }

    /// Removes positions from `len` on; returns false if the model cannot remove a part.
    pub(super) fn remove(&mut self, slot: u16, len: u32) -> bool {
        // SAFETY: the memory belongs to the live context; the caller checked the slot.
        unsafe { sys::llama_memory_seq_rm(self.memory(), slot.into(), len as i32, -1) }
    }
}
