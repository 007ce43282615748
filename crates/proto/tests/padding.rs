//! Frames with log bytes have few lengths (D-2.7), whatever the log, the path and the losses.

use loquent_proto::frame::Frame;
use loquent_proto::{Delta, Micros, Receiver, ReceiverConfig, Sender, SenderConfig};
use proptest::prelude::*;

/// A session: what is said, and how the path treats it.
#[derive(Debug)]
struct Session {
    config: SenderConfig,
    /// Length of each token and the time before it, ms.
    tokens: Vec<(usize, u64)>,
    /// Which datagrams get lost, in turns.
    lost: Vec<bool>,
    delay: Micros,
}

impl Session {
    /// Runs it; `seen` gets each datagram to the receiver.
    fn run(&self, mut seen: impl FnMut(&[u8])) {
        let config = ReceiverConfig { checked: self.config.checked, ..ReceiverConfig::default() };
        let mut sender = Sender::new(Micros(0), 300, self.config.clone());
        let mut receiver = Receiver::new(Micros(0), 300, 0, config);
        let mut lost = self.lost.iter().copied().cycle();
        let mut on_the_way: Vec<(Micros, bool, Vec<u8>)> = Vec::new();
        let mut tokens = self.tokens.iter();
        let mut next_at = Micros(0);
        for now in (0..20_000u64).map(Micros::from_ms) {
            while next_at <= now {
                let Some(&(length, gap)) = tokens.next() else { break };
                sender.push(now, &Delta::text("x".repeat(length))).unwrap();
                next_at = now + Micros::from_ms(gap);
            }
            let due = |packet: &(Micros, bool, Vec<u8>)| packet.0 <= now;
            for (_, down, packet) in on_the_way.extract_if(.., |packet| due(packet)) {
                let arrived = match down {
                    true => receiver.handle_datagram(now, &packet),
                    false => sender.handle_datagram(now, &packet),
                };
                arrived.expect("what one end writes the other one reads");
            }
            sender.handle_timeout(now);
            receiver.handle_timeout(now);
            while receiver.poll_event().is_some() {}
            let mut send = |down, packet: &Vec<u8>| {
                if !lost.next().unwrap_or(false) {
                    on_the_way.push((now + self.delay, down, packet.clone()));
                }
            };
            let mut packet = Vec::new();
            while let Some(sent) = sender.poll_transmit(now, &mut packet) {
                assert_eq!(sent.len, packet.len());
                seen(&packet);
                send(true, &packet);
                packet.clear();
            }
            while receiver.poll_transmit(now, &mut packet).is_some() {
                send(false, &packet);
                packet.clear();
            }
        }
    }
}

/// Whether `datagram` carries bytes of the log.
fn has_log_bytes(datagram: &[u8], checked: bool) -> bool {
    match Frame::decode(datagram, checked).expect("a valid frame") {
        Frame::Data(data) => !data.bytes.is_empty(),
        other => panic!("a sender sent {other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_frame_with_log_bytes_is_a_multiple_of_the_step_or_the_largest(
        (step, largest, checked) in (1usize..1300, 100usize..1200, any::<bool>()),
        tokens in prop::collection::vec((1usize..300, 0u64..200), 1..60),
        lost in prop::collection::vec(prop::bool::weighted(0.3), 1..50),
        delay_ms in 1u64..300,
    ) {
        let config = SenderConfig {
            padding_step_bytes: step,
            max_datagram_bytes: largest,
            checked,
            ..SenderConfig::default()
        };
        let session = Session { config, tokens, lost, delay: Micros::from_ms(delay_ms) };
        let mut with_text = 0;
        session.run(|datagram| {
            assert!(datagram.len() <= largest, "{} of {largest}", datagram.len());
            if has_log_bytes(datagram, checked) {
                with_text += 1;
                let len = datagram.len();
                assert!(len % step == 0 || len == largest, "{len} in steps of {step} to {largest}");
            }
        });
        prop_assert!(with_text > 0);
    }
}

#[test]
fn a_step_of_0_pads_nothing() {
    let config = SenderConfig { padding_step_bytes: 0, ..SenderConfig::default() };
    let tokens = (1..40).map(|length| (length, 100)).collect();
    let session = Session { config, tokens, lost: vec![false], delay: Micros::from_ms(20) };
    let mut lengths = std::collections::BTreeSet::new();
    session.run(|datagram| {
        lengths.insert(datagram.len());
        let mut plain = Vec::new();
        Frame::decode(datagram, false).unwrap().encode(false, &mut plain);
        assert_eq!(datagram, plain, "not PADDED");
    });
    assert!(lengths.len() >= 39, "each token's length shows");
}

#[test]
fn frames_of_a_reliable_stream_are_padded_too() {
    for step in [16, 64, 1150] {
        let config = SenderConfig { padding_step_bytes: step, ..SenderConfig::default() };
        let mut sender = Sender::new(Micros(0), 0, config);
        for length in 1..120 {
            let from = sender.log().head();
            sender.push(Micros(0), &Delta::text("x".repeat(length))).unwrap();
            let mut frame = Vec::new();
            assert!(sender.transmit_reliable(Micros(0), from, 1 << 20, &mut frame).is_some());
            assert_eq!(frame.len() % step, 0, "a token of {length} bytes");
        }
    }
}

#[test]
fn padding_holds_older_bytes_while_they_are_unacknowledged() {
    // Repetitions fill their frames before they lengthen them: padding is never sent in place of
    // text that the reader lacks.
    let mut sender = Sender::new(Micros(0), 0, SenderConfig::default());
    let mut datagram = Vec::new();
    for token in 0..6u64 {
        let now = Micros::from_ms(100 * token);
        sender.push(now, &Delta::text("token")).unwrap();
        datagram.clear();
        let sent = sender.poll_transmit(now, &mut datagram).expect("new text");
        assert_eq!(sent.range, 0..sender.log().head());
    }
}
