//! Embedding jobs on the engine thread: one bounded batch between two steps.

use std::collections::HashMap;
use std::time::Duration;

use loquent_infer::budget::ItlTarget;
use loquent_infer::embedding::{
    EmbeddedJob, Embedder, EmbedderCapacity, EmbeddingJob, EmbeddingQueue, JobId,
};
use loquent_infer::runner::{Batch, RunError};
use loquent_infer::tenant::TenantId;
use loquent_infer::token::TokenId;
use tokio::sync::oneshot;

/// Receives the vectors of a request's inputs.
type Reply = oneshot::Sender<Result<Vec<Vec<f32>>, RunError>>;

/// Inputs of a request on their way to the engine. Dropping the other end of `reply` cancels it.
#[derive(Debug)]
pub struct EmbeddingOrder {
    /// Tenant whose turn the order takes.
    pub tenant: TenantId,
    /// The inputs.
    pub inputs: Vec<Vec<TokenId>>,
    /// Receives the vectors of the inputs.
    pub reply: Reply,
}

/// The step before a batch of embeddings.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepBefore {
    /// Number of sequences for which it computed a token.
    pub decode_rows: usize,
    /// True if it also computed prompts.
    pub had_prompts: bool,
    /// Duration of the step.
    pub took: Duration,
}

/// Embedding jobs of the engine thread.
pub(super) struct EmbeddingDesk {
    queue: EmbeddingQueue,
    replies: HashMap<JobId, Reply>,
    next_id: u64,
    /// True while it is the embeddings' turn rather than the prompts'.
    is_own_turn: bool,
    pub(super) batch: Batch,
}

impl EmbeddingDesk {
    pub(super) fn new(capacity: EmbedderCapacity, max_tokens: u32, target: ItlTarget) -> Self {
        Self {
            queue: EmbeddingQueue::new(capacity, max_tokens, target),
            replies: HashMap::new(),
            next_id: 0,
            is_own_turn: false,
            batch: Batch::default(),
        }
    }

    pub(super) fn submit(&mut self, order: EmbeddingOrder) {
        let EmbeddingOrder { tenant, inputs, reply } = order;
        let id = JobId(self.next_id);
        self.next_id += 1;
        self.replies.insert(id, reply);
        if let Err(refused) = self.queue.submit(EmbeddingJob { id, tenant, inputs }) {
            self.answer(vec![refused]);
        }
    }

    /// Returns true if there is anything to compute. Drops jobs whose requester is gone.
    pub(super) fn has_work(&mut self, embedder: &mut dyn Embedder) -> bool {
        // A closed reply is a client that has hung up, or a server that stops.
        let gone = self.replies.iter().filter(|(_, reply)| reply.is_closed());
        let gone: Vec<JobId> = gone.map(|(&id, _)| id).collect();
        for id in gone {
            self.queue.cancel(embedder, id);
            self.replies.remove(&id);
        }
        self.queue.has_work()
    }

    /// Takes the next turn: prompts and embeddings alternate beside running answers. Returns true
    /// if it is not the prompts' turn.
    pub(super) fn take_turn(&mut self) -> bool {
        self.is_own_turn = !self.is_own_turn;
        self.is_own_turn
    }

    /// Fills the batch that follows a step.
    pub(super) fn plan(&mut self, step: StepBefore) {
        self.batch.clear();
        if step.decode_rows > 0 && step.had_prompts {
            // That step has spent the budget already.
            return;
        }
        self.queue.plan(step.decode_rows, &mut self.batch);
        if self.batch.is_empty() && step.decode_rows > 0 {
            // A step alone shows what embeddings are later measured against.
            self.queue.observe_step(step.decode_rows, step.took);
        }
    }

    /// Handles the outcome of the batch.
    pub(super) fn complete(
        &mut self,
        embedder: &mut dyn Embedder,
        step: StepBefore,
        took: Duration,
        outcome: Result<Vec<Vec<f32>>, RunError>,
    ) {
        let tokens = self.batch.tokens.len();
        self.queue.observe_batch(step.decode_rows, tokens, step.took + took);
        let ended = match outcome {
            Ok(vectors) => self.queue.commit(&self.batch, vectors),
            Err(error) => self.queue.fail(embedder, &self.batch, &error),
        };
        self.answer(ended);
    }

    fn answer(&mut self, ended: Vec<EmbeddedJob>) {
        for EmbeddedJob { id, vectors } in ended {
            if let Some(reply) = self.replies.remove(&id) {
                let _ = reply.send(vectors);
            }
        }
    }
}
