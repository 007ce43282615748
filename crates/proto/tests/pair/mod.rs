//! A sender and a receiver, stepped through virtual time over links that lose, delay,
//! reorder, duplicate and corrupt, under one seed.

#![allow(dead_code)] // each test file uses its part

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use loquent_proto::{
    Delta, Micros, Receiver, ReceiverConfig, ReceiverEvent, Sender, SenderConfig, SenderEvent,
};

/// SplitMix64: small, seeded, good enough to draw losses.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Two-state loss: `slot`s that are good or lossy, with these chances to stay so.
#[derive(Clone, Copy)]
pub struct Markov {
    pub stay_good: f64,
    pub stay_lossy: f64,
    pub loss: f64,
}

impl Markov {
    fn states(&self, rng: &mut Rng) -> Vec<bool> {
        let leave = [1.0 - self.stay_good, 1.0 - self.stay_lossy];
        let mut lossy = rng.unit() < leave[0] / (leave[0] + leave[1]);
        let draw = |_| {
            lossy ^= rng.unit() < leave[usize::from(lossy)];
            lossy
        };
        (0..4_096).map(draw).collect()
    }
}

/// The paper's default channel (measuring.md's reading of it): 15 % loss in bursts.
pub const DEFAULT_CHANNEL: Markov = Markov { stay_good: 0.9, stay_lossy: 0.5, loss: 0.9 };

#[derive(Clone)]
pub struct LinkConfig {
    pub delay: Micros,
    pub jitter: Micros,
    pub markov: Option<Markov>,
    pub loss: f64,
    pub duplicate: f64,
    pub corrupt: f64,
    /// No packet arrives between these times.
    pub outages: Vec<(Micros, Micros)>,
    pub rate_bytes_per_s: Option<u64>,
    pub queue_bytes: u64,
}

impl LinkConfig {
    pub fn clean(delay_ms: u64) -> Self {
        Self {
            delay: Micros::from_ms(delay_ms),
            jitter: Micros::ZERO,
            markov: None,
            loss: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            outages: Vec::new(),
            rate_bytes_per_s: None,
            queue_bytes: 64_000,
        }
    }

    pub fn bursty(delay_ms: u64) -> Self {
        Self { markov: Some(DEFAULT_CHANNEL), ..Self::clean(delay_ms) }
    }
}

pub const OVERHEAD_BYTES: u64 = 60;
const SLOT_MICROS: u64 = 100_000;

/// One direction of a path.
pub struct Link {
    config: LinkConfig,
    rng: Rng,
    states: Vec<bool>,
    /// Where the first slot begins: tokens and slots are not in step.
    phase: Micros,
    busy_until: Micros,
    pub packets: u64,
    pub wire_bytes: u64,
}

impl Link {
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        let states = config.markov.map_or(Vec::new(), |markov| markov.states(&mut Rng(!seed)));
        let mut rng = Rng(seed);
        let phase = Micros(rng.below(SLOT_MICROS));
        let busy_until = Micros::ZERO;
        Self { config, rng, states, phase, busy_until, packets: 0, wire_bytes: 0 }
    }

    /// Whether the slot of `at` is lossy, whatever is sent in it.
    pub fn is_lossy(&self, at: Micros) -> bool {
        let slot = ((at.0 + self.phase.0) / SLOT_MICROS) as usize % self.states.len().max(1);
        self.states.get(slot).copied().unwrap_or(false)
    }

    /// Whether a packet that leaves the queue at `at` is lost.
    fn loses(&mut self, at: Micros) -> bool {
        let lossy = self.config.markov.filter(|_| self.is_lossy(at));
        let chance = lossy.map_or(self.config.loss, |markov| markov.loss);
        let outage = self.config.outages.iter().any(|(from, to)| at >= *from && at < *to);
        self.rng.unit() < chance || outage
    }

    /// When copies of a packet sent at `at` arrive, each intact or corrupted.
    pub fn carry(&mut self, at: Micros, len: usize) -> Vec<(Micros, bool)> {
        self.packets += 1;
        let wire = len as u64 + OVERHEAD_BYTES;
        self.wire_bytes += wire;
        let mut leaves = at;
        if let Some(rate) = self.config.rate_bytes_per_s {
            let start = self.busy_until.max(at);
            if start.since(at).0 * rate / 1_000_000 > self.config.queue_bytes {
                return Vec::new();
            }
            leaves = start + Micros(wire * 1_000_000 / rate);
            self.busy_until = leaves;
        }
        if self.loses(leaves) {
            return Vec::new();
        }
        let copies = 1 + u64::from(self.rng.unit() < self.config.duplicate);
        (0..copies)
            .map(|_| {
                let jitter = Micros(self.rng.below(self.config.jitter.0 + 1));
                (leaves + self.config.delay + jitter, self.rng.unit() < self.config.corrupt)
            })
            .collect()
    }
}

/// One datagram under way: arrival, order, path, direction, bytes.
type Flying = Reverse<(Micros, u64, u64, bool, Vec<u8>)>;

/// What a session's token was: generated when, shown when.
#[derive(Clone, Copy)]
pub struct Token {
    pub generated: Micros,
    pub shown: Option<Micros>,
}

pub struct Pair {
    pub now: Micros,
    pub sender: Sender,
    pub receiver: Receiver,
    pub down: Link,
    pub up: Link,
    pub tokens: Vec<Token>,
    pub shown: Vec<Delta>,
    pub complete: bool,
    pub failed: bool,
    pub silent: u32,
    pub sender_events: Vec<SenderEvent>,
    /// Sizes and times of packets without new text, for the bucket's checker.
    pub spare: Vec<(Micros, u64)>,
    path: u64,
    flying: BinaryHeap<Flying>,
    sequence: u64,
    rng: Rng,
}

impl Pair {
    pub fn new(
        sender: SenderConfig,
        receiver: ReceiverConfig,
        links: [LinkConfig; 2],
        seed: u64,
    ) -> Self {
        let mut rng = Rng(seed);
        let [down, up] = links;
        let (down_seed, up_seed) = (rng.next(), rng.next());
        Self {
            now: Micros::ZERO,
            sender: Sender::new(Micros::ZERO, 1, sender),
            receiver: Receiver::new(Micros::ZERO, 1, 0, receiver),
            down: Link::new(down, down_seed),
            up: Link::new(up, up_seed),
            tokens: Vec::new(),
            shown: Vec::new(),
            complete: false,
            failed: false,
            silent: 0,
            sender_events: Vec::new(),
            spare: Vec::new(),
            path: 1,
            flying: BinaryHeap::new(),
            sequence: 0,
            rng,
        }
    }

    /// Appends a delta now.
    pub fn push(&mut self, delta: &Delta) {
        for _ in 0..delta.tokens() {
            self.tokens.push(Token { generated: self.now, shown: None });
        }
        self.sender.push(self.now, delta).expect("room in the log");
        self.drive();
    }

    /// Runs until `until`, or until nothing is left to happen.
    pub fn run_until(&mut self, until: Micros) {
        let mut steps_at_now = 0;
        self.drive();
        while let Some(next) = self.next_time().filter(|next| *next <= until) {
            steps_at_now = if next > self.now { 0 } else { steps_at_now + 1 };
            assert!(steps_at_now < 10_000, "time stands still at {}", self.now);
            self.now = self.now.max(next);
            self.deliver();
            self.drive();
        }
        self.now = self.now.max(until);
    }

    fn next_time(&self) -> Option<Micros> {
        let arrival = self.flying.peek().map(|Reverse((at, ..))| *at);
        let timers = [self.sender.poll_timeout(), self.receiver.poll_timeout()];
        timers.into_iter().chain([arrival]).flatten().min()
    }

    fn deliver(&mut self) {
        while self.flying.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Some(Reverse((_, _, path, down, bytes))) = self.flying.pop() else {
                return;
            };
            if path != self.path {
                continue; // its connection is gone
            }
            // Corrupted datagrams are refused; that is no reason to stop.
            let _ = match down {
                true => self.receiver.handle_datagram(self.now, &bytes),
                false => self.sender.handle_datagram(self.now, &bytes),
            };
        }
    }

    fn drive(&mut self) {
        let mut datagram = Vec::new();
        self.sender.handle_timeout(self.now);
        while let Some(sent) = self.sender.poll_transmit(self.now, &mut datagram) {
            if !sent.new_text {
                self.spare.push((self.now, sent.len as u64 + OVERHEAD_BYTES));
            }
            self.fly(true, &datagram);
            datagram.clear();
        }
        self.sender_events.extend(std::iter::from_fn(|| self.sender.poll_event()));
        self.receiver.handle_timeout(self.now);
        while let Some(event) = self.receiver.poll_event() {
            self.note(event);
        }
        while self.receiver.poll_transmit(self.now, &mut datagram).is_some() {
            self.fly(false, &datagram);
            datagram.clear();
        }
    }

    fn fly(&mut self, down: bool, datagram: &[u8]) {
        let link = if down { &mut self.down } else { &mut self.up };
        for (at, corrupted) in link.carry(self.now, datagram.len()) {
            let mut bytes = datagram.to_vec();
            if corrupted {
                let i = self.rng.below(bytes.len() as u64) as usize;
                bytes[i] ^= 1 << self.rng.below(8);
            }
            self.sequence += 1;
            self.flying.push(Reverse((at, self.sequence, self.path, down, bytes)));
        }
    }

    fn note(&mut self, event: ReceiverEvent) {
        match event {
            ReceiverEvent::Delta { delta, .. } => {
                let first = self.tokens.iter().position(|t| t.shown.is_none());
                let first = first.unwrap_or(self.tokens.len());
                for token in self.tokens.iter_mut().skip(first).take(delta.tokens() as usize) {
                    token.shown = Some(self.now);
                }
                self.shown.push(delta);
            }
            ReceiverEvent::Complete => self.complete = true,
            ReceiverEvent::Failed(_) => self.failed = true,
            ReceiverEvent::Silent => self.silent += 1,
        }
    }

    /// The receiver moves to a new connection, keeping what it has; the request to resume
    /// arrives at once.
    pub fn migrate(&mut self) {
        self.path += 1;
        self.receiver.migrate(self.now, self.path);
        self.sender.resume(self.now, self.path, self.receiver.cumulative()).expect("in the log");
        self.drive();
    }

    /// The receiver is restarted and knows nothing at all.
    pub fn reload(&mut self, config: ReceiverConfig) {
        self.restart_at(0, config);
    }

    /// The receiver is restarted and knows only what was shown.
    pub fn restart(&mut self, config: ReceiverConfig) {
        self.restart_at(self.receiver.shown(), config);
    }

    /// A new receiver goes on from `offset` on a new connection.
    pub fn restart_at(&mut self, offset: u64, config: ReceiverConfig) {
        self.path += 1;
        self.receiver = Receiver::new(self.now, self.path, offset, config);
        self.sender.resume(self.now, self.path, offset).expect("in the log");
        self.drive();
    }
}

/// `full`: gaps between shown tokens that exceed 200 ms, as a share of the session; the
/// second figure counts only what exceeds.
pub fn stall_ratio(tokens: &[Token], rtt: Micros) -> (f64, f64) {
    let shown: Vec<u64> = tokens.iter().filter_map(|t| Some(t.shown?.0)).collect();
    let span = shown.last().unwrap() - (tokens[0].generated.0 + rtt.0 / 2);
    let gaps = shown.windows(2).map(|w| w[1] - w[0]).filter(|g| *g > 200_000);
    let (full, excess) = gaps.fold((0, 0), |(f, e), g| (f + g, e + g - 200_000));
    (full as f64 / span as f64, excess as f64 / span as f64)
}
