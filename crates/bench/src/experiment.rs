//! Runs a plan: every case against every target in turn, so that a drift of the machine's speed
//! affects all of them alike.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use loquent_client::openai::{Generate, Prompt};

use crate::drive::{self, PlannedRequest, RunPlan, RunProgress};
use crate::plan::{EndpointKind, Inject, LoadCase, LoadPlan, LoadSettings, TargetPlan};
use crate::process::Process;
use crate::record::{RequestRecord, RequestRole};
use crate::report::{self, LoadReport, RunGroup, RunResult};
use crate::scrape;
use crate::summary::{Resources, summarize};
use crate::target::{FailureKind, Target};
use crate::verify::verify;
use crate::{BenchError, prompts};

/// Result of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunVerdict {
    /// Every measured request finished or was refused because of load.
    Clean,
    /// At least one measured request failed.
    SomeFailed,
    /// A run has no finished measured request: its figures are meaningless.
    NoneFinished,
    /// A token total is impossible; its figures are rejected.
    Impossible,
}

impl RunVerdict {
    /// Returns the process's exit status.
    pub fn exit_code(self) -> u8 {
        match self {
            RunVerdict::Clean => 0,
            RunVerdict::SomeFailed | RunVerdict::NoneFinished => 1,
            RunVerdict::Impossible => 3,
        }
    }
}

/// Runs the plan, writes its reports and returns the verdict.
///
/// # Errors
/// If a target lacks something that the plan needs, or a report cannot be written.
pub async fn run(plan: &LoadPlan) -> Result<RunVerdict, BenchError> {
    let report = measure(plan).await?;
    let verdict = judge(&report);
    report::write(&report, &plan.outputs)?;
    // The reports are written all the same: they say why.
    if verdict == RunVerdict::NoneFinished {
        eprintln!("loquent bench: a run has no answer; lower the load, or look at the server");
    }
    Ok(verdict)
}

fn judge(report: &LoadReport) -> RunVerdict {
    let runs = report.groups.iter().flat_map(|group| &group.runs);
    let of_run = |run: &RunResult| match run.findings.impossible.is_empty() {
        true => judge_records(&run.records),
        false => RunVerdict::Impossible,
    };
    runs.map(of_run).max().unwrap_or(RunVerdict::Clean)
}

fn judge_records(records: &[RequestRecord]) -> RunVerdict {
    let measured = || records.iter().filter(|record| record.role == RequestRole::Measured);
    let failed = |record: &RequestRecord| {
        record.failure().is_some_and(|failure| failure.kind != FailureKind::Overloaded)
    };
    if measured().next().is_some() && !measured().any(RequestRecord::finished) {
        RunVerdict::NoneFinished
    } else if measured().any(failed) {
        RunVerdict::SomeFailed
    } else {
        RunVerdict::Clean
    }
}

/// Runs the plan and prints only progress.
///
/// # Errors
/// If a target lacks something that the plan needs, or its process cannot be read.
pub async fn measure(plan: &LoadPlan) -> Result<LoadReport, BenchError> {
    let config = report::config(plan);
    let mut prepared = Vec::new();
    for target in &plan.targets {
        prepared.push(PreparedTarget::new(target, plan).await?);
    }
    let mut groups: Vec<RunGroup> = Vec::new();
    for case in &plan.cases {
        for target in &plan.targets {
            groups.push(RunGroup {
                name: group_name(plan, target.target.name(), &case.label),
                target: target.target.name().to_owned(),
                case: case.clone(),
                runs: Vec::new(),
            });
        }
    }
    // Rounds outside, groups inside: runs of different servers alternate, and a drift of the
    // machine cancels in their ratios.
    let rounds = plan.warmup_runs + plan.repeat_runs;
    for round in 0..rounds {
        for (index, group) in groups.iter_mut().enumerate() {
            let is_first = round == 0 && index == 0;
            // llama-server's compute threads spin for about 100 ms after its last token, which
            // would slow the next server's first requests.
            if plan.targets.len() > 1 && !is_first {
                tokio::time::sleep(plan.pause).await;
            }
            let target = &mut prepared[index % plan.targets.len()];
            let bar = progress_bar(plan, &group.name, round, rounds);
            let result = target.run(plan, &group.case, round, bar).await?;
            if round >= plan.warmup_runs {
                group.runs.push(result);
            }
        }
    }
    Ok(LoadReport { title: plan.title.clone(), config, groups })
}

fn group_name(plan: &LoadPlan, target: &str, case: &str) -> String {
    match (plan.targets.len() > 1, case.is_empty()) {
        (true, false) => format!("{target}, {case}"),
        (false, false) => case.to_owned(),
        (_, true) => target.to_owned(),
    }
}

fn progress_bar(plan: &LoadPlan, group: &str, round: usize, rounds: usize) -> ProgressBar {
    if plan.outputs.quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {msg} {elapsed}")
        .expect("the template is a constant");
    let kind = if round < plan.warmup_runs { "warm-up" } else { "run" };
    ProgressBar::new(0)
        .with_style(style)
        .with_prefix(format!("{group} [{kind} {}/{rounds}]", round + 1))
}

/// A target with its model and the tokens of the prompts, all determined before the first run.
struct PreparedTarget<'a> {
    plan: &'a TargetPlan,
    model: String,
    process: Option<Process>,
    own_process: Option<Process>,
    tokenizes: bool,
    /// Token ids by prompt text, for pre-tokenized prompts.
    ids: HashMap<String, Vec<u32>>,
}

impl<'a> PreparedTarget<'a> {
    async fn new(target: &'a TargetPlan, plan: &LoadPlan) -> Result<Self, BenchError> {
        let name = target.target.name().to_owned();
        let refuse = |reason: String| BenchError::Target { target: name.clone(), reason };
        let model = match &plan.settings.model {
            Some(model) => model.clone(),
            None => {
                let models = target.target.models().await;
                let models = models.map_err(|failure| refuse(failure.message))?;
                models.into_iter().next().ok_or_else(|| refuse("it offers no model".into()))?
            }
        };
        let probe = target.target.tokenize(&model, "Hello", true).await;
        if let (true, Err(failure)) = (plan.settings.pretok, &probe) {
            return Err(refuse(format!("--pretok needs its /tokenize: {}", failure.message)));
        }
        let process = target.pid.map(Process::open).transpose()?;
        // A server within this process shares its CPU time with the generator: one figure for both.
        let separate = target.pid != Some(std::process::id());
        let own_process = if separate { Process::open(std::process::id()).ok() } else { None };
        let ids = HashMap::new();
        Ok(PreparedTarget {
            plan: target,
            model,
            process,
            own_process,
            tokenizes: probe.is_ok(),
            ids,
        })
    }

    async fn run(
        &mut self,
        plan: &LoadPlan,
        case: &LoadCase,
        round: usize,
        bar: ProgressBar,
    ) -> Result<RunResult, BenchError> {
        let run_plan = self.plan_run(&plan.settings, case, round).await?;
        let target = Arc::clone(&self.plan.target);
        let before = counters(&*target).await;
        let server = self.process.as_ref().map(Process::watch).transpose()?;
        let own = self.own_process.as_ref().map(Process::watch).transpose()?;
        let progress = Arc::new(RunProgress::default());
        bar.set_length((run_plan.measured.len() + run_plan.beside.len()) as u64);
        let ticking = tokio::spawn(tick(bar.clone(), Arc::clone(&progress)));
        let mut records = drive::run(Arc::clone(&target), run_plan, progress).await;
        let resources = Resources {
            // A server that died during the run has no figures, and its failed requests show why.
            server: server.and_then(|watch| watch.stop().ok()),
            generator: own.and_then(|watch| watch.stop().ok()),
        };
        ticking.abort();
        bar.finish_and_clear();
        let grown = scrape::growth(&before, &counters(&*target).await);
        if self.tokenizes {
            self.recount(&mut records, plan.settings.recount).await;
        }
        let findings = verify(&records);
        let mut summary = summarize(&records, &resources);
        summary.add_goodput(&records, plan.settings.slo);
        Ok(RunResult { summary, findings, records, counters: grown })
    }

    async fn plan_run(
        &mut self,
        settings: &LoadSettings,
        case: &LoadCase,
        round: usize,
    ) -> Result<RunPlan, BenchError> {
        let mut measured = Vec::with_capacity(settings.requests);
        for index in 0..settings.requests {
            let text = settings.prompts.prompt(round, index);
            measured.push(self.request(settings, case, RequestRole::Measured, text).await?);
        }
        let mut beside = Vec::new();
        let extras = &case.extras;
        for (role, count) in
            [(RequestRole::SlowReader, extras.slow_readers), (RequestRole::Leaver, extras.leavers)]
        {
            for index in 0..count {
                let text = settings.prompts.prompt(round, settings.requests + index);
                beside.push(self.request(settings, case, role, text).await?);
            }
        }
        if let Some(inject) = extras.inject {
            beside.extend(self.injected(settings, case, inject, round).await?);
        }
        Ok(RunPlan {
            measured,
            beside,
            pacing: settings.pacing,
            seed: settings.seed.unwrap_or(0).wrapping_add(round as u64),
            concurrency: case.concurrency,
            timeout: settings.timeout,
        })
    }

    async fn request(
        &mut self,
        settings: &LoadSettings,
        case: &LoadCase,
        role: RequestRole,
        text: String,
    ) -> Result<PlannedRequest, BenchError> {
        let prompt = match settings.endpoint {
            EndpointKind::Chat => Prompt::Chat(text),
            EndpointKind::Completions if settings.pretok => Prompt::Tokens(self.ids(text).await?),
            EndpointKind::Completions => Prompt::Text(text),
        };
        let extras = &case.extras;
        let (max_tokens, turn_after) = match role {
            RequestRole::SlowReader => (extras.slow_reader_max_tokens, extras.slow_reader_after),
            RequestRole::Leaver => (settings.max_tokens, extras.leave_after),
            RequestRole::Measured | RequestRole::Injected => (settings.max_tokens, 0),
        };
        let generate = self.generate(settings, case, prompt, max_tokens);
        Ok(PlannedRequest { role, generate, at: Duration::ZERO, turn_after })
    }

    fn generate(
        &self,
        settings: &LoadSettings,
        case: &LoadCase,
        prompt: Prompt,
        max_tokens: u32,
    ) -> Generate {
        Generate {
            model: self.model.clone(),
            prompt,
            max_tokens,
            temperature: settings.temperature,
            seed: settings.seed,
            ignore_eos: settings.ignore_eos,
            stream_interval: case.stream_interval,
            include_timings: settings.include_timings,
            extra: settings.extra.clone(),
        }
    }

    /// Creates long prompts that differ from their first token on, so that a prefix cache saves
    /// nothing.
    async fn injected(
        &mut self,
        settings: &LoadSettings,
        case: &LoadCase,
        inject: Inject,
        round: usize,
    ) -> Result<Vec<PlannedRequest>, BenchError> {
        let mut planned = Vec::with_capacity(inject.count);
        for index in 0..inject.count {
            let text = prompts::long_text(inject.prompt_tokens, round, index);
            let prompt = if self.tokenizes {
                let mut ids = self.ids(text).await?;
                ids.truncate(inject.prompt_tokens);
                Prompt::Tokens(ids)
            } else if settings.endpoint == EndpointKind::Chat {
                Prompt::Chat(text)
            } else {
                Prompt::Text(text)
            };
            let generate = self.generate(settings, case, prompt, inject.max_tokens);
            let at = Duration::from_secs_f64(inject.at_s + index as f64 * inject.every_s);
            planned.push(PlannedRequest {
                role: RequestRole::Injected,
                generate,
                at,
                turn_after: 0,
            });
        }
        Ok(planned)
    }

    async fn ids(&mut self, text: String) -> Result<Vec<u32>, BenchError> {
        if let Some(ids) = self.ids.get(&text) {
            return Ok(ids.clone());
        }
        let target = &self.plan.target;
        let ids = target.tokenize(&self.model, &text, true).await.map_err(|failure| {
            BenchError::Target { target: target.name().to_owned(), reason: failure.message }
        })?;
        self.ids.insert(text, ids.clone());
        Ok(ids)
    }

    async fn recount(&self, records: &mut [RequestRecord], limit: usize) {
        for record in records.iter_mut().filter(|record| record.finished()).take(limit) {
            let ids = self.plan.target.tokenize(&self.model, &record.text, false).await;
            record.recounted_tokens = ids.ok().map(|ids| ids.len() as u64);
        }
    }
}

async fn counters(target: &dyn Target) -> scrape::Series {
    target.metrics().await.map(|text| scrape::counters(&text)).unwrap_or_default()
}

/// Updates the progress bar until aborted.
async fn tick(bar: ProgressBar, progress: Arc<RunProgress>) {
    let mut every = tokio::time::interval(Duration::from_millis(200));
    loop {
        every.tick().await;
        let chunks = progress.chunks.load(Ordering::Relaxed);
        bar.set_position(progress.ended.load(Ordering::Relaxed) as u64);
        bar.set_message(format!("{chunks} chunks"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconcile::tests::record;
    use crate::record::RequestOutcome;
    use crate::target::RequestFailure;

    fn failed(kind: FailureKind) -> RequestRecord {
        let outcome = RequestOutcome::Failed(RequestFailure::new(kind, ""));
        RequestRecord { outcome, ..record(&[], 0) }
    }

    #[test]
    fn a_run_without_an_answer_is_no_success() {
        let (fine, refused) = (record(&[1100], 1), failed(FailureKind::Overloaded));
        let judge = |records: &[&RequestRecord]| {
            let records: Vec<RequestRecord> = records.iter().map(|&one| one.clone()).collect();
            judge_records(&records)
        };
        assert_eq!(judge(&[&fine, &refused]), RunVerdict::Clean);
        assert_eq!(judge(&[&fine, &failed(FailureKind::Broken)]), RunVerdict::SomeFailed);
        assert_eq!(judge(&[&refused, &refused]), RunVerdict::NoneFinished);
        assert_eq!(judge(&[]), RunVerdict::Clean, "nothing was asked");
        assert_eq!(RunVerdict::NoneFinished.exit_code(), 1);
    }
}
