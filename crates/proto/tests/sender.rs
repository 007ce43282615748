//! A sender by itself, held to the rules on what it may take from acknowledgements and what it may
//! spend (`spec/delivery.md`, sections 4 to 7).

use loquent_proto::frame::{Ack, Data, Frame};
use loquent_proto::sender::MAX_IN_FLIGHT_BYTES;
use loquent_proto::{Delta, Error, Micros, Sender, SenderConfig, SenderEvent, SenderState};

const OVERHEAD_BYTES: u64 = 60;

fn ms(ms: u64) -> Micros {
    Micros::from_ms(ms)
}

/// A sender whose log has text of `bytes` bytes, and its end if it `is_ended`.
fn sender(bytes: usize, is_ended: bool) -> Sender {
    let mut sender = Sender::new(ms(0), 7, SenderConfig::default());
    sender.push(ms(0), &Delta::text("x".repeat(bytes))).expect("room");
    if is_ended {
        sender.push(ms(0), &Delta::Done).expect("room");
    }
    sender
}

/// What leaves at `now`: packet numbers, and the end of the log bytes in each.
fn sent(sender: &mut Sender, now: Micros) -> Vec<(u64, u64)> {
    sender.handle_timeout(now);
    let mut sent = Vec::new();
    let mut datagram = Vec::new();
    while sender.poll_transmit(now, &mut datagram).is_some() {
        let Ok(Frame::Data(Data { packet, offset, bytes, .. })) = Frame::decode(&datagram, false)
        else {
            panic!("{datagram:02x?}");
        };
        sent.push((packet, offset + bytes.len() as u64));
        datagram.clear();
    }
    sent
}

fn acknowledge(sender: &mut Sender, now: Micros, ack: Ack) -> Result<(), Error> {
    let mut datagram = Vec::new();
    Frame::Ack(Ack { channel: 7, ..ack }).encode(false, &mut datagram);
    sender.handle_datagram(now, &datagram)
}

#[test]
fn d_4_1_a_datagram_that_cannot_be_sent_uses_no_number() {
    let mut sender = sender(10, false);
    sender.set_max_datagram_bytes(0);
    assert_eq!(sent(&mut sender, ms(500)), []);
    assert_eq!(sender.poll_timeout(), None, "nothing waits for a path that takes none");
    let mut frame = Vec::new();
    assert_eq!(sender.transmit_reliable(ms(500), 0, 100, &mut frame), Some(0..11));
    assert_eq!(
        Frame::decode(&frame, false).map(|frame| match frame {
            Frame::Data(data) => data.packet,
            other => panic!("{other:?}"),
        }),
        Ok(0)
    );
    assert_eq!(sender.unacked_since(), Some(ms(500)), "what left by the QUIC stream is due too");
    // On a path that takes them, numbers go on.
    sender.resume(ms(600), 8, 0).expect("in the log");
    sender.set_max_datagram_bytes(1_150);
    assert_eq!(sent(&mut sender, ms(600)), [(1, 11)]);
}

#[test]
fn d_5_1_the_number_of_an_ignored_ack_does_not_count() {
    let mut sender = sender(10, false);
    assert_eq!(sent(&mut sender, ms(0)).len(), 1);
    let beyond = Ack { number: 1_000, cumulative: 1_000_000, hidden: true, ..Ack::default() };
    assert_eq!(acknowledge(&mut sender, ms(10), beyond), Err(Error::Malformed));
    let unsent = Ack { number: 1_000, largest: Some(400), hidden: true, ..Ack::default() };
    assert_eq!(acknowledge(&mut sender, ms(10), unsent), Err(Error::Malformed));
    assert!(!sender.reader().hidden, "what it said does not count either");
    let first = Ack { number: 3, cumulative: 5, hidden: true, ..Ack::default() };
    assert_eq!(acknowledge(&mut sender, ms(20), first), Ok(()));
    assert!(sender.reader().hidden, "3 is the highest so far");
    let older = Ack { number: 2, cumulative: 7, ..Ack::default() };
    assert_eq!(acknowledge(&mut sender, ms(30), older), Ok(()));
    assert!(sender.reader().hidden, "the state of an older one is old");
    assert_eq!(sender.cumulative(), 7, "what it says of arrivals is not");
}

#[test]
fn d_5_4_missing_packets_of_an_older_path_are_ignored() {
    let mut sender = sender(10, false);
    let mut last = 0;
    for at in (0..2_000).step_by(50) {
        last = sent(&mut sender, ms(at)).last().map_or(last, |(packet, _)| *packet);
    }
    assert!(last >= 10, "{last} packets on the older path, none of which arrived");
    sender.resume(ms(2_000), 8, 0).expect("in the log");
    let news = sent(&mut sender, ms(2_000));
    assert_eq!(news, [(last + 1, 11)], "numbers go on");
    let ack = Ack { channel: 8, largest: Some(last + 1), missing: (1 << 53) - 1, ..Ack::default() };
    acknowledge_on(&mut sender, 8, ms(2_100), ack);
    assert_eq!(sender.rtt().smoothed(), ms(100), "measured on the new path");
    acknowledge_on(&mut sender, 8, ms(2_110), Ack { number: 1, cumulative: 11, ..Ack::default() });
    // Had packets been lost on this path, copies of new text would follow it within 40 ms (section
    // 8, third rule). It is quiet until the acknowledgement is overdue, 150 ms later.
    sender.push(ms(3_000), &Delta::text(" more")).expect("room");
    assert_eq!(sent(&mut sender, ms(3_000)).len(), 1);
    assert_eq!(sent(&mut sender, ms(3_090)), []);
}

fn acknowledge_on(sender: &mut Sender, channel: u64, now: Micros, ack: Ack) {
    let mut datagram = Vec::new();
    Frame::Ack(Ack { channel, ..ack }).encode(false, &mut datagram);
    sender.handle_datagram(now, &datagram).expect("valid");
}

#[test]
fn d_6_4_a_resume_from_the_end_of_a_whole_log_finishes_at_once() {
    for was_finished in [false, true] {
        let mut sender = sender(10, true);
        let head = sender.log().head();
        assert_eq!(sent(&mut sender, ms(0)), [(0, head)]);
        if was_finished {
            let all = Ack { cumulative: head, largest: Some(0), ..Ack::default() };
            acknowledge(&mut sender, ms(10), all).expect("valid");
        } else {
            sender.suspend();
        }
        sender.resume(ms(5_000), 8, head).expect("its end is in the log");
        assert_eq!(sender.state(), SenderState::Finished);
        let events: Vec<_> = std::iter::from_fn(|| sender.poll_event()).collect();
        assert_eq!(events, [SenderEvent::Resumed, SenderEvent::Finished]);
        assert_eq!(sent(&mut sender, ms(5_000)), []);
        assert_eq!(sender.poll_timeout(), None);
    }
}

#[test]
fn what_is_still_on_its_way_does_not_change_how_an_answer_ended() {
    let stop = |sender: &mut Sender, now| {
        let mut datagram = Vec::new();
        Frame::Stop { channel: 7 }.encode(false, &mut datagram);
        sender.handle_datagram(now, &datagram).expect("valid");
    };
    let all = |sender: &Sender| Ack {
        cumulative: sender.log().head(),
        largest: Some(0),
        ..Ack::default()
    };
    for stops_first in [false, true] {
        let mut sender = sender(10, true);
        sent(&mut sender, ms(0));
        let acknowledged = all(&sender);
        let (state, event) = match stops_first {
            true => {
                stop(&mut sender, ms(10));
                acknowledge(&mut sender, ms(11), acknowledged).expect("valid");
                (SenderState::Stopped, SenderEvent::Stopped)
            }
            false => {
                acknowledge(&mut sender, ms(10), acknowledged).expect("valid");
                stop(&mut sender, ms(11));
                (SenderState::Finished, SenderEvent::Finished)
            }
        };
        assert_eq!(sender.state(), state);
        let events: Vec<_> = std::iter::from_fn(|| sender.poll_event()).collect();
        assert_eq!(events, [event]);
    }
}

#[test]
fn d_6_4_a_resume_short_of_the_end_or_of_an_open_log_does_not_finish() {
    for (is_ended, back) in [(true, 1), (false, 0)] {
        let mut sender = sender(10, is_ended);
        let head = sender.log().head();
        sender.resume(ms(5_000), 8, head - back).expect("in the log");
        assert_eq!(sender.state(), SenderState::Active);
        assert_eq!(sent(&mut sender, ms(5_000)), [(0, head)], "text, or a sign of life");
        assert_eq!(sender.resume(ms(6_000), 9, head + 1), Err(Error::OffsetUnavailable));
    }
}

#[test]
fn d_7_1_at_most_32_kib_are_in_flight() {
    let mut sender = sender(100_000, true);
    let (mut most, mut at) = (0, 0);
    let unbound = sender.log().head();
    while at < 5_000 {
        most = sent(&mut sender, ms(at)).iter().map(|(_, end)| *end).chain([most]).max().unwrap();
        assert!(sender.poll_timeout().is_none_or(|next| next > ms(at)), "busy at {at}");
        at += 5;
    }
    assert_eq!(most, MAX_IN_FLIGHT_BYTES, "of {unbound} bytes");
    // What arrives makes room for as much.
    acknowledge(&mut sender, ms(at), Ack { cumulative: 1_000, ..Ack::default() }).expect("valid");
    let mut most = 0;
    for at in (at..at + 500).step_by(5) {
        most = sent(&mut sender, ms(at)).iter().map(|(_, end)| *end).chain([most]).max().unwrap();
    }
    assert_eq!(most, MAX_IN_FLIGHT_BYTES + 1_000);
}

#[test]
fn d_7_1_the_quic_stream_carries_no_more_than_any_receiver_has_room_for() {
    let mut sender = sender(100_000, true);
    sender.set_max_datagram_bytes(0);
    let mut frame = Vec::new();
    let range = sender.transmit_reliable(ms(0), 0, 1 << 20, &mut frame);
    assert_eq!(range, Some(0..MAX_IN_FLIGHT_BYTES));
    assert_eq!(sender.transmit_reliable(ms(0), MAX_IN_FLIGHT_BYTES, 1 << 20, &mut frame), None);
    // It holds 20,000 bytes that it has not shown: they take up its room.
    let ack = Ack { cumulative: 30_000, unshown: 20_000, ..Ack::default() };
    acknowledge(&mut sender, ms(10), ack).expect("valid");
    let range = sender.transmit_reliable(ms(10), MAX_IN_FLIGHT_BYTES, 1 << 20, &mut frame);
    assert_eq!(range, Some(MAX_IN_FLIGHT_BYTES..MAX_IN_FLIGHT_BYTES + 10_000));
}

#[test]
fn d_7_2_a_path_without_datagrams_is_given_up_after_10_s_too() {
    let mut sender = sender(10, true);
    sender.set_max_datagram_bytes(0);
    assert!(sender.transmit_reliable(ms(0), 0, 100, &mut Vec::new()).is_some());
    assert_eq!(sender.poll_timeout(), Some(ms(10_000)));
    sender.handle_timeout(ms(10_000));
    assert_eq!(sender.state(), SenderState::Suspended);
    let late = Ack { cumulative: 5, ..Ack::default() };
    acknowledge(&mut sender, ms(20_000), late).expect("valid");
    assert_eq!(sender.state(), SenderState::Active, "a late acknowledgement continues");
}

#[test]
fn d_7_3_five_hundred_probes_cost_what_the_bucket_allows() {
    let mut sender = sender(10, false);
    let head = sender.log().head();
    sent(&mut sender, ms(0));
    acknowledge(&mut sender, ms(1), Ack { cumulative: head, largest: Some(0), ..Ack::default() })
        .expect("valid");
    let (mut replies, mut bytes) = (0, 0);
    for i in 0..500 {
        let now = ms(10 + 2 * i);
        let probe = Ack { number: 1 + i, cumulative: head, probe: true, ..Ack::default() };
        acknowledge(&mut sender, now, probe).expect("valid");
        sender.handle_timeout(now);
        let mut datagram = Vec::new();
        while sender.poll_transmit(now, &mut datagram).is_some() {
            replies += 1;
            bytes += datagram.len() as u64 + OVERHEAD_BYTES;
            datagram.clear();
        }
    }
    let config = SenderConfig::default();
    assert!(replies >= 5, "{replies}: one in 200 ms at least");
    assert!(bytes <= config.bucket_depth_bytes + config.bucket_bytes_per_s, "{bytes} in 1 s");
}
