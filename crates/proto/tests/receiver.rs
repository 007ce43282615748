//! A receiver by itself, held to the rules of section 9 of `spec/delivery.md`, and driven as coarse
//! timers and slow readers drive it.

use std::ops::Range;

use loquent_proto::frame::{Ack, Data, Frame};
use loquent_proto::{
    AssemblerLimits, Delta, Error, Log, Micros, Playout, Receiver, ReceiverConfig, ReceiverEvent,
};

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

/// The default receiver, which has shown the first of `log(3)`: " 0".
fn one_shown(now: Micros) -> Receiver {
    let mut receiver = Receiver::new(now, 7, 0, ReceiverConfig::default());
    deliver(&mut receiver, now, 0, 0, &log(3)[..3]);
    assert_eq!(poll_all(&mut receiver).len(), 1);
    assert_eq!(acks(&mut receiver, now).len(), 1);
    receiver
}

/// The ACK frames that are due at `now`.
fn acks(receiver: &mut Receiver, now: Micros) -> Vec<Ack> {
    frames(receiver, now, |frame| match frame {
        Frame::Ack(ack) => ack,
        other => panic!("{other:?}"),
    })
}

/// Ranges as an ACK reports them.
fn ranges(ranges: &[Range<u64>]) -> Vec<[u64; 2]> {
    ranges.iter().map(|range| [range.start, range.end]).collect()
}

fn frames<T>(receiver: &mut Receiver, now: Micros, read: impl Fn(Frame<'_>) -> T) -> Vec<T> {
    receiver.handle_timeout(now);
    let (mut frames, mut datagram) = (Vec::new(), Vec::new());
    while receiver.poll_transmit(now, &mut datagram).is_some() {
        frames.push(read(Frame::decode(&datagram, false).expect("a frame")));
        datagram.clear();
    }
    frames
}

/// When ACK frames with a probe leave until `until`, if nothing arrives.
fn probes(receiver: &mut Receiver, until: Micros) -> Vec<Micros> {
    let mut probes = Vec::new();
    while let Some(at) = receiver.poll_timeout().filter(|at| *at <= until) {
        probes.extend(acks(receiver, at).iter().filter(|ack| ack.probe).map(|_| at));
    }
    probes
}

fn gone() -> Vec<u8> {
    let mut gone = Vec::new();
    Frame::Gone { channel: 7 }.encode(false, &mut gone);
    gone
}

#[test]
fn d_9_1_it_lingers_for_3_s_after_it_has_shown_the_last_record() {
    let mut receiver = one_shown(ms(0));
    deliver(&mut receiver, ms(1_000), 1, 0, &log(3));
    assert_eq!(poll_all(&mut receiver).last(), Some(&ReceiverEvent::Complete));
    assert_eq!(acks(&mut receiver, ms(1_000)).len(), 1);
    deliver(&mut receiver, ms(3_999), 2, 0, &log(3));
    assert_eq!(acks(&mut receiver, ms(3_999)).len(), 1, "the sender may have missed the last one");
    assert!(!receiver.is_closed());
    assert_eq!(acks(&mut receiver, ms(4_000)), []);
    assert!(receiver.is_closed());
    deliver(&mut receiver, ms(4_001), 3, 0, &log(3));
    assert_eq!((acks(&mut receiver, ms(4_001)), receiver.poll_timeout()), (vec![], None));
}

/// What closes a receiver, and what it then reports.
type Closing<'a> = (&'a dyn Fn(&mut Receiver), Option<ReceiverEvent>);

#[test]
fn d_9_1_gone_an_unreadable_log_and_the_readers_wish_close_it_at_once() {
    let hear_gone = |receiver: &mut Receiver| {
        receiver.handle_datagram(ms(10), &gone()).expect("a frame");
    };
    let read_rubbish = |receiver: &mut Receiver| {
        deliver(receiver, ms(10), 1, 3, b"\x82\xff\xfe");
    };
    let closings: [Closing<'_>; 3] = [
        (&hear_gone, Some(ReceiverEvent::Failed(None))),
        (&read_rubbish, Some(ReceiverEvent::Failed(Some(Error::Malformed)))),
        (&Receiver::stop, None),
    ];
    for (close, event) in closings {
        let mut receiver = one_shown(ms(0));
        close(&mut receiver);
        assert_eq!(receiver.poll_event(), event);
        assert!(receiver.is_closed());
        let sent = frames(&mut receiver, ms(10), |frame| matches!(frame, Frame::Ack(_)));
        assert!(!sent.contains(&true), "a closed receiver acknowledges nothing");
        deliver(&mut receiver, ms(20), 2, 3, &log(3)[3..]);
        assert_eq!((acks(&mut receiver, ms(200)), receiver.poll_event()), (vec![], None));
        assert_eq!(receiver.poll_timeout(), None);
    }
}

#[test]
fn what_is_held_back_is_taken_at_once_where_the_path_has_ended_for_good() {
    let ends = |rest: &[(u64, Delta)]| rest.iter().map(|(end, _)| *end).collect::<Vec<_>>();
    let bytes = log(200);
    let mut receiver = paced(PLAYOUT);
    deliver(&mut receiver, ms(0), 0, 0, &bytes);
    let shown = receiver.poll_event();
    assert!(matches!(shown, Some(ReceiverEvent::Delta { .. })), "{shown:?}");
    let rest = receiver.take_rest();
    assert_eq!((rest.len(), rest.last()), (200, Some(&(bytes.len() as u64, Delta::Done))));
    assert!(ends(&rest).is_sorted());
    assert_eq!((receiver.take_rest(), receiver.poll_event()), (Vec::new(), None));

    // Of a log that turns out to be unreadable, what comes before the fault.
    let mut receiver = paced(PLAYOUT);
    let whole = log(10);
    let broken = [&whole[..whole.len() - 1], &[0xff; 40]].concat();
    deliver(&mut receiver, ms(0), 0, 0, &broken);
    assert!(receiver.take_rest().len() >= 10);
}

#[test]
fn d_9_2_news_is_acknowledged_at_once_and_anything_else_100_ms_after_the_last_ack() {
    let (mut receiver, bytes) = (one_shown(ms(0)), log(3));
    deliver(&mut receiver, ms(10), 1, 6, &bytes[6..9]);
    let ack = &acks(&mut receiver, ms(10))[0];
    assert_eq!(ranges(&ack.ranges), [[6, 9]], "beyond a hole");
    deliver(&mut receiver, ms(20), 2, 3, &bytes[3..6]);
    assert_eq!(acks(&mut receiver, ms(20))[0].cumulative, 9);
    // Nothing new in any of these, one of which is a sign of life.
    for (packet, at, bytes) in [(3, 30, &bytes[..9]), (3, 50, &bytes[..9]), (4, 119, &b""[..])] {
        deliver(&mut receiver, ms(at), packet, 0, bytes);
        assert_eq!(acks(&mut receiver, ms(at)), []);
    }
    assert_eq!(receiver.poll_timeout(), Some(ms(120)));
    assert_eq!(acks(&mut receiver, ms(120))[0].largest, Some(4));
    deliver(&mut receiver, ms(500), 5, 0, b"");
    assert_eq!(acks(&mut receiver, ms(500)).len(), 1, "the last one was longer ago");
}

#[test]
fn d_9_3_an_ack_leaves_at_once_when_the_page_is_hidden_or_the_pace_is_set() {
    let mut receiver = one_shown(ms(0));
    receiver.set_hidden(ms(10), true);
    assert!(acks(&mut receiver, ms(10))[0].hidden);
    receiver.set_hidden(ms(11), true);
    assert_eq!(acks(&mut receiver, ms(11)), [], "it was hidden before");
    receiver.set_hidden(ms(12), false);
    assert!(!acks(&mut receiver, ms(12))[0].hidden);
    receiver.set_playout(ms(13), PLAYOUT);
    assert_eq!(acks(&mut receiver, ms(13)).len(), 1);
}

#[test]
fn d_9_4_probes_follow_2_4_8_16_and_32_s_after_the_last_frame() {
    let mut receiver = one_shown(ms(500));
    let after = |seconds: [u64; 5], base: u64| seconds.map(|s| ms(base + 1_000 * s)).to_vec();
    assert_eq!(probes(&mut receiver, ms(1_000_000)), after([2, 4, 8, 16, 32], 500));
    deliver(&mut receiver, ms(2_000_000), 1, 0, b"");
    let again = probes(&mut receiver, ms(9_000_000));
    assert_eq!(again, after([2, 4, 8, 16, 32], 2_000_000), "a frame begins this anew");
    let mut client = Receiver::new(ms(0), 7, 0, ReceiverConfig::with_another_path());
    assert_eq!(probes(&mut client, ms(1_000_000)), after([1, 2, 4, 8, 16], 0), "S-4.10");
}

#[test]
fn d_9_4_neither_a_whole_log_nor_a_reader_behind_makes_it_probe() {
    let mut whole = one_shown(ms(0));
    deliver(&mut whole, ms(1), 1, 0, &log(3));
    let mut behind = paced(Playout { max_tokens_per_s: Some(1), ..PLAYOUT });
    deliver(&mut behind, ms(0), 0, 0, &log(1_000)[..2_600]);
    for receiver in [&mut whole, &mut behind] {
        assert_eq!(probes(receiver, ms(29_999)), []);
        assert!(!poll_all(receiver).contains(&ReceiverEvent::Silent));
    }
    // It reads 512 records ahead. After 30 s they are not enough, and silence counts from then on.
    assert_eq!(probes(&mut behind, ms(39_000)), [ms(32_000), ms(34_000), ms(38_000)]);
    assert!(!poll_all(&mut behind).contains(&ReceiverEvent::Silent));
    behind.handle_timeout(ms(40_000));
    assert!(poll_all(&mut behind).contains(&ReceiverEvent::Silent));
}

#[test]
fn d_9_4_a_reader_whose_room_is_full_of_unshown_text_does_not_probe() {
    let limits = AssemblerLimits { max_bytes: 60, max_ranges: 1 };
    let playout = Playout { max_tokens_per_s: Some(1), ..PLAYOUT };
    let config = ReceiverConfig { limits, playout, ..ReceiverConfig::default() };
    let mut receiver = Receiver::new(ms(0), 7, 0, config);
    let bytes = b"\x93abcdefghijklmnopqrs".repeat(4); // records of 20 bytes
    deliver(&mut receiver, ms(0), 0, 0, &bytes[..60]);
    deliver(&mut receiver, ms(0), 1, 60, &bytes[60..]); // the first was shown, so there is room
    assert_eq!(poll_all(&mut receiver).len(), 1);
    assert_eq!(acks(&mut receiver, ms(0))[0].unshown, 60);
    // The second is shown after 1 s: from then on the sender could send more.
    assert_eq!(probes(&mut receiver, ms(6_000)), [ms(3_000), ms(5_000)]);
}

#[test]
fn d_9_5_it_tells_how_many_probes_are_unanswered() {
    let mut receiver = one_shown(ms(0));
    let mut counted = Vec::new();
    for at in [1_999, 2_000, 4_000, 8_000] {
        acks(&mut receiver, ms(at));
        counted.push(receiver.unanswered_probes());
    }
    assert_eq!(counted, [0, 1, 2, 3]);
    deliver(&mut receiver, ms(8_100), 1, 0, b"");
    assert_eq!(receiver.unanswered_probes(), 0);
}

#[test]
fn d_9_6_silence_is_reported_once_after_10_s() {
    let mut receiver = one_shown(ms(0));
    receiver.handle_timeout(ms(9_999));
    assert_eq!(receiver.poll_event(), None);
    for at in [10_000, 11_000, 60_000] {
        receiver.handle_timeout(ms(at));
    }
    assert_eq!(poll_all(&mut receiver), [ReceiverEvent::Silent]);
    deliver(&mut receiver, ms(60_500), 1, 0, b"");
    receiver.handle_timeout(ms(70_500));
    assert_eq!(poll_all(&mut receiver), [ReceiverEvent::Silent], "of another silence");
}

#[test]
fn d_9_7_a_resume_begins_the_path_anew_and_keeps_what_has_arrived() {
    let (mut receiver, bytes) = (one_shown(ms(0)), log(3));
    deliver(&mut receiver, ms(10), 9, 6, &bytes[6..9]);
    probes(&mut receiver, ms(12_000));
    assert_eq!(poll_all(&mut receiver), [ReceiverEvent::Silent]);
    receiver.migrate(ms(12_000), 8);
    assert_eq!(receiver.unanswered_probes(), 0);
    let old = receiver.handle_datagram(ms(12_010), &gone());
    assert_eq!(old, Err(Error::WrongChannel), "the older path is dead");
    assert_eq!(receiver.poll_timeout(), Some(ms(14_000)), "silence counts from the resume");
    let first = &acks(&mut receiver, ms(14_000))[0];
    assert_eq!((first.channel, first.number, first.largest), (8, 0, None));
    assert_eq!((first.hold, first.missing), (ms(0), 0), "they mean nothing yet (D-5.4, D-5.5)");
    // The next server may have other bytes beyond the first hole (D-6.8).
    assert_eq!((first.cumulative, ranges(&first.ranges)), (3, vec![]));
    let mut datagram = Vec::new();
    let data = Data { channel: 8, packet: 10, offset: 3, bytes: &bytes[3..9] };
    Frame::Data(data).encode(false, &mut datagram);
    receiver.handle_datagram(ms(14_010), &datagram).expect("a frame");
    let second = &acks(&mut receiver, ms(14_010))[0];
    assert_eq!((second.number, second.cumulative, second.largest), (1, 9, Some(10)));
    assert_eq!(second.missing, (1 << 10) - 1, "packet 9 arrived on another path");
}

#[test]
fn d_9_8_neither_the_first_text_nor_anything_on_a_hidden_page_is_held_back() {
    let mut receiver = paced(Playout { max_tokens_per_s: Some(10), ..PLAYOUT });
    deliver(&mut receiver, ms(0), 0, 0, &log(21)[..30]); // ten tokens of three bytes each
    assert_eq!(poll_all(&mut receiver).len(), 1);
    let ack = &acks(&mut receiver, ms(0))[0];
    assert_eq!((ack.cumulative, ack.unshown, ack.pace), (30, 27, 30), "27 bytes in 900 ms");
    receiver.set_hidden(ms(50), true);
    assert_eq!(poll_all(&mut receiver).len(), 9);
    let ack = &acks(&mut receiver, ms(50))[0];
    assert_eq!((ack.unshown, ack.pace), (0, 0));
}

#[test]
fn d_9_9_what_exceeds_the_bounds_is_ignored_but_its_packet_has_arrived() {
    let mut receiver = one_shown(ms(0));
    let limit = ReceiverConfig::default().limits.max_bytes as u64;
    deliver(&mut receiver, ms(1_000), 5, 3 + limit, b"beyond the bound");
    assert_eq!(receiver.poll_timeout(), Some(ms(1_000)));
    let ack = &acks(&mut receiver, ms(1_000))[0];
    assert_eq!((ack.cumulative, ack.largest, &ack.ranges[..]), (3, Some(5), &[][..]));
    assert_eq!(probes(&mut receiver, ms(3_500)), [ms(3_000)], "it was a sign of life");
    deliver(&mut receiver, ms(3_600), 6, limit, b"123456");
    let ack = &acks(&mut receiver, ms(3_600))[0];
    assert_eq!(ranges(&ack.ranges), [[limit, limit + 3]], "counted from the shown offset, 3");
}

#[test]
fn d_9_10_stop_is_sent_once_for_a_log_that_cannot_be_read_and_for_no_other_failure() {
    let is_stop = |frame: Frame<'_>| frame == Frame::Stop { channel: 7 };
    let mut unreadable = one_shown(ms(0));
    deliver(&mut unreadable, ms(10), 1, 3, b"\x82\xff\xfe");
    assert_eq!(frames(&mut unreadable, ms(10), is_stop), [true]);
    assert_eq!(frames(&mut unreadable, ms(60_000), is_stop), [false; 0]);
    let mut failed = one_shown(ms(0));
    deliver(&mut failed, ms(10), 1, 3, b"\x03\x09\0x"); // an error record
    assert_eq!(poll_all(&mut failed).last(), Some(&ReceiverEvent::Failed(None)));
    assert_eq!(frames(&mut failed, ms(10), is_stop), [false], "that was the sender's word");
    let mut left = one_shown(ms(0));
    left.handle_datagram(ms(10), &gone()).expect("a frame");
    assert_eq!(frames(&mut left, ms(10), is_stop), [false; 0]);
}
