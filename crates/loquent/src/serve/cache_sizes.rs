//! Sizes of the KV cache in tokens and sequences: for `serve`, and for `tune`, which measures with
//! the sizes of `serve`.

#[cfg(feature = "llama")]
use loquent_engine::KvType;
#[cfg(feature = "llama")]
use loquent_engine::llama::{History, LlamaModel, available_bytes};
#[cfg(feature = "llama")]
use loquent_infer::runner::Capacity;

/// Returns the tokens of a KV cache without a given size.
pub(crate) fn default_kv_cells(context_tokens: u32, max_batch_size: u16) -> u32 {
    context_tokens.saturating_mul(2).max(512 * u32::from(max_batch_size))
}

/// Default of `--context` if the available memory is not known: with stages on other machines, and
/// on GPUs.
#[cfg(feature = "llama")]
pub(crate) const DEFAULT_CONTEXT_TOKENS: u32 = 4096;

/// Maximum default of `--context`: the length that coding agents need. Few models answer well from
/// the far end of a longer one, and its attention is slow on a processor.
#[cfg(feature = "llama")]
const MAX_DEFAULT_CONTEXT_TOKENS: u32 = 32_768;
/// Minimum default of `--context`, even if memory is short: loading then fails with an error.
#[cfg(feature = "llama")]
const MIN_DEFAULT_CONTEXT_TOKENS: u32 = 1024;
/// Divisor of the free memory that gives the default limit of the KV cache. Chosen by hand: the
/// rest is for the buffers of long prompts, and for other programs. Pages are allocated as they are
/// used.
#[cfg(feature = "llama")]
const KV_SHARE: u64 = 2;

/// Inputs for the default of `--context`.
#[cfg(feature = "llama")]
pub(crate) struct ContextNeeds {
    /// Tokens of context that the model was trained with; 0 if its file does not specify it.
    trained: u32,
    /// Number of elements in the keys and values of one token.
    kv_elements: u64,
    kv_type: KvType,
    /// Free memory besides the model's weights, if known.
    pub(crate) free_bytes: Option<u64>,
    max_batch_size: u16,
    /// Size of the cache, if the user set one.
    kv_cells: Option<u32>,
}

#[cfg(feature = "llama")]
impl ContextNeeds {
    /// Collects the inputs for `model`. `is_elsewhere` is true if the cache is on other machines.
    pub(crate) fn new(
        model: &LlamaModel,
        kv_type: KvType,
        max_batch_size: u16,
        is_elsewhere: bool,
    ) -> Self {
        // The cache of layers on a GPU lies there.
        let has_gpu = cfg!(any(feature = "cuda", feature = "metal", feature = "vulkan"));
        let available = available_bytes().filter(|_| !is_elsewhere && !has_gpu);
        Self {
            trained: model.info().context_train,
            kv_elements: model.header().kv_elements(),
            kv_type,
            // Mapped weights count as available until they are used.
            free_bytes: available.map(|it| it.saturating_sub(model.info().size_bytes)),
            max_batch_size,
            kv_cells: None,
        }
    }

    /// Sets the size of the cache that the user chose, if any.
    pub(crate) fn with_kv_cells(self, kv_cells: Option<u32>) -> Self {
        Self { kv_cells, ..self }
    }

    /// Returns the longest possible default context, given enough memory.
    fn wanted(&self) -> u32 {
        let most = match self.free_bytes {
            Some(_) => MAX_DEFAULT_CONTEXT_TOKENS,
            None => DEFAULT_CONTEXT_TOKENS,
        };
        let trained = if self.trained == 0 { DEFAULT_CONTEXT_TOKENS } else { self.trained };
        trained.min(most).min(self.kv_cells.unwrap_or(u32::MAX)).max(2)
    }

    /// Returns the default of `--context`, in tokens: the model's, as far as its cache fits into
    /// memory.
    pub(crate) fn default_context(&self) -> u32 {
        let (mut context, Some(free)) = (self.wanted(), self.free_bytes) else {
            return self.wanted();
        };
        // The size of a cache that the user chose does not depend on the context.
        while self.kv_cells.is_none()
            && context > MIN_DEFAULT_CONTEXT_TOKENS
            && self.default_cache_bytes(context) > free / KV_SHARE
        {
            context = (context / 2).max(MIN_DEFAULT_CONTEXT_TOKENS);
        }
        context
    }

    fn default_cache_bytes(&self, context: u32) -> u64 {
        let cells = default_kv_cells(context, self.max_batch_size);
        self.kv_type.bytes(self.kv_elements.saturating_mul(cells.into()))
    }

    /// Returns true if a default context of `context` tokens was shortened for lack of memory.
    pub(crate) fn is_cut(&self, context: u32) -> bool {
        context < self.wanted()
    }
}

/// Kind of a KV cache.
#[cfg(feature = "llama")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotLayout {
    /// All sequences share its cells.
    Shared,
    /// They share its cells, but each has a state or a window beside them, which takes memory.
    OwnState,
    /// Each has an equal part.
    EqualParts,
}

#[cfg(feature = "llama")]
impl SlotLayout {
    /// Returns the kind of the cache of `model`.
    pub(crate) fn of(model: &LlamaModel, is_unified: bool) -> Self {
        match (is_unified, model.info().history) {
            (true, History::Whole) => Self::Shared,
            (true, History::Window(_) | History::State) => Self::OwnState,
            (false, _) => Self::EqualParts,
        }
    }
}

/// Returns the number of sequences that can have KV at once in a cache of `kv_cells` tokens.
#[cfg(feature = "llama")]
pub(crate) fn slots(
    max_batch_size: u16,
    context_tokens: u32,
    kv_cells: u32,
    layout: SlotLayout,
) -> u16 {
    let most = loquent_engine::llama::MAX_SLOTS;
    match layout {
        SlotLayout::Shared => return Capacity::shared_slots(max_batch_size, kv_cells).min(most),
        SlotLayout::OwnState => return max_batch_size.saturating_mul(2).min(most),
        SlotLayout::EqualParts => {}
    }
    // llama.cpp gives each sequence an equal part, and no prefix is kept: more slots would only
    // make every part too short for the context.
    let whole = kv_cells / context_tokens.max(1);
    u16::try_from(whole).unwrap_or(u16::MAX).clamp(1, max_batch_size)
}

#[cfg(all(test, feature = "llama"))]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn default_context(trained: u32, free_bytes: Option<u64>, kv_cells: Option<u32>) -> u32 {
        // A model of 0.6 billion parameters: 112 KiB for each token.
        let (kv_elements, kv_type, max_batch_size) = (56 << 10, KvType::F16, 16);
        let needs =
            ContextNeeds { trained, kv_elements, kv_type, free_bytes, max_batch_size, kv_cells };
        needs.default_context()
    }

    #[test]
    fn the_default_context_fits_the_memory() {
        for (trained, free, expected) in [
            (2048, 64 * GIB, 2048),
            (131_072, 64 * GIB, 32_768),
            (40_960, 8 * GIB, 16_384),
            (40_960, 4 * GIB, 8192),
            // 512 cells for each of 16 sequences, whatever the context.
            (40_960, GIB, 1024),
            (512, 1, 512),
        ] {
            assert_eq!(default_context(trained, Some(free), None), expected, "{trained} {free}");
        }
    }

    #[test]
    fn without_knowing_the_memory_it_is_modest() {
        assert_eq!(default_context(131_072, None, None), DEFAULT_CONTEXT_TOKENS);
        assert_eq!(default_context(0, None, None), DEFAULT_CONTEXT_TOKENS);
        assert_eq!(default_context(1000, None, None), 1000);
    }

    #[test]
    fn a_cache_of_a_given_size_bounds_it() {
        assert_eq!(default_context(131_072, Some(GIB), Some(8192)), 8192);
        assert_eq!(default_context(2048, Some(GIB), Some(8192)), 2048);
    }

    #[test]
    fn every_sequence_of_a_split_cache_has_its_context() {
        for (batch, context, cells, expected) in
            [(16, 2048, 8192, 4), (16, 256, 8192, 16), (16, 8192, 8192, 1), (4, 2048, 65_536, 4)]
        {
            let slots = slots(batch, context, cells, SlotLayout::EqualParts);
            assert_eq!(slots, expected);
            assert!(cells / u32::from(slots) >= context);
        }
    }

    #[test]
    fn a_shared_cache_has_slots_for_its_cells() {
        let shared = |batch, cells| slots(batch, 2048, cells, SlotLayout::Shared);
        assert_eq!([shared(16, 8192), shared(16, 32_768), shared(2, 300)], [32, 128, 4]);
        // The prefix cache on disk needs one of llama.cpp's 256, if the batch leaves any.
        assert_eq!([shared(16, 1 << 20), shared(128, 1 << 20), shared(200, 512)], [255, 256, 256]);
        assert_eq!(slots(16, 2048, 1 << 20, SlotLayout::OwnState), 32);
    }
}
