//! One run: its steps, its calm, and the checks at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use loquent_proto::{AnswerHandle, Position};
use loquent_resumable::shared::epochs::Epochs;
use loquent_resumable::{HeldShares, Unreachable};
use script_model::ScriptTexts;

use crate::dice::Dice;
use crate::history::WorldHistory;
use crate::hosts::ReplicaHosts;
use crate::laws::WorldLaws;
use crate::plan::{FAULTS_END_MS, PlannedFault, PlannedQuestion, REPLICAS, WorldFault, WorldPlan};
use crate::reader::{ReaderConnection, ReaderState, SimulatedReader};
use crate::replica::ReaderNews;
use crate::service::AnswerText;
use crate::store::{AcceptedTakeover, SimulatedStore, StoreState, name_of, short};

/// Time of a step: what is sent in one arrives in the next.
const STEP_MS: u64 = 5;
/// Time of a step once all readers are through, when only the grace passes.
const REST_STEP_MS: u64 = 100;
/// Time after the faults in which every reader gets its answer: a lease, a second generation, and
/// the longest waits of readers and replicas.
const CALM_MS: u64 = 60_000;
/// Time in which nothing is left of the answers: the grace of a minute twice, since an answer that
/// nobody reads is generated to its end first.
const REST_MS: u64 = 150_000;

/// An answer.
struct SimulatedAnswer {
    question: PlannedQuestion,
    whole: String,
    handle: Option<AnswerHandle>,
    /// True if the store has lost something since it began.
    is_lossy: bool,
}

/// The result of a run.
#[derive(Debug)]
pub struct WorldReport {
    /// The seed.
    pub seed: u64,
    /// The law that was broken first.
    pub broken: Option<String>,
    /// The history.
    pub history: WorldHistory,
    /// Number of readers that got a whole answer.
    pub whole: usize,
    /// Number of readers whose answer was lost, as the documentation says.
    pub excused: usize,
    /// Number of takeovers that readers have seen.
    pub takeovers: usize,
}

/// A run under way.
struct ReplicaWorld {
    now_ms: u64,
    plan: WorldPlan,
    next_fault: usize,
    next_question: usize,
    dice: Dice,
    store: SimulatedStore,
    store_fault: Option<PlannedFault>,
    store_touched_ms: u64,
    hosts: ReplicaHosts,
    answers: Vec<SimulatedAnswer>,
    /// By id: the owners of each answer of which the store has had a part.
    owners: BTreeMap<String, BTreeSet<String>>,
    readers: Vec<SimulatedReader>,
    connections: u64,
    epochs: BTreeSet<(usize, u64)>,
    laws: WorldLaws,
    history: WorldHistory,
}

/// Runs the world of `seed`, whose store runs `texts`.
pub fn run(seed: u64, texts: &ScriptTexts) -> WorldReport {
    let mut world = ReplicaWorld::new(seed, texts);
    world.run();
    let is_whole = |reader: &&SimulatedReader| matches!(reader.state, ReaderState::Done);
    let whole = world.readers.iter().filter(is_whole).count();
    WorldReport {
        seed,
        broken: world.laws.broken().map(str::to_owned),
        whole,
        excused: world.readers.len() - whole,
        takeovers: world.epochs.len(),
        history: world.history,
    }
}

impl ReplicaWorld {
    fn new(seed: u64, texts: &ScriptTexts) -> Self {
        let store = SimulatedStore::new(texts, seed);
        let mut hosts = ReplicaHosts::new(seed);
        (0..REPLICAS).for_each(|at| hosts.start(at, 0, &store));
        Self {
            now_ms: 0,
            plan: WorldPlan::draw(seed),
            next_fault: 0,
            next_question: 0,
            dice: Dice::new(seed, 5),
            store,
            store_fault: None,
            store_touched_ms: 0,
            hosts,
            answers: Vec::new(),
            owners: BTreeMap::new(),
            readers: Vec::new(),
            connections: 0,
            epochs: BTreeSet::new(),
            laws: WorldLaws::default(),
            history: WorldHistory::default(),
        }
    }

    fn run(&mut self) {
        while self.laws.broken().is_none() && !self.is_through() {
            if self.now_ms >= FAULTS_END_MS + CALM_MS {
                return self.check_readers();
            }
            // Without readers, only what is left over can be wrong.
            let is_read = !self.readers.iter().all(SimulatedReader::is_over);
            self.step(if is_read { STEP_MS } else { REST_STEP_MS });
        }
        let through_ms = self.now_ms;
        while self.laws.broken().is_none() && !self.is_at_rest() {
            if self.now_ms >= through_ms + REST_MS {
                let held: usize = self.hosts.held().iter().map(|held| held.bytes).sum();
                let what = format!("something is left of the answers, {held} bytes at replicas");
                return self.laws.breach(what);
            }
            self.step(REST_STEP_MS);
        }
    }

    /// True if all has been asked and read, and nothing fails any more.
    fn is_through(&self) -> bool {
        let is_asked = self.next_question == self.plan.questions.len();
        let is_calm = self.now_ms >= FAULTS_END_MS;
        is_asked && is_calm && self.readers.iter().all(SimulatedReader::is_over)
    }

    /// True if replicas hold nothing any more, nor the store, unless an owner has ended.
    fn is_at_rest(&self) -> bool {
        let is_kept = |(id, owners): (&String, &BTreeSet<String>)| {
            !self.is_any_dead(owners) && self.store.field(id, "s").is_some()
        };
        let is_free = self.hosts.held().iter().all(|held| *held == HeldShares::default());
        is_free && !self.owners.iter().any(is_kept)
    }

    fn is_any_dead(&self, owners: &BTreeSet<String>) -> bool {
        owners.iter().any(|owner| self.hosts.dead.contains(owner))
    }

    fn check_readers(&mut self) {
        for at in 0..self.readers.len() {
            let answer = self.readers[at].answer;
            if !self.readers[at].is_over() && !self.is_excused(answer) {
                let what = format!("reader {at} never gets the whole answer {answer}");
                self.laws.breach(what);
            }
        }
    }

    /// True if an answer may be lost: the store has lost a part of it, or never had it, and a
    /// replica that generated it has ended.
    fn is_excused(&self, answer: usize) -> bool {
        let SimulatedAnswer { handle, is_lossy, .. } = &self.answers[answer];
        let owners = handle.and_then(|handle| self.owners.get(&handle.id_hex()));
        owners.is_none_or(|owners| *is_lossy && self.is_any_dead(owners))
    }

    fn step(&mut self, step_ms: u64) {
        self.now_ms += step_ms;
        self.mend();
        while let Some(fault) = self.plan.faults.get(self.next_fault).copied()
            && fault.at_ms <= self.now_ms
        {
            self.next_fault += 1;
            self.begin(fault);
        }
        while let Some(question) = self.plan.questions.get(self.next_question).copied()
            && question.at_ms <= self.now_ms
            && self.ask(question)
        {
            self.next_question += 1;
        }
        (0..self.readers.len()).for_each(|reader| self.drive_reader(reader));
        self.hosts.run_until(self.now_ms);
        self.store.run_until(self.now_ms, &mut self.history);
        for (connection, news) in self.hosts.take_news() {
            self.handle_news(connection, news);
        }
        self.note_writes();
        self.note_takeovers();
    }

    fn begin(&mut self, fault: PlannedFault) {
        if fault.kind.hits_replica() {
            return self.hosts.begin(fault, &mut self.store, &mut self.history);
        }
        if self.store_fault.is_some() {
            return;
        }
        (self.store_fault, self.store_touched_ms) = (Some(fault), self.now_ms);
        self.history.tell(self.now_ms, &format!("store: {:?}", fault.kind));
        self.store.set_state(match fault.kind {
            WorldFault::StorePause => StoreState::Stands,
            WorldFault::StoreRefuses => StoreState::Refuses,
            WorldFault::LostReplies => StoreState::LosesReplies,
            WorldFault::Slow => StoreState::IsSlow,
            _ => StoreState::IsAway,
        });
        if fault.kind == WorldFault::Failover {
            self.store.fail_over(self.dice.between(100, 1_900));
            self.answers.iter_mut().for_each(|answer| answer.is_lossy = true);
        }
    }

    fn mend(&mut self) {
        self.hosts.mend(self.now_ms, &mut self.store, &mut self.history);
        if self.store_fault.is_some_and(|fault| fault.until_ms <= self.now_ms) {
            (self.store_fault, self.store_touched_ms) = (None, self.now_ms);
            self.history.tell(self.now_ms, "store: works");
            self.store.set_state(StoreState::Works);
        }
    }

    /// Asks a question; returns false if its replica takes none now.
    fn ask(&mut self, question: PlannedQuestion) -> bool {
        let PlannedQuestion { replica, seed, readers, .. } = question;
        if self.hosts.ready(replica).is_none() {
            return false;
        }
        let answer = self.answers.len();
        self.answers.push(SimulatedAnswer {
            question,
            whole: AnswerText::of(seed).whole(),
            handle: None,
            is_lossy: false,
        });
        let line = format!("answer {answer} is asked for at {}", name_of(replica));
        self.history.tell(self.now_ms, &line);
        for reader in 0..readers {
            let until_ms = self.now_ms + self.dice.between(200, 4_000);
            self.readers.push(SimulatedReader::new(answer, until_ms));
            // The others come once the answer has a handle.
            if reader == 0 {
                self.connect(self.readers.len() - 1, replica);
            }
        }
        true
    }

    /// Lets a reader connect or leave if it is time.
    fn drive_reader(&mut self, at: usize) {
        match &self.readers[at].state {
            ReaderState::Waits { until_ms } if *until_ms <= self.now_ms => {
                let replica = self.dice.index(REPLICAS);
                let is_known = self.answers[self.readers[at].answer].handle.is_some();
                if is_known && self.hosts.ready(replica).is_some() {
                    self.connect(at, replica);
                } else {
                    self.wait(at, 100);
                }
            }
            ReaderState::Reads(connection) => {
                let ReaderConnection { replica, leaves_ms, patience_ms, .. } = *connection;
                if !self.hosts.is_up(replica) {
                    self.leave(at, "loses its replica");
                } else if leaves_ms.min(patience_ms) <= self.now_ms {
                    self.leave(at, "leaves");
                }
            }
            _ => {}
        }
    }

    fn connect(&mut self, at: usize, replica: usize) {
        self.connections += 1;
        let (number, now_ms) = (self.connections, self.now_ms);
        let SimulatedReader { answer, position, .. } = self.readers[at];
        let is_calm = now_ms >= FAULTS_END_MS;
        let rest = if self.dice.chance(20) { self.dice.between(20, 300) } else { 0 };
        // In the calm, readers stay where they get something.
        let leaves = !is_calm && self.dice.chance(40);
        let leaves_ms = if leaves { now_ms + self.dice.between(50, 4_000) } else { u64::MAX };
        let to = self.hosts.ready(replica).expect("it was chosen because it is ready");
        let rest = Duration::from_millis(rest);
        let task = match self.answers[answer].handle {
            Some(handle) => to.attach(handle, position, number, rest),
            None => to.ask(self.answers[answer].question.seed, number, rest),
        };
        let line = format!("reader {at} reads on from {position:?} at {}", name_of(replica));
        self.history.tell(now_ms, &line);
        let patience_ms = now_ms + self.dice.between(4_000, 9_000);
        let was_there = self.has(answer, position);
        let connection =
            ReaderConnection { number, replica, leaves_ms, patience_ms, was_there, task };
        self.readers[at].state = ReaderState::Reads(connection);
    }

    /// Ends a reader's connection. Without a handle, there is nothing to come back to.
    fn leave(&mut self, at: usize, why: &str) {
        self.history.tell(self.now_ms, &format!("reader {at} {why}"));
        let ReaderState::Reads(connection) = &self.readers[at].state else { return };
        connection.task.abort();
        let answer = self.readers[at].answer;
        if self.answers[answer].handle.is_some() {
            let pause_ms = self.dice.between(10, 1_000);
            return self.wait(at, pause_ms);
        }
        // Nobody knows a handle with which to come back.
        let of_answer = self.readers.iter_mut().filter(|reader| reader.answer == answer);
        of_answer.for_each(|reader| reader.state = ReaderState::Gone);
    }

    fn wait(&mut self, at: usize, pause_ms: u64) {
        self.readers[at].state = ReaderState::Waits { until_ms: self.now_ms + pause_ms };
    }

    fn handle_news(&mut self, connection: u64, news: ReaderNews) {
        let is_its = |reader: &SimulatedReader| match &reader.state {
            ReaderState::Reads(known) => known.number == connection,
            _ => false,
        };
        let Some(at) = self.readers.iter().position(is_its) else { return };
        let answer = self.readers[at].answer;
        match news {
            ReaderNews::Begun(handle) => {
                let line = format!("answer {answer} is {}", short(handle.id_hex().as_bytes()));
                self.history.tell(self.now_ms, &line);
                self.answers[answer].handle = Some(handle);
            }
            ReaderNews::Rejected => self.leave(at, "is rejected"),
            ReaderNews::Ended => self.leave(at, "is cut off"),
            ReaderNews::Refused(why) => self.handle_refusal(at, why),
            ReaderNews::Piece { position, bytes, is_last } => {
                self.handle_piece(at, position, &bytes);
                if is_last && self.laws.broken().is_none() {
                    self.history.tell(self.now_ms, &format!("reader {at} is done"));
                    self.readers[at].state = ReaderState::Done;
                }
            }
        }
    }

    fn handle_piece(&mut self, at: usize, position: Position, bytes: &[u8]) {
        self.history.note(&(at, position.epoch, position.offset, bytes));
        let answer = self.readers[at].answer;
        if position.epoch > 0 {
            self.epochs.insert((answer, position.epoch));
        }
        self.laws.note_piece(answer, position, bytes);
        if let Err(why) = self.readers[at].take(position, bytes) {
            self.laws.breach(format!("reader {at} of answer {answer}: {why}"));
        }
        self.laws.check_reader(&self.readers[at], &self.answers[answer].whole);
        let patience_ms = self.now_ms + self.dice.between(4_000, 9_000);
        if let ReaderState::Reads(connection) = &mut self.readers[at].state {
            connection.patience_ms = patience_ms;
        }
    }

    fn handle_refusal(&mut self, at: usize, why: Unreachable) {
        let ReaderState::Reads(ReaderConnection { replica, was_there, .. }) =
            self.readers[at].state
        else {
            return;
        };
        if why == Unreachable::Unknown {
            let answer = self.readers[at].answer;
            let is_settled = self.hosts.is_settled(replica, self.now_ms)
                && self.store_fault.is_none()
                && self.now_ms >= self.store_touched_ms + 6_000;
            // It may have come to the store while the replica was asking there.
            if is_settled && was_there && self.has(answer, self.readers[at].position) {
                let (name, position) = (name_of(replica), self.readers[at].position);
                self.laws.breach(format!("{name} refuses {position:?} of answer {answer}"));
            }
            // Its owner may still write it again, so one refusal says little.
            let is_lost = self.now_ms >= FAULTS_END_MS && self.is_excused(answer);
            if is_lost && self.readers[at].refusals > 20 {
                self.history.tell(self.now_ms, &format!("reader {at}: its answer is lost"));
                self.readers[at].state = ReaderState::Gone;
                return;
            }
            self.readers[at].begin_again();
        }
        self.leave(at, &format!("is refused: {why:?}"));
    }

    /// True if the store has the place `position` of an answer.
    fn has(&self, answer: usize, position: Position) -> bool {
        let Some(handle) = self.answers[answer].handle else { return false };
        let id = handle.id_hex();
        let state = self.store.field(&id, "s").unwrap_or_default();
        let epochs = Epochs::parse(&self.store.field(&id, "e").unwrap_or_default());
        let offset = epochs.and_then(|epochs| epochs.offset_of(position));
        let log_bytes = self.store.log_bytes(&id) as u64;
        matches!(&*state, "running" | "ended") && offset.is_some_and(|offset| offset <= log_bytes)
    }

    /// Only who has ended or was disturbed is taken over from: a store that fails is no reason.
    fn note_takeovers(&mut self) {
        for takeover in self.store.take_takeovers() {
            let AcceptedTakeover { id, from, to } = takeover;
            self.owners.entry(id.clone()).or_default().insert(to.clone());
            let Some(host) = self.hosts.host_of(&from) else { continue };
            if from != to && self.hosts.is_settled(host, self.now_ms) {
                let what = format!("answer {id} is taken from {}, which lives", name_of(host));
                self.laws.breach(what);
            }
        }
    }

    fn note_writes(&mut self) {
        for write in self.store.take_writes() {
            self.laws.note_write(&write);
            self.owners.entry(write.id).or_default().insert(write.owner);
        }
    }
}
