//! One burst in virtual time: the scheduler, a machine, and readers at the ends of their networks.

use std::collections::VecDeque;
use std::time::Duration;

use loquent_infer::budget::ItlTarget;
use loquent_infer::reading::ReaderReport;
use loquent_infer::request::{Step, Tag};
use loquent_infer::scheduler::Limits;
use loquent_infer::speculation::Speculation;

use super::engine::{TimedRunner, VirtualEngine};
use super::plan::{BurstPlan, Machine, Policy};
use super::reader::{BurstReader, ReaderOutcome};

/// The server's defaults of `--prefill-max-tokens` and `--itl-target-ms`.
const PREFILL_MAX_TOKENS: u32 = 512;
const ITL_FACTOR: f64 = 2.0;

/// Outcome of a burst.
#[derive(Debug, Clone, PartialEq)]
pub struct BurstOutcome {
    /// Outcomes of its readers, in the order of their requests.
    pub readers: Vec<ReaderOutcome>,
    /// Time from the requests to the last generated token, in seconds.
    pub took_s: f64,
}

/// A burst in progress.
struct World<'a> {
    plan: &'a BurstPlan,
    policy: Policy,
    engine: VirtualEngine<'a>,
    readers: Vec<BurstReader>,
    /// Reports about readers, in order, with the times at which the server receives them.
    heard: VecDeque<(Duration, Tag, ReaderReport)>,
}

/// Plays a burst of `readers` under `policy` with this batch size.
pub fn play(
    plan: &BurstPlan,
    machine: &Machine,
    prompt_tokens: u32,
    policy: Policy,
    batch_size: usize,
    readers: usize,
) -> BurstOutcome {
    let context_tokens = prompt_tokens + plan.answer_tokens + 1;
    let runner = TimedRunner::new(readers, context_tokens, batch_size);
    let limits = Limits {
        max_batch_size: batch_size,
        prefill_max_tokens: PREFILL_MAX_TOKENS,
        itl_target: ItlTarget::relative(ITL_FACTOR),
        prefix_cache: false,
        speculation: Speculation::Off,
        queue_timeout: None,
    };
    let mut world = World {
        plan,
        policy,
        engine: VirtualEngine::new(machine, runner, limits),
        readers: vec![BurstReader::new(plan.token_time()); readers],
        heard: VecDeque::new(),
    };
    world.engine.warm_up(prompt_tokens, plan.answer_tokens);
    let began = world.engine.now;
    world.engine.now += plan.one_way();
    world.submit(prompt_tokens);
    world.run();
    let took = world.engine.now.saturating_sub(began).as_secs_f64();
    let outcome = |reader: &BurstReader| reader.outcome(began);
    BurstOutcome { readers: world.readers.iter().map(outcome).collect(), took_s: took }
}

impl World<'_> {
    fn run(&mut self) {
        while self.engine.scheduler.has_work() {
            self.hear();
            if let Some(step) = self.engine.step() {
                self.deliver(&step);
            }
        }
    }

    fn submit(&mut self, prompt_tokens: u32) {
        for number in 0..self.readers.len() {
            let tag = Tag(number as u64);
            self.engine.submit(tag, prompt_tokens, self.plan.answer_tokens);
            if self.policy == Policy::ByNeed {
                // The server knows how fast they read, and that they have nothing yet.
                let token_time = self.plan.token_time();
                let report = ReaderReport { tokens: 0, lasts_until: self.engine.now, token_time };
                self.engine.scheduler.note_reader(tag, Some(report));
            }
        }
    }

    /// Delivers tokens to their readers, and reports about them to the server, each half a round
    /// trip later.
    fn deliver(&mut self, step: &Step) {
        let (way, token_time) = (self.plan.one_way(), self.plan.token_time());
        for event in &step.events {
            let Some(reader) = self.readers.get_mut(event.tag.0 as usize) else { continue };
            reader.take(step.finished + way, 1);
            if self.policy == Policy::ByNeed {
                // The next token has to be generated half a round trip before it is read.
                let lasts_until = reader.dry_at().saturating_sub(way);
                let report = ReaderReport { tokens: reader.tokens(), lasts_until, token_time };
                self.heard.push_back((step.finished + way * 2, event.tag, report));
            }
        }
    }

    fn hear(&mut self) {
        while self.heard.front().is_some_and(|(at, ..)| *at <= self.engine.now) {
            let (_, tag, report) = self.heard.pop_front().expect("looked at above");
            self.engine.scheduler.note_reader(tag, Some(report));
        }
    }
}

impl BurstPlan {
    fn one_way(&self) -> Duration {
        Duration::from_secs_f64(self.rtt_ms / 2_000.0)
    }

    fn token_time(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.reading_tokens_per_s)
    }
}
