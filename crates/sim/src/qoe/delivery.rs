//! One answer on its way: both ends of a delivery scheme and a link, fed token by token.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::channel::Direction;
use crate::link::LinkState;
use crate::scheme::{Ends, ReceiverEnd, SenderEnd};

/// Text of every token: five bytes, as in English.
const TOKEN: &[u8] = b" text";

/// A packet in flight: its time of arrival, its number in order of sending, whether it goes to the
/// sender, and its bytes.
type PacketInFlight = (u64, u64, bool, Vec<u8>);

/// An answer's delivery. Times are in µs since the server received the request.
pub struct Delivery<'a> {
    now_us: u64,
    /// Packets in flight, the next to arrive first.
    packets: BinaryHeap<Reverse<PacketInFlight>>,
    posted: u64,
    path: LinkState<'a>,
    sender: Box<dyn SenderEnd>,
    receiver: Box<dyn ReceiverEnd>,
    arrivals_us: Vec<u64>,
}

impl<'a> Delivery<'a> {
    /// Creates the delivery of an answer without tokens.
    pub fn new(path: LinkState<'a>, (sender, receiver): Ends) -> Self {
        let (packets, arrivals_us) = (BinaryHeap::new(), Vec::new());
        Self { now_us: 0, packets, posted: 0, path, sender, receiver, arrivals_us }
    }

    /// Returns the times at which the tokens could be read, in order.
    pub fn arrivals_us(&self) -> &[u64] {
        &self.arrivals_us
    }

    /// Returns the number of acknowledged tokens, 0 if the server cannot see any.
    pub fn acked_tokens(&self) -> usize {
        self.sender.acked_tokens().unwrap_or(0)
    }

    /// Sends the next token; `last` marks the end of the answer.
    pub fn push_token(&mut self, now_us: u64, last: bool) {
        self.now_us = self.now_us.max(now_us);
        self.sender.handle_token(self.now_us, TOKEN, last);
        self.transmit();
    }

    /// Returns the time of the next event; `None` if nothing will happen without a token.
    pub fn next_us(&self) -> Option<u64> {
        let packet_us = self.packets.peek().map(|Reverse(packet)| packet.0);
        let due = [packet_us, self.sender.poll_timeout(), self.receiver.poll_timeout()];
        due.into_iter().flatten().min()
    }

    /// Handles everything that is due at `at_us`: arrivals, then timers.
    pub fn step(&mut self, at_us: u64) {
        // A timer may be overdue, but time never runs backwards.
        self.now_us = self.now_us.max(at_us);
        let now_us = self.now_us;
        while self.packets.peek().is_some_and(|Reverse(packet)| packet.0 <= now_us) {
            let Reverse((_, _, to_sender, packet)) = self.packets.pop().expect("looked at above");
            match to_sender {
                true => self.sender.handle_packet(now_us, &packet),
                false => self.receiver.handle_packet(now_us, &packet),
            }
        }
        let is_due = |at_us: Option<u64>| at_us.is_some_and(|at_us| at_us <= now_us);
        if is_due(self.sender.poll_timeout()) {
            self.sender.handle_timeout(now_us);
        }
        if is_due(self.receiver.poll_timeout()) {
            self.receiver.handle_timeout(now_us);
        }
        self.arrivals_us.resize(self.receiver.arrived(), now_us);
        self.transmit();
    }

    fn transmit(&mut self) {
        let mut packet = Vec::new();
        while self.sender.poll_transmit(self.now_us, &mut packet) {
            self.post(Direction::Down, std::mem::take(&mut packet));
        }
        while self.receiver.poll_transmit(self.now_us, &mut packet) {
            self.post(Direction::Up, std::mem::take(&mut packet));
        }
    }

    fn post(&mut self, direction: Direction, packet: Vec<u8>) {
        let fate = self.path.send(self.now_us, packet.len(), direction);
        let to_sender = direction == Direction::Up;
        for arrival in fate.arrivals.into_iter().flatten() {
            // The running number keeps packets of the same instant in the order of sending.
            self.posted += 1;
            self.packets.push(Reverse((arrival.at_us, self.posted, to_sender, packet.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{Channel, LossSchedule};
    use crate::link::Link;
    use crate::reader::ReaderBehaviour;
    use crate::scheme::{Scheme, Tuning};

    const LENGTH_US: u64 = 60_000_000;

    /// Arrivals of 50 tokens, one each 100 ms, and the times and numbers of acknowledged ones.
    fn deliver(scheme: &Scheme, channel: Channel) -> (Vec<u64>, Vec<(u64, usize)>) {
        let link = Link::new(80.0, channel.clone());
        let schedule = LossSchedule::new(&channel, 3, LENGTH_US);
        let ends = scheme.ends(&link, &ReaderBehaviour::default()).expect("it is simulated");
        let mut delivery = Delivery::new(LinkState::new(&link, &schedule, 3, LENGTH_US), ends);
        let mut acked = Vec::new();
        for token in 0..=50u64 {
            let until_us = if token < 50 { token * 100_000 } else { LENGTH_US };
            while let Some(at_us) = delivery.next_us().filter(|&at_us| at_us <= until_us) {
                delivery.step(at_us);
                acked.push((delivery.now_us, delivery.acked_tokens()));
            }
            if token < 50 {
                delivery.push_token(until_us, token == 49);
            }
        }
        (delivery.arrivals_us().to_vec(), acked)
    }

    #[test]
    fn tokens_take_half_a_round_trip_and_their_acknowledgements_a_whole_one() {
        let scheme = Scheme::Loquent { tuning: Tuning::default(), congestion: None };
        let (arrivals_us, acked) = deliver(&scheme, Channel::Clean);
        let sent_us: Vec<u64> = (0..50).map(|token| token * 100_000 + 40_000).collect();
        assert_eq!(arrivals_us, sent_us);
        let first = acked.iter().find(|(_, tokens)| *tokens == 1).expect("it is acknowledged");
        assert!((80_000..=120_000).contains(&first.0), "{first:?}");
        assert_eq!(acked.last().map(|last| last.1), Some(50));
    }

    #[test]
    fn every_token_arrives_over_a_lossy_link_but_later() {
        let lossy =
            Channel::Bursts { good_ms: 500.0, burst_ms: 200.0, loss: 0.9, residual_loss: 0.0 };
        for scheme in [Scheme::TCP, Scheme::Loquent { tuning: Tuning::default(), congestion: None }]
        {
            let (arrivals_us, _) = deliver(&scheme, lossy.clone());
            assert_eq!(arrivals_us.len(), 50, "{scheme:?}");
            assert!(arrivals_us.is_sorted());
            let late = |(token, &at_us): (usize, &u64)| at_us > token as u64 * 100_000 + 40_000;
            assert!(arrivals_us.iter().enumerate().any(late), "{scheme:?}");
        }
        assert!(deliver(&Scheme::TCP, lossy).1.iter().all(|(_, tokens)| *tokens == 0));
    }
}
