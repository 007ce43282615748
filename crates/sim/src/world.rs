//! One session in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::channel::{Lane, Weather};
use crate::generate::{Generator, token_text};
use crate::link::{Link, Path};
use crate::scheme::{Progress, Receiver, Scheme, Sender};

/// A session runs at most this long after its last token. Every sender has to stop before.
pub const AFTERMATH_US: u64 = 120_000_000;

/// What a session needs beside a scheme.
#[derive(Debug, Clone)]
pub struct Setting<'a> {
    /// The link.
    pub link: &'a Link,
    /// The rhythm of the tokens.
    pub generator: &'a Generator,
    /// How long tokens are generated, in µs.
    pub length_us: u64,
    /// Decides weather, mishaps, rhythm and text. The scheme has no part in it.
    pub seed: u64,
}

/// The course of one session.
#[derive(Debug, Clone, PartialEq)]
pub struct Course {
    /// Generation time of each token in µs.
    pub generated_us: Vec<u64>,
    /// Time from which each token could be shown in order, in µs; shorter if some never could.
    pub ready_us: Vec<u64>,
    /// Bytes sent to the client, 60 for each packet's headers included.
    pub wire_bytes: u64,
    /// Bytes of acknowledgements, headers included.
    pub ack_bytes: u64,
    /// Packets sent to the client.
    pub packets: u64,
    /// Bytes of text sent, copies included, over the bytes of the answer, minus 1.
    pub redundancy: f64,
    /// When the last event happened, in µs.
    pub ended_us: u64,
    /// How the sender ended.
    pub progress: Progress,
    /// True if the receiver saw the end of the answer.
    pub finished: bool,
    /// True if everything shown is a prefix of what was generated.
    pub prefix_holds: bool,
}

/// Runs one session of `scheme`.
pub fn run(scheme: &Scheme, setting: &Setting<'_>) -> Course {
    let rtt_us = (setting.link.rtt_ms * 1e3) as u64;
    let horizon_us = setting.length_us + AFTERMATH_US;
    let weather = Weather::new(&setting.link.channel, setting.seed, horizon_us);
    let generated_us = setting.generator.times_us(setting.seed, setting.length_us);
    match scheme.ends(rtt_us) {
        Some((sender, receiver)) => {
            let path = Path::new(setting.link, &weather, setting.seed, horizon_us);
            World::new(setting.seed, generated_us, path, sender, receiver).run(horizon_us)
        }
        None => oracle(scheme, setting, &weather, generated_us),
    }
}

/// The bound for a sender of one packet every X ms: each token is shown at the first opportunity
/// of the grid that the weather lets through.
fn oracle(
    scheme: &Scheme,
    setting: &Setting<'_>,
    weather: &Weather,
    generated_us: Vec<u64>,
) -> Course {
    let &Scheme::Oracle { every_ms } = scheme else {
        unreachable!("only the oracle has no ends");
    };
    let every_us = (every_ms * 1e3) as u64;
    let half_us = (setting.link.rtt_ms * 500.0).round() as u64;
    let mut grid_us = 0;
    let mut ready_us = Vec::with_capacity(generated_us.len());
    for &token_us in &generated_us {
        grid_us = grid_us.max(token_us.div_ceil(every_us) * every_us);
        while !weather.delivers(grid_us, 0, Lane::Down) {
            grid_us += every_us;
        }
        ready_us.push(grid_us + half_us);
    }
    Course {
        ended_us: ready_us.last().copied().unwrap_or(0),
        generated_us,
        ready_us,
        wire_bytes: 0,
        ack_bytes: 0,
        packets: 0,
        redundancy: 0.0,
        progress: Progress::Complete,
        finished: true,
        prefix_holds: true,
    }
}

/// What waits for its time. The order of the variants is the order at the same time: what arrives
/// is known to an end before it decides.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    ToSender(Vec<u8>),
    ToReceiver(Vec<u8>),
}

struct World<'a> {
    now_us: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    path: Path<'a>,
    sender: Box<dyn Sender>,
    receiver: Box<dyn Receiver>,
    answer: Answer,
    packet: Vec<u8>,
}

/// The text, its times, and how much of it is shown.
struct Answer {
    text: Vec<u8>,
    /// End of each token in `text`.
    ends: Vec<usize>,
    generated_us: Vec<u64>,
    emitted: usize,
    shown: Vec<u8>,
    ready_us: Vec<u64>,
    prefix_holds: bool,
}

impl Answer {
    fn new(seed: u64, generated_us: Vec<u64>) -> Self {
        let mut text = Vec::new();
        let ends = (0..generated_us.len())
            .map(|index| {
                token_text(seed, index, &mut text);
                text.len()
            })
            .collect();
        Self {
            text,
            ends,
            generated_us,
            emitted: 0,
            shown: Vec::new(),
            ready_us: Vec::new(),
            prefix_holds: true,
        }
    }

    fn next_us(&self) -> Option<u64> {
        self.generated_us.get(self.emitted).copied()
    }

    fn token(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[index]]
    }

    /// Checks what the receiver has just shown and dates the tokens that it completes.
    fn show(&mut self, now_us: u64, receiver: &mut dyn Receiver) {
        let before = self.shown.len();
        receiver.take_shown(&mut self.shown);
        let emitted_bytes = self
            .emitted
            .checked_sub(1)
            .map_or(0, |last| self.ends[last]);
        self.prefix_holds &= self.shown.len() <= emitted_bytes
            && self.shown[before..] == self.text[before..self.shown.len().max(before)];
        while let Some(&end) = self.ends.get(self.ready_us.len()) {
            if end > self.shown.len() {
                break;
            }
            self.ready_us.push(now_us);
        }
    }
}

impl<'a> World<'a> {
    fn new(
        seed: u64,
        generated_us: Vec<u64>,
        path: Path<'a>,
        sender: Box<dyn Sender>,
        receiver: Box<dyn Receiver>,
    ) -> Self {
        Self {
            now_us: 0,
            events: BinaryHeap::new(),
            scheduled: 0,
            path,
            sender,
            receiver,
            answer: Answer::new(seed, generated_us),
            packet: Vec::new(),
        }
    }

    fn run(mut self, horizon_us: u64) -> Course {
        while let Some(at_us) = self.next_us() {
            if at_us > horizon_us {
                break;
            }
            self.now_us = self.now_us.max(at_us);
            self.step();
        }
        let sent = self.sender.text_bytes_sent() as f64;
        Course {
            ready_us: self.answer.ready_us,
            generated_us: self.answer.generated_us,
            wire_bytes: self.path.wire_bytes(Lane::Down),
            ack_bytes: self.path.wire_bytes(Lane::Up),
            packets: self.path.packets(Lane::Down),
            redundancy: sent / self.answer.text.len() as f64 - 1.0,
            ended_us: self.now_us,
            progress: self.sender.progress(),
            finished: self.receiver.finished(),
            prefix_holds: self.answer.prefix_holds,
        }
    }

    fn next_us(&self) -> Option<u64> {
        let event_us = self.events.peek().map(|Reverse((at_us, _, _))| *at_us);
        [
            event_us,
            self.answer.next_us(),
            self.sender.poll_timeout(),
            self.receiver.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does everything that is due now: arrivals, then the generator, then timers.
    fn step(&mut self) {
        let now_us = self.now_us;
        while self
            .events
            .peek()
            .is_some_and(|Reverse((at_us, _, _))| *at_us <= now_us)
        {
            let Reverse((_, _, event)) = self.events.pop().expect("just seen");
            match event {
                Event::ToSender(packet) => self.sender.handle_packet(now_us, &packet),
                Event::ToReceiver(packet) => {
                    self.receiver.handle_packet(now_us, &packet);
                    self.answer.show(now_us, &mut *self.receiver);
                }
            }
        }
        while self.answer.next_us().is_some_and(|at_us| at_us <= now_us) {
            let index = self.answer.emitted;
            self.answer.emitted += 1;
            let last = self.answer.next_us().is_none();
            self.sender
                .handle_token(now_us, self.answer.token(index), last);
        }
        if self
            .sender
            .poll_timeout()
            .is_some_and(|at_us| at_us <= now_us)
        {
            self.sender.handle_timeout(now_us);
        }
        if self
            .receiver
            .poll_timeout()
            .is_some_and(|at_us| at_us <= now_us)
        {
            self.receiver.handle_timeout(now_us);
            self.answer.show(now_us, &mut *self.receiver);
        }
        self.transmit();
    }

    fn transmit(&mut self) {
        let mut packet = std::mem::take(&mut self.packet);
        packet.clear();
        while self.sender.poll_transmit(self.now_us, &mut packet) {
            self.post(Lane::Down, &packet);
            packet.clear();
        }
        while self.receiver.poll_transmit(self.now_us, &mut packet) {
            self.post(Lane::Up, &packet);
            packet.clear();
        }
        self.packet = packet;
    }

    fn post(&mut self, lane: Lane, packet: &[u8]) {
        let fate = self.path.send(self.now_us, packet.len(), lane);
        for arrival in fate.arrivals.into_iter().flatten() {
            let event = match lane {
                Lane::Down => Event::ToReceiver(packet.to_vec()),
                Lane::Up => Event::ToSender(packet.to_vec()),
            };
            self.scheduled += 1;
            self.events
                .push(Reverse((arrival.at_us, self.scheduled, event)));
        }
    }
}
