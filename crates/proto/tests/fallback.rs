//! Rule S-4.4 in virtual time: when the log also leaves over the QUIC stream, and when not.

mod pair;

use std::ops::Range;

use loquent_proto::fallback::{LowerLayer, ReliableFallback};
use loquent_proto::{Delta, Micros, ReceiverConfig, SenderConfig};
use pair::{LinkConfig, Pair};

fn ms(ms: u64) -> Micros {
    Micros::from_ms(ms)
}

/// A connection that acknowledges something every 20 ms while it works.
struct Connection {
    works: bool,
    now: Micros,
}

impl LowerLayer for Connection {
    fn takes_datagrams(&self) -> bool {
        true
    }
    fn acks(&self) -> u64 {
        if self.works { self.now.as_ms() / 20 } else { 0 }
    }
}

/// A session with a QUIC stream beside its datagrams.
struct Session {
    pair: Pair,
    fallback: ReliableFallback,
    connection_works: bool,
    began: Vec<Micros>,
    streamed: Vec<Range<u64>>,
}

impl Session {
    fn new(down: LinkConfig) -> Self {
        let links = [down, LinkConfig::clean(20)];
        let pair = Pair::new(SenderConfig::default(), ReceiverConfig::default(), links, 1);
        let fallback = ReliableFallback::default();
        Self { pair, fallback, connection_works: true, began: Vec::new(), streamed: Vec::new() }
    }

    fn run_until(&mut self, until: Micros) {
        while self.pair.now < until {
            let due = self.fallback.poll_timeout(&self.pair.sender);
            let due = due.filter(|at| *at > self.pair.now).unwrap_or(until);
            self.pair.run_until(due.min(until).min(self.pair.now + ms(10)));
            self.drive();
        }
    }

    fn drive(&mut self) {
        let now = self.pair.now;
        let connection = Connection { works: self.connection_works, now };
        if self.fallback.handle_timeout(now, &self.pair.sender, &connection) {
            self.began.push(now);
        }
        let mut frame = Vec::new();
        while let Some(range) = self.fallback.poll_transmit(&mut self.pair.sender, 40, &mut frame) {
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
