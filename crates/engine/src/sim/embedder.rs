//! Embeddings of the simulated engine: a text's vector is the sum of its tokens' vectors, so that a
//! test can predict every one without computing it in the same way.

use loquent_infer::embedding::{Embedder, EmbedderCapacity};
use loquent_infer::runner::{Batch, Capacity, RunError, Slot};
use loquent_infer::token::TokenId;

/// Width of a simulated vector.
pub const EMBEDDING_WIDTH: u32 = 16;

/// Sums tokens' vectors, in parts.
#[derive(Debug)]
pub struct SimEmbedder {
    capacity: EmbedderCapacity,
    /// By slot: number of tokens added, and the sum so far.
    sums: Vec<(u32, Vec<f32>)>,
}

impl SimEmbedder {
    /// Creates an embedder for a runner of `capacity`.
    pub fn new(capacity: Capacity) -> Self {
        let capacity = EmbedderCapacity {
            slots: capacity.slots,
            cells: capacity.kv_cells,
            input_tokens: capacity.context_tokens.min(capacity.kv_cells),
            batch_tokens: capacity.batch_tokens,
            in_parts: true,
            width: EMBEDDING_WIDTH,
        };
        Self { capacity, sums: vec![(0, Vec::new()); capacity.slots.into()] }
    }
}

impl Embedder for SimEmbedder {
    fn capacity(&self) -> EmbedderCapacity {
        self.capacity
    }

    fn embed(&mut self, batch: &Batch, vectors: &mut Vec<Vec<f32>>) -> Result<(), RunError> {
        assert!(batch.tokens.len() <= self.capacity.batch_tokens as usize, "too large a batch");
        for span in &batch.spans {
            let (tokens, sum) = &mut self.sums[span.slot.index()];
            assert_eq!(*tokens, span.start, "{:?} does not go on where it ended", span.slot);
            sum.resize(EMBEDDING_WIDTH as usize, 0.0);
            for &token in &batch.tokens[span.tokens.clone()] {
                sum.iter_mut().zip(token_vector(token)).for_each(|(sum, one)| *sum += one);
            }
            *tokens += span.tokens.len() as u32;
            if span.sample {
                vectors.push(std::mem::take(sum));
                *tokens = 0;
            }
        }
        Ok(())
    }

    fn clear(&mut self, slot: Slot) {
        self.sums[slot.index()] = (0, Vec::new());
    }
}

/// Vector of one token: whole numbers, so that sums are exact in any order.
pub fn token_vector(token: TokenId) -> [f32; EMBEDDING_WIDTH as usize] {
    let mixed = u64::from(token).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    std::array::from_fn(|at| ((mixed >> (4 * at)) & 15) as f32 - 7.0)
}
