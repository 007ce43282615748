//! One burst in virtual time: the scheduler, a machine, and readers behind lossy links.

use std::time::Duration;

use loquent_infer::budget::ItlTarget;
use loquent_infer::reading::ReaderReport;
use loquent_infer::request::{Step, Tag};
use loquent_infer::scheduler::Limits;
use loquent_infer::speculation::Speculation;

use super::andes::{AndesRequest, AndesScheduler, ModelledReader};
use super::delivery::Delivery;
use super::metric::ReaderQoe;
use super::plan::{Contender, QoeCase, QoePlan, QoePolicy};
use crate::burst::{TimedRunner, VirtualEngine};
use crate::channel::{Channel, LossSchedule};
use crate::link::{Link, LinkState};
use crate::reader::ReaderBehaviour;
use crate::rng::Draws;
use crate::scheme::GIVE_UP_US;

/// vLLM's default of `--max-num-batched-tokens` for a server.
const VLLM_BATCHED_TOKENS: u32 = 2_048;
/// Loquent's default of `--prefill-max-tokens`.
const PREFILL_MAX_TOKENS: u32 = 512;
/// Loquent's default of `--itl-target-ms`.
const ITL_TARGET: ItlTarget =
    ItlTarget::Relative { factor: 2.0, at_least: Duration::from_millis(100) };
/// Time after which losses repeat.
const LOSSES_US: u64 = 600_000_000;

/// A burst to play.
#[derive(Debug, Clone, Copy)]
pub struct BurstSetting<'a> {
    /// The plan.
    pub plan: &'a QoePlan,
    /// Its case.
    pub case: &'a QoeCase,
    /// Its contender.
    pub contender: &'a Contender,
    /// Maximum number of sequences in a batch.
    pub batch_size: usize,
    /// Number of readers.
    pub readers: usize,
}

/// Knowledge of the server about one reader.
#[derive(Debug, Clone, Copy, Default)]
struct Knowledge {
    /// Tokens that the reader has acknowledged.
    acked: usize,
    /// Time when the reader will have read them.
    dry_at: Duration,
    /// The reader as Andes models it.
    modelled: ModelledReader,
    generated: u32,
    finished: bool,
}

/// A burst in progress. Times of deliveries count from the arrival of the requests at the server.
struct LossyWorld<'a> {
    setting: BurstSetting<'a>,
    engine: VirtualEngine<'a>,
    began: Duration,
    deliveries: Vec<Delivery<'a>>,
    knowledge: Vec<Knowledge>,
}

/// Plays a burst and returns the experience of its readers, in the order of their requests.
pub fn play(setting: BurstSetting<'_>) -> Vec<ReaderQoe> {
    let BurstSetting { plan, case, contender, readers, .. } = setting;
    let clean = Link::new(plan.rtt_ms, Channel::Clean);
    let lossy = Link::new(plan.rtt_ms, case.channel.clone());
    let link = |reader: usize| if case.is_lossy(reader) { &lossy } else { &clean };
    let seed = |reader: usize| Draws::new(plan.seed, "readers").bits(reader as u64);
    let losses = |reader| LossSchedule::new(&link(reader).channel, seed(reader), LOSSES_US);
    let schedules: Vec<LossSchedule> = (0..readers).map(losses).collect();
    let delivery = |(reader, schedule)| {
        let path = LinkState::new(link(reader), schedule, seed(reader), LOSSES_US);
        let ends = contender.send.ends(link(reader), &ReaderBehaviour::default());
        Delivery::new(path, ends.expect("plans have no oracle"))
    };
    let mut world = LossyWorld {
        setting,
        engine: engine(setting),
        began: Duration::ZERO,
        deliveries: schedules.iter().enumerate().map(delivery).collect(),
        knowledge: vec![Knowledge::default(); readers],
    };
    world.engine.warm_up(case.prompt_tokens, plan.answer_tokens);
    world.began = world.engine.now;
    world.submit();
    world.run();
    world.deliveries.iter().map(|delivery| world.experience(delivery)).collect()
}

/// Creates the engine as the policy's server configures it.
fn engine(setting: BurstSetting<'_>) -> VirtualEngine<'_> {
    let BurstSetting { plan, case, contender, batch_size, readers } = setting;
    let (prefill_max_tokens, itl_target) = match contender.policy {
        QoePolicy::FirstCome | QoePolicy::Andes => (VLLM_BATCHED_TOKENS, ItlTarget::Unbounded),
        QoePolicy::ByNeed => (PREFILL_MAX_TOKENS, ITL_TARGET),
    };
    let context_tokens = case.prompt_tokens + plan.answer_tokens + 1;
    let limits = Limits {
        max_batch_size: batch_size,
        prefill_max_tokens,
        itl_target,
        prefix_cache: false,
        speculation: Speculation::Off,
        queue_timeout: None,
    };
    let runner = TimedRunner::new(readers, context_tokens, batch_size);
    VirtualEngine::new(&plan.machine, runner, limits)
}

impl LossyWorld<'_> {
    fn submit(&mut self) {
        let BurstSetting { plan, case, .. } = self.setting;
        for reader in 0..self.setting.readers {
            self.engine.submit(Tag(reader as u64), case.prompt_tokens, plan.answer_tokens);
            // The server knows how fast they read, and that they have nothing yet.
            self.knowledge[reader].dry_at = self.began;
            self.report(reader);
            let asked_s = plan.rtt_ms / 2e3;
            self.knowledge[reader].modelled.advance(&plan.expectation(), asked_s);
        }
    }

    fn run(&mut self) {
        while self.engine.scheduler.has_work() {
            let now_us = self.since_us(self.engine.now);
            (0..self.setting.readers).for_each(|reader| self.hear(reader, now_us));
            if self.setting.contender.policy == QoePolicy::Andes {
                self.choose();
            }
            if let Some(step) = self.engine.step() {
                self.deliver(&step);
            }
        }
        let end_us = self.since_us(self.engine.now) + GIVE_UP_US;
        (0..self.setting.readers).for_each(|reader| self.hear(reader, end_us));
    }

    fn since_us(&self, at: Duration) -> u64 {
        at.saturating_sub(self.began).as_micros() as u64
    }

    fn token_time(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.setting.plan.expected_tokens_per_s)
    }

    /// Lets the network of a reader run until `until_us`, and tells the scheduler about new
    /// acknowledgements as the server does (`resumable/reader_pace.rs`).
    fn hear(&mut self, reader: usize, until_us: u64) {
        let (began, token_time) = (self.began, self.token_time());
        let (delivery, known) = (&mut self.deliveries[reader], &mut self.knowledge[reader]);
        let before = known.acked;
        let answer_tokens = self.setting.plan.answer_tokens as usize;
        while delivery.arrivals_us().len() < answer_tokens {
            let Some(at_us) = delivery.next_us().filter(|&at_us| at_us <= until_us) else { break };
            delivery.step(at_us);
            let more = delivery.acked_tokens() - known.acked;
            if more > 0 {
                let begins = known.dry_at.max(began + Duration::from_micros(at_us));
                known.dry_at = begins + token_time * more as u32;
                known.acked += more;
            }
        }
        if known.acked > before {
            self.report(reader);
        }
    }

    fn report(&mut self, reader: usize) {
        if self.setting.contender.policy != QoePolicy::ByNeed {
            return;
        }
        let known = &self.knowledge[reader];
        // An acknowledgement tells of half a round trip ago, and the next token takes the other
        // half.
        let rtt = Duration::from_secs_f64(self.setting.plan.rtt_ms / 1e3);
        let lasts_until = known.dry_at.saturating_sub(rtt);
        let report =
            ReaderReport { tokens: known.acked as u32, lasts_until, token_time: self.token_time() };
        self.engine.scheduler.note_reader(Tag(reader as u64), Some(report));
    }

    /// Lets Andes choose whom the next step serves; the others pause.
    fn choose(&mut self) {
        let BurstSetting { plan, case, batch_size, .. } = self.setting;
        let expectation = plan.expectation();
        let asked_s = self.since_us(self.engine.now) as f64 / 1e6 + plan.rtt_ms / 2e3;
        let prompt_s = plan.machine.prompt_token_ms * f64::from(case.prompt_tokens) / 1e3;
        let running: Vec<usize> =
            (0..self.setting.readers).filter(|&one| !self.knowledge[one].finished).collect();
        let request = |&reader: &usize| {
            let known = &mut self.knowledge[reader];
            known.modelled.advance(&expectation, asked_s);
            let context_tokens = case.prompt_tokens + known.generated;
            let prompt_s = if known.generated == 0 { prompt_s } else { 0.0 };
            AndesRequest { reader: known.modelled, context_tokens, prompt_s }
        };
        let requests: Vec<AndesRequest> = running.iter().map(request).collect();
        let sizes = plan.batch_sizes.iter().copied().filter(|&size| size <= batch_size);
        let andes = AndesScheduler {
            expectation,
            horizon_s: plan.andes_horizon_s,
            batch_sizes: sizes.collect(),
            memory_tokens: u32::MAX,
        };
        let step_s = |rows| plan.machine.step_ms(rows, 0) / 1e3;
        let chosen = andes.choose(&requests, step_s);
        let mut serves = vec![false; running.len()];
        chosen.into_iter().for_each(|at| serves[at] = true);
        for (&reader, serves) in running.iter().zip(serves) {
            self.engine.scheduler.pause(Tag(reader as u64), !serves);
        }
    }

    fn deliver(&mut self, step: &Step) {
        let now_us = self.since_us(step.finished);
        for event in step.events.iter().filter(|event| event.token.is_some()) {
            let reader = event.tag.0 as usize;
            // What arrives before the token is handled before it.
            self.hear(reader, now_us);
            let known = &mut self.knowledge[reader];
            known.generated += 1;
            known.finished = event.finish.is_some();
            let asked_s = now_us as f64 / 1e6 + self.setting.plan.rtt_ms / 2e3;
            known.modelled.advance(&self.setting.plan.expectation(), asked_s);
            known.modelled.note_token();
            self.deliveries[reader].push_token(now_us, known.finished);
        }
    }

    fn experience(&self, delivery: &Delivery<'_>) -> ReaderQoe {
        let plan = self.setting.plan;
        let way_s = plan.rtt_ms / 2e3;
        let arrivals_s: Vec<f64> =
            delivery.arrivals_us().iter().map(|&at_us| at_us as f64 / 1e6 + way_s).collect();
        plan.expectation().experience(&arrivals_s, plan.answer_tokens as usize)
    }
}
