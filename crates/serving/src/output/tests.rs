//! The output processor, stepped without a runtime: slow readers, intervals, stops and ends.

use std::task::{Context, Poll, Waker};

use loquent_infer::admission::Bounds;
use loquent_infer::request::Finish;
use loquent_infer::sampling::{Logprobs, SampledToken};
use loquent_infer::sim_vocab::SimVocab;
use loquent_proto::Delta;

use super::*;
use crate::admission::{AdmissionGate, PendingPrompts};
use crate::completion::CompletionConfig;
use crate::completion::reader::SplitConfig;
use crate::identity::Identity;

const BUFFER_BYTES: usize = 1_000;

/// A processor with the completions of one request, and the engine's side of it.
struct Bench {
    processor: OutputProcessor,
    engine: mpsc::UnboundedReceiver<EngineCommand>,
    flushes: Option<FlushReceiver>,
    tags: Vec<Tag>,
}

fn work() -> Box<Work> {
    Box::new(Work { prompt: vec![1], max_tokens: 100, ..Work::default() })
}

impl Bench {
    fn new(completions: usize, exempt: bool, config: &CompletionConfig) -> Self {
        let (engine, commands) = mpsc::unbounded_channel();
        let stall_limit = Duration::from_secs(10);
        let bounds = StreamBounds { buffer_bytes: BUFFER_BYTES, stall_limit };
        let processor =
            OutputProcessor::new(EngineSender::to(engine), bounds, Arc::new(Metrics::new()));
        let limits = Bounds {
            max_inflight_requests: 9,
            max_inflight_per_tenant: None,
            max_queued_tokens: 100,
        };
        let gate = AdmissionGate::new(limits, Clock::start(), PendingPrompts::default());
        let new = |(index, permit)| NewCompletion {
            completion: Completion::new(index as u32, Arc::new(SimVocab), config.clone()),
            work: work(),
            permit,
            exempt_from_stall_limit: exempt,
            progress: ProgressWish::Nothing,
        };
        let permits = gate.enter(&Identity::in_process(), completions, 1).unwrap();
        let completions = permits.into_iter().enumerate().map(new).collect();
        let (sender, flushes) = flush_channel();
        let (reply, mut tags) = oneshot::channel();
        let mut bench = Self { processor, engine: commands, flushes: Some(flushes), tags: vec![] };
        bench.processor.start_request(
            Duration::ZERO,
            NewRequest { completions, flushes: sender, tags: reply },
        );
        bench.tags = tags.try_recv().unwrap();
        while bench.engine.try_recv().is_ok() {} // the submitted work
        bench
    }

    /// Delivers one token for completion `index`: a byte of the simulated vocabulary.
    fn token(&mut self, at_ms: u64, index: usize, byte: u8, finish: Option<Finish>) {
        self.sampled(at_ms, index, SampledToken { token: byte.into(), logprobs: None }, finish);
    }

    fn sampled(&mut self, at_ms: u64, index: usize, token: SampledToken, finish: Option<Finish>) {
        let at = Duration::from_millis(at_ms);
        let event = SequenceEvent {
            tag: self.tags[index],
            token: Some(token),
            scores: None,
            finish,
            admitted: None,
            wait: Duration::ZERO,
        };
        let step = Step { finished: at, rows: 1, events: vec![event], ..Step::default() };
        self.processor.handle_step(at, step);
    }

    fn tick(&mut self, at_ms: u64) {
        self.processor.handle_tick(Duration::from_millis(at_ms));
    }

    /// Returns the flushes that the client reads now.
    fn read(&mut self) -> Vec<Flush> {
        let context = &mut Context::from_waker(Waker::noop());
        let receiver = self.flushes.as_mut().expect("the client is there");
        let next = || match receiver.poll_recv(context) {
            Poll::Ready(flush) => flush,
            Poll::Pending => None,
        };
        std::iter::from_fn(next).collect()
    }

    fn commands(&mut self) -> Vec<&'static str> {
        let next = || {
            self.engine.try_recv().ok().map(|command| match command {
                EngineCommand::Pause(_) => "pause",
                EngineCommand::Resume(_) => "resume",
                EngineCommand::Cancel(_) => "cancel",
                _ => "other",
            })
        };
        std::iter::from_fn(next).collect()
    }
}

fn text(flushes: &[Flush]) -> String {
    let texts = flushes.iter().flat_map(|flush| &flush.deltas).map(|delta| match delta {
        Delta::Text { text, .. } => text.as_str(),
        _ => "",
    });
    texts.collect()
}

#[test]
fn a_slow_reader_is_merged_then_paused_and_resumed_without_loss() {
    let mut bench = Bench::new(1, false, &CompletionConfig::default());
    let mut generated = 0;
    while bench.commands().is_empty() {
        bench.token(generated, 0, b'x', None);
        generated += 1;
        assert!(generated < 2_000, "never paused");
    }
    assert!(bench.processor.is_watching(), "a paused reader is looked at");
    let before = bench.read();
    assert!(before.iter().all(|flush| flush.tokens == 1) && before.len() < generated as usize);
    bench.tick(5_000);
    assert_eq!(bench.commands(), ["resume"]);
    let merged = bench.read();
    assert_eq!(merged.len(), 1, "what was held leaves at once");
    assert_eq!(text(&before).len() + text(&merged).len(), generated as usize);
    bench.token(5_001, 0, b'y', Some(Finish::Length));
    let last = bench.read();
    assert_eq!(text(&last), "y");
    assert_eq!(last[0].deltas[1], Delta::Finish { choice: 0, reason: "length".into() });
    assert!(
        !bench.processor.is_watching() || {
            bench.tick(6_000);
            !bench.processor.is_watching()
        }
    );
}

#[test]
fn held_log_probabilities_fill_a_readers_buffer_too() {
    let mut bench = Bench::new(1, false, &CompletionConfig::default());
    let logprobs = Logprobs { chosen: -1.0, top: vec![(0, -1.0); 20] };
    let (mut generated, mut commands) = (0, Vec::new());
    while commands.is_empty() {
        let token = SampledToken { token: b'x'.into(), logprobs: Some(Box::new(logprobs.clone())) };
        bench.sampled(generated, 0, token, None);
        generated += 1;
        // Of text alone, hundreds of tokens fit.
        assert!(generated < 10, "not paused yet");
        commands = bench.commands();
    }
    assert_eq!(commands, ["pause"]);
}

#[test]
fn a_reader_that_stays_away_loses_its_stream_unless_it_is_exempt() {
    for exempt in [false, true] {
        let mut bench = Bench::new(1, exempt, &CompletionConfig::default());
        for at in 0..1_100 {
            bench.token(at, 0, b'x', None);
        }
        assert_eq!(bench.commands(), ["pause"]);
        bench.tick(9_000);
        assert_eq!(bench.commands().len(), 0);
        bench.tick(20_000);
        let expected: &[&str] = if exempt { &[] } else { &["cancel"] };
        assert_eq!(bench.commands(), expected);
        let error = bench.read().last().and_then(Flush::error);
        assert_eq!(error.map(|error| error.to_string()), (!exempt).then(|| READER_STALLED.into()));
    }
}

#[test]
fn a_stop_string_ends_one_completion_of_several() {
    let stops = vec!["END".to_owned()];
    let mut bench = Bench::new(2, false, &CompletionConfig { stops, ..Default::default() });
    for (at, byte) in b"aENDb".iter().enumerate() {
        bench.token(at as u64, 0, *byte, None);
        bench.token(at as u64, 1, b'.', None);
    }
    assert_eq!(bench.commands(), ["cancel"]);
    let flushes = bench.read();
    let (first, second): (Vec<_>, Vec<_>) = flushes.into_iter().partition(|one| one.choice == 0);
    assert_eq!((text(&first), text(&second)), ("a".to_owned(), ".....".to_owned()));
    let end = first.last().unwrap().end.as_ref().unwrap();
    assert_eq!((end.reason.name(), end.completion_tokens), (Some("stop"), 4));
}

#[test]
fn an_interval_merges_tokens_and_counts_them() {
    let interval = "4".parse().unwrap();
    let mut bench = Bench::new(1, false, &CompletionConfig { interval, ..Default::default() });
    for at in 0..9 {
        bench.token(at, 0, b'a' + at as u8, None);
    }
    let flushes = bench.read();
    let tokens: Vec<u32> = flushes.iter().map(|flush| flush.tokens).collect();
    assert_eq!((tokens, text(&flushes)), (vec![1, 4, 4], "abcdefghi".to_owned()));
    assert_eq!(flushes[1].deltas, [Delta::Text { choice: 0, tokens: 4, text: "bcde".into() }]);
}

#[test]
fn held_content_leaves_at_its_deadline() {
    let (interval, max_delay) = ("9".parse().unwrap(), Some(Duration::from_millis(50)));
    let mut bench =
        Bench::new(1, false, &CompletionConfig { interval, max_delay, ..Default::default() });
    bench.token(0, 0, b'a', None);
    bench.token(10, 0, b'b', None);
    assert_eq!(text(&bench.read()), "a");
    bench.tick(59);
    assert!(bench.read().is_empty() && bench.processor.is_watching());
    bench.tick(60);
    assert_eq!(text(&bench.read()), "b");
}

#[test]
fn a_client_that_leaves_cancels_its_completions() {
    let mut bench = Bench::new(1, false, &CompletionConfig::default());
    bench.flushes = None;
    bench.token(0, 0, b'a', None);
    assert_eq!(bench.commands(), ["cancel"]);
    bench.token(1, 0, b'b', Some(Finish::Length)); // under way when the command was sent
    assert!(bench.commands().is_empty());
}

#[test]
fn stopping_ends_every_stream_with_an_error() {
    let mut bench = Bench::new(2, false, &CompletionConfig::default());
    bench.token(0, 0, b'a', None);
    bench.processor.fail_all(Duration::from_millis(1), &ApiError::internal(SHUTDOWN));
    let flushes = bench.read();
    assert_eq!(flushes.iter().filter_map(Flush::error).count(), 2);
    assert_eq!(text(&flushes), "a");
}

#[test]
fn an_answer_that_breaks_off_ends_with_neither_half_a_character_nor_half_a_stop_string() {
    let stops = vec!["END".to_owned()];
    let plain = CompletionConfig { stops, ..Default::default() };
    let split = CompletionConfig { split: SplitConfig::reasoning(), ..Default::default() };
    for (config, generated, broken, complete) in [
        (&plain, &"aé".as_bytes()[..2], "a", "a\u{fffd}"),
        (&plain, &b"aE"[..], "a", "aE"),
        (&split, &b"<thi"[..], "", "<thi"),
    ] {
        let generate = |finish: Option<Finish>| {
            let mut bench = Bench::new(1, false, config);
            let last = generated.len() - 1;
            for (at, byte) in generated.iter().enumerate() {
                let finish = finish.clone().filter(|_| at == last);
                bench.token(at as u64, 0, *byte, finish);
            }
            bench.processor.fail_all(Duration::from_millis(9), &ApiError::internal(SHUTDOWN));
            let flushes = bench.read();
            let errors = flushes.iter().filter_map(Flush::error).count();
            (text(&flushes), errors)
        };
        let broken = (broken.to_owned(), 1);
        assert_eq!(generate(None), broken, "the server stops");
        assert_eq!(generate(Some(Finish::Failed("NaN".into()))), broken, "the engine fails");
        assert_eq!(generate(Some(Finish::Length)), (complete.to_owned(), 0), "all of it");
    }
}
