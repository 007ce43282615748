//! `loquent tune`: finds the fastest settings for a model on this machine and saves them for
//! `serve`.

#[cfg(feature = "llama")]
mod lab;
pub mod measure;
#[cfg(feature = "llama")]
mod process_lab;
pub mod search;
pub mod show;

use std::path::PathBuf;

use clap::Args;

use crate::model_args::ModelArgs;

const EXAMPLES: &str = "\
Examples:
  loquent tune -m qwen.gguf           takes a minute or two; leave the machine idle
  loquent tune -m qwen.gguf --quick   takes some seconds; less precise
  loquent serve -m qwen.gguf          uses the saved settings and prints them

Ctrl-C ends the search and saves the best settings so far, unless a profile is there already.";

/// Find the fastest settings for a model on this machine and save them for `loquent serve`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TuneArgs {
    #[command(flatten)]
    source: ModelArgs,
    /// Number of sequences in a full batch, as for `serve --max-batch-size`
    #[arg(long, default_value_t = 16, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=128))]
    max_batch_size: u16,
    /// Measure for some seconds only, with less precise figures
    #[arg(long)]
    quick: bool,
    /// Maximum time in seconds [default: 180; 30 with --quick]
    #[arg(long, value_name = "S")]
    max_time_s: Option<f64>,
    /// SVG file for the plot of step time by batch size [default: next to the profile]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print the figures without saving a profile
    #[arg(long)]
    no_save: bool,
    /// Measure what standard input asks for, as `tune` starts itself for each choice of settings
    #[arg(long, hide = true)]
    measure: bool,
}

/// Fails: this build has nothing to tune.
///
/// # Errors
/// Always.
#[cfg(not(feature = "llama"))]
pub fn run(_args: TuneArgs) -> anyhow::Result<()> {
    anyhow::bail!("this build has no engine to tune; build it with the cargo feature 'llama'")
}

#[cfg(feature = "llama")]
pub use with_engine::run;

#[cfg(feature = "llama")]
mod with_engine {
    use std::path::Path;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    use anyhow::Context;
    use indicatif::{ProgressBar, ProgressStyle};
    use loquent_bench::print;
    use loquent_engine::KvType;
    use loquent_engine::llama::{check_processor, inspect, physical_cores};
    use loquent_proto::printable::printable;

    use super::lab::run_order;
    use super::process_lab::ProcessLab;
    use super::search::{Choices, Found, search};
    use super::{TuneArgs, show};
    use crate::machine_load::warn_if_busy;
    use crate::profile::{Profile, TunedSettings, folder, machine};
    use crate::shutdown;

    /// Batch sizes in the table and plot of step times.
    const ROWS: [u16; 13] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128];
    /// Prompt chunk sizes to measure, in tokens.
    const CHUNKS: [u32; 6] = [16, 32, 64, 128, 256, 512];
    /// Share of the time for the search, and the share after which nothing is measured beside a
    /// busy program any more; step times and prompt chunks get the rest. Chosen by hand.
    const SEARCH_SHARE: f64 = 0.55;
    const BESIDE_SHARE: f64 = 0.7;
    /// Share of the best prompt speed at which a chunk size is large enough.
    const ENOUGH_PREFILL: f64 = 0.95;

    /// Measures, prints the figures and saves the profile.
    ///
    /// # Errors
    /// If the model cannot be loaded, nothing could be measured in time, or the profile cannot be
    /// written.
    pub fn run(args: TuneArgs) -> anyhow::Result<()> {
        if args.measure {
            return run_order();
        }
        // Before anything is measured in processes of their own.
        check_processor()?;
        let path = args.source.fetch()?;
        let choices = choices(inspect(&path)?.own_kernels);
        let limit_s = args.max_time_s.unwrap_or(if args.quick { 30.0 } else { 180.0 });
        let limit = Duration::try_from_secs_f64(limit_s).context("--max-time-s")?;
        let began = Instant::now();
        let mut lab = ProcessLab {
            path: path.clone(),
            batch: args.max_batch_size,
            quick: args.quick,
            deadline: began + limit.mul_f64(SEARCH_SHARE),
            // The search sees it only between native calls, which may take long: a second signal
            // ends the process.
            stopped: shutdown::defer()?,
            bar: progress_bar(),
            cut: Vec::new(),
        };
        warn_if_busy("the settings found now may not be the best");
        let start = start(&choices);
        let model = lab.description(&start)?.replace("?B ", "");
        print(format!("{} on {}\n", printable(&model), machine()))?;
        let mut found = search(&mut lab, start, &choices)
            .context("no setting could be measured in the time given; raise --max-time-s")?;
        let is_cut = Instant::now() >= lab.deadline;
        lab.deadline = began + limit.mul_f64(BESIDE_SHARE);
        weigh(&mut lab, &mut found)?;
        lab.deadline = began + limit;
        let profile = profile(&mut lab, &found, model)?;
        lab.bar.finish_and_clear();
        let figures = report(&mut lab, &found, &profile);
        let omitted = omissions(&lab, is_cut.then_some(found.trials.len()), limit_s);
        let is_cut_short = lab.stopped.load(Ordering::Relaxed);
        let kept = match args.no_save {
            true => Ok(String::new()),
            false => keep(&profile, &path, &args, is_cut_short),
        };
        print(figures + &omitted)?;
        Ok(print(kept?)?)
    }

    /// Returns the lines on what was not measured: `tried` is the number of settings if time cut
    /// the search.
    fn omissions(lab: &ProcessLab, tried: Option<usize>, limit_s: f64) -> String {
        let mut text = String::new();
        if lab.stopped.load(Ordering::Relaxed) {
            text += "Stopped early; these are the best settings so far.\n";
        }
        if let Some(tried) = tried {
            let settings = match tried {
                1 => "one setting".to_owned(),
                count => format!("{count} settings"),
            };
            text += &format!(
                "The search's share of {limit_s} s ran out after {settings}; raise --max-time-s \
                 to try more.\n"
            );
        }
        if !lab.cut.is_empty() {
            let cut = lab.cut.join(", ");
            text += &format!("{limit_s} s were too few to complete: {cut}; raise --max-time-s.\n");
        }
        text
    }

    /// Weighs the best settings beside a busy program, if there is time.
    fn weigh(lab: &mut ProcessLab, found: &mut Found) -> anyhow::Result<()> {
        if !lab.over() {
            let _neighbour = lab.busy_neighbour(&found.best.settings)?;
            found.weigh(lab);
        }
        lab.note_if_cut("the comparison beside a busy program");
        Ok(())
    }

    /// Returns the values to try, for a model that Loquent's own kernels can compute or not.
    fn choices(loquent_kernels: bool) -> Choices {
        let cores = physical_cores().get();
        let all = std::thread::available_parallelism().map_or(1, |n| n.get() as u16);
        // One core less leaves room for the connections; all logical ones rarely help, but may.
        let mut threads = vec![cores, 1, cores / 2, cores.saturating_sub(1), all];
        threads.retain(|&n| n > 0);
        threads.sort_unstable();
        threads.dedup();
        let (polls, pass_tokens) = (vec![0, 10, 50, 100], vec![64, 128, 256, 512]);
        Choices { threads, polls, pass_tokens, loquent_kernels }
    }

    /// Returns the settings that `serve` uses without a profile.
    fn start(choices: &Choices) -> TunedSettings {
        TunedSettings {
            threads: physical_cores().get(),
            poll: 0,
            kv_unified: true,
            flash_attention: true,
            loquent_kernels: choices.loquent_kernels,
            pass_tokens: 512,
        }
    }

    fn profile(lab: &mut ProcessLab, found: &Found, model: String) -> anyhow::Result<Profile> {
        let settings = found.best.settings;
        let mut profile = Profile::new(model, settings);
        if !lab.over() {
            // At least 32, so that the plot shows what a larger --max-batch-size would bring.
            let most = u16::max(32, lab.batch);
            let rows: Vec<u16> = ROWS.into_iter().filter(|&rows| rows <= most).collect();
            profile.steps = lab.steps(&settings, &rows)?;
        }
        lab.note_if_cut("step times");
        if !lab.over() {
            let rates = lab.chunks(&settings, &CHUNKS)?;
            let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
            let enough = rates.iter().find(|(_, rate)| *rate >= ENOUGH_PREFILL * best);
            // Fewer tokens would make long prompts slower; more would only lengthen the steps in
            // which running answers wait.
            profile.prefill_max_tokens = enough.map(|(tokens, _)| (*tokens).max(64));
        }
        lab.note_if_cut("prompt chunks");
        Ok(profile)
    }

    fn report(lab: &mut ProcessLab, found: &Found, profile: &Profile) -> String {
        let mut text = format!("\n{}\n{}", show::trials(found), show::beside(found));
        text += &show::steps(&profile.steps);
        for kv_type in [KvType::Q8_0, KvType::F32] {
            if let Some(speed) = lab.with_kv(&profile.settings, kv_type) {
                text += &format!(
                    "KV type {kv_type}: full batch x{:.2} of f16 (not saved, because it changes \
                     answers; see --kv-type)\n",
                    speed.full / found.best.speed.full
                );
            }
        }
        lab.note_if_cut("KV types");
        if let Some(tokens) = profile.prefill_max_tokens {
            text += &format!("Prompt chunks of {tokens} tokens reach the best speed within 5 %.\n");
        }
        let gain =
            |of: fn(&super::search::Speed) -> f64| of(&found.best.speed) / of(&found.first.speed);
        text += &format!(
            "\nBest: {}\nAgainst the defaults: 1 stream x{:.2}, full batch x{:.2}, \
             prompts x{:.2}\n",
            profile.settings,
            gain(|speed| speed.alone),
            gain(|speed| speed.full),
            gain(|speed| speed.prefill)
        );
        text
    }

    /// Writes the profile and the plot, and returns the lines that say where. The profile of a
    /// search that `is_cut_short` replaces no other.
    fn keep(
        profile: &Profile,
        model: &Path,
        args: &TuneArgs,
        is_cut_short: bool,
    ) -> anyhow::Result<String> {
        let folder = folder(|name| std::env::var(name).ok())
            .context("no folder for the profile; set HOME or LOQUENT_PROFILES")?;
        if is_cut_short && let Ok(Some((_, former))) = Profile::find(model, &folder) {
            let former = former.display();
            return Ok(format!("Not saved: {former} stays, the profile of an earlier search.\n"));
        }
        let path = profile.save(model, &folder)?;
        let plot = args.plot.clone().unwrap_or_else(|| path.with_extension("svg"));
        let drawn = show::plot(&profile.model, &profile.machine, &profile.steps);
        std::fs::write(&plot, drawn)
            .with_context(|| format!("cannot write the plot {}", plot.display()))?;
        let (path, plot) = (path.display(), plot.display());
        Ok(format!("Saved as {path}; `loquent serve` will use it.\nPlot: {plot}\n"))
    }

    fn progress_bar() -> ProgressBar {
        // No total: how many figures there are depends on the machine and on the time left.
        let style = ProgressStyle::with_template("{spinner} {pos} figures, {elapsed}: {msg}");
        let bar = ProgressBar::new_spinner().with_style(style.expect("the template is constant"));
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}
