//! Peers that break the protocol are cut off, and the session goes on.

use std::io::{ErrorKind, Read, Write};
use std::iter;
use std::net::TcpStream;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use loquent_engine::staged::Stage;
use loquent_engine::staged::wire::{Rows, SamplerParts, StageMessage};
use loquent_formats::gguf::split::StageKeys;
use loquent_infer::runner::{RunError, Slot, Span};
use loquent_infer::sampling::Sampling;
use proptest::prelude::*;

use super::toy::{Site, ToyLayers, WIDTH};
use super::{assign, run_one, wait_until};

/// How long a stage waits for a handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Sends `bytes` to a stage and reads until the stage closes the connection.
fn poke(address: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The stage may close the connection before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.take(1 << 16).read_to_end(&mut answer);
    assert!(
        answer.len() < 1 << 16,
        "a stage sends strangers no more than a greeting and a refusal"
    );
}

#[test]
fn strangers_are_cut_off_and_the_session_goes_on() {
    let site = Site::start(2);
    let mut runner = site.runner();
    assign(&mut runner, 0);
    let before = run_one(&mut runner, 0, 0, &[1, 2]).unwrap().unwrap();
    let hello = [[42u8, 0, 0, 0, 2].as_slice(), &[7; 73]].concat();
    let pokes: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        &[0xff; 64],
        &[0; 64],
        &[5, 0, 0, 0, 16, 1, 2, 3, 4],
        &u32::MAX.to_le_bytes(),
        &hello,
    ];
    for address in site.addresses() {
        pokes.iter().for_each(|bytes| poke(&address, bytes));
    }
    runner_goes_on(&mut runner, before);
}

fn runner_goes_on(runner: &mut loquent_engine::staged::StagedRunner, before: u32) {
    use loquent_infer::runner::Runner as _;
    runner.truncate(Slot(0), 0);
    assign(runner, 0);
    assert_eq!(run_one(runner, 0, 0, &[1, 2]).unwrap(), Ok(before));
}

/// Whether the other end has closed `stream`, apart from what it has sent before.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => return true,
            // The greeting comes first.
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// Serves one batch over a new session; gives how long it took.
fn serve_one(site: &Site) -> Duration {
    let begun = Instant::now();
    let mut runner = site.runner();
    assign(&mut runner, 0);
    assert!(run_one(&mut runner, 0, 0, &[1]).unwrap().is_ok());
    begun.elapsed()
}

#[test]
fn silent_connections_do_not_keep_others_waiting() {
    let site = Site::start(1);
    // As many as a stage listens to at once, but for the runner's own.
    let mut silent: Vec<TcpStream> =
        (0..15).map(|_| TcpStream::connect(&site.stages[0].address).unwrap()).collect();
    let took = serve_one(&site);
    // One after the other, each would be cut off after 5 s, and the runner would come last.
    assert!(silent.iter_mut().any(|stream| !is_closed(stream)), "they were waited for: {took:?}");
    assert!(took < HANDSHAKE_LIMIT, "{took:?}");
}

#[test]
fn a_byte_at_a_time_does_not_keep_others_out() {
    let site = Site::start(1);
    let address = &site.stages[0].address;
    // More than the handshakes that a stage has at once.
    let mut slow: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    let (served, is_served) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            // A frame of 42 bytes, so that it is complete after 46 s.
            for byte in [42, 0, 0, 0].into_iter().chain(iter::repeat_n(0, 60)) {
                slow.iter_mut().for_each(|stream| drop(stream.write(&[byte])));
                if is_served.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout)
                {
                    return;
                }
            }
        });
        let took = serve_one(&site);
        drop(served);
        // Each of them gives way after a tenth of a second.
        assert!(took < HANDSHAKE_LIMIT, "{took:?}");
    });
}

/// Silent connections, each of which comes again as soon as it is cut off, and is counted.
fn come_again(address: &str, strangers: usize, cut_off: &AtomicUsize, stop: &AtomicBool) {
    let come = || TcpStream::connect(address).unwrap();
    let mut all: Vec<TcpStream> = (0..strangers).map(|_| come()).collect();
    while !stop.load(Ordering::Relaxed) {
        for stream in &mut all {
            if is_closed(stream) {
                cut_off.fetch_add(1, Ordering::Relaxed);
                *stream = come();
            }
        }
        // They share the processors with the stage here, as real ones would not.
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn silent_strangers_that_come_again_keep_nobody_out() {
    let site = Site::start(1);
    let (address, stop) = (&site.stages[0].address, AtomicBool::new(false));
    let cut_off = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| come_again(address, 100, &cut_off, &stop));
        let served = panic::catch_unwind(AssertUnwindSafe(|| {
            wait_until("strangers giving way", || cut_off.load(Ordering::Relaxed) > 20);
            serve_one(&site);
        }));
        stop.store(true, Ordering::Relaxed);
        served.unwrap();
    });
}

fn slots() -> impl Strategy<Value = Slot> {
    prop_oneof![6 => 0u16..16, 1 => any::<u16>()].prop_map(Slot)
}

fn orders() -> impl Strategy<Value = StageMessage> {
    let place = || prop_oneof![4 => 0u32..6, 1 => any::<u32>()];
    let spans = prop::collection::vec((slots(), place(), 1usize..5, any::<bool>()), 0..6);
    let rows = spans.prop_map(|spans| {
        let mut end = 0;
        let spans: Vec<Span> = spans
            .into_iter()
            .map(|(slot, start, len, sample)| {
                let tokens = end..end + len;
                end += len;
                Span { slot, start, tokens, draft: 0, sample }
            })
            .collect();
        let rows = (0..end * WIDTH).map(|i| (i % 59) as f32).collect();
        StageMessage::Rows(Rows { id: 1, spans, failed: vec![], timings: vec![], rows })
    });
    let assign = slots().prop_map(|slot| {
        let sampling = Sampling::default();
        let sampler = SamplerParts { sampling, generated: 0, seen: vec![], latest: vec![] };
        StageMessage::Assign { slot, sampler: Box::new(sampler) }
    });
    prop_oneof![
        4 => rows,
        2 => (slots(), slots(), place())
            .prop_map(|(from, to, len)| StageMessage::Fork { from, to, len }),
        2 => (slots(), place()).prop_map(|(slot, len)| StageMessage::Truncate { slot, len }),
        2 => assign,
        1 => (slots(), prop::collection::vec(any::<u32>(), 0..3))
            .prop_map(|(slot, allowed)| StageMessage::Allow { slot, allowed }),
        1 => Just(StageMessage::Wipe),
        1 => Just(StageMessage::Aborted { id: 3, timings: vec![], error: RunError::CacheFull }),
        1 => Just(StageMessage::Ping(1)),
    ]
}

proptest! {
    /// The toy layers assert that their arguments are sound.
    #[test]
    fn no_order_of_a_peer_that_knows_the_key_breaks_a_stage(
        orders in prop::collection::vec(orders(), 1..60),
        is_last: bool,
    ) {
        let keys = StageKeys {
            fingerprint: 1,
            first_layer: if is_last { 3 } else { 0 },
            layers: 3,
            all_layers: 6,
        };
        let mut stage = Stage::new(Box::new(ToyLayers::new(keys, Arc::default())));
        for order in orders {
            let is_rows = matches!(order, StageMessage::Rows(_));
            let answer = stage.handle(order, Instant::now());
            if is_rows && is_last {
                prop_assert!(matches!(answer, Some(StageMessage::Done(_))));
            }
        }
    }
}
