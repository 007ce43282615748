//! Measures each choice of settings in a separate process, until the deadline or Ctrl-C.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use loquent_engine::KvType;

use super::lab::{FigureOrder, MeasureOrder, MeasuredFigure};
use super::search::{Lab, Speed};
use crate::own_program;
use crate::profile::{StepTime, TunedSettings};

/// Starts a process for every requested figure.
pub(super) struct ProcessLab {
    pub(super) path: PathBuf,
    /// Number of sequences in a full batch.
    pub(super) batch: u16,
    pub(super) quick: bool,
    pub(super) deadline: Instant,
    pub(super) stopped: Arc<AtomicBool>,
    pub(super) bar: ProgressBar,
    /// Parts of the measurement that the deadline cut short.
    pub(super) cut: Vec<&'static str>,
}

impl ProcessLab {
    /// Returns true if measuring should stop.
    pub(super) fn over(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || Instant::now() >= self.deadline
    }

    /// Records that `part`, which was to be measured before the deadline, may not be complete.
    pub(super) fn note_if_cut(&mut self, part: &'static str) {
        if Instant::now() >= self.deadline {
            self.cut.push(part);
        }
    }

    /// Returns a description of the model.
    ///
    /// # Errors
    /// If the file cannot be loaded.
    pub(super) fn description(&self, settings: &TunedSettings) -> anyhow::Result<String> {
        match self.measure_all(settings, FigureOrder::Description)?.pop() {
            Some(MeasuredFigure::Description(text)) => Ok(text),
            other => bail!("the model was not described: {other:?}"),
        }
    }

    fn speed(&self, settings: &TunedSettings, kv_type: KvType) -> anyhow::Result<Speed> {
        let figure = FigureOrder::Speed { kv_type: kv_type.to_string() };
        match self.measure_all(settings, figure)?.pop() {
            Some(MeasuredFigure::Speed(speed)) => Ok(speed),
            other => bail!("no speed was measured: {other:?}"),
        }
    }

    /// Returns the speed with another type of KV cache; `None` if the engine refuses it or the time
    /// is over.
    pub(super) fn with_kv(&self, settings: &TunedSettings, kv_type: KvType) -> Option<Speed> {
        if self.over() {
            return None;
        }
        self.bar.set_message(format!("KV type {kv_type}"));
        self.speed(settings, kv_type).ok()
    }

    /// Returns the step times at the batch sizes `rows`; fewer if time runs out.
    ///
    /// # Errors
    /// If the engine fails.
    pub(super) fn steps(
        &self,
        settings: &TunedSettings,
        rows: &[u16],
    ) -> anyhow::Result<Vec<StepTime>> {
        self.bar.set_message("step times");
        let measured = self.measure_all(settings, FigureOrder::Steps { rows: rows.to_vec() })?;
        let step =
            |measured| if let MeasuredFigure::Step(step) = measured { Some(step) } else { None };
        Ok(measured.into_iter().filter_map(step).collect())
    }

    /// Returns the prompt tokens per second by chunk size; fewer if time runs out.
    ///
    /// # Errors
    /// If the engine fails.
    pub(super) fn chunks(
        &self,
        settings: &TunedSettings,
        sizes: &[u32],
    ) -> anyhow::Result<Vec<(u32, f64)>> {
        self.bar.set_message("prompt chunks");
        let measured =
            self.measure_all(settings, FigureOrder::Chunks { tokens: sizes.to_vec() })?;
        let chunk = |measured| match measured {
            MeasuredFigure::Chunk(tokens, rate) => Some((tokens, rate)),
            _ => None,
        };
        Ok(measured.into_iter().filter_map(chunk).collect())
    }

    /// Starts a process that keeps one processor busy until it is dropped, or the deadline.
    ///
    /// # Errors
    /// If there is no process.
    pub(super) fn busy_neighbour(
        &self,
        settings: &TunedSettings,
    ) -> anyhow::Result<MeasuringProcess> {
        Ok(start(&self.order(settings, FigureOrder::Busy))?.0)
    }

    fn order(&self, settings: &TunedSettings, figure: FigureOrder) -> MeasureOrder {
        MeasureOrder {
            path: self.path.clone(),
            batch: self.batch,
            quick: self.quick,
            time: self.deadline.saturating_duration_since(Instant::now()),
            settings: *settings,
            figure,
        }
    }

    /// Returns a process's results for `figure`. The process may have ended early: by the deadline,
    /// or by the Ctrl-C that a terminal sends to it too.
    fn measure_all(
        &self,
        settings: &TunedSettings,
        figure: FigureOrder,
    ) -> anyhow::Result<Vec<MeasuredFigure>> {
        let (mut process, lines) = start(&self.order(settings, figure))?;
        let mut all = Vec::new();
        for line in lines.lines() {
            let measured = serde_json::from_str(&line?).context("a measuring process's output")?;
            if let MeasuredFigure::Refused(why) = measured {
                process.0.wait()?;
                bail!(why);
            }
            self.bar.inc(1);
            all.push(measured);
        }
        let status = process.0.wait()?;
        if !status.success() && !self.over() {
            bail!("a measuring process ended with {status}");
        }
        Ok(all)
    }
}

impl Lab for ProcessLab {
    fn measure(&mut self, settings: &TunedSettings) -> Option<Speed> {
        if self.over() {
            return None;
        }
        self.bar.set_message(settings.to_string());
        let speed = self.speed(settings, KvType::F16);
        speed.inspect_err(|error| tracing::debug!(%error, "settings refused")).ok()
    }
}

/// A process that ends when its figures are no longer wanted.
pub(super) struct MeasuringProcess(Child);

impl Drop for MeasuringProcess {
    fn drop(&mut self) {
        // It has ended by itself unless an error came between.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(order: &MeasureOrder) -> anyhow::Result<(MeasuringProcess, BufReader<ChildStdout>)> {
    let program = own_program::path().context("this program's own path")?;
    let mut command = Command::new(program);
    command.args(["tune", "--measure"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = MeasuringProcess(command.spawn().context("a measuring process")?);
    let (input, output) = (process.0.stdin.take(), process.0.stdout.take());
    // Dropped, and thereby closed, when all is written: the process reads to the end.
    serde_json::to_writer(input.context("its input")?, order)?;
    Ok((process, BufReader::new(output.context("its output")?)))
}
