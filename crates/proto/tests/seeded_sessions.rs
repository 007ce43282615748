//! `spec/vectors/sessions.json`: seeded sessions that hold other receivers to this one.
//!
//! The test plays every session again and compares the text of the file, digest by digest. After a
//! change of the receiver, `UPDATE_VECTORS=1 cargo test -p loquent-proto seeded_sessions`
//! writes the file; `web/client/test/sessions.test.mjs` replays it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write;
use std::path::PathBuf;

use crate::pair::Rng;
use loquent_proto::frame::{Data, Frame};
use loquent_proto::wire::crc32c;
use loquent_proto::{
    AssemblerLimits, Delta, Micros, Playout, Receiver, ReceiverConfig, ReceiverEvent, hex,
};

const SESSIONS: u64 = 240;

const ABOUT: &str = "Seeded sessions of a receiver. `log` is the number of text records and the \
    ending of the log, which the tests build by the same rule; `playout` is the buffer in \
    microseconds and the limit in tokens per second (0: none), `limits` are bytes and ranges, \
    `take` is how many events are polled in a step (0, and in every 20th step: all). Receivers \
    with `client` use the times of S-4.10. A step is `microseconds since the step before, action, arguments, digest`: t only \
    time passes; d channel packet offset length, a DATA frame; x hex, any datagram; g channel, GONE; \
    h 0 or 1, the page is hidden; p buffer rate, another playout; m channel, the receiver migrates; \
    r channel, a new receiver goes on from what was shown; s, the reader stops. After each action \
    come handle_timeout, poll_event and poll_transmit; the digest is the CRC-32C of what they gave.";

/// What the channel and the driver of a session do.
struct Plan {
    texts: u64,
    ending: &'static str,
    playout: Playout,
    limits: AssemblerLimits,
    is_client: bool,
    /// Events polled per step; 0: all. Every 20th step takes all.
    ///
    /// So a driver that takes few finds more than the receiver's bound of events at once.
    take: usize,
    /// The driver's timers fire at multiples of this.
    grain_us: u64,
    token_gap_us: u64,
    loss: f64,
    duplicate: f64,
    delay_us: u64,
    jitter_us: u64,
    /// Log bytes in a packet, at most.
    room: u64,
    /// Chance of an action other than a packet or a timer in each step.
    acts: f64,
    /// The sender is silent between these times.
    silence_us: (u64, u64),
    max_steps: usize,
}

impl Plan {
    fn of(seed: u64, rng: &mut Rng) -> Self {
        let mut pick = |values: &[u64]| values[rng.below(values.len() as u64) as usize];
        let rate = pick(&[0, 0, 5, 20, 100]);
        let buffer = pick(&[0, 0, 25_000, 112_000, 400_000]);
        let mut plan = Self {
            texts: pick(&[3, 10, 20, 30]),
            ending: ["done", "done", "done", "done", "error", "unreadable", "open"]
                [pick(&[0, 1, 2, 3, 4, 5, 6]) as usize],
            playout: playout(buffer, rate),
            limits: AssemblerLimits::default(),
            is_client: pick(&[0, 1]) == 1,
            take: 0,
            grain_us: pick(&[1, 1_000, 16_000, 50_000, 1_000_000]),
            token_gap_us: pick(&[10_000, 50_000, 100_000]),
            loss: pick(&[0, 10, 30, 60]) as f64 / 100.0,
            duplicate: pick(&[0, 0, 20]) as f64 / 100.0,
            delay_us: pick(&[5_000, 50_000, 200_000]),
            jitter_us: pick(&[0, 10_000, 120_000]),
            room: pick(&[20, 100, 1_100]),
            acts: 0.0,
            silence_us: (0, 0),
            max_steps: 60,
        };
        match seed % 6 {
            0 => {} // loss, reordering and duplicates alone
            1 | 2 => plan.acts = 0.15,
            3 => {
                let from = pick(&[100_000, 700_000]);
                plan.silence_us = (from, from + pick(&[3_500_000, 12_000_000, 70_000_000]));
            }
            4 => {
                // More than 512 events, for a driver that takes few of them or none at first.
                plan.texts = pick(&[600, 1_300, 2_000]);
                plan.token_gap_us = 100;
                (plan.room, plan.loss) = (1_100, plan.loss / 3.0);
                plan.take = pick(&[0, 7, 40, 300]) as usize;
                plan.max_steps = 90;
            }
            _ => {
                plan.limits.max_bytes = pick(&[60, 300]) as usize;
                plan.limits.max_ranges = pick(&[1, 3]) as usize;
                plan.acts = 0.05;
            }
        }
        plan
    }

    fn config(&self) -> ReceiverConfig {
        let times = if self.is_client {
            ReceiverConfig::with_another_path()
        } else {
            ReceiverConfig::default()
        };
        ReceiverConfig { playout: self.playout, limits: self.limits, ..times }
    }
}

fn playout(buffer: u64, rate: u64) -> Playout {
    let max_tokens_per_s = (rate > 0).then_some(rate as u32);
    Playout { buffer: Micros(buffer), max_tokens_per_s }
}

/// The log of a session: the rule that other implementations follow too.
fn log(texts: u64, ending: &str) -> Vec<u8> {
    const PIECES: [&str; 6] = ["", " by", " token", " 语言", " naïve", " 🦀"];
    let mut out = Vec::new();
    let mut put = |delta: Delta| delta.encode(&mut out).expect("a short record");
    put(Delta::Open { meta: "{}".into() });
    for i in 0..texts {
        let tokens = if i % 7 == 3 { 3 } else { 1 };
        let text = format!("{}{i}", PIECES[i as usize % PIECES.len()]);
        put(Delta::Text { choice: 0, tokens, text });
    }
    match ending {
        "done" => {
            put(Delta::Finish { choice: 0, reason: "stop".into() });
            put(Delta::Done);
        }
        "error" => put(Delta::Error { code: "engine".into(), message: "stopped".into() }),
        "unreadable" => out.extend([0x82, 0xff, 0xfe]), // a short record that is not UTF-8
        _ => {}
    }
    out
}

/// A frame under way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    arrives_us: u64,
    order: u64,
    action: Action,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Time,
    Data { channel: u64, packet: u64, offset: u64, len: u64 },
    Datagram(Vec<u8>),
    Gone(u64),
    Hidden(bool),
    Playout { buffer: u64, rate: u64 },
    Migrate(u64),
    Reload(u64),
    Stop,
}

impl Action {
    fn text(&self) -> String {
        match self {
            Self::Time => "t".into(),
            Self::Data { channel, packet, offset, len } => {
                format!("d {channel} {packet} {offset} {len}")
            }
            Self::Datagram(bytes) => format!("x {}", hex::encode(bytes)),
            Self::Gone(channel) => format!("g {channel}"),
            Self::Hidden(hidden) => format!("h {}", u8::from(*hidden)),
            Self::Playout { buffer, rate } => format!("p {buffer} {rate}"),
            Self::Migrate(channel) => format!("m {channel}"),
            Self::Reload(channel) => format!("r {channel}"),
            Self::Stop => "s".into(),
        }
    }
}

struct Session {
    plan: Plan,
    rng: Rng,
    log: Vec<u8>,
    receiver: Receiver,
    now_us: u64,
    channel: u64,
    packet: u64,
    acked: u64,
    next_send_us: u64,
    hidden: bool,
    flying: BinaryHeap<Reverse<Flying>>,
    order: u64,
    steps: Vec<String>,
}

impl Session {
    fn play(seed: u64) -> String {
        let mut rng = Rng(seed);
        let plan = Plan::of(seed, &mut rng);
        let mut session = Self {
            log: log(plan.texts, plan.ending),
            receiver: Receiver::new(Micros(0), 1, 0, plan.config()),
            now_us: 0,
            channel: 1,
            packet: 0,
            acked: 0,
            next_send_us: 0,
            hidden: false,
            flying: BinaryHeap::new(),
            order: 0,
            steps: Vec::new(),
            plan,
            rng,
        };
        session.run();
        session.json(seed)
    }

    fn run(&mut self) {
        while self.steps.len() < self.plan.max_steps && !self.receiver.is_closed() {
            let arrival = self.flying.peek().map(|Reverse(next)| next.arrives_us);
            let wake = self.wake_us();
            let Some(next) = [arrival, wake, Some(self.next_send_us)].into_iter().flatten().min()
            else {
                break;
            };
            if next > 120_000_000 {
                break; // nothing is left to happen
            } else if arrival == Some(next) {
                let Reverse(flying) = self.flying.pop().expect("it was peeked");
                self.step(next, &flying.action);
            } else if wake == Some(next) {
                self.step(next, &Action::Time);
            } else {
                self.send(next);
                continue;
            }
            if self.rng.unit() < self.plan.acts {
                let at = self.now_us + [0, 700, 30_000, 200_000][self.rng.below(4) as usize];
                let action = self.draw_action();
                self.step(at, &action);
            }
        }
    }

    /// When the driver's timer fires: never early, and late by its grain.
    fn wake_us(&self) -> Option<u64> {
        let grain = self.plan.grain_us;
        let at = self.receiver.poll_timeout()?.0.max(self.now_us + 1);
        Some(at.div_ceil(grain) * grain)
    }

    /// The sender's packet at `at`: from the oldest unacknowledged byte, or somewhere after it.
    fn send(&mut self, at: u64) {
        self.next_send_us = at + 2 * self.plan.token_gap_us.max(20_000);
        let (from, until) = self.plan.silence_us;
        let head = self.log.len() as u64 * at / (self.plan.texts * self.plan.token_gap_us).max(1);
        let head = head.clamp(20, self.log.len() as u64).max(self.acked);
        if (from..until).contains(&at) || (self.acked == head && head == self.log.len() as u64) {
            self.next_send_us += 200_000;
            return;
        }
        let back = head.saturating_sub(self.acked);
        let skipped = if self.rng.unit() < 0.4 { self.rng.below(back + 1) } else { 0 };
        let offset = self.acked + skipped;
        let len = self.plan.room.min(head - offset);
        let action = Action::Data { channel: self.channel, packet: self.packet, offset, len };
        self.packet += 1;
        let copies = 1 + u64::from(self.rng.unit() < self.plan.duplicate);
        for _ in 0..copies {
            let lost = self.rng.unit() < self.plan.loss;
            let arrives_us = at + self.plan.delay_us + self.rng.below(self.plan.jitter_us + 1);
            self.order += 1;
            if !lost {
                let flying = Flying { arrives_us, order: self.order, action: action.clone() };
                self.flying.push(Reverse(flying));
            }
        }
    }

    fn draw_action(&mut self) -> Action {
        match self.rng.below(12) {
            0..=3 => {
                self.hidden = !self.hidden;
                Action::Hidden(self.hidden)
            }
            4..=6 => {
                let buffer = [0, 60_000, 250_000][self.rng.below(3) as usize];
                Action::Playout { buffer, rate: [0, 8, 50][self.rng.below(3) as usize] }
            }
            7..=8 => self.new_path(true),
            9 => self.new_path(false),
            10 => {
                let mut bytes = vec![0x10 | (self.rng.below(8) as u8)];
                bytes.extend((0..self.rng.below(9)).map(|_| self.rng.next() as u8 & 0x3f));
                Action::Datagram(bytes)
            }
            _ if self.rng.unit() < 0.3 => Action::Stop,
            _ => Action::Gone(self.channel),
        }
    }

    fn new_path(&mut self, migrates: bool) -> Action {
        self.channel += 1;
        self.hidden &= migrates;
        self.acked = if migrates { self.receiver.cumulative() } else { self.receiver.shown() };
        if migrates { Action::Migrate(self.channel) } else { Action::Reload(self.channel) }
    }

    fn step(&mut self, at: u64, action: &Action) {
        let at = at.max(self.now_us); // an action before may have passed it
        let passed = at - self.now_us;
        self.now_us = at;
        let error = self.apply(Micros(at), action);
        let outputs = self.outputs(Micros(at), error);
        let digest = crc32c(outputs.as_bytes());
        self.steps.push(format!("{passed} {} {digest:08x}", action.text()));
    }

    fn apply(&mut self, now: Micros, action: &Action) -> Option<loquent_proto::Error> {
        let mut datagram = Vec::new();
        match action {
            Action::Time => return None,
            Action::Hidden(hidden) => self.receiver.set_hidden(now, *hidden),
            Action::Playout { buffer, rate } => {
                self.receiver.set_playout(now, playout(*buffer, *rate));
            }
            Action::Migrate(channel) => self.receiver.migrate(now, *channel),
            Action::Reload(channel) => {
                let shown = self.receiver.shown();
                self.receiver = Receiver::new(now, *channel, shown, self.plan.config());
            }
            Action::Stop => self.receiver.stop(),
            Action::Datagram(bytes) => datagram.clone_from(bytes),
            Action::Gone(channel) => Frame::Gone { channel: *channel }.encode(false, &mut datagram),
            Action::Data { channel, packet, offset, len } => {
                let bytes = &self.log[*offset as usize..(offset + len) as usize];
                let data = Data { channel: *channel, packet: *packet, offset: *offset, bytes };
                Frame::Data(data).encode(false, &mut datagram);
            }
        }
        if datagram.is_empty() {
            return None;
        }
        self.receiver.handle_datagram(now, &datagram).err()
    }

    /// Everything that a driver sees after an action, as text.
    fn outputs(&mut self, now: Micros, error: Option<loquent_proto::Error>) -> String {
        let mut text = error.map_or(String::new(), |error| format!("{error:?}"));
        self.receiver.handle_timeout(now);
        let takes_all = self.plan.take == 0 || self.steps.len() % 20 == 19;
        let most = if takes_all { usize::MAX } else { self.plan.take };
        for _ in 0..most {
            let Some(event) = self.receiver.poll_event() else { break };
            text.push_str(&event_text(event));
        }
        let mut datagram = Vec::new();
        while self.receiver.poll_transmit(now, &mut datagram).is_some() {
            if let Ok(Frame::Ack(ack)) = Frame::decode(&datagram, false)
                && self.rng.unit() >= self.plan.loss
            {
                self.acked = self.acked.max(ack.cumulative);
            }
            write!(text, "|{}", hex::encode(&datagram)).expect("memory");
            datagram.clear();
        }
        let wake = self.receiver.poll_timeout().map_or("-".into(), |at| at.0.to_string());
        let (cumulative, shown) = (self.receiver.cumulative(), self.receiver.shown());
        let closed = u8::from(self.receiver.is_closed());
        write!(text, "|{cumulative} {shown} {wake} {closed}").expect("memory");
        text
    }

    fn json(&self, seed: u64) -> String {
        let plan = &self.plan;
        let (buffer, rate) = (plan.playout.buffer.0, plan.playout.max_tokens_per_s.unwrap_or(0));
        let (bytes, ranges) = (plan.limits.max_bytes, plan.limits.max_ranges);
        format!(
            r#"{{"seed":{seed},"log":[{},"{}"],"playout":[{buffer},{rate}],"limits":[{bytes},{ranges}],"take":{},"client":{},"steps":"{}"}}"#,
            plan.texts,
            plan.ending,
            plan.take,
            plan.is_client,
            self.steps.join(",")
        )
    }
}

fn event_text(event: ReceiverEvent) -> String {
    match event {
        ReceiverEvent::Delta { offset, delta } => {
            let mut record = Vec::new();
            delta.encode(&mut record).expect("it was decoded from a record");
            format!(";{offset}={}", hex::encode(&record))
        }
        ReceiverEvent::Complete => ";complete".into(),
        ReceiverEvent::Failed(error) => {
            format!(";failed {}", error.map_or(String::new(), |error| format!("{error:?}")))
        }
        ReceiverEvent::Silent => ";silent".into(),
    }
}

#[test]
fn the_committed_sessions_are_what_this_receiver_does() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../spec/vectors/sessions.json");
    let cases: Vec<String> = (0..SESSIONS).map(Session::play).collect();
    let text = format!(
        "{{\n\"about\": \"{ABOUT}\",\n\"spec\": \"delivery, version 1\",\n\"cases\": [\n{}\n]\n}}\n",
        cases.join(",\n")
    );
    if std::env::var_os("UPDATE_VECTORS").is_some() {
        std::fs::write(&path, &text).expect("the folder is writable");
    }
    let found = std::fs::read_to_string(&path).expect("the file exists");
    let differing = found.lines().zip(text.lines()).find(|(found, text)| found != text);
    assert_eq!(differing, None, "sessions.json differs: see this file's header");
    assert_eq!(found.len(), text.len(), "sessions.json has more or fewer sessions");
}

/// The sessions are worth replaying only while they reach what they are for.
#[test]
fn the_sessions_reach_every_action_and_every_end() {
    let cases: Vec<String> = (0..SESSIONS).map(Session::play).collect();
    let all = cases.join(",");
    for action in ["d", "t", "x", "g", "h", "p", "m", "r", "s"] {
        let steps = all.matches(&format!(" {action} ")).count();
        assert!(steps >= 5, "{steps} steps of {action}");
    }
    for ending in ["done", "error", "unreadable", "open"] {
        assert!(all.contains(ending), "no log ends so: {ending}");
    }
}
