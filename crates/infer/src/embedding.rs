//! Embeddings: converts whole texts to vectors, between the steps of the scheduler.
//!
//! An [`Embedder`] computes one bounded batch per call. [`EmbeddingQueue`] fills the next batch
//! with parts of the inputs of all waiting jobs, alternating between tenants. A token budget keeps
//! the inter-token latency of running answers, as the prefill budget does for prompts.

use std::collections::VecDeque;
use std::time::Duration;

use crate::budget::{ItlTarget, PrefillBudget};
use crate::runner::{Batch, Capacity, RunError, Runner, RunnerAbilities, Sampled, Slot};
pub use crate::runner::{Embedder, EmbedderCapacity};
use crate::sampling::Sampler;
use crate::tenant::TenantId;
use crate::token::TokenId;

/// Name of a job, chosen by the submitter; opaque to the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// Inputs to embed for one request.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingJob {
    /// Name of the job, returned with its result.
    pub id: JobId,
    /// Tenant of the job, for taking turns.
    pub tenant: TenantId,
    /// Inputs, each of at least one token and at most [`EmbedderCapacity::input_tokens`].
    pub inputs: Vec<Vec<TokenId>>,
}

/// Result of a job: its vectors in the order of its inputs, or an error.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddedJob {
    /// Name of the job.
    pub id: JobId,
    /// Vectors, or the error.
    pub vectors: Result<Vec<Vec<f32>>, RunError>,
}

#[derive(Debug)]
struct QueuedJob {
    job: EmbeddingJob,
    /// Inputs that were given a slot so far.
    started: usize,
    /// Vectors by input; empty until computed.
    vectors: Vec<Vec<f32>>,
    finished: usize,
}

/// An input in progress.
#[derive(Debug)]
struct OpenInput {
    slot: Slot,
    job: JobId,
    index: usize,
    tokens: Vec<TokenId>,
    computed: usize,
}

/// The jobs of a tenant, oldest first.
#[derive(Debug)]
struct TenantJobs {
    tenant: TenantId,
    jobs: VecDeque<QueuedJob>,
}

/// Decides what the embedder computes next.
#[derive(Debug)]
pub struct EmbeddingQueue {
    capacity: EmbedderCapacity,
    budget: PrefillBudget,
    /// Tenants in order of their turn.
    tenants: VecDeque<TenantJobs>,
    /// Inputs in progress, oldest first.
    open: Vec<OpenInput>,
    free: Vec<Slot>,
}

impl EmbeddingQueue {
    /// Creates a queue for an embedder of `capacity` that computes at most `max_tokens` per batch
    /// while answers are running, fewer if `target` requires it.
    ///
    /// # Panics
    /// If the capacity cannot hold one input.
    pub fn new(capacity: EmbedderCapacity, max_tokens: u32, target: ItlTarget) -> Self {
        assert!(capacity.slots > 0 && capacity.cells >= capacity.input_tokens);
        assert!(capacity.batch_tokens > 0 && capacity.input_tokens > 0);
        assert!(capacity.in_parts || capacity.batch_tokens >= capacity.input_tokens);
        Self {
            capacity,
            budget: PrefillBudget::new(max_tokens, target),
            tenants: VecDeque::new(),
            open: Vec::new(),
            free: (0..capacity.slots).rev().map(Slot).collect(),
        }
    }

    /// Queues a job behind those of its tenant. Fails at once for a job without inputs, or with an
    /// input that is empty or too long.
    ///
    /// # Errors
    /// The result of a job that cannot be computed.
    pub fn submit(&mut self, job: EmbeddingJob) -> Result<(), EmbeddedJob> {
        let longest = self.capacity.input_tokens as usize;
        if job.inputs.is_empty() || job.inputs.iter().any(|one| !(1..=longest).contains(&one.len()))
        {
            let why = format!("inputs must have 1 to {longest} tokens");
            return Err(EmbeddedJob { id: job.id, vectors: Err(RunError::Backend(why)) });
        }
        let tenant = job.tenant;
        let vectors = vec![Vec::new(); job.inputs.len()];
        let job = QueuedJob { job, started: 0, vectors, finished: 0 };
        match self.tenants.iter_mut().find(|own| own.tenant == tenant) {
            Some(own) => own.jobs.push_back(job),
            None => self.tenants.push_back(TenantJobs { tenant, jobs: [job].into() }),
        }
        Ok(())
    }

    /// Returns true while any job is unfinished.
    pub fn has_work(&self) -> bool {
        !self.tenants.is_empty()
    }

    /// Drops a job and its computed parts. Unknown ids are ignored.
    pub fn cancel(&mut self, embedder: &mut dyn Embedder, id: JobId) {
        let (dropped, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.open).into_iter().partition(|input| input.job == id);
        self.open = kept;
        for input in dropped {
            embedder.clear(input.slot);
            self.free.push(input.slot);
        }
        drop(self.take_job(id));
    }

    /// Learns the duration of a step of `decode_rows` sequences without embeddings.
    pub fn observe_step(&mut self, decode_rows: usize, took: Duration) {
        self.budget.observe(decode_rows, 0, took);
    }

    /// Learns the total duration of a step followed by a batch of `tokens`.
    pub fn observe_batch(&mut self, decode_rows: usize, tokens: usize, took: Duration) {
        self.budget.observe(decode_rows, tokens as u32, took);
    }

    /// Fills `batch` with parts of inputs, to follow a step that advanced `decode_rows` sequences.
    /// The batch stays empty if there is nothing to do or the budget is not known yet.
    pub fn plan(&mut self, decode_rows: usize, batch: &mut Batch) {
        batch.clear();
        let most = self.capacity.batch_tokens as usize;
        let budget = match decode_rows {
            // Nobody waits for the next token.
            0 => most,
            rows => most.min(self.budget.tokens(rows) as usize),
        };
        // Those that have begun go first: they hold slots and cells until they are finished.
        for at in 0..self.open.len() {
            self.plan_part(at, budget, batch);
        }
        // What is left of the budget begins new ones.
        while batch.tokens.len() < budget && self.open_next(budget, batch.tokens.len()) {
            self.plan_part(self.open.len() - 1, budget, batch);
        }
    }

    /// Adds the next tokens of an input in progress.
    fn plan_part(&self, at: usize, budget: usize, batch: &mut Batch) {
        let input = &self.open[at];
        let left = input.tokens.len() - input.computed;
        let part = match self.capacity.in_parts {
            true => left.min(budget.saturating_sub(batch.tokens.len())),
            // It was opened for this batch, and whether it fits was asked then.
            false => left,
        };
        if part > 0 {
            let tokens = &input.tokens[input.computed..input.computed + part];
            batch.push(input.slot, input.computed as u32, tokens, part == left);
        }
    }

    /// Gives a slot to the next input, if there is room for it after `planned` tokens.
    fn open_next(&mut self, budget: usize, planned: usize) -> bool {
        let held: usize = self.open.iter().map(|input| input.tokens.len()).sum();
        let Some((tenant, job)) = self.next_job() else { return false };
        let queued = &mut self.tenants[tenant].jobs[job];
        let len = queued.job.inputs[queued.started].len();
        let fits = held + len <= self.capacity.cells as usize
            // One that comes whole is computed alone rather than never.
            && (self.capacity.in_parts || planned == 0 || planned + len <= budget);
        // Those behind it wait too: shorter ones that pass it again and again would starve it.
        if !fits {
            return false;
        }
        let Some(slot) = self.free.pop() else { return false };
        let index = queued.started;
        // Kept by the open input alone: a long job is not held twice.
        let tokens = std::mem::take(&mut queued.job.inputs[index]);
        queued.started += 1;
        self.open.push(OpenInput { slot, job: queued.job.id, index, tokens, computed: 0 });
        // The other tenants' turns come before this one's next, and so do its other jobs.
        let mut own = self.tenants.remove(tenant).expect("found above");
        let job = own.jobs.remove(job).expect("found above");
        own.jobs.push_back(job);
        self.tenants.push_back(own);
        true
    }

    /// Returns the tenant and the job of the next input.
    fn next_job(&self) -> Option<(usize, usize)> {
        // A job all of whose inputs have a slot has nothing to begin.
        let waits = |queued: &QueuedJob| queued.started < queued.vectors.len();
        let mut tenants = self.tenants.iter().enumerate();
        tenants.find_map(|(at, own)| own.jobs.iter().position(waits).map(|job| (at, job)))
    }

    /// Stores the vectors of a planned batch; returns the jobs that are now finished.
    pub fn commit(&mut self, batch: &Batch, vectors: Vec<Vec<f32>>) -> Vec<EmbeddedJob> {
        let mut vectors = vectors.into_iter();
        let mut ended = Vec::new();
        for span in &batch.spans {
            let at = self.open.iter().position(|input| input.slot == span.slot);
            let at = at.expect("planned inputs are open until they are computed");
            self.open[at].computed += span.tokens.len();
            if span.sample {
                let input = self.open.remove(at);
                self.free.push(input.slot);
                // One that is missing is stored as empty, which nobody takes for a vector.
                ended.extend(self.store(&input, vectors.next().unwrap_or_default()));
            }
        }
        ended
    }

    /// Fails all jobs that have a part in the failed `batch`.
    pub fn fail(
        &mut self,
        embedder: &mut dyn Embedder,
        batch: &Batch,
        error: &RunError,
    ) -> Vec<EmbeddedJob> {
        let slots: Vec<Slot> = batch.spans.iter().map(|span| span.slot).collect();
        // Which input is at fault is not known, and a job without one of its vectors is useless.
        let hit = |input: &&OpenInput| slots.contains(&input.slot);
        let mut ids: Vec<JobId> = self.open.iter().filter(hit).map(|input| input.job).collect();
        ids.sort_unstable();
        ids.dedup();
        for &id in &ids {
            self.cancel(embedder, id);
        }
        ids.into_iter().map(|id| EmbeddedJob { id, vectors: Err(error.clone()) }).collect()
    }

    /// Stores a vector; returns the job if this was its last one.
    fn store(&mut self, input: &OpenInput, vector: Vec<f32>) -> Option<EmbeddedJob> {
        let mut jobs = self.tenants.iter_mut().flat_map(|own| &mut own.jobs);
        let queued = jobs.find(|queued| queued.job.id == input.job)?;
        // Inputs are finished in any order; the answer has that of the request.
        queued.vectors[input.index] = vector;
        queued.finished += 1;
        if queued.finished < queued.vectors.len() {
            return None;
        }
        let QueuedJob { job, vectors, .. } = self.take_job(input.job)?;
        Some(EmbeddedJob { id: job.id, vectors: Ok(vectors) })
    }

    fn take_job(&mut self, id: JobId) -> Option<QueuedJob> {
        let of_job = |queued: &QueuedJob| queued.job.id == id;
        let tenant = self.tenants.iter().position(|own| own.jobs.iter().any(of_job))?;
        let jobs = &mut self.tenants[tenant].jobs;
        let job = jobs.iter().position(of_job).and_then(|at| jobs.remove(at));
        // A tenant without jobs has no turn.
        if jobs.is_empty() {
            self.tenants.remove(tenant);
        }
        job
    }
}

/// Runner for a model that computes only embeddings and does not generate text.
#[derive(Debug)]
pub struct EmbeddingOnly<E>(pub E);

impl<E: Embedder> Runner for EmbeddingOnly<E> {
    fn capacity(&self) -> Capacity {
        // Of no use to anybody, but a scheduler needs room for one sequence.
        let context_tokens = self.0.capacity().input_tokens.max(2);
        Capacity {
            slots: 1,
            kv_cells: context_tokens,
            context_tokens,
            batch_tokens: 1,
            shares_prefix: false,
        }
    }

    fn assign(&mut self, _slot: Slot, _sampler: Sampler) {}

    fn run(&mut self, _batch: &Batch, _sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        Err(RunError::Backend("this model makes embeddings only".into()))
    }

    fn fork(&mut self, _from: Slot, _to: Slot, _len: u32) {}

    fn truncate(&mut self, _slot: Slot, _len: u32) {}

    fn embedder(&mut self) -> Option<&mut dyn Embedder> {
        Some(&mut self.0)
    }

    fn abilities(&mut self) -> RunnerAbilities {
        RunnerAbilities { generates: false, scores_prompts: false, embeds: Some(self.0.capacity()) }
    }
}
