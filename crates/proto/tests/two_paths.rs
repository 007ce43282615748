//! One reader of an answer over two links that lose, delay and fail: what it shows is what was
//! generated, byte for byte, and a link that goes takes nothing with it.

use crate::pair::{Link, LinkConfig, Rng};
use loquent_proto::{
    AnswerLog, Delivery, Delta, MAX_PATHS, Micros, PathChoice, PathMode, Receiver, ReceiverConfig,
    ReceiverEvent, SenderConfig, SentSoFar,
};
use proptest::prelude::*;

const STEP: Micros = Micros::from_ms(2);
const TOKENS: u64 = 200;
const TOKEN_GAP: Micros = Micros::from_ms(50);
/// The text comes between these times.
const BEGIN: Micros = Micros::ZERO;
const END: Micros = Micros::from_ms(TOKENS * TOKEN_GAP.as_ms());
/// A pause that a reader notices (the paper, §2.2).
const STALL: Micros = Micros::from_ms(200);
/// A lost path is asked for again after so long.
const RETRY: Micros = Micros::from_ms(400);

type LinkPair = [LinkConfig; 2];

/// Path of one network: a reader at the sender, and the links to and from it.
struct Lane {
    /// `None`: the path was lost.
    delivery: Option<(u64, Delivery)>,
    links: [Link; 2],
    /// Arrivals, down and up.
    flying: [Vec<(Micros, Vec<u8>)>; 2],
    retry_at: Micros,
}

struct World {
    now: Micros,
    answer: AnswerLog,
    records: Vec<(u64, Delta)>,
    lanes: [Lane; MAX_PATHS],
    receiver: Receiver,
    choice: PathChoice,
    sent: SentSoFar,
    sent_end: u64,
    channels: u64,
    shown: usize,
    last_text: Micros,
    longest_stall: Micros,
    /// Time in pauses that a reader notices.
    stalled: Micros,
    complete: bool,
}

impl World {
    fn new(mode: PathMode, links: [LinkPair; MAX_PATHS], seed: u64) -> Self {
        let mut rng = Rng(seed);
        let lanes = links.map(|links| Lane {
            delivery: None,
            links: links.map(|link| Link::new(link, rng.next())),
            flying: [Vec::new(), Vec::new()],
            retry_at: BEGIN,
        });
        let config = ReceiverConfig::with_another_path();
        let mut world = Self {
            now: BEGIN,
            answer: AnswerLog::new(BEGIN, 256 << 10),
            records: Vec::new(),
            lanes,
            receiver: Receiver::new(BEGIN, 0, 0, config),
            choice: PathChoice::new(BEGIN, mode, 0),
            sent: SentSoFar::default(),
            sent_end: 0,
            channels: 0,
            shown: 0,
            last_text: BEGIN,
            longest_stall: Micros::ZERO,
            stalled: Micros::ZERO,
            complete: false,
        };
        // The lanes bring paths of their own.
        world.receiver.drop_path(0);
        world.push(Delta::Open { meta: "{}".into() });
        world
    }

    fn push(&mut self, delta: Delta) {
        let end = self.answer.push(self.now, &delta).expect("room in the log");
        self.records.push((end, delta));
        for (_, delivery) in self.lanes.iter_mut().filter_map(|lane| lane.delivery.as_mut()) {
            delivery.note_append(self.now);
        }
    }

    /// Asks for the answer over a lane, from what the receiver has; the request arrives at once.
    fn attach(&mut self, slot: usize) {
        self.channels += 1;
        let sent =
            self.lanes.iter().filter_map(|lane| Some(lane.delivery.as_ref()?.1.sent_so_far()));
        let sent = sent.fold(self.sent, SentSoFar::or);
        let mut delivery = Delivery::new(self.now, self.channels, SenderConfig::default());
        delivery.continue_after(sent);
        let offset = self.receiver.cumulative();
        delivery.resume(self.now, &self.answer, self.channels, offset).expect("in the log");
        self.receiver.add_path(self.now, slot, self.channels);
        self.choice.add_path(self.now, slot);
        self.lanes[slot].delivery = Some((self.channels, delivery));
    }

    fn detach(&mut self, slot: usize) {
        let lane = &mut self.lanes[slot];
        if let Some((_, delivery)) = lane.delivery.take() {
            self.sent = self.sent.or(delivery.sent_so_far());
        }
        lane.flying = [Vec::new(), Vec::new()];
        lane.retry_at = self.now + RETRY;
        self.receiver.drop_path(slot);
        self.choice.drop_path(self.now, slot);
    }

    fn step(&mut self) {
        self.now += STEP;
        for slot in 0..MAX_PATHS {
            if self.lanes[slot].delivery.is_none() && self.lanes[slot].retry_at <= self.now {
                self.attach(slot);
            }
            self.serve(slot);
        }
        self.receiver.handle_timeout(self.now);
        self.choice.handle_timeout(self.now);
        for slot in 0..MAX_PATHS {
            self.receiver.set_quiet(self.now, slot, self.choice.is_quiet(slot));
            let mut frame = Vec::new();
            while self.receiver.poll_transmit_on(self.now, slot, &mut frame).is_some() {
                self.lanes[slot].fly(1, self.now, &mut frame);
            }
        }
        self.show();
        for slot in 0..MAX_PATHS {
            if self.receiver.take_silence(slot) {
                self.detach(slot);
            }
        }
    }

    /// Lets the sender's reader of a lane do what is due, and both ends take what arrives.
    fn serve(&mut self, slot: usize) {
        let (now, answer) = (self.now, &self.answer);
        let lane = &mut self.lanes[slot];
        let [down, up] = [0, 1].map(|way| lane.arrivals(way, now));
        for bytes in down {
            let before = self.receiver.largest_packet(slot);
            self.receiver.handle_datagram_on(now, slot, &bytes).expect("of this path");
            let packet = self.receiver.largest_packet(slot);
            if let Some(packet) = packet.filter(|_| packet != before) {
                self.choice.handle_frame(now, slot, packet);
            }
        }
        let Some((_, delivery)) = &mut lane.delivery else { return };
        for bytes in up {
            delivery.note_sent_elsewhere(self.sent_end);
            delivery.handle_datagram(now, answer, &bytes).expect("what the path allows");
        }
        delivery.handle_timeout(now);
        let mut frames = Vec::new();
        let mut frame = Vec::new();
        while delivery.poll_transmit(now, answer, &mut frame).is_some() {
            frames.push(std::mem::take(&mut frame));
        }
        self.sent_end = self.sent_end.max(delivery.sent_end());
        frames.iter_mut().for_each(|frame| lane.fly(0, now, frame));
    }

    fn show(&mut self) {
        while let Some(event) = self.receiver.poll_event() {
            match event {
                ReceiverEvent::Delta { offset, delta } => {
                    let next = self.records.get(self.shown).cloned();
                    assert_eq!(Some((offset, delta)), next, "the next record, once");
                    self.shown += 1;
                    let pause = self.now.since(self.last_text);
                    self.longest_stall = self.longest_stall.max(pause);
                    self.stalled += if pause > STALL { pause } else { Micros::ZERO };
                    self.last_text = self.now;
                }
                ReceiverEvent::Complete => self.complete = true,
                ReceiverEvent::Failed(error) => panic!("{error:?}"),
                ReceiverEvent::Silent => {}
            }
        }
    }

    /// Generates the answer and waits for its end.
    fn run(mut self) -> Self {
        for token in 0..TOKENS {
            (0..TOKEN_GAP.0 / STEP.0).for_each(|_| self.step());
            self.push(Delta::text(format!(" tök{token}")));
        }
        self.push(Delta::Done);
        for _ in 0..30_000_000 / STEP.0 {
            self.step();
            if self.complete {
                break;
            }
        }
        assert!(self.complete, "{} of {} records", self.shown, self.records.len());
        assert_eq!(self.shown, self.records.len());
        self
    }

    fn packets(&self, slot: usize) -> u64 {
        self.lanes[slot].links[0].packets
    }
}

impl Lane {
    fn arrivals(&mut self, way: usize, now: Micros) -> Vec<Vec<u8>> {
        let flying = &mut self.flying[way];
        flying.sort_by_key(|(at, _)| *at);
        let due = flying.partition_point(|(at, _)| *at <= now);
        flying.drain(..due).map(|(_, bytes)| bytes).collect()
    }

    fn fly(&mut self, way: usize, now: Micros, frame: &mut Vec<u8>) {
        for (at, _) in self.links[way].carry(now, frame.len()) {
            self.flying[way].push((at, frame.clone()));
        }
        frame.clear();
    }
}

/// Links to and from one network, dark at the same times.
fn network(delay_ms: u64, loss: f64, outages: &[(u64, u64)]) -> LinkPair {
    let mut link = LinkConfig::clean(delay_ms);
    let ms = |(from, to): &(u64, u64)| (Micros::from_ms(*from), Micros::from_ms(*to));
    (link.loss, link.outages) = (loss, outages.iter().map(ms).collect());
    [link.clone(), link]
}

/// A network that comes and goes.
fn any_network(rng: &mut Rng) -> LinkPair {
    let (mut at, mut outages) = (rng.below(3_000), Vec::new());
    while at < END.as_ms() {
        let until = at + 50 + rng.below(6_000);
        outages.push((at, until));
        at = until + 100 + rng.below(4_000);
    }
    let (delay_ms, loss) = (5 + rng.below(100), rng.unit() * 0.4);
    let mut links = network(delay_ms, loss, &outages);
    for link in &mut links {
        link.jitter = Micros::from_ms(rng.below(30));
        link.duplicate = rng.unit() * 0.1;
    }
    links
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn either_network_may_go_at_any_time(seed in any::<u64>(), redundant in any::<bool>()) {
        let mut rng = Rng(seed);
        let links = [any_network(&mut rng), any_network(&mut rng)];
        let mode = if redundant { PathMode::Redundant } else { PathMode::Backup };
        World::new(mode, links, rng.next()).run();
    }
}

#[test]
fn a_network_that_goes_costs_no_stall() {
    // Up to 60 ms: a packet every 50 ms, two of which are awaited, then a round trip.
    for mode in [PathMode::Backup, PathMode::Redundant] {
        for seed in 0..20 {
            let walk = network(15, 0.0, &[(3_000, 6_000)]);
            let world = World::new(mode, [walk, network(30, 0.0, &[])], seed).run();
            let stall = world.longest_stall;
            assert!(stall < Micros::from_ms(200), "{mode:?}, seed {seed}: {stall}");
        }
    }
}

#[test]
fn two_bad_networks_stall_far_less_than_the_better_one() {
    let bad = |delay_ms| [LinkConfig::bursty(delay_ms), LinkConfig::bursty(delay_ms)];
    let sum = |mode, links: &dyn Fn() -> [LinkPair; 2]| -> u64 {
        let worlds = (0..20).map(|seed| World::new(mode, links(), seed).run());
        worlds.map(|world| world.stalled.as_ms()).sum()
    };
    let alone = sum(PathMode::Backup, &|| [bad(30), network(40, 1.0, &[])]);
    for mode in [PathMode::Backup, PathMode::Redundant] {
        let both = sum(mode, &|| [bad(30), bad(40)]);
        println!("{mode:?}: {both} ms stalled with both networks, {alone} ms with one");
        assert!(both * 10 < alone * 3, "{mode:?}: {both} ms with both, {alone} ms with one");
    }
}

#[test]
fn the_spare_network_costs_little_while_the_other_one_is_fine() {
    let fine = || [network(20, 0.0, &[]), network(20, 0.0, &[])];
    let backup = World::new(PathMode::Backup, fine(), 1).run();
    let (first, spare) = (backup.packets(0), backup.packets(1));
    // Both carry the first second; then one packet a second.
    assert!(spare * 4 < first, "{spare} packets beside {first}");
    let redundant = World::new(PathMode::Redundant, fine(), 1).run();
    assert!(redundant.packets(1) * 2 > redundant.packets(0), "both carry it");
}

#[test]
fn what_came_over_one_network_is_repeated_over_neither() {
    // Nothing comes down the first one, and its reader acknowledges what came down the second.
    let [mut down, up] = network(20, 0.0, &[]);
    down.loss = 1.0;
    let deaf = World::new(PathMode::Redundant, [[down, up], network(20, 0.0, &[])], 1).run();
    let useless = deaf.packets(0);
    assert!(useless < 3 * TOKENS, "{useless} packets for {TOKENS} tokens");
    assert!(deaf.longest_stall < Micros::from_ms(150), "{}", deaf.longest_stall);
}
