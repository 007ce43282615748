//! Measures settings on llama.cpp.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use loquent_engine::KvType;
use loquent_engine::llama::{FlashAttention, LlamaModel, LlamaRunner, LoadOptions, RunnerOptions};

use super::measure::{Effort, Unmeasured, decode_ms, prefill_rate};
use super::profile::{StepTime, TunedSettings};
use super::search::{Lab, Speed};
use crate::serve::cache_sizes::{DEFAULT_CONTEXT_TOKENS, default_kv_cells, slots};

/// KV cells per sequence where step times are measured: room for a prompt of
/// [`super::measure::PROMPT_TOKENS`] and all steps.
const CELLS_PER_ROW: u32 = 256;
/// Prompt tokens per prefill measurement.
const PREFILL_TOKENS: u32 = 512;

/// Loads the model, builds contexts, and measures until the deadline or Ctrl-C.
pub(super) struct LlamaLab {
    pub(super) path: PathBuf,
    /// Number of sequences in a full batch.
    pub(super) batch: u16,
    pub(super) effort: Effort,
    pub(super) deadline: Instant,
    pub(super) stopped: Arc<AtomicBool>,
    pub(super) bar: ProgressBar,
    /// The model as last loaded, and whether with Loquent's kernels.
    pub(super) loaded: Option<(bool, Arc<LlamaModel>)>,
}

impl LlamaLab {
    /// The model, with Loquent's kernels or llama.cpp's.
    ///
    /// # Errors
    /// When the file cannot be loaded.
    pub(super) fn model(&mut self, loquent_kernels: bool) -> anyhow::Result<Arc<LlamaModel>> {
        match &self.loaded {
            Some((with, model)) if *with == loquent_kernels => return Ok(model.clone()),
            // Freed before the next load: two copies of the weights may not fit into memory.
            _ => self.loaded = None,
        }
        let options = LoadOptions { own_kernels: loquent_kernels, ..LoadOptions::default() };
        let model = LlamaModel::load(&self.path, &options, |_| true)?;
        self.loaded = Some((loquent_kernels, model.clone()));
        Ok(model)
    }

    /// Whether to stop measuring.
    pub(super) fn over(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || Instant::now() >= self.deadline
    }

    fn runner(
        &mut self,
        settings: &TunedSettings,
        (slots, kv_cells): (u16, u32),
        kv_type: KvType,
    ) -> anyhow::Result<LlamaRunner> {
        let model = self.model(settings.loquent_kernels)?;
        let options = RunnerOptions {
            slots,
            kv_cells,
            context_tokens: 0,
            batch_tokens: PREFILL_TOKENS,
            pass_tokens: settings.pass_tokens,
            threads: Some(settings.threads.try_into()?),
            poll: settings.poll,
            kv_type,
            kv_unified: settings.kv_unified,
            flash_attention: match settings.flash_attention {
                true => FlashAttention::On,
                false => FlashAttention::Off,
            },
        };
        let mut runner = LlamaRunner::new(model, &options)?;
        runner.warm_up()?;
        Ok(runner)
    }

    fn speed(&mut self, settings: &TunedSettings, kv_type: KvType) -> anyhow::Result<Speed> {
        let (slots, kv_cells) = self.serve_sizes(settings)?;
        let (batch, effort) = (self.batch.min(slots), self.effort);
        let mut runner = self.runner(settings, (slots, kv_cells), kv_type)?;
        let over = || self.over();
        let alone = 1e3 / decode_ms(&mut runner, 1, effort, &over)?;
        let full = 1e3 * f64::from(batch) / decode_ms(&mut runner, batch, effort, &over)?;
        let longest = self.prefill_tokens(&runner);
        let prefill = prefill_rate(&mut runner, longest, effort, &over)?;
        Ok(Speed { alone, full, prefill })
    }

    /// Slots and KV cells as `serve` has them by default: a layout that holds fewer sequences is
    /// measured with fewer.
    fn serve_sizes(&mut self, settings: &TunedSettings) -> anyhow::Result<(u16, u32)> {
        let model = self.model(settings.loquent_kernels)?;
        let context = model.info().context_train.clamp(2, DEFAULT_CONTEXT_TOKENS);
        let kv_cells = default_kv_cells(context, self.batch);
        Ok((slots(self.batch, context, kv_cells, settings.kv_unified), kv_cells))
    }

    /// Slots and KV cells for `rows` short sequences.
    fn sizes_for(rows: u16, settings: &TunedSettings) -> (u16, u32) {
        let cells = (CELLS_PER_ROW * u32::from(rows)).max(2 * PREFILL_TOKENS);
        // Without a unified cache each sequence gets an equal share of the cells, and the one
        // that measures prompts needs room for all of its own.
        (rows, cells * if settings.kv_unified { 1 } else { 2 })
    }

    /// The most prompt tokens, up to [`PREFILL_TOKENS`], that fit one sequence and one step.
    fn prefill_tokens(&self, runner: &LlamaRunner) -> u32 {
        use loquent_infer::runner::Runner;
        let capacity = runner.capacity();
        PREFILL_TOKENS
            .min(capacity.context_tokens)
            .min(capacity.batch_tokens)
            .min(capacity.kv_cells)
    }

    /// The speed with another type of KV cache; `None` if the engine refuses it or time is over.
    pub(super) fn with_kv(&mut self, settings: &TunedSettings, kv_type: KvType) -> Option<Speed> {
        if self.over() {
            return None;
        }
        self.bar.set_message(format!("KV type {kv_type}"));
        self.speed(settings, kv_type).ok()
    }

    /// Step times at the batch sizes `rows`; fewer if time runs out.
    ///
    /// # Errors
    /// When the engine fails.
    pub(super) fn steps(
        &mut self,
        settings: &TunedSettings,
        rows: &[u16],
    ) -> anyhow::Result<Vec<StepTime>> {
        let most = rows.iter().copied().max().unwrap_or(1);
        let mut runner = self.runner(settings, Self::sizes_for(most, settings), KvType::F16)?;
        let mut steps = Vec::new();
        for &rows in rows {
            self.bar.set_message(format!("{rows} rows"));
            match decode_ms(&mut runner, rows, self.effort, &|| self.over()) {
                Err(Unmeasured::OutOfTime) => break,
                ms => steps.push(StepTime { rows, ms: ms? }),
            }
            self.bar.inc(1);
        }
        Ok(steps)
    }

    /// Prompt tokens per second by chunk size; fewer if time runs out.
    ///
    /// # Errors
    /// When the engine fails.
    pub(super) fn chunks(
        &mut self,
        settings: &TunedSettings,
        sizes: &[u32],
    ) -> anyhow::Result<Vec<(u32, f64)>> {
        let mut runner = self.runner(settings, Self::sizes_for(1, settings), KvType::F16)?;
        let longest = self.prefill_tokens(&runner);
        let mut rates = Vec::new();
        for &tokens in sizes.iter().filter(|&&tokens| tokens <= longest) {
            self.bar.set_message(format!("prompt chunks of {tokens}"));
            match prefill_rate(&mut runner, tokens, self.effort, &|| self.over()) {
                Err(Unmeasured::OutOfTime) => break,
                rate => rates.push((tokens, rate?)),
            }
            self.bar.inc(1);
        }
        Ok(rates)
    }
}

impl Lab for LlamaLab {
    fn measure(&mut self, settings: &TunedSettings) -> Option<Speed> {
        if self.over() {
            return None;
        }
        self.bar.set_message(super::show::settings(settings));
        let speed = self.speed(settings, KvType::F16);
        self.bar.inc(1);
        speed.inspect_err(|error| tracing::debug!(%error, "settings refused")).ok()
    }
}

/// The effort per figure. Chosen by hand, so that `--quick` takes some seconds with a small model
/// and the default one to two minutes.
pub(super) fn effort(quick: bool) -> Effort {
    match quick {
        true => Effort { least_steps: 3, most_steps: 12, time: Duration::from_millis(150) },
        false => Effort { least_steps: 8, most_steps: 48, time: Duration::from_millis(700) },
    }
}
