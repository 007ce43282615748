//! How many tokens and sequences the KV cache holds: for `serve`, and for `tune`, which measures
//! what `serve` will use.

/// The tokens of a KV cache for which no size was given.
pub(crate) fn default_kv_cells(context_tokens: u32, max_batch_size: u16) -> u32 {
    context_tokens.saturating_mul(2).max(512 * u32::from(max_batch_size))
}

/// Upper bound of the default of `--context`, which is the model's context. Models trained for
/// more would reserve memory that few chats use.
#[cfg(feature = "llama")]
pub(crate) const DEFAULT_CONTEXT_TOKENS: u32 = 4096;

/// Sequences with KV at once in a cache of `kv_cells` tokens.
#[cfg(feature = "llama")]
pub(crate) fn slots(
    max_batch_size: u16,
    context_tokens: u32,
    kv_cells: u32,
    is_unified: bool,
) -> u16 {
    if is_unified {
        // Half of the slots are for kept prefixes, so that not every request evicts one.
        return max_batch_size.saturating_mul(2).min(loquent_engine::llama::MAX_SLOTS);
    }
    // llama.cpp gives each sequence an equal part, and no prefix is kept: more slots would only
    // make every part too short for the context.
    let whole = kv_cells / context_tokens.max(1);
    u16::try_from(whole).unwrap_or(u16::MAX).clamp(1, max_batch_size)
}

#[cfg(all(test, feature = "llama"))]
mod tests {
    use super::*;

    #[test]
    fn every_sequence_of_a_split_cache_has_its_context() {
        for (batch, context, cells, expected) in
            [(16, 2048, 8192, 4), (16, 256, 8192, 16), (16, 8192, 8192, 1), (4, 2048, 65_536, 4)]
        {
            let slots = slots(batch, context, cells, false);
            assert_eq!(slots, expected);
            assert!(cells / u32::from(slots) >= context);
        }
        assert_eq!(slots(16, 2048, 8192, true), 32);
    }
}
