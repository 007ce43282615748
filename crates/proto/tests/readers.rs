//! Several readers of one log over links of their own that lose, delay and fail: what each shows is
//! a part of what was generated, whole and in order, and the fastest is held by none (S-5.4).

use crate::pair::{Link, LinkConfig, Rng};
use loquent_proto::{
    AnswerLog, Delivery, Delta, Micros, Receiver, ReceiverConfig, ReceiverEvent, SenderConfig,
    SenderState, SentSoFar,
};
use proptest::prelude::*;

const STEP: Micros = Micros::from_ms(5);
const TOKENS: u64 = 400;
const TOKEN_GAP: Micros = Micros::from_ms(25);
/// Small, so that the slow ones fall past it.
const LOG_BYTES: usize = 1500;
/// As much may be unacknowledged by the furthest reader.
const UNACKED_BYTES: u64 = 700;
const MOST_READERS: usize = 6;

/// What has become of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Reading,
    Complete,
    FellBehind,
    Left,
}

struct Reader {
    delivery: Delivery,
    receiver: Receiver,
    channel: u64,
    links: [Link; 2],
    /// Arrivals, down and up.
    flying: [Vec<(Micros, Vec<u8>)>; 2],
    /// The record that it is to show next.
    next: usize,
    fate: Fate,
}

/// A log and its readers.
struct World {
    now: Micros,
    answer: AnswerLog,
    /// Each record and where it ends.
    records: Vec<(u64, Delta)>,
    readers: Vec<Reader>,
    /// What was sent to those who have left a path.
    sent: SentSoFar,
    channels: u64,
    pauses: u64,
    rng: Rng,
}

impl World {
    fn new(seed: u64) -> Self {
        let now = Micros::ZERO;
        let mut world = Self {
            now,
            answer: AnswerLog::new(now, LOG_BYTES),
            records: Vec::new(),
            readers: Vec::new(),
            sent: SentSoFar::default(),
            channels: 0,
            pauses: 0,
            rng: Rng(seed),
        };
        world.push(Delta::Open { meta: "{}".into() });
        world
    }

    fn push(&mut self, delta: Delta) {
        let end = self.answer.push(self.now, &delta).expect("the furthest reader keeps up");
        self.records.push((end, delta));
        for reader in &mut self.readers {
            reader.delivery.note_append(self.now);
        }
    }

    fn delivery(&mut self, offset: u64) -> Option<(u64, Delivery)> {
        self.channels += 1;
        let sent = self.readers.iter().map(|reader| reader.delivery.sent_so_far());
        let sent = sent.fold(self.sent, SentSoFar::or);
        let mut delivery = Delivery::new(self.now, self.channels, SenderConfig::default());
        delivery.continue_after(sent);
        delivery.resume(self.now, &self.answer, self.channels, offset).ok()?;
        Some((self.channels, delivery))
    }

    /// A reader joins at the end of record `next`.
    fn join(&mut self, next: usize, links: [LinkConfig; 2]) {
        let offset = next.checked_sub(1).map_or(0, |at| self.records[at].0);
        let Some((channel, delivery)) = self.delivery(offset) else { return };
        let receiver = Receiver::new(self.now, channel, offset, ReceiverConfig::default());
        let links = links.map(|link| Link::new(link, self.rng.next()));
        let flying = [Vec::new(), Vec::new()];
        let fate = Fate::Reading;
        self.readers.push(Reader { delivery, receiver, channel, links, flying, next, fate });
        self.keep_for_furthest();
    }

    /// A reader goes on over another path, with what it has.
    fn resume(&mut self, at: usize) {
        let offset = self.readers[at].receiver.cumulative();
        let old = self.readers[at].delivery.sent_so_far();
        let Some((channel, delivery)) = self.delivery(offset) else {
            self.readers[at].fate = Fate::FellBehind;
            return;
        };
        self.sent = self.sent.or(old);
        let reader = &mut self.readers[at];
        (reader.channel, reader.delivery) = (channel, delivery);
        reader.receiver.migrate(self.now, channel);
        reader.flying = [Vec::new(), Vec::new()];
        self.keep_for_furthest();
    }

    /// The offset that the furthest of those who read has acknowledged.
    fn furthest(&self) -> Option<u64> {
        let reading = self.readers.iter().filter(|reader| reader.is_reading());
        reading.map(|reader| reader.delivery.cumulative()).max()
    }

    fn keep_for_furthest(&mut self) {
        if let Some(furthest) = self.furthest() {
            let kept = furthest.max(self.answer.log().base());
            self.answer.rewind(kept).expect("acknowledged");
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        for at in 0..self.readers.len() {
            let silent = self.readers[at].step(self.now, &self.answer, &self.records);
            self.keep_for_furthest();
            if silent && self.readers[at].fate == Fate::Reading {
                self.resume(at);
            }
        }
    }

    /// Whether generation goes on.
    fn is_open(&self) -> bool {
        let log = self.answer.log();
        match self.furthest() {
            Some(furthest) => log.head() - furthest < UNACKED_BYTES,
            // Nobody acknowledges anything now.
            None => ((log.head() - log.acked()) as usize) < LOG_BYTES - 32,
        }
    }

    /// Somebody joins, goes on elsewhere, or leaves; never the first reader.
    fn disturb(&mut self) {
        match self.rng.below(3) {
            0 if self.readers.len() < MOST_READERS => {
                let next = self.rng.below(self.records.len() as u64 + 1) as usize;
                let links = [self.any_link(), self.any_link()];
                self.join(next, links);
            }
            kind => {
                let at = self.rng.below(self.readers.len() as u64) as usize;
                if at == 0 || self.readers[at].fate != Fate::Reading {
                    return;
                }
                match kind {
                    1 => self.resume(at),
                    _ => self.readers[at].fate = Fate::Left,
                }
            }
        }
    }

    fn any_link(&mut self) -> LinkConfig {
        let mut link = LinkConfig::clean(5 + self.rng.below(100));
        link.jitter = Micros::from_ms(self.rng.below(40));
        link.loss = self.rng.unit() * 0.3;
        link.duplicate = self.rng.unit() * 0.1;
        link.corrupt = 0.0; // its frames are not checked
        if self.rng.below(3) == 0 {
            let from = self.now + Micros::from_ms(self.rng.below(4_000));
            link.outages.push((from, from + Micros::from_ms(1_000 + self.rng.below(12_000))));
        }
        link
    }

    /// Whether anybody is there, or may come back.
    fn is_abandoned(&self) -> bool {
        self.readers.iter().all(|reader| reader.fate != Fate::Reading)
    }

    /// Generates the answer, and waits until all have it; ends before that if all readers are gone.
    fn generate(&mut self) {
        for token in 0..TOKENS {
            for _ in 0..TOKEN_GAP.0 / STEP.0 {
                self.step();
            }
            let mut waited = 0;
            while !self.is_open() && !self.is_abandoned() {
                (self.pauses, waited) = (self.pauses + 1, waited + 1);
                assert!(waited < 20_000, "generation never goes on");
                self.step();
            }
            if self.is_abandoned() {
                return;
            }
            self.push(Delta::text(format!(" tök{token}")));
            if self.rng.below(12) == 0 {
                self.disturb();
            }
        }
        self.push(Delta::Done);
        for _ in 0..60_000_000 / STEP.0 {
            self.step();
        }
    }
}

impl Reader {
    fn is_reading(&self) -> bool {
        self.fate == Fate::Reading && self.delivery.state() == SenderState::Active
    }

    /// Lets both ends do what is due; whether the receiver wants another path.
    fn step(&mut self, now: Micros, answer: &AnswerLog, records: &[(u64, Delta)]) -> bool {
        if self.fate != Fate::Reading {
            return false;
        }
        if self.delivery.has_fallen_behind(answer) {
            self.fate = Fate::FellBehind;
            return false;
        }
        self.deliver(now, answer);
        self.delivery.handle_timeout(now);
        let mut datagram = Vec::new();
        while self.delivery.poll_transmit(now, answer, &mut datagram).is_some() {
            self.fly(0, now, &mut datagram);
        }
        self.receiver.handle_timeout(now);
        while self.receiver.poll_transmit(now, &mut datagram).is_some() {
            self.fly(1, now, &mut datagram);
        }
        self.show(records)
    }

    fn deliver(&mut self, now: Micros, answer: &AnswerLog) {
        for (way, flying) in self.flying.iter_mut().enumerate() {
            flying.sort_by_key(|(at, _)| *at);
            let due = flying.partition_point(|(at, _)| *at <= now);
            for (_, bytes) in flying.drain(..due) {
                match way {
                    0 => drop(self.receiver.handle_datagram(now, &bytes)),
                    _ => drop(self.delivery.handle_datagram(now, answer, &bytes)),
                }
            }
        }
    }

    fn fly(&mut self, way: usize, now: Micros, datagram: &mut Vec<u8>) {
        for (at, _) in self.links[way].carry(now, datagram.len()) {
            self.flying[way].push((at, datagram.clone()));
        }
        datagram.clear();
    }

    fn show(&mut self, records: &[(u64, Delta)]) -> bool {
        let mut silent = false;
        while let Some(event) = self.receiver.poll_event() {
            match event {
                ReceiverEvent::Delta { offset, delta } => {
                    assert_eq!(records.get(self.next), Some(&(offset, delta)), "the next record");
                    self.next += 1;
                }
                ReceiverEvent::Complete => {
                    assert_eq!(self.next, records.len(), "nothing is missing");
                    self.fate = Fate::Complete;
                }
                ReceiverEvent::Failed(error) => panic!("{error:?}"),
                ReceiverEvent::Silent => silent = true,
            }
        }
        silent
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_any_reader_shows_is_a_prefix_of_what_was_generated(seed in any::<u64>()) {
        let mut world = World::new(seed);
        let clean = [LinkConfig::clean(20), LinkConfig::clean(20)];
        world.join(0, clean);
        world.generate();
        let fates: Vec<_> = world.readers.iter().map(|reader| reader.fate).collect();
        prop_assert_eq!(fates[0], Fate::Complete, "{:?}", &fates);
        prop_assert_eq!(world.pauses, 0, "a slow reader held the first one: {:?}", &fates);
        prop_assert!(!fates.contains(&Fate::Reading), "{:?}", &fates);
    }

    #[test]
    fn without_a_fast_reader_generation_waits_and_nobody_misses_anything(seed in any::<u64>()) {
        let mut world = World::new(seed);
        let links = [world.any_link(), world.any_link()];
        world.join(0, links);
        world.generate();
        let fates: Vec<_> = world.readers.iter().map(|reader| reader.fate).collect();
        prop_assert!(!fates.contains(&Fate::Reading), "{:?}", &fates);
        // A reader that was in front may leave between the last token and its arrival.
        let was_read = fates.contains(&Fate::Complete) || fates.contains(&Fate::Left);
        prop_assert!(was_read || !world.answer.log().is_ended(), "{:?}", &fates);
        let is_whole = world.answer.log().is_ended() || !fates.contains(&Fate::Complete);
        prop_assert!(is_whole, "complete before the end: {:?}", &fates);
    }
}
