//! A receiver by itself, driven as coarse timers and slow readers drive it.

use loquent_proto::frame::{Data, Frame};
use loquent_proto::{Delta, Log, Micros, Playout, Receiver, ReceiverConfig, ReceiverEvent};

const PLAYOUT: Playout = Playout { buffer: Micros::ZERO, max_tokens_per_s: Some(100) };

fn ms(ms: u64) -> Micros {
    Micros::from_ms(ms)
}

/// A log of `tokens` tokens and its end.
fn log(tokens: usize) -> Vec<u8> {
    let mut log = Log::new(1 << 20);
    for i in 0..tokens {
        log.push(&Delta::text(format!(" {i}"))).expect("room");
    }
    log.push(&Delta::Done).expect("room");
    let mut bytes = Vec::new();
    log.read(0..log.head(), &mut bytes).expect("all of it");
    bytes
}

fn deliver(receiver: &mut Receiver, now: Micros, packet: u64, offset: u64, bytes: &[u8]) {
    let mut datagram = Vec::new();
    Frame::Data(Data { channel: 7, packet, offset, bytes }).encode(false, &mut datagram);
    receiver.handle_datagram(now, &datagram).expect("a frame");
}

fn paced(playout: Playout) -> Receiver {
    Receiver::new(ms(0), 7, 0, ReceiverConfig { playout, ..ReceiverConfig::default() })
}

fn poll_all(receiver: &mut Receiver) -> Vec<ReceiverEvent> {
    std::iter::from_fn(|| receiver.poll_event()).collect()
}

#[test]
fn a_coarse_timer_does_not_slow_the_pace() {
    let mut receiver = paced(PLAYOUT);
    deliver(&mut receiver, ms(0), 0, 0, &log(200));
    let mut shown = poll_all(&mut receiver).len();
    // 100 tokens a second take a second for 100, even if the driver comes every 50 ms.
    for step in 1..=20 {
        receiver.handle_timeout(ms(50 * step));
        shown += poll_all(&mut receiver).len();
    }
    assert_eq!(shown, 101);
}

#[test]
fn what_was_missed_while_nothing_was_there_is_not_made_up_for() {
    let (mut receiver, bytes) = (paced(PLAYOUT), log(50));
    let half = bytes.len() / 2;
    deliver(&mut receiver, ms(0), 0, 0, &bytes[..half]);
    receiver.handle_timeout(ms(2_000));
    let before = poll_all(&mut receiver).len();
    deliver(&mut receiver, ms(3_000), 1, half as u64, &bytes[half..]);
    assert_eq!(poll_all(&mut receiver).len(), 1, "after {before}");
    receiver.handle_timeout(ms(3_010));
    assert_eq!(poll_all(&mut receiver).len(), 1);
}

#[test]
fn nothing_is_missed_once_everything_has_arrived() {
    let mut receiver = paced(Playout { max_tokens_per_s: Some(1), ..PLAYOUT });
    deliver(&mut receiver, ms(0), 0, 0, &log(30));
    let (mut now, mut events, mut out) = (ms(0), Vec::new(), Vec::new());
    let mut gone = Vec::new();
    Frame::Gone { channel: 7 }.encode(false, &mut gone);
    while let Some(at) = receiver.poll_timeout().filter(|at| *at < ms(60_000)) {
        now = now.max(at);
        receiver.handle_timeout(now);
        receiver.handle_datagram(now, &gone).expect("a frame");
        events.extend(poll_all(&mut receiver));
        while receiver.poll_transmit(now, &mut out).is_some() {}
    }
    assert_eq!(events.len(), 32, "30 tokens, the end, and its news: {events:?}");
    assert_eq!(events.last(), Some(&ReceiverEvent::Complete));
}

#[test]
fn a_driver_that_stops_polling_stops_the_log() {
    let mut receiver = paced(Playout::IMMEDIATE);
    let bytes = log(100_000);
    let (mut now, mut packet) = (0, 0);
    // Whatever is sent again and again, at most the bound is taken in.
    for offset in (0..bytes.len()).step_by(1_000) {
        now += 1;
        let cumulative = receiver.cumulative().min(offset as u64) as usize;
        let end = bytes.len().min(cumulative + 1_000);
        deliver(&mut receiver, ms(now), packet, cumulative as u64, &bytes[cumulative..end]);
        packet += 1;
    }
    let most = ReceiverConfig::default().limits.max_bytes as u64;
    assert!(receiver.cumulative() <= receiver.shown() + most, "{}", receiver.cumulative());
    assert!(receiver.shown() < 10_000, "{} bytes count as shown", receiver.shown());
    // Once it polls again, all of what arrived comes out without another packet.
    let (cumulative, shown) = (receiver.cumulative(), poll_all(&mut receiver).len());
    assert!(
        shown > 512 && receiver.shown() + 16 > cumulative,
        "{shown}: {} {cumulative}",
        receiver.shown()
    );
}
