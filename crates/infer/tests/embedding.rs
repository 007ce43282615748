//! Inputs become vectors in bounded batches, tenants by turns, and never more than fits.

use std::collections::BTreeMap;
use std::time::Duration;

use loquent_infer::budget::ItlTarget;
use loquent_infer::embedding::{
    EmbeddedJob, Embedder, EmbedderCapacity, EmbeddingJob, EmbeddingQueue, JobId,
};
use loquent_infer::runner::{Batch, RunError, Slot};
use loquent_infer::tenant::TenantId;
use loquent_infer::token::TokenId;
use proptest::prelude::*;

/// A vector is the sum of an input's tokens, and their number.
struct SumEmbedder {
    capacity: EmbedderCapacity,
    slots: BTreeMap<Slot, (f32, u32)>,
}

impl SumEmbedder {
    fn new(capacity: EmbedderCapacity) -> Self {
        Self { capacity, slots: BTreeMap::new() }
    }
}

impl Embedder for SumEmbedder {
    fn capacity(&self) -> EmbedderCapacity {
        self.capacity
    }

    fn embed(&mut self, batch: &Batch, vectors: &mut Vec<Vec<f32>>) -> Result<(), RunError> {
        assert!((1..=self.capacity.batch_tokens as usize).contains(&batch.tokens.len()));
        for span in &batch.spans {
            let (sum, tokens) = self.slots.entry(span.slot).or_default();
            assert_eq!(*tokens, span.start, "a part that does not go on");
            assert!(self.capacity.in_parts || span.sample, "an input that must come whole");
            *sum += batch.tokens[span.tokens.clone()].iter().sum::<TokenId>() as f32;
            *tokens += span.tokens.len() as u32;
            if span.sample {
                vectors.push(vec![*sum, *tokens as f32]);
                self.slots.remove(&span.slot);
            }
        }
        let held: u32 = self.slots.values().map(|(_, tokens)| tokens).sum();
        assert!(held <= self.capacity.cells);
        Ok(())
    }

    fn clear(&mut self, slot: Slot) {
        self.slots.remove(&slot);
    }
}

fn capacity(in_parts: bool) -> EmbedderCapacity {
    EmbedderCapacity { slots: 3, cells: 40, input_tokens: 20, batch_tokens: 20, in_parts, width: 2 }
}

fn queue(in_parts: bool) -> (EmbeddingQueue, SumEmbedder) {
    let capacity = capacity(in_parts);
    (EmbeddingQueue::new(capacity, 512, ItlTarget::relative(2.0)), SumEmbedder::new(capacity))
}

fn job(id: u64, tenant: u64, inputs: Vec<Vec<TokenId>>) -> EmbeddingJob {
    EmbeddingJob { id: JobId(id), tenant: TenantId(tenant), inputs }
}

/// Computes batches until nothing is left; returns the ends and each batch's tokens.
fn drain(queue: &mut EmbeddingQueue, embedder: &mut SumEmbedder) -> (Vec<EmbeddedJob>, Vec<usize>) {
    let (mut ended, mut sizes, mut batch) = (Vec::new(), Vec::new(), Batch::default());
    while queue.has_work() {
        queue.plan(0, &mut batch);
        assert!(!batch.is_empty(), "work that is never planned");
        let mut vectors = Vec::new();
        embedder.embed(&batch, &mut vectors).unwrap();
        sizes.push(batch.tokens.len());
        ended.extend(queue.commit(&batch, vectors));
    }
    assert!(embedder.slots.is_empty(), "slots that nobody frees");
    (ended, sizes)
}

fn expected(inputs: &[Vec<TokenId>]) -> Vec<Vec<f32>> {
    let vector = |input: &Vec<TokenId>| vec![input.iter().sum::<u32>() as f32, input.len() as f32];
    inputs.iter().map(vector).collect()
}

proptest! {
    #[test]
    fn every_job_gets_its_own_vectors(
        jobs in prop::collection::vec(
            (0u64..3, prop::collection::vec(prop::collection::vec(0u32..100, 1..=20), 1..6)),
            1..6,
        ),
        in_parts in any::<bool>(),
        cancelled in 0usize..8,
    ) {
        let (mut queue, mut embedder) = queue(in_parts);
        for (id, (tenant, inputs)) in jobs.iter().enumerate() {
            queue.submit(job(id as u64, *tenant, inputs.clone())).unwrap();
        }
        let mut batch = Batch::default();
        queue.plan(0, &mut batch);
        let mut vectors = Vec::new();
        embedder.embed(&batch, &mut vectors).unwrap();
        let mut ended = queue.commit(&batch, vectors);
        let early = ended.iter().any(|one| one.id == JobId(cancelled as u64));
        queue.cancel(&mut embedder, JobId(cancelled as u64));
        ended.extend(drain(&mut queue, &mut embedder).0);
        let gone = usize::from(cancelled < jobs.len() && !early);
        prop_assert_eq!(ended.len(), jobs.len() - gone);
        for one in ended {
            let inputs = &jobs[one.id.0 as usize].1;
            prop_assert_eq!(one.vectors.unwrap(), expected(inputs));
        }
    }
}

#[test]
fn a_tenant_with_much_work_does_not_keep_another_waiting() {
    let (mut queue, mut embedder) = queue(true);
    queue.submit(job(0, 0, vec![vec![1; 10]; 50])).unwrap();
    queue.submit(job(1, 1, vec![vec![2; 10]])).unwrap();
    let (ended, sizes) = drain(&mut queue, &mut embedder);
    assert_eq!(ended[0].id, JobId(1));
    assert_eq!(sizes.iter().sum::<usize>(), 510);
    assert!(sizes.iter().all(|&tokens| tokens <= 20));
}

#[test]
fn running_answers_bound_a_batch() {
    let (mut queue, mut embedder) = queue(true);
    queue.submit(job(0, 0, vec![vec![1; 20]; 10])).unwrap();
    let mut batch = Batch::default();
    queue.plan(4, &mut batch);
    assert!(batch.is_empty(), "the cost of a step without embeddings is not known yet");
    // A step takes 50 ms, a token of an input 5 ms.
    for _ in 0..4 {
        queue.observe_step(4, Duration::from_millis(50));
        queue.plan(4, &mut batch);
        let tokens = batch.tokens.len();
        let mut vectors = Vec::new();
        embedder.embed(&batch, &mut vectors).unwrap();
        queue.commit(&batch, vectors);
        queue.observe_batch(4, tokens, Duration::from_millis(50 + 5 * tokens as u64));
    }
    queue.plan(4, &mut batch);
    assert!((9..=11).contains(&batch.tokens.len()), "{} tokens", batch.tokens.len());
}

#[test]
fn a_failed_batch_fails_its_jobs_alone() {
    let (mut queue, mut embedder) = queue(true);
    for id in 0..4 {
        queue.submit(job(id, id, vec![vec![1; 15]])).unwrap();
    }
    let mut batch = Batch::default();
    queue.plan(0, &mut batch);
    let error = RunError::Backend("no".into());
    let failed = queue.fail(&mut embedder, &batch, &error);
    assert_eq!(failed.len(), batch.spans.len());
    assert!(failed.iter().all(|one| one.vectors == Err(error.clone())));
    let (ended, _) = drain(&mut queue, &mut embedder);
    assert_eq!(ended.len() + failed.len(), 4);
}

#[test]
fn inputs_that_cannot_be_computed_fail_at_once() {
    let (mut queue, _) = queue(true);
    for inputs in [vec![], vec![vec![]], vec![vec![1; 21]]] {
        assert!(queue.submit(job(0, 0, inputs)).is_err());
    }
    assert!(!queue.has_work());
}
