//! Rules S-4.4 and S-4.11 in virtual time: when the log also leaves over the QUIC stream, when not,
//! and when the path is broken off.

use std::ops::Range;

use crate::pair::{LinkConfig, Pair};
use loquent_proto::fallback::{FallbackEvent, LowerLayer, ReliableFallback};
use loquent_proto::{
    AssemblerLimits, Delta, Micros, Playout, ReceiverConfig, SenderConfig, SenderState,
};

fn ms(ms: u64) -> Micros {
    Micros::from_ms(ms)
}

/// A connection that acknowledged something every 20 ms while it worked.
struct Connection {
    worked_until: Micros,
}

impl LowerLayer for Connection {
    fn acks(&self) -> u64 {
        self.worked_until.as_ms() / 20
    }
}

/// A session with a QUIC stream beside its datagrams.
struct Session {
    pair: Pair,
    fallback: ReliableFallback,
    connection_works: bool,
    worked_until: Micros,
    began: Vec<Micros>,
    broken_off: Vec<Micros>,
    streamed: Vec<Range<u64>>,
}

impl Session {
    fn new(down: LinkConfig) -> Self {
        Self::over([down, LinkConfig::clean(20)])
    }

    fn over(links: [LinkConfig; 2]) -> Self {
        Self::read_by(ReceiverConfig::default(), links)
    }

    fn read_by(receiver: ReceiverConfig, links: [LinkConfig; 2]) -> Self {
        let pair = Pair::new(SenderConfig::default(), receiver, links, 1);
        let fallback = ReliableFallback::default();
        Self {
            pair,
            fallback,
            connection_works: true,
            worked_until: Micros::ZERO,
            began: Vec::new(),
            broken_off: Vec::new(),
            streamed: Vec::new(),
        }
    }

    fn run_until(&mut self, until: Micros) {
        while self.pair.now < until {
            let due = self.fallback.poll_timeout(self.pair.sender.delivery());
            let due = due.filter(|at| *at > self.pair.now).unwrap_or(until);
            self.pair.run_until(due.min(until).min(self.pair.now + ms(10)));
            self.drive();
        }
    }

    fn drive(&mut self) {
        let now = self.pair.now;
        if self.connection_works {
            self.worked_until = now;
        }
        let connection = Connection { worked_until: self.worked_until };
        match self.fallback.handle_timeout(now, self.pair.sender.delivery(), &connection) {
            Some(FallbackEvent::Began) => self.began.push(now),
            Some(FallbackEvent::BrokenOff) => self.broken_off.push(now),
            None => {}
        }
        let mut frame = Vec::new();
        while self.connection_works {
            let (delivery, answer) = self.pair.sender.parts();
            let sent = self.fallback.poll_transmit(now, delivery, answer, 40, &mut frame);
            let Some(range) = sent else { break };
            self.pair.receiver.handle_datagram(now, &frame).expect("a frame of this answer");
            self.streamed.push(range);
            frame.clear();
        }
    }

    /// A token every 50 ms until `until`, then the end.
    fn generate(&mut self, until: Micros) {
        while self.pair.now < until {
            self.pair.push(&Delta::text(" token"));
            self.run_until(self.pair.now + ms(50));
        }
        self.pair.push(&Delta::Done);
    }
}

#[test]
fn a_network_that_drops_datagrams_gets_every_byte_once_over_the_stream() {
    let mut session = Session::new(LinkConfig { loss: 1.0, ..LinkConfig::clean(20) });
    session.generate(ms(2_000));
    session.run_until(ms(4_000));
    assert!(session.pair.complete);
    assert_eq!(session.began, [ms(600)], "500 ms and the round trip that was assumed");
    let mut end = 0;
    for range in &session.streamed {
        assert_eq!(range.start, end, "neither a gap nor a repetition");
        end = range.end;
    }
    assert_eq!(end, session.pair.sender.log().head());
}

#[test]
fn a_datagram_that_gets_through_ends_the_fallback() {
    let outages = vec![(ms(1_000), ms(4_000))];
    let mut session = Session::new(LinkConfig { outages, ..LinkConfig::clean(20) });
    session.generate(ms(8_000));
    session.run_until(ms(9_000));
    assert!(session.pair.complete);
    let [began] = session.began[..] else { panic!("began {:?}", session.began) };
    let expected = ms(1_950)..ms(2_200); // 1 s and a round trip after the last acknowledgement
    assert!(expected.contains(&began), "{began}");
    assert!(!session.fallback.is_active());
    let streamed: u64 = session.streamed.iter().map(|range| range.end - range.start).sum();
    let head = session.pair.sender.log().head();
    assert!(streamed < head * 2 / 3, "{streamed} of {head} bytes although datagrams are back");
}

#[test]
fn a_dead_connection_is_given_nothing_to_queue() {
    let mut session = Session::new(LinkConfig { loss: 1.0, ..LinkConfig::clean(20) });
    session.connection_works = false;
    session.generate(ms(5_000));
    assert_eq!(session.streamed, []);
    session.connection_works = true;
    session.run_until(ms(6_000));
    assert!(session.pair.complete, "the stream brings all of it once the connection works");
}

#[test]
fn a_path_that_loses_in_bursts_needs_no_fallback() {
    let mut session = Session::new(LinkConfig::bursty(20));
    session.generate(ms(20_000));
    session.run_until(ms(25_000));
    assert!(session.pair.complete);
    assert_eq!(session.began, []);
}

fn dead() -> LinkConfig {
    LinkConfig { loss: 1.0, ..LinkConfig::clean(20) }
}

#[test]
fn a_client_without_datagrams_gets_each_byte_at_once_and_by_numbers_without_gaps() {
    let mut session = Session::new(LinkConfig::clean(20));
    session.pair.sender.set_max_datagram_bytes(0);
    session.generate(ms(2_000));
    session.run_until(ms(3_000));
    assert!(session.pair.complete);
    assert_eq!(session.began, [ms(10)], "at once: the session is driven every 10 ms");
    assert_eq!(session.pair.down.packets, 0);
    let delays =
        session.pair.tokens.iter().map(|token| token.shown.unwrap().since(token.generated));
    assert_eq!(delays.max(), Some(ms(10)));
    assert_eq!(session.pair.sender.state(), SenderState::Finished);
}

#[test]
fn a_probe_is_answered_over_the_stream_where_datagrams_do_not_get_through() {
    let mut session = Session::new(LinkConfig::clean(20));
    session.pair.sender.set_max_datagram_bytes(0);
    session.run_until(ms(9_000)); // the prompt is long, and nothing is there to be sent
    // Probes leave 2 s after the last frame and come by datagram, 20 ms later.
    assert_eq!(session.streamed, [0..0, 0..0, 0..0, 0..0]);
    assert_eq!(session.pair.silent, 0);
}

#[test]
fn a_mute_client_is_broken_off_while_its_connection_lives() {
    let mut session = Session::over([dead(), dead()]);
    session.generate(ms(2_000));
    session.run_until(ms(60_000));
    let [broken_off] = session.broken_off[..] else { panic!("{:?}", session.broken_off) };
    assert_eq!(broken_off, ms(11_000), "10 s without an acknowledgement, and one more");
    assert_eq!(session.pair.sender.state(), SenderState::Suspended, "the answer is kept");
}

#[test]
fn a_dead_connection_is_not_broken_off_until_it_is_back() {
    // The receiver's fourth probe leaves 16 s after the last frame: soon after one outage, and too
    // long after the other.
    for (back_ms, is_late) in [(16_900, false), (20_000, true)] {
        let outages = vec![(ms(1_000), ms(back_ms))];
        let link = LinkConfig { outages, ..LinkConfig::clean(20) };
        let mut session = Session::over([link.clone(), link]);
        session.generate(ms(1_000));
        session.connection_works = false;
        session.run_until(ms(back_ms));
        assert_eq!(session.pair.sender.state(), SenderState::Suspended);
        assert_eq!(session.broken_off, []);
        session.connection_works = true;
        session.run_until(ms(back_ms + 5_000));
        assert_eq!(!session.broken_off.is_empty(), is_late);
        assert_eq!(session.pair.complete, !is_late, "a late acknowledgement continues the answer");
        let soon = ms(back_ms + 1_000)..=ms(back_ms + 2_010);
        assert!(session.broken_off.iter().all(|at| soon.contains(at)), "{:?}", session.broken_off);
    }
}

/// What leaves on the QUIC stream is never repeated, so a reader that is far behind must not be
/// sent more than it has room for (D-7.1, D-9.9); and it learns of the rest though it has all of
/// that.
#[test]
fn a_slow_reader_without_datagrams_loses_nothing() {
    let limits = AssemblerLimits { max_bytes: 32 * 1024, max_ranges: 4 };
    let playout = Playout { buffer: Micros::ZERO, max_tokens_per_s: Some(5) };
    let reader = ReceiverConfig { limits, playout, ..ReceiverConfig::default() };
    let links = [LinkConfig::clean(20), LinkConfig::clean(20)];
    let mut session = Session::read_by(reader, links);
    session.pair.sender.set_max_datagram_bytes(0);
    for _ in 0..100 {
        session.pair.push(&Delta::text("x".repeat(1_000)));
    }
    session.pair.push(&Delta::Done);
    session.run_until(ms(25_000));
    assert!(session.pair.complete, "{} of 101 records", session.pair.shown.len());
    let shown: Vec<Micros> = session.pair.tokens.iter().filter_map(|token| token.shown).collect();
    let gaps = shown.windows(2).map(|pair| pair[1].since(pair[0]));
    assert_eq!(gaps.max(), Some(ms(200)), "its own pace, without a stall");
}
