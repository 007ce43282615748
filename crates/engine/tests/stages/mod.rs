//! Stages over real connections with toy layers: pipelining, faults, TLS, hostile peers.

mod depth_simulation;
mod false_answers;
mod hostile;
mod tls;
mod toy;

use std::collections::VecDeque;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use loquent_engine::staged::{
    Cluster, Key, LinkEmulation, PipelineDepth, StageError, StageTrust, StagedRunner,
};
use loquent_infer::budget::ItlTarget;
use loquent_infer::remote::RemoteStages;
use loquent_infer::request::{Finish, Step, Tag, Work};
use loquent_infer::runner::{Batch, Recovery, RunError, Runner, Slot};
use loquent_infer::sampling::{Constraint, Grammar, Sampler, Sampling, SharedGrammar};
use loquent_infer::scheduler::{Limits, Scheduler};
use loquent_infer::speculation::Speculation;
use loquent_infer::token::{RowError, TokenId};
use toy::{BACKEND_FAILS, CACHE_IS_FULL, NAN, Site, options};

/// Longest wait for other threads; far longer than they take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn assign(runner: &mut StagedRunner, slot: u16) {
    runner.assign(Slot(slot), Sampler::new(Sampling::default(), &[], &[]));
}

fn batch(spans: &[(u16, u32, &[TokenId])]) -> Batch {
    let mut batch = Batch::default();
    spans.iter().for_each(|(slot, start, tokens)| batch.push(Slot(*slot), *start, tokens, true));
    batch
}

/// The token that `slot` samples after `tokens` from `start` on, or its error.
fn run_one(
    runner: &mut StagedRunner,
    slot: u16,
    start: u32,
    tokens: &[TokenId],
) -> Result<Result<TokenId, RowError>, RunError> {
    let mut sampled = Vec::new();
    runner.run(&batch(&[(slot, start, tokens)]), &mut sampled)?;
    assert_eq!(sampled.len(), 1);
    Ok(sampled.remove(0).outcome.map(|choice| choice.token))
}

fn work(tag: u64) -> Work {
    let prompt = (0..3 + tag as u32 * 5).map(|i| (i * 7 + tag as u32) % 50).collect();
    Work { tag: Tag(tag), prompt, max_tokens: 25, ..Work::default() }
}

fn limits() -> Limits {
    Limits {
        max_batch_size: 8,
        prefill_max_tokens: 32,
        itl_target: ItlTarget::Unbounded,
        prefix_cache: true,
        speculation: Speculation::Off,
        queue_timeout: None,
    }
}

/// The engine's loop without a clock: generates everything and returns it by tag.
fn generate(runner: &mut StagedRunner, works: &[Work], depth: usize) -> Vec<Vec<TokenId>> {
    let (generated, losses) = generate_through_losses(runner, works, depth);
    assert_eq!(losses, 0, "the session is lost");
    generated
}

/// The same, and how many times the session was lost and opened again.
fn generate_through_losses(
    runner: &mut StagedRunner,
    works: &[Work],
    depth: usize,
) -> (Vec<Vec<TokenId>>, usize) {
    let mut scheduler = Scheduler::new(runner.capacity(), limits(), vec![]);
    scheduler.set_pipeline_depth(depth);
    works.iter().for_each(|work| scheduler.submit(Duration::ZERO, work.clone()));
    let (mut generated, mut losses) = (vec![Vec::new(); works.len()], 0);
    let mut in_flight: VecDeque<Batch> = VecDeque::new();
    let begun = Instant::now();
    while scheduler.has_work() {
        assert!(begun.elapsed() < PATIENCE, "the generation does not end");
        while in_flight.len() < depth {
            let mut batch = Batch::default();
            scheduler.plan(Duration::ZERO, runner, &mut batch);
            if batch.is_empty() {
                break;
            }
            runner.pipeline().unwrap().submit(&batch).unwrap();
            in_flight.push_back(batch);
        }
        let mut sampled = Vec::new();
        let Some(outcome) = runner.pipeline().unwrap().try_collect(&mut sampled) else {
            std::thread::yield_now();
            continue;
        };
        let batch = in_flight.pop_front().unwrap();
        let now = Duration::ZERO;
        let step: Step = match outcome {
            Ok(()) => scheduler.commit(now, now, runner, &batch, &sampled),
            Err(error) => {
                assert!(matches!(error, RunError::Lost(_)), "{error}");
                losses += 1;
                in_flight.clear();
                let step = scheduler.recover(now, now, runner, &batch, &error);
                wait_until("a new session", || runner.poll_recovery() == Recovery::Ready);
                step
            }
        };
        for event in step.events {
            assert!(!matches!(event.finish, Some(Finish::Failed(_))), "{event:?}");
            generated[event.tag.0 as usize].extend(event.token.map(|choice| choice.token));
        }
    }
    (generated, losses)
}

#[test]
fn pipelined_sequences_equal_sequences_alone() {
    let works: Vec<Work> = (0..8).map(work).collect();
    let alone: Vec<Vec<TokenId>> = works
        .iter()
        .map(|one| {
            let site = Site::start(1);
            let only = Work { tag: Tag(0), ..one.clone() };
            generate(&mut site.runner(), &[only], 1).remove(0)
        })
        .collect();
    for (stages, depth) in [(2, 1), (3, 3), (2, 5)] {
        let site = Site::start(stages);
        // One stage computes the same as three, because the toy layers only add.
        let together = generate(&mut site.runner(), &works, depth);
        assert_eq!(together, alone, "{stages} stages, depth {depth}");
        assert!(together.iter().all(|tokens| tokens.len() == 25));
    }
}

#[test]
fn a_sequence_out_of_step_fails_alone() {
    let site = Site::start(3);
    let mut runner = site.runner();
    (0..3).for_each(|slot| assign(&mut runner, slot));
    let mut sampled = Vec::new();
    let wrong = batch(&[(0, 0, &[5, 6]), (1, 4, &[7]), (2, 0, &[8])]);
    runner.run(&wrong, &mut sampled).unwrap();
    let outcomes: Vec<_> = sampled.iter().map(|row| row.outcome.is_ok()).collect();
    assert_eq!(outcomes, [true, false, true]);
    assert_eq!(sampled[1].outcome, Err(RowError::OutOfStep));
    runner.truncate(Slot(1), 0);
    assign(&mut runner, 1);
    let again = run_one(&mut runner, 1, 0, &[5, 6]).unwrap();
    assert_eq!(again, Ok(sampled[0].outcome.clone().unwrap().token));
}

#[test]
fn a_fork_of_missing_positions_breaks_the_heir_alone() {
    let site = Site::start(2);
    let mut runner = site.runner();
    (0..2).for_each(|slot| assign(&mut runner, slot));
    run_one(&mut runner, 0, 0, &[1, 2, 3]).unwrap().unwrap();
    runner.fork(Slot(0), Slot(1), 9);
    assert_eq!(run_one(&mut runner, 1, 9, &[4]).unwrap(), Err(RowError::OutOfStep));
    assert!(run_one(&mut runner, 0, 3, &[4]).unwrap().is_ok());
    runner.truncate(Slot(1), 0);
    runner.fork(Slot(0), Slot(1), 3);
    assign(&mut runner, 1);
    let (a, b) = (run_one(&mut runner, 1, 3, &[9]).unwrap(), {
        runner.truncate(Slot(0), 3);
        run_one(&mut runner, 0, 3, &[9]).unwrap()
    });
    assert_eq!(a, b, "a shared past equals the original");
}

#[test]
fn a_sequence_with_broken_numbers_fails_alone() {
    let site = Site::start(2);
    let mut runner = site.runner();
    (0..3).for_each(|slot| assign(&mut runner, slot));
    let mut sampled = Vec::new();
    let spans: [(u16, u32, &[TokenId]); 3] = [(0, 0, &[5]), (1, 0, &[NAN]), (2, 0, &[5])];
    runner.run(&batch(&spans), &mut sampled).unwrap();
    assert_eq!(sampled[1].outcome, Err(RowError::NonFiniteLogits));
    assert_eq!(sampled[0].outcome, sampled[2].outcome);
    assert!(sampled[0].outcome.is_ok());
}

/// A grammar that allows consecutive tokens one by one and fails at the last.
struct Counting {
    next: TokenId,
    last: TokenId,
    allowed: [u32; 2],
}

impl Grammar for Counting {
    fn start(&self, generated: &[TokenId]) -> Box<dyn Constraint> {
        let next = self.next + generated.len() as TokenId;
        Box::new(Counting { next, allowed: [0; 2], ..*self })
    }
}

impl Constraint for Counting {
    fn allowed(&mut self) -> Result<&[u32], RowError> {
        if self.next == self.last {
            return Err(RowError::Constraint("the end".into()));
        }
        self.allowed = [0; 2];
        self.allowed[self.next as usize / 32] = 1 << (self.next % 32);
        Ok(&self.allowed)
    }

    fn accept(&mut self, token: TokenId) {
        assert_eq!(token, self.next, "the grammar gets every chosen token once");
        self.next += 1;
    }
}

#[test]
fn a_grammar_is_followed_by_the_runner_and_binds_the_last_stage() {
    let site = Site::start(3);
    let mut runner = site.runner();
    let grammar = SharedGrammar(Arc::new(Counting { next: 30, last: 34, allowed: [0; 2] }));
    let sampling = Sampling { grammar: Some(grammar), ..Sampling::default() };
    // One token, 30, was generated before, so the next is 31.
    runner.assign(Slot(0), Sampler::new(sampling, &[7, 8], &[30]));
    assign(&mut runner, 1);
    let free = run_one(&mut runner, 1, 0, &[7, 8, 30]).unwrap();
    runner.truncate(Slot(1), 0);
    assign(&mut runner, 1);
    let mut sampled = Vec::new();
    let spans: [(u16, u32, &[TokenId]); 2] = [(0, 0, &[7, 8, 30]), (1, 0, &[7, 8, 30])];
    runner.run(&batch(&spans), &mut sampled).unwrap();
    let tokens: Vec<_> = sampled.iter().map(|row| row.outcome.clone().map(|c| c.token)).collect();
    assert_eq!(tokens, [Ok(31), free], "the grammar of one does not bind the other");
    assert_eq!(run_one(&mut runner, 0, 3, &[31]).unwrap(), Ok(32));
    assert_eq!(run_one(&mut runner, 0, 4, &[32]).unwrap(), Ok(33));
    let mut sampled = Vec::new();
    runner.run(&batch(&[(0, 5, &[33]), (1, 3, &[9])]), &mut sampled).unwrap();
    assert!(matches!(sampled[0].outcome, Err(RowError::Constraint(_))), "{sampled:?}");
    assert!(sampled[1].outcome.is_ok(), "it fails alone");
}

#[test]
fn a_batch_that_fails_in_the_middle_can_be_tried_again() {
    let site = Site::start(3);
    let mut runner = site.runner();
    (0..2).for_each(|slot| assign(&mut runner, slot));
    let full = runner.run(&batch(&[(0, 0, &[5, CACHE_IS_FULL])]), &mut Vec::new());
    assert_eq!(full, Err(RunError::CacheFull));
    let failed = runner.run(&batch(&[(0, 0, &[5, BACKEND_FAILS])]), &mut Vec::new());
    assert!(matches!(failed, Err(RunError::Backend(_))), "{failed:?}");
    let first = run_one(&mut runner, 0, 0, &[5, 6]).unwrap().unwrap();
    let second = run_one(&mut runner, 1, 0, &[5, 6]).unwrap().unwrap();
    assert_eq!(first, second, "the failed batches leave nothing behind");
}

#[test]
fn a_stage_that_ends_is_noticed_and_used_again_when_it_returns() {
    let mut site = Site::start(3);
    let cluster = site.connect(options()).unwrap();
    let mut runner = toy::runner(&cluster);
    assign(&mut runner, 0);
    let before = run_one(&mut runner, 0, 0, &[1, 2, 3]).unwrap();
    assert_eq!(cluster.outage(), None);
    site.stop(1);
    wait_until("the outage", || cluster.outage().is_some());
    let lost = runner.run(&batch(&[(0, 3, &[4])]), &mut Vec::new());
    assert!(matches!(lost, Err(RunError::Lost(_))), "{lost:?}");
    let still = runner.run(&batch(&[(0, 0, &[4])]), &mut Vec::new());
    assert!(matches!(still, Err(RunError::Lost(_))), "{still:?}");
    assert!(matches!(runner.poll_recovery(), Recovery::Pending(_)), "it does not wait");
    site.restart(1);
    wait_until("the return", || runner.poll_recovery() == Recovery::Ready);
    assign(&mut runner, 0);
    assert_eq!(run_one(&mut runner, 0, 0, &[1, 2, 3]).unwrap(), before);
    cluster.stop();
}

#[test]
fn a_stage_that_ends_with_batches_in_flight_loses_them_once() {
    let site = Site::start(2);
    let cluster = site.connect(options()).unwrap();
    let mut runner = toy::runner(&cluster);
    (0..2).for_each(|slot| assign(&mut runner, slot));
    site.stages[1].gate.store(true, Ordering::Relaxed);
    let pipeline = runner.pipeline().unwrap();
    pipeline.submit(&batch(&[(0, 0, &[1])])).unwrap();
    pipeline.submit(&batch(&[(1, 0, &[2])])).unwrap();
    site.stages[0].handle.stop();
    let mut sampled = Vec::new();
    let mut outcome = None;
    wait_until("the loss", || {
        outcome = runner.pipeline().unwrap().try_collect(&mut sampled);
        outcome.is_some()
    });
    assert!(matches!(outcome, Some(Err(RunError::Lost(_)))), "{outcome:?}");
    assert_eq!(runner.pipeline().unwrap().try_collect(&mut sampled), None);
    site.stages[1].gate.store(false, Ordering::Relaxed);
    cluster.stop();
}

#[test]
fn a_stage_that_is_stuck_is_noticed_by_the_deadline() {
    let site = Site::start(2);
    let mut wanted = options();
    wanted.batch_limit = Duration::from_millis(300);
    let cluster = site.connect(wanted).unwrap();
    let mut runner = toy::runner(&cluster);
    assign(&mut runner, 0);
    site.stages[1].gate.store(true, Ordering::Relaxed);
    let stuck = runner.run(&batch(&[(0, 0, &[1])]), &mut Vec::new());
    site.stages[1].gate.store(false, Ordering::Relaxed);
    let Err(RunError::Lost(why)) = stuck else { panic!("{stuck:?}") };
    assert!(why.contains("did not come back"), "{why}");
    cluster.stop();
}

#[test]
fn another_key_and_other_stages_are_refused_with_the_reason() {
    let site = Site::start(2);
    let mut wanted = options();
    wanted.trust = StageTrust::of_key(Key::new("another"));
    assert!(matches!(
        site.connect(wanted),
        Err(StageError::Refused { .. } | StageError::Key { .. })
    ));
    let mut swapped = options();
    swapped.addresses = site.addresses().into_iter().rev().collect();
    let refused = Cluster::connect(swapped, |_| ()).map(drop);
    let Err(StageError::Mismatch(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("begins at layer"), "{why}");
    let mut short = options();
    short.addresses = site.addresses()[..1].to_vec();
    let refused = Cluster::connect(short, |_| ()).map(drop);
    assert!(matches!(refused, Err(StageError::Mismatch(_))), "{refused:?}");
    // The stages still work after all that.
    let mut runner = site.runner();
    assign(&mut runner, 0);
    assert!(run_one(&mut runner, 0, 0, &[1]).unwrap().is_ok());
}

#[test]
fn an_emulated_delay_applies_to_every_link() {
    let site = Site::start(2);
    let mut wanted = options();
    let delay = Duration::from_millis(30);
    wanted.link = LinkEmulation { delay, bytes_per_s: 0 };
    let cluster = site.connect(wanted).unwrap();
    let mut runner = toy::runner(&cluster);
    assign(&mut runner, 0);
    run_one(&mut runner, 0, 0, &[1]).unwrap().unwrap();
    let begun = Instant::now();
    run_one(&mut runner, 0, 1, &[2]).unwrap().unwrap();
    // Three links: to stage 1, to stage 2, and straight back.
    let took = begun.elapsed();
    assert!(took >= 3 * delay, "{took:?}");
    cluster.stop();
}

#[test]
fn an_emulated_rate_limits_a_link() {
    let site = Site::start(1);
    let mut wanted = options();
    wanted.link = LinkEmulation { delay: Duration::ZERO, bytes_per_s: 20_000 };
    let cluster = site.connect(wanted).unwrap();
    let mut runner = toy::runner(&cluster);
    assign(&mut runner, 0);
    let begun = Instant::now();
    let tokens = [3; 60];
    run_one(&mut runner, 0, 0, &tokens).unwrap().unwrap();
    let least = Duration::from_secs_f64((60 * toy::WIDTH * 4) as f64 / 20_000.0);
    assert!(begun.elapsed() >= least, "{:?} of {least:?}", begun.elapsed());
    cluster.stop();
}

#[test]
fn rows_that_wait_for_a_slow_link_make_no_stage_look_silent() {
    let site = Site::start(2);
    let mut wanted = options();
    let rows = [3; 100];
    // A batch takes 0.7 s, and five of them longer than a stage may be silent.
    let bytes_per_s = (rows.len() * toy::WIDTH * 4) as u64 * 10 / 7;
    wanted.link = LinkEmulation { delay: Duration::ZERO, bytes_per_s };
    wanted.stall_limit = Duration::from_secs(2);
    wanted.batch_limit = PATIENCE;
    let cluster = site.connect(wanted).unwrap();
    let mut runner = toy::runner(&cluster);
    (0..5).for_each(|slot| assign(&mut runner, slot));
    let pipeline = runner.pipeline().unwrap();
    for slot in 0..5 {
        pipeline.submit(&batch(&[(slot, 0, &rows)])).unwrap();
    }
    let (mut sampled, mut collected) = (Vec::new(), 0);
    wait_until("all batches", || {
        if let Some(outcome) = runner.pipeline().unwrap().try_collect(&mut sampled) {
            outcome.expect("no stage is lost");
            collected += 1;
        }
        collected == 5
    });
    cluster.stop();
}

#[test]
fn figures_cover_every_stage() {
    let site = Site::start(2);
    let cluster = site.connect(options()).unwrap();
    let depth = PipelineDepth::Fixed(2);
    let mut runner = StagedRunner::new(cluster.clone(), Box::new(toy::Rows), depth);
    assign(&mut runner, 0);
    run_one(&mut runner, 0, 0, &[1, 2]).unwrap().unwrap();
    wait_until("a pong after the batch", || {
        cluster.figures().stages.iter().all(|stage| stage.batches == 1 && stage.sent_bytes > 0)
    });
    let figures = cluster.figures();
    assert!(figures.connected);
    assert_eq!(figures.pipeline_depth, 2);
    let last = &figures.stages[1];
    assert_eq!((last.batch_rows, last.batch_rows_max), (1, 1));
    assert!(last.round_trip > Duration::ZERO && last.up >= last.busy);
    let times = cluster.batch_times(PATIENCE, Duration::ZERO).expect("a batch came back");
    assert_eq!((times.batches, times.stages.len()), (1, 2));
    assert!(times.link_delay.max < PATIENCE);
    cluster.stop();
}

#[test]
fn a_replica_takes_the_place_of_a_stage_that_is_gone() {
    let (mut site, standby) = (Site::start(3), Site::start(3));
    let mut wanted = options();
    wanted.addresses = site.addresses();
    wanted.addresses[1] = format!("{}|{}", site.addresses()[1], standby.addresses()[1]);
    // A name may have several addresses, at some of which nobody listens.
    wanted.addresses[2] = site.addresses()[2].replace("127.0.0.1", "localhost");
    let cluster = Cluster::connect(wanted, |why| eprintln!("waiting: {why}")).unwrap();
    let mut runner = toy::runner(&cluster);
    assign(&mut runner, 0);
    let before = run_one(&mut runner, 0, 0, &[1, 2, 3]).unwrap();
    site.stop(1);
    // The cluster may have the replica before anybody sees an outage; the runner's session is lost.
    let lost = run_one(&mut runner, 0, 3, &[4]);
    assert!(matches!(lost, Err(RunError::Lost(_))), "{lost:?}");
    // A stage that is ending may accept one more connection; then that session is lost, too.
    let mut again = || {
        if runner.poll_recovery() != Recovery::Ready {
            return Err(RunError::Lost("not yet connected".into()));
        }
        assign(&mut runner, 0);
        run_one(&mut runner, 0, 0, &[1, 2, 3])
    };
    wait_until("the replica", || match again() {
        Ok(after) => after == before,
        Err(RunError::Lost(_)) => false,
        Err(error) => panic!("{error}"),
    });
    cluster.stop();
}

/// A way to the stage at `address` on which every second connection ends at once: the runner
/// reaches it, and the stage before it does not.
fn one_way(address: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in listener.incoming().step_by(2) {
            let (client, stage) = (client.unwrap(), TcpStream::connect(&address).unwrap());
            let back = (stage.try_clone().unwrap(), client.try_clone().unwrap());
            for (mut from, mut to) in [(client, stage), back] {
                std::thread::spawn(move || {
                    // To the end of either side.
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    place
}

#[test]
fn a_replica_that_cannot_be_used_does_not_keep_the_server_from_the_next_one() {
    // It still has its part of an earlier split.
    let earlier = Site::start(2);
    let hidden = Site::start(3);
    for spare in [earlier.addresses()[1].clone(), one_way(hidden.addresses()[1].clone())] {
        let (mut site, standby) = (Site::start(3), Site::start(3));
        let mut wanted = options();
        wanted.addresses = site.addresses();
        wanted.addresses[1] = format!("{}|{spare}|{}", site.addresses()[1], standby.addresses()[1]);
        let cluster = Cluster::connect(wanted, |why| eprintln!("waiting: {why}")).unwrap();
        let mut runner = toy::runner(&cluster);
        assign(&mut runner, 0);
        let before = run_one(&mut runner, 0, 0, &[1, 2, 3]).unwrap();
        site.stop(1);
        let mut again = || {
            if runner.poll_recovery() != Recovery::Ready {
                return None;
            }
            assign(&mut runner, 0);
            run_one(&mut runner, 0, 0, &[1, 2, 3]).ok()
        };
        wait_until("the last replica", || again().is_some_and(|after| after == before));
        cluster.stop();
    }
}
