//! The simulated engine behind a socket pair: same tokens as without, however often it is killed;
//! and arbitrary bytes are an error.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use loquent_infer::budget::ItlTarget;
use loquent_infer::request::{Finish, Tag, Work};
use loquent_infer::runner::{
    Batch, Capacity, Recovery, RunError, Runner, Sampled, Scores, Slot, Span,
};
use loquent_infer::sampling::{
    Constraint, Grammar, Logprobs, SampledToken, Sampling, SharedGrammar,
};
use loquent_infer::scheduler::{Limits, Scheduler};
use loquent_infer::speculation::Speculation;
use loquent_infer::token::{RowError, TokenId};
use loquent_infer::vocab::{Encode, Vocab};
use proptest::prelude::*;

use super::restarts::{MOST_STARTS, Restarts};
use super::wire::{Allowed, EngineFacts, EngineOrder, EngineReport};
use super::{LaunchedEngine, ProcessError, ProcessRunner, serve};
use crate::sim::{SimOptions, SimRunner};
use crate::staged::wire::SamplerParts;
use loquent_infer::sim_vocab::SimVocab;

/// Longer than any engine here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server's half of the last engine's sockets: shutting it down kills that engine.
type Victim = Arc<Mutex<Option<UnixStream>>>;

fn facts(runner: &SimRunner) -> EngineFacts {
    EngineFacts {
        capacity: runner.capacity(),
        vocab_tokens: SimVocab.size() as u32,
        verify_rows: runner.verify_rows(),
        score_rows: runner.score_rows(),
        summary: "simulated".into(),
        details: vec![("Kernels".into(), "none".into())],
    }
}

fn kill(victim: &Victim) {
    if let Some(stream) = victim.lock().unwrap().take() {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Returns a runner over engines on threads, and a handle that kills the current one.
fn over_sockets() -> (ProcessRunner, Victim) {
    let victim = Victim::default();
    let last = victim.clone();
    let launch = move || {
        let (ours, theirs) = UnixStream::pair()?;
        *last.lock().unwrap() = Some(ours.try_clone()?);
        thread::spawn(move || {
            let load = |progress: &mut dyn FnMut(u8)| {
                progress(50);
                let runner = SimRunner::new(SimOptions::default());
                let facts = facts(&runner);
                Ok((Box::new(runner) as Box<dyn Runner>, facts))
            };
            let _ = serve(theirs, load, || ());
        });
        Ok(LaunchedEngine { stream: ours, process: None })
    };
    (ProcessRunner::start(Box::new(launch), PATIENCE, |_| ()).unwrap(), victim)
}

/// Allows the tokens of one list in turn, whatever the text.
struct Fixed(Vec<TokenId>);

struct FixedState {
    rest: Vec<TokenId>,
    mask: Vec<u32>,
}

impl Grammar for Fixed {
    fn start(&self, generated: &[TokenId]) -> Box<dyn Constraint> {
        let rest = self.0.iter().copied().skip(generated.len()).rev().collect();
        Box::new(FixedState { rest, mask: Vec::new() })
    }
}

impl Constraint for FixedState {
    fn allowed(&mut self) -> Result<&[u32], RowError> {
        let next = *self.rest.last().ok_or_else(|| RowError::Constraint("over".into()))?;
        self.mask = vec![0; SimVocab.size().div_ceil(32)];
        self.mask[next as usize / 32] |= 1 << (next % 32);
        Ok(&self.mask)
    }

    fn accept(&mut self, token: TokenId) {
        assert_eq!(self.rest.pop(), Some(token), "what was allowed was chosen");
    }
}

fn works() -> Vec<Work> {
    let prompt =
        |text: &str| SimVocab.encode(text, Encode { add_bos: false, parse_special: true }).unwrap();
    let grammar = SharedGrammar(Arc::new(Fixed((40..80).collect())));
    let kinds = [
        Sampling::default(),
        Sampling { temperature: 1.0, seed: 7, logprobs: Some(2), ..Sampling::default() },
        Sampling { repetition_penalty: 1.3, frequency_penalty: 0.5, ..Sampling::default() },
        Sampling { repetition_penalty: 1.3, repeat_last_n: 9, ..Sampling::default() },
        Sampling { grammar: Some(grammar), ..Sampling::default() },
        Sampling { logit_bias: vec![(50, 90.0)].into(), ..Sampling::default() },
    ];
    let of = |(tag, sampling): (u64, Sampling)| Work {
        tag: Tag(tag),
        prompt: prompt(&format!("Tell number {} a long story. tokens=60", tag / 2)),
        max_tokens: 30 + tag as u32,
        sampling,
        score_prompt: (tag == 1).then_some(1),
        ..Work::default()
    };
    (0..).zip(kinds).map(of).collect()
}

/// Result of each completion: tokens with their log-probabilities, those of its prompt, its end.
type Outcome = Vec<(Vec<SampledToken>, Vec<SampledToken>, Option<Finish>)>;

/// Computes all works; the engine is killed before the steps listed in `kills`.
fn compute(runner: &mut dyn Runner, kills: &[usize], victim: Option<&Victim>) -> Outcome {
    let limits = Limits {
        max_batch_size: 3,
        prefill_max_tokens: 256,
        itl_target: ItlTarget::Unbounded,
        prefix_cache: true,
        speculation: Speculation::Off,
        queue_timeout: None,
    };
    let mut scheduler = Scheduler::new(runner.capacity(), limits, Vec::new());
    let works = works();
    let mut outcome: Outcome = works.iter().map(|_| Default::default()).collect();
    works.into_iter().for_each(|work| scheduler.submit(Duration::ZERO, work));
    let (mut batch, mut now, mut steps) = (Batch::default(), Duration::ZERO, 0);
    while scheduler.has_work() {
        while let Recovery::Pending(_) = runner.poll_recovery() {
            thread::sleep(Duration::from_millis(1));
        }
        if let Some(victim) = victim.filter(|_| kills.contains(&steps)) {
            kill(victim);
        }
        (now, steps) = (now + Duration::from_millis(1), steps + 1);
        assert!(steps < 2000, "no end");
        let mut sampled = Vec::new();
        scheduler.plan(now, runner, &mut batch);
        let step = match runner.run(&batch, &mut sampled) {
            Ok(()) => scheduler.commit(now, now, runner, &batch, &sampled),
            Err(error) => scheduler.recover(now, now, runner, &batch, &error),
        };
        for event in step.events {
            let (tokens, scores, finish) = &mut outcome[event.tag.0 as usize];
            tokens.extend(event.token);
            scores.extend(event.scores.into_iter().flatten());
            assert!(finish.is_none(), "nothing follows an end");
            *finish = event.finish;
        }
    }
    outcome
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_killed_engine_changes_no_answer(kills in prop::collection::vec(0..120usize, 0..12)) {
        let undisturbed = compute(&mut SimRunner::new(SimOptions::default()), &[], None);
        prop_assert!(undisturbed.iter().all(|(tokens, ..)| tokens.len() >= 30));
        let (mut runner, victim) = over_sockets();
        // At most one loss between two tokens, as more end an answer by design.
        let mut kills: Vec<usize> = kills.into_iter().map(|at| at * 8).collect();
        kills.dedup();
        prop_assert_eq!(compute(&mut runner, &kills, Some(&victim)), undisturbed);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = (EngineOrder::decode(&bytes).is_ok(), EngineReport::decode(&bytes).is_ok());
    }
}

#[test]
fn an_engine_that_dies_whenever_it_is_asked_is_given_up() {
    let (mut runner, victim) = over_sockets();
    runner.restarts = Restarts::at_once();
    let mut losses = 0;
    loop {
        match runner.poll_recovery() {
            Recovery::Pending(_) => thread::sleep(Duration::from_millis(1)),
            Recovery::Ready => {
                kill(&victim);
                let mut batch = Batch::default();
                batch.push(Slot(0), 0, &[40], false);
                let lost = runner.run(&batch, &mut Vec::new());
                assert!(matches!(lost, Err(RunError::Lost(_))), "{lost:?}");
                losses += 1;
            }
            Recovery::Never(why) => {
                assert!(why.contains("given up"), "{why}");
                return assert_eq!(losses, 1 + MOST_STARTS, "the first start and those after it");
            }
        }
    }
}

#[test]
fn an_engine_that_hangs_is_ended_and_started_again() {
    let launch = || {
        let (ours, mut theirs) = UnixStream::pair()?;
        thread::spawn(move || {
            let mut frame = Vec::new();
            EngineReport::Ready(Box::new(facts(&SimRunner::new(SimOptions::default()))))
                .encode(&mut frame);
            theirs.write_all(&frame).unwrap();
            // It reads all that it is told and does nothing, until the connection ends.
            std::io::copy(&mut theirs, &mut std::io::sink()).unwrap();
        });
        Ok(LaunchedEngine { stream: ours, process: None })
    };
    let mut runner = ProcessRunner::start(Box::new(launch), PATIENCE, |_| ()).unwrap();
    let interrupt = runner.interrupt().expect("a process can be ended");
    let mut batch = Batch::default();
    batch.push(Slot(0), 0, &[40], false);
    // In the midst of a batch, and before one.
    for _ in 0..2 {
        let ends = interrupt.clone();
        let ending = thread::spawn(move || ends("it was asked for a minute"));
        let lost = runner.run(&batch, &mut Vec::new());
        ending.join().unwrap();
        let Err(RunError::Lost(why)) = lost else { panic!("{lost:?}") };
        assert!(why.contains("hung and was killed: it was asked for a minute"), "{why}");
        while runner.poll_recovery() != Recovery::Ready {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn an_engine_that_hangs_while_it_loads_again_is_ended_and_started_once_more() {
    let (ended, hung_ended) = std::sync::mpsc::channel();
    let mut starts = 0;
    let victim = Victim::default();
    let last = victim.clone();
    let launch = move || {
        let (ours, mut theirs) = UnixStream::pair()?;
        *last.lock().unwrap() = Some(ours.try_clone()?);
        starts += 1;
        let (hangs, ended) = (starts == 2, ended.clone());
        thread::spawn(move || {
            if hangs {
                // Until its connection ends.
                std::io::copy(&mut theirs, &mut std::io::sink()).unwrap();
                return ended.send(()).unwrap();
            }
            let runner = SimRunner::new(SimOptions::default());
            let facts = facts(&runner);
            let _ = serve(theirs, |_| Ok((Box::new(runner) as Box<dyn Runner>, facts)), || ());
        });
        Ok(LaunchedEngine { stream: ours, process: None })
    };
    let patience = Duration::from_millis(300);
    let mut runner = ProcessRunner::start(Box::new(launch), patience, |_| ()).unwrap();
    let mut batch = Batch::default();
    batch.push(Slot(0), 0, &[40], false);
    kill(&victim);
    let lost = runner.run(&batch, &mut Vec::new());
    assert!(matches!(lost, Err(RunError::Lost(_))), "{lost:?}");
    let mut reasons = Vec::new();
    loop {
        match runner.poll_recovery() {
            Recovery::Pending(why) => reasons.push(why),
            Recovery::Ready => break,
            Recovery::Never(why) => panic!("{why}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
    let says_why = |why: &String| why.contains("hung") && why.contains("while loading the model");
    assert!(reasons.iter().any(says_why), "{:?}", reasons.last());
    // The victim holds a copy of the last connection alone.
    hung_ended.recv_timeout(PATIENCE).expect("the connection of the one that hangs is closed");
    assert_eq!(runner.run(&batch, &mut Vec::new()), Ok(()));
}

#[test]
fn a_model_that_cannot_be_loaded_is_an_error_with_its_reason() {
    let launch = || {
        let (ours, theirs) = UnixStream::pair()?;
        thread::spawn(move || serve(theirs, |_| Err("no such file".into()), || ()));
        Ok(LaunchedEngine { stream: ours, process: None })
    };
    let refused = ProcessRunner::start(Box::new(launch), PATIENCE, |_| ()).map(drop);
    let Err(ProcessError::Refused(why)) = refused else { panic!("{refused:?}") };
    assert_eq!(why, "no such file");
}

#[test]
fn an_engine_leaves_when_the_server_has_gone() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (left, leaves) = std::sync::mpsc::channel();
    let runner = SimRunner::new(SimOptions::default());
    let facts = facts(&runner);
    let load = |_: &mut dyn FnMut(u8)| Ok((Box::new(runner) as Box<dyn Runner>, facts));
    let engine = thread::spawn(move || serve(theirs, load, move || left.send(()).unwrap()));
    drop(ours);
    leaves.recv_timeout(Duration::from_secs(60)).expect("it leaves");
    let _ = engine.join().unwrap();
}

fn orders() -> Vec<EngineOrder> {
    let sampling = Sampling { seed: 5, logit_bias: vec![(3, 1.0)].into(), ..Sampling::default() };
    let parts = SamplerParts { sampling, generated: 4, seen: vec![(9, 2)], latest: vec![9, 7] };
    let spans = vec![
        Span { slot: Slot(1), start: 7, tokens: 0..3, draft: 2, sample: true },
        Span { slot: Slot(0), start: 0, tokens: 3..5, draft: 0, sample: false },
    ];
    let scores = vec![Scores { span: 1, top: 3, targets: vec![8, 9] }];
    let batch = Batch { tokens: vec![1, 2, 3, 4, 5], spans, scores, is_spare: false };
    let allowed = vec![Allowed { slot: Slot(1), tokens: vec![6, 7] }];
    vec![
        EngineOrder::Assign { slot: Slot(2), has_grammar: true, sampler: Box::new(parts) },
        EngineOrder::Fork { from: Slot(1), to: Slot(2), len: 3 },
        EngineOrder::Truncate { slot: Slot(4), len: 0 },
        EngineOrder::Run { batch, allowed },
    ]
}

fn reports() -> Vec<EngineReport> {
    let logprobs = Some(Box::new(Logprobs { chosen: -0.5, top: vec![(1, -0.5), (2, -1.0)] }));
    let row = Sampled { slot: Slot(3), outcome: Ok(SampledToken { token: 1, logprobs }) };
    let failed = Sampled { slot: Slot(4), outcome: Err(RowError::NonFiniteLogits) };
    let capacity =
        Capacity { slots: 3, kv_cells: 4, context_tokens: 5, batch_tokens: 6, shares_prefix: true };
    let facts = EngineFacts {
        capacity,
        vocab_tokens: 7,
        verify_rows: None,
        score_rows: Some(8),
        summary: "a model".into(),
        details: vec![("Kernels".into(), "its own".into())],
    };
    vec![
        EngineReport::Loading(33),
        EngineReport::Ready(Box::new(facts)),
        EngineReport::Refused("why".into()),
        EngineReport::Done { outcome: Ok(vec![row, failed]), verify_rows: Some(2) },
        EngineReport::Done { outcome: Err(RunError::CacheFull), verify_rows: None },
    ]
}

#[test]
fn what_is_written_is_read_and_no_part_of_it_is() {
    let check = |frame: &[u8], read: &dyn Fn(&[u8]) -> bool| {
        assert!(read(frame));
        assert!((0..frame.len()).all(|cut| !read(&frame[..cut])), "cut");
        assert!(!read(&[frame, &[0]].concat()), "longer");
    };
    for order in orders() {
        let mut frame = Vec::new();
        order.encode(&mut frame);
        check(&frame[4..], &|frame| EngineOrder::decode(frame).is_ok_and(|read| read == order));
    }
    for report in reports() {
        let mut frame = Vec::new();
        report.encode(&mut frame);
        check(&frame[4..], &|frame| EngineReport::decode(frame).is_ok_and(|read| read == report));
    }
}
