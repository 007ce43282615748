//! Measures one figure with llama.cpp, in a process that does nothing else: `loquent tune` starts
//! one for each choice of settings.
//!
//! ggml registers Loquent's kernels once per process and uses them for all later computations, so a
//! process that had measured them could no longer measure llama.cpp's.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loquent_engine::KvType;
use loquent_engine::llama::{FlashAttention, LlamaModel, LlamaRunner, LoadOptions, RunnerOptions};
use loquent_infer::runner::Runner;
use serde::{Deserialize, Serialize};

use super::measure::{Effort, Unmeasured, chat_sampling, decode_ms, prefill_rate};
use super::search::Speed;
use crate::profile::{StepTime, TunedSettings};
use crate::serve::args::PREFILL_MAX_TOKENS;
use crate::serve::cache_sizes::{ContextNeeds, SlotLayout, default_kv_cells, slots};

/// Prompt tokens per prefill measurement.
const PREFILL_TOKENS: u32 = 512;

/// Task of a measuring process, which it reads as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MeasureOrder {
    pub(super) path: PathBuf,
    /// Number of sequences in a full batch.
    pub(super) batch: u16,
    pub(super) quick: bool,
    /// Time after which no further step begins.
    pub(super) time: Duration,
    pub(super) settings: TunedSettings,
    pub(super) figure: FigureOrder,
}

/// A figure, or a row of figures of the same kind.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum FigureOrder {
    /// A description of the model.
    Description,
    /// The speed with a KV cache of the type with this name.
    Speed { kv_type: String },
    /// Step times at these batch sizes.
    Steps { rows: Vec<u16> },
    /// Speeds of prompts in chunks of these sizes.
    Chunks { tokens: Vec<u32> },
    /// None: keeps one processor busy for the time of the order, as another program would.
    Busy,
}

/// Result of a measuring process: one line of JSON for each, as soon as it is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum MeasuredFigure {
    Description(String),
    Speed(Speed),
    Step(StepTime),
    /// Prompt tokens per second in chunks of this many tokens.
    Chunk(u32, f64),
    /// The engine refuses the settings, or the model.
    Refused(String),
}

/// Performs the measurement requested on standard input.
///
/// # Errors
/// If the input is not an order, or nobody reads the figures any more. Refusals by the engine are
/// reported in the output.
pub(super) fn run_order() -> anyhow::Result<()> {
    let order: MeasureOrder = serde_json::from_reader(io::stdin().lock())?;
    if let FigureOrder::Busy = order.figure {
        stay_busy(Instant::now() + order.time);
        return Ok(());
    }
    let mut tell = |measured: MeasuredFigure| -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &measured)?;
        writeln!(out)?;
        Ok(out.flush()?)
    };
    match LlamaLab::load(order).and_then(|lab| lab.measure(&mut tell)) {
        Ok(()) => Ok(()),
        Err(error) => tell(MeasuredFigure::Refused(format!("{error:#}"))),
    }
}

fn stay_busy(end: Instant) {
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// The model, loaded with the settings.
struct LlamaLab {
    order: MeasureOrder,
    effort: Effort,
    deadline: Instant,
    model: Arc<LlamaModel>,
}

impl LlamaLab {
    fn load(order: MeasureOrder) -> anyhow::Result<Self> {
        let deadline = Instant::now() + order.time;
        let own_kernels = order.settings.loquent_kernels;
        let options = LoadOptions { own_kernels, ..LoadOptions::default() };
        let model = LlamaModel::load(&order.path, &options, |_| true)?;
        Ok(Self { effort: effort(order.quick), deadline, model, order })
    }

    fn measure(
        &self,
        tell: &mut dyn FnMut(MeasuredFigure) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self.order.figure.clone() {
            FigureOrder::Description => {
                tell(MeasuredFigure::Description(self.model.info().description.clone()))
            }
            FigureOrder::Speed { kv_type } => {
                tell(MeasuredFigure::Speed(self.speed(kv_type.parse()?)?))
            }
            FigureOrder::Steps { rows } => self.steps(&rows, tell),
            FigureOrder::Chunks { tokens } => self.chunks(&tokens, tell),
            FigureOrder::Busy => Ok(()),
        }
    }

    fn over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Creates a runner with the defaults of `serve --max-batch-size BATCH` and the settings of the
    /// order.
    fn runner(&self, batch: u16, kv_type: KvType) -> anyhow::Result<LlamaRunner> {
        let settings = &self.order.settings;
        // Of f16, as `serve` will have it, so that types are compared with as many cells.
        let needs = ContextNeeds::new(&self.model, KvType::F16, batch, false);
        let context_tokens = needs.default_context();
        let kv_cells = default_kv_cells(context_tokens, batch);
        let batch_tokens = (PREFILL_MAX_TOKENS + u32::from(batch)).min(kv_cells);
        let layout = SlotLayout::of(&self.model, settings.kv_unified);
        let options = RunnerOptions {
            slots: slots(batch, context_tokens, kv_cells, layout),
            kv_cells,
            context_tokens,
            batch_tokens,
            pass_tokens: settings.pass_tokens.min(batch_tokens),
            threads: Some(settings.threads.try_into()?),
            poll: settings.poll,
            kv_type,
            saves_spans: false,
            kv_unified: settings.kv_unified,
            flash_attention: match settings.flash_attention {
                true => FlashAttention::On,
                false => FlashAttention::Off,
            },
        };
        let mut runner = LlamaRunner::new(self.model.clone(), &options)?;
        runner.warm_up()?;
        Ok(runner)
    }

    fn speed(&self, kv_type: KvType) -> anyhow::Result<Speed> {
        let mut runner = self.runner(self.order.batch, kv_type)?;
        // A layout that holds fewer sequences is measured with fewer.
        let batch = self.order.batch.min(runner.capacity().slots);
        let (sampling, over) = (chat_sampling(), || self.over());
        let alone = 1e3 / decode_ms(&mut runner, 1, &sampling, self.effort, &over)?;
        let step_ms = decode_ms(&mut runner, batch, &sampling, self.effort, &over)?;
        let full = 1e3 * f64::from(batch) / step_ms;
        let longest = prefill_tokens(&runner);
        let prefill = prefill_rate(&mut runner, longest, self.effort, &over)?;
        Ok(Speed { alone, full, prefill })
    }

    /// Measures step times; fewer if time runs out, or the layout holds fewer sequences.
    fn steps(
        &self,
        rows: &[u16],
        tell: &mut dyn FnMut(MeasuredFigure) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let most = rows.iter().copied().max().unwrap_or(1);
        let mut runner = self.runner(most, KvType::F16)?;
        let slots = runner.capacity().slots;
        for &rows in rows.iter().filter(|&&rows| rows <= slots) {
            match decode_ms(&mut runner, rows, &chat_sampling(), self.effort, &|| self.over()) {
                Err(Unmeasured::OutOfTime) => break,
                ms => tell(MeasuredFigure::Step(StepTime { rows, ms: ms? }))?,
            }
        }
        Ok(())
    }

    /// Measures speeds by chunk size; fewer if time runs out.
    fn chunks(
        &self,
        sizes: &[u32],
        tell: &mut dyn FnMut(MeasuredFigure) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut runner = self.runner(self.order.batch, KvType::F16)?;
        let longest = prefill_tokens(&runner);
        for &tokens in sizes.iter().filter(|&&tokens| tokens <= longest) {
            match prefill_rate(&mut runner, tokens, self.effort, &|| self.over()) {
                Err(Unmeasured::OutOfTime) => break,
                rate => tell(MeasuredFigure::Chunk(tokens, rate?))?,
            }
        }
        Ok(())
    }
}

/// Returns the maximum number of prompt tokens, up to [`PREFILL_TOKENS`], that fit one sequence and
/// one step.
fn prefill_tokens(runner: &LlamaRunner) -> u32 {
    let capacity = runner.capacity();
    PREFILL_TOKENS.min(capacity.context_tokens).min(capacity.batch_tokens).min(capacity.kv_cells)
}

/// Returns the effort per figure. Chosen by hand, so that `--quick` takes some seconds with a small
/// model, and the default one to two minutes.
fn effort(quick: bool) -> Effort {
    match quick {
        true => Effort { least_steps: 3, most_steps: 12, time: Duration::from_millis(150) },
        false => Effort { least_steps: 8, most_steps: 48, time: Duration::from_millis(700) },
    }
}
