//! One session in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::channel::{Direction, LossSchedule};
use crate::events::{SessionEvent, SessionLog};
use crate::generate::{Generator, TokenKind};
use crate::link::{HEADER_BYTES, Link, LinkState, PacketFate};
use crate::observer::Sightings;
use crate::reader::ReaderBehaviour;
use crate::scheme::{DeliveryProgress, Ends, ReceiverEnd, Scheme, SenderEnd};

/// Maximum time for which a session runs after its last token. Every sender has to stop before.
pub const AFTERMATH_US: u64 = 120_000_000;

/// Parameters of a session besides its scheme.
#[derive(Debug, Clone)]
pub struct Setting<'a> {
    /// The link.
    pub link: &'a Link,
    /// The rhythm of the tokens.
    pub generator: &'a Generator,
    /// Appearance of the tokens.
    pub text: TokenKind,
    /// The reader.
    pub reader: ReaderBehaviour,
    /// Duration of token generation, in µs.
    pub length_us: u64,
    /// Seed of losses, mishaps, generation times and text. It does not depend on the scheme.
    pub seed: u64,
    /// True to record the packets as seen by an observer.
    pub observe: bool,
}

/// Everything recorded about one session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionTrace {
    /// Generation time of each token in µs.
    pub generated_us: Vec<u64>,
    /// Time from which each token could be shown in order, in µs; shorter if some never could.
    pub ready_us: Vec<u64>,
    /// Time at which each token was shown, in µs; equal to `ready_us` unless the client paces.
    pub shown_us: Vec<u64>,
    /// Bytes sent to the client, including 60 for each packet's headers.
    pub wire_bytes: u64,
    /// Bytes of acknowledgements, headers included.
    pub ack_bytes: u64,
    /// Packets sent to the client.
    pub packets: u64,
    /// Copies of each byte of the answer sent, beyond the first.
    pub redundancy: f64,
    /// Bytes of packets without new text, headers included, for schemes that bound them.
    pub repeated_bytes: u64,
    /// Time of the last event, in µs.
    pub ended_us: u64,
    /// True if the session reached its horizon with something left to do.
    pub cut_off: bool,
    /// Final state of the sender.
    pub progress: DeliveryProgress,
    /// True if the receiver saw the end of the answer.
    pub finished: bool,
    /// True if everything shown is a prefix of the generated text.
    pub prefix_holds: bool,
    /// Packets as seen by an observer; empty unless the setting enables `observe`.
    pub sightings: Sightings,
}

/// Runs one session of `scheme`.
pub fn run(scheme: &Scheme, setting: &Setting<'_>) -> SessionTrace {
    run_at(scheme, setting, setting.generator.times_us(setting.seed, setting.length_us))
}

/// Like [`run`], with tokens generated at the given times, in µs and ascending. Used for comparison
/// with a measurement, whose tokens do not coincide with changes of the losses.
pub fn run_at(scheme: &Scheme, setting: &Setting<'_>, generated_us: Vec<u64>) -> SessionTrace {
    let horizon_us = setting.length_us.max(generated_us.last().map_or(0, |last| last + 1));
    let horizon_us = horizon_us + AFTERMATH_US;
    let schedule = LossSchedule::new(&setting.link.channel, setting.seed, horizon_us);
    match scheme.ends(setting.link, &setting.reader) {
        Some((sender, receiver)) => {
            let path = LinkState::new(setting.link, &schedule, setting.seed, horizon_us);
            let answer = Transcript::drawn(setting.text, setting.seed, generated_us);
            SessionRun::new(setting, answer, path, (sender, receiver)).run(horizon_us)
        }
        None => oracle(scheme, setting, &schedule, generated_us),
    }
}

/// Computes the bound for a sender of one packet every X ms: each token is shown at the first
/// opportunity of the grid at which a packet gets through.
fn oracle(
    scheme: &Scheme,
    setting: &Setting<'_>,
    schedule: &LossSchedule,
    generated_us: Vec<u64>,
) -> SessionTrace {
    let &Scheme::Oracle { every_ms } = scheme else {
        unreachable!("only the oracle has no ends");
    };
    let every_us = (every_ms * 1e3) as u64;
    let half_us = (setting.link.rtt_ms * 500.0).round() as u64;
    let mut grid_us = 0;
    let mut ready_us = Vec::with_capacity(generated_us.len());
    for &token_us in &generated_us {
        grid_us = grid_us.max(token_us.div_ceil(every_us) * every_us);
        while !schedule.delivers(grid_us, 0, Direction::Down) {
            grid_us += every_us;
        }
        ready_us.push(grid_us + half_us);
    }
    SessionTrace {
        ended_us: ready_us.last().copied().unwrap_or(0),
        cut_off: false,
        generated_us,
        shown_us: ready_us.clone(),
        ready_us,
        wire_bytes: 0,
        ack_bytes: 0,
        packets: 0,
        redundancy: 0.0,
        repeated_bytes: 0,
        progress: DeliveryProgress::Complete,
        finished: true,
        prefix_holds: true,
        sightings: Sightings::default(),
    }
}

/// A packet in flight. The variants are in the order in which packets that arrive at the same time
/// are handled: both before either end decides what to send.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ArrivingPacket {
    ToSender(Vec<u8>),
    ToReceiver(Vec<u8>),
}

/// One session in progress.
pub(crate) struct SessionRun<'a> {
    now_us: u64,
    /// Packets by time of arrival, then by order of sending; each with its number.
    events: BinaryHeap<Reverse<(u64, u64, u64, ArrivingPacket)>>,
    scheduled: u64,
    posted: u64,
    path: LinkState<'a>,
    sender: Box<dyn SenderEnd>,
    receiver: Box<dyn ReceiverEnd>,
    answer: Transcript,
    /// Times at which the page becomes hidden or visible, the next one last.
    turns_us: Vec<(u64, bool)>,
    next_migration_us: Option<u64>,
    migrations: u64,
    packet: Vec<u8>,
    observer: Option<Sightings>,
    log: Option<SessionLog>,
}

/// The answer's text, the generation times of its tokens, and the part shown so far.
pub(crate) struct Transcript {
    text: Vec<u8>,
    /// End of each token in `text`.
    ends: Vec<usize>,
    generated_us: Vec<u64>,
    emitted: usize,
    shown: Vec<u8>,
    ready_us: Vec<u64>,
    shown_us: Vec<u64>,
    prefix_holds: bool,
}

impl Transcript {
    /// Creates an answer of randomly drawn tokens.
    fn drawn(kind: TokenKind, seed: u64, generated_us: Vec<u64>) -> Self {
        Self::put(generated_us, |index, text| kind.put(seed, index, text))
    }

    /// Creates an answer of these tokens, one for each time.
    pub(crate) fn given(tokens: &[String], generated_us: Vec<u64>) -> Self {
        assert_eq!(tokens.len(), generated_us.len(), "each token is generated once");
        Self::put(generated_us, |index, text| text.extend_from_slice(tokens[index].as_bytes()))
    }

    fn put(generated_us: Vec<u64>, mut token: impl FnMut(usize, &mut Vec<u8>)) -> Self {
        let mut text = Vec::new();
        let ends = (0..generated_us.len())
            .map(|index| {
                token(index, &mut text);
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
            shown_us: Vec::new(),
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

    /// Checks the newly shown text and dates the tokens that it completes.
    fn show(&mut self, now_us: u64, receiver: &mut dyn ReceiverEnd) {
        let before = self.shown.len();
        receiver.take_shown(&mut self.shown);
        let emitted_bytes = self.emitted.checked_sub(1).map_or(0, |last| self.ends[last]);
        self.prefix_holds &= self.shown.len() <= emitted_bytes
            && self.shown[before..] == self.text[before..self.shown.len().max(before)];
        while let Some(&end) = self.ends.get(self.shown_us.len()) {
            if end > self.shown.len() {
                break;
            }
            self.shown_us.push(now_us);
        }
        while self.ready_us.len() < receiver.arrived() {
            self.ready_us.push(now_us);
        }
    }
}

impl<'a> SessionRun<'a> {
    pub(crate) fn new(
        setting: &Setting<'_>,
        answer: Transcript,
        path: LinkState<'a>,
        (sender, receiver): Ends,
    ) -> Self {
        let hidden_us = setting.reader.hidden_us();
        Self {
            now_us: 0,
            next_migration_us: path.next_migration_us(0),
            migrations: 0,
            events: BinaryHeap::new(),
            scheduled: 0,
            posted: 0,
            path,
            sender,
            receiver,
            answer,
            turns_us: hidden_us.map_or(vec![], |(from, to)| vec![(to, false), (from, true)]),
            packet: Vec::new(),
            observer: setting.observe.then(Sightings::default),
            log: None,
        }
    }

    /// Adds a log of events to the session.
    pub(crate) fn logged(self, log: SessionLog) -> Self {
        Self { log: Some(log), ..self }
    }

    /// Returns the events since the last call, if there is a log.
    pub(crate) fn take_events(&mut self) -> Vec<(u64, SessionEvent)> {
        self.log.as_mut().map(SessionLog::take).unwrap_or_default()
    }

    fn run(mut self, horizon_us: u64) -> SessionTrace {
        let mut cut_off = false;
        while let Some(at_us) = self.next_us() {
            if at_us > horizon_us {
                cut_off = true;
                break;
            }
            self.step(at_us);
        }
        self.into_trace(cut_off)
    }

    /// Returns the trace of the session.
    pub(crate) fn into_trace(self, cut_off: bool) -> SessionTrace {
        SessionTrace {
            ready_us: self.answer.ready_us,
            shown_us: self.answer.shown_us,
            generated_us: self.answer.generated_us,
            wire_bytes: self.path.wire_bytes(Direction::Down),
            ack_bytes: self.path.wire_bytes(Direction::Up),
            packets: self.path.packets(Direction::Down),
            redundancy: self.sender.volume().redundancy(),
            repeated_bytes: self.sender.repeated_bytes(),
            ended_us: self.now_us,
            cut_off,
            progress: self.sender.progress(),
            finished: self.receiver.finished(),
            prefix_holds: self.answer.prefix_holds,
            sightings: self.observer.unwrap_or_default(),
        }
    }

    /// Returns the time of the next event; `None` at the end.
    pub(crate) fn next_us(&self) -> Option<u64> {
        let event_us = self.events.peek().map(|Reverse(event)| event.0);
        [
            event_us,
            self.answer.next_us(),
            self.sender.poll_timeout(),
            self.receiver.poll_timeout(),
            self.turns_us.last().map(|turn| turn.0),
            self.next_migration_us,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Handles everything that is due at `at_us`: arrivals, then the generator, the reader, and
    /// timers.
    pub(crate) fn step(&mut self, at_us: u64) {
        // A timer may be overdue, but time never runs backwards.
        self.now_us = self.now_us.max(at_us);
        let now_us = self.now_us;
        if let Some(log) = &mut self.log {
            log.pass(now_us);
        }
        // Arrivals come before decisions: an ACK that is here must stop the copy that is due now.
        self.arrive();
        while self.answer.next_us().is_some_and(|at_us| at_us <= now_us) {
            let index = self.answer.emitted;
            self.answer.emitted += 1;
            let last = self.answer.next_us().is_none();
            let token = self.answer.token(index);
            self.sender.handle_token(now_us, token, last);
        }
        self.turn();
        let due = |at_us: Option<u64>| at_us.is_some_and(|at_us| at_us <= now_us);
        if due(self.sender.poll_timeout()) {
            self.sender.handle_timeout(now_us);
        }
        if due(self.receiver.poll_timeout()) {
            self.receiver.handle_timeout(now_us);
            self.answer.show(now_us, &mut *self.receiver);
        }
        if let Some(log) = &mut self.log {
            log.on_shown(now_us, self.answer.shown_us.len());
        }
        self.transmit();
    }

    fn arrive(&mut self) {
        let now_us = self.now_us;
        while let Some(next) = self.events.peek_mut() {
            if next.0.0 > now_us {
                break;
            }
            let Reverse((_, _, number, event)) = PeekMut::pop(next);
            if let Some(log) = &mut self.log {
                log.on(now_us, SessionEvent::Arrived { packet: number });
            }
            match event {
                ArrivingPacket::ToSender(packet) => self.sender.handle_packet(now_us, &packet),
                ArrivingPacket::ToReceiver(packet) => {
                    self.receiver.handle_packet(now_us, &packet);
                    self.answer.show(now_us, &mut *self.receiver);
                }
            }
        }
    }

    /// Handles due changes of the page's visibility and of the path.
    fn turn(&mut self) {
        let now_us = self.now_us;
        while let Some((_, hidden)) = self.turns_us.pop_if(|turn| turn.0 <= now_us) {
            self.receiver.handle_hidden(now_us, hidden);
            self.answer.show(now_us, &mut *self.receiver);
        }
        if self.next_migration_us.is_some_and(|at_us| at_us <= now_us) {
            self.migrations += 1;
            self.next_migration_us = self.path.next_migration_us(now_us);
            // Every second time the transport hides the change, as QUIC's migration does; else
            // the client has to ask for the rest over a new connection.
            if self.migrations.is_multiple_of(2) {
                self.receiver.handle_new_path(now_us);
            }
        }
    }

    fn transmit(&mut self) {
        // One buffer for all packets, taken out because `post` borrows the whole session.
        let mut packet = std::mem::take(&mut self.packet);
        packet.clear();
        while self.sender.poll_transmit(self.now_us, &mut packet) {
            self.post(Direction::Down, &packet);
            packet.clear();
        }
        while self.receiver.poll_transmit(self.now_us, &mut packet) {
            self.post(Direction::Up, &packet);
            packet.clear();
        }
        self.packet = packet;
    }

    fn observe(&mut self, direction: Direction, bytes: usize) {
        let (Some(observer), Some(sent)) = (&mut self.observer, self.sender.tokens_sent()) else {
            return;
        };
        match direction {
            Direction::Down => observer.on_data(bytes, sent, &self.answer.ends),
            Direction::Up => observer.on_ack(bytes, self.receiver.arrived(), &self.answer.ends),
        }
    }

    fn post(&mut self, direction: Direction, packet: &[u8]) {
        self.observe(direction, packet.len());
        let fate = self.path.send(self.now_us, packet.len(), direction);
        let number = self.posted;
        self.posted += 1;
        self.log_packet(number, direction, packet, fate == PacketFate::default());
        for arrival in fate.arrivals.into_iter().flatten() {
            let mut packet = packet.to_vec();
            if let Some(bits) = arrival.corrupted {
                corrupt(&mut packet, bits);
            }
            let event = match direction {
                Direction::Down => ArrivingPacket::ToReceiver(packet),
                Direction::Up => ArrivingPacket::ToSender(packet),
            };
            // The running number keeps packets of the same instant in the order of sending.
            self.scheduled += 1;
            self.events.push(Reverse((arrival.at_us, self.scheduled, number, event)));
        }
    }

    fn log_packet(&mut self, packet: u64, direction: Direction, payload: &[u8], is_lost: bool) {
        let Some(log) = &mut self.log else { return };
        let carried = match direction {
            Direction::Down => self.sender.carried(payload),
            Direction::Up => Vec::new(),
        };
        let bytes = (payload.len() + HEADER_BYTES) as u64;
        log.on(self.now_us, SessionEvent::Sent { packet, direction, bytes, carried });
        if is_lost {
            log.on(self.now_us, SessionEvent::Lost { packet });
        }
    }
}

/// Flips one to eight bits of a packet, or truncates it.
fn corrupt(packet: &mut Vec<u8>, bits: u64) {
    let length = packet.len() as u64;
    if length == 0 {
        return;
    }
    if bits & 7 == 0 {
        packet.truncate((bits >> 3) as usize % packet.len());
        return;
    }
    for flip in 0..bits & 7 {
        let at = (bits >> 3).wrapping_mul(2 * flip + 1) % (length * 8);
        packet[(at / 8) as usize] ^= 1 << (at % 8);
    }
}
