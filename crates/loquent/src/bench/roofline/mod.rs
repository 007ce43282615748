//! `loquent bench engine --roofline`: compares the engine's speed with the limits of this machine.

mod report;
mod show;
mod steps;
mod work;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use loquent_engine::llama::{
    FlashAttention, LlamaModel, LlamaRunner, LoadOptions, RunnerOptions, SMALL_MODEL_BYTES,
    machine_limits, physical_cores,
};
use loquent_formats::gguf::Value;
use loquent_infer::runner::Runner;
use loquent_proto::printable::printable;

use self::report::{Limits, Roofline, RooflineRow};
use self::steps::{Step, measure};
use self::work::ModelWork;
use crate::machine_load::warn_if_busy;
use crate::profile::machine;
use crate::serve::args::{EngineArgs, KvLayout, SourceArgs, Switch};
use crate::shutdown;

/// Row counts of the measured decode steps.
const ROWS: [u16; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Lengths of the measured prompts.
const PROMPTS: [u32; 2] = [512, 4000];
/// KV cells: 128 for each row of the largest step, and enough for the longest prompt.
const KV_CELLS: u32 = 8192;
/// Duration of one round when measuring a machine limit. Chosen by hand, as the processor needs
/// some milliseconds to settle on a clock rate.
const ROUND: Duration = Duration::from_millis(150);

/// Outputs and time limit of `--roofline`.
#[derive(Debug)]
pub(super) struct RooflineOptions {
    pub(super) limit: Duration,
    pub(super) json: Option<PathBuf>,
    pub(super) plot: Option<PathBuf>,
    pub(super) quiet: bool,
}

/// Measures machine and model, prints the table and writes the files.
///
/// # Errors
/// If the model cannot be loaded, a file cannot be written, or nothing could be measured within the
/// time limit.
pub(super) fn run(
    source: &SourceArgs,
    engine: &EngineArgs,
    options: &RooflineOptions,
) -> anyhow::Result<ExitCode> {
    ensure!(!engine.staged.is_wanted(), "--roofline measures one machine: leave --stages away");
    let path = source.file.fetch()?;
    warn_if_busy("what is measured now is not its limit");
    let deadline = Instant::now() + options.limit;
    // Seen between calls of the engine; a second signal ends the process.
    let stopped = shutdown::defer()?;
    let over = || stopped.load(Ordering::Relaxed) || Instant::now() >= deadline;
    let found = measure_all(&path, engine, &over, options.quiet)?;
    if let Some(file) = &options.json {
        write(file, &(serde_json::to_string_pretty(&found)? + "\n"))?;
    }
    if let Some(file) = &options.plot {
        write(file, &show::plot(&found))?;
    }
    if !options.quiet {
        loquent_bench::print(show::table(&found))?;
    }
    Ok(exit_code(&stopped))
}

/// Returns 130 after Ctrl-C, as if the signal had ended the process.
fn exit_code(stopped: &AtomicBool) -> ExitCode {
    if stopped.load(Ordering::Relaxed) { ExitCode::from(130) } else { ExitCode::SUCCESS }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn measure_all(
    path: &Path,
    engine: &EngineArgs,
    over: &dyn Fn() -> bool,
    quiet: bool,
) -> anyhow::Result<Roofline> {
    let bar = if quiet { ProgressBar::hidden() } else { progress_bar() };
    bar.set_message("loading the model");
    let model = load(path, engine)?;
    let parts = model.header().get("split.count").and_then(Value::as_u64).unwrap_or(1);
    ensure!(parts <= 1, "--roofline reads models of one file; this one has {parts}");
    let options = runner_options(engine, &model);
    let threads = options.threads.expect("chosen above");
    bar.set_message("memory and multiplications");
    // Before the context: what it allocates is none of this measurement's concern.
    let too_short = "nothing could be measured in the time given; raise --max-time-s";
    let limits = machine_limits(threads, ROUND, over).context(too_short)?;
    let mut runner = LlamaRunner::new(model.clone(), &options)?;
    runner.warm_up()?;
    let wanted = wanted(&runner);
    let measured = measure(&mut runner, &wanted, options.pass_tokens, over, &mut |step| {
        bar.set_message(step.to_string());
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    let work = ModelWork::new(model.header(), options.kv_type);
    let row = |measured| RooflineRow::new(measured, &work, options.pass_tokens, &limits);
    let incomplete = measured.len() < wanted.len();
    Ok(Roofline {
        model: printable(&model.info().description.replace("?B ", "")).to_string(),
        machine: machine(),
        kernels: kernels(&model).to_owned(),
        threads: threads.get(),
        limits: Limits::from(&limits),
        steps: measured.into_iter().map(row).collect(),
        incomplete,
    })
}

fn load(path: &Path, engine: &EngineArgs) -> anyhow::Result<Arc<LlamaModel>> {
    let options = LoadOptions {
        gpu_layers: engine.gpu_layers,
        kv_cells: KV_CELLS,
        kv_type: engine.kv_type,
        own_kernels: engine.tuning.choose_kernels()?,
        ..LoadOptions::default()
    };
    Ok(LlamaModel::load(path, &options, |_| true)?)
}

fn kernels(model: &LlamaModel) -> &'static str {
    if model.uses_own_kernels() { "Loquent's kernels" } else { "llama.cpp's kernels" }
}

/// Returns the options that `serve` would use, with a cache sized for the measurement.
fn runner_options(engine: &EngineArgs, model: &LlamaModel) -> RunnerOptions {
    let is_small = model.info().size_bytes < SMALL_MODEL_BYTES;
    let usual = if is_small { std::num::NonZeroU16::MIN } else { physical_cores() };
    let pass_tokens = engine.tuning.micro_batch.unwrap_or(512);
    RunnerOptions {
        slots: *ROWS.last().expect("there are some"),
        kv_cells: KV_CELLS,
        context_tokens: 0,
        batch_tokens: pass_tokens,
        pass_tokens,
        threads: Some(engine.threads.unwrap_or(usual)),
        poll: engine.tuning.poll.unwrap_or(0),
        kv_type: engine.kv_type,
        saves_spans: false,
        kv_unified: engine.tuning.kv_layout != Some(KvLayout::Split),
        flash_attention: match engine.tuning.flash_attention {
            None => FlashAttention::Auto,
            Some(Switch::On) => FlashAttention::On,
            Some(Switch::Off) => FlashAttention::Off,
        },
    }
}

/// Returns the steps that the runner has room for.
fn wanted(runner: &LlamaRunner) -> Vec<Step> {
    let capacity = runner.capacity();
    let rows = ROWS.into_iter().filter(|&rows| rows <= capacity.slots);
    let room = capacity.context_tokens.min(capacity.kv_cells);
    let prompts = PROMPTS.into_iter().filter(|&tokens| tokens < room);
    let decode = rows.map(|rows| Step::Decode { rows, past: steps::PAST });
    decode.chain(prompts.map(|tokens| Step::Prompt { tokens })).collect()
}

fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {pos} figures, {elapsed}: {msg}");
    let bar = ProgressBar::new_spinner().with_style(style.expect("the template is constant"));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
