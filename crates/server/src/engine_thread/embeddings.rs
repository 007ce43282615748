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

/// Gets the vectors of a request's inputs.
type Reply = oneshot::Sender<Result<Vec<Vec<f32>>, RunError>>;

/// A request's inputs on their way to the engine. Whoever drops the other end of `reply` no longer
/// wants them.
#[derive(Debug)]
pub struct EmbeddingOrder {
    /// Whose turn it takes.
    pub tenant: TenantId,
    /// The inputs.
    pub inputs: Vec<Vec<TokenId>>,
    /// Gets the inputs' vectors.
    pub reply: Reply,
}

/// The step before a batch of embeddings.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepBefore {
    /// Sequences whose next token it computed.
    pub decode_rows: usize,
    /// Whether it computed prompts too.
    pub had_prompts: bool,
    /// How long it took.
    pub took: Duration,
}

/// The jobs that the engine thread has taken in.
pub(super) struct EmbeddingDesk {
    queue: EmbeddingQueue,
    replies: HashMap<JobId, Reply>,
    next_id: u64,
    /// Whether prompts had their turn last.
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

    /// Whether there is anything to compute. Jobs that nobody waits for any more are dropped.
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

    /// Prompts and embeddings take turns beside running answers; true where it is not the
    /// prompts' turn.
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

    /// Takes in the outcome of the batch.
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
