//! One run: its steps, its calm, and the checks at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use loquent_proto::{AnswerHandle, Position};
use loquent_resumable::shared::epochs::Epochs;
use loquent_resumable::{HeldShares, Unreachable};

use crate::chats::WorldChats;
use crate::datagrams::PathQuality;
use crate::deletion::{AnswerDeletion, DeletionState};
use crate::dice::Dice;
use crate::glue::{GlueFault, WorldPlanting};
use crate::history::WorldHistory;
use crate::hosts::ReplicaHosts;
use crate::laws::WorldLaws;
use crate::news::ReaderNews;
use crate::plan::{FAULTS_END_MS, PlannedFault, PlannedQuestion, REPLICAS, WorldFault, WorldPlan};
use crate::reader::{ReaderConnection, ReaderState, SimulatedReader};
use crate::replica::{ANSWERS_PER_KEY, ReaderTransport};
use crate::responses::{WorldMoment, WorldResponses};
use crate::service::{AnswerText, is_stored, key_of};
use crate::store::{AcceptedTakeover, SimulatedStore, StoreState, name_of, short};

/// Time of a step: what is sent in one arrives in the next.
const STEP_MS: u64 = 5;
/// Time of a step once all readers are through, when only the grace passes.
const REST_STEP_MS: u64 = 100;
/// Time after the faults in which every reader gets its answer: a lease, a second generation, and
/// the longest waits of readers and replicas.
const CALM_MS: u64 = 60_000;
/// Time after which a deletion without an answer is tried again.
const ASK_AGAIN_MS: u64 = 5_000;
/// Time in which an owner hears of a deletion, also of an answer that has ended: it asks for those
/// every five seconds.
const HEARD_AFTER_MS: u64 = 6_000;
/// Pause before a deletion is tried again.
const PAUSE_MS: u64 = 300;
/// Time in which every replica that lives has a lease again.
const LEASES_BACK_MS: u64 = 3_000;
/// Time in which nothing is left of the answers: the grace of a minute twice, since an answer that
/// nobody reads is generated to its end first.
const REST_MS: u64 = 150_000;

/// Time within which a reader has the rest of an answer that has ended.
const SOON_MS: u64 = 3_000;
/// Time after a fault of the store from which it counts as undisturbed: two leases.
const STORE_SETTLED_MS: u64 = 6_000;

/// Condition of the store.
#[derive(Default)]
struct StoreCondition {
    fault: Option<PlannedFault>,
    /// Time of the last change.
    touched_ms: u64,
    /// Time until which leases may be missing.
    leases_gone_until_ms: u64,
}

impl StoreCondition {
    /// True if nothing has happened to the store for long.
    fn is_settled(&self, now_ms: u64) -> bool {
        self.fault.is_none() && now_ms >= self.touched_ms + STORE_SETTLED_MS
    }

    fn has_leases(&self, now_ms: u64) -> bool {
        now_ms >= self.leases_gone_until_ms
    }

    /// Returns what the responses' clients need to know of a world with these `hosts`.
    fn moment<'a>(&self, now_ms: u64, hosts: &'a ReplicaHosts) -> WorldMoment<'a> {
        let (is_store_settled, has_leases) = (self.is_settled(now_ms), self.has_leases(now_ms));
        WorldMoment { now_ms, hosts, is_store_settled, has_leases }
    }
}

/// An answer.
struct SimulatedAnswer {
    question: PlannedQuestion,
    /// Its text; those of all versions, if replicas do not tell them apart.
    wholes: Vec<String>,
    handle: Option<AnswerHandle>,
    /// Version of the replica that was asked.
    version: u64,
    /// True if the store has lost something since it began.
    is_lossy: bool,
    deletion: AnswerDeletion,
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
    /// Number of clients that learned how their background response ended.
    pub clients: usize,
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
    condition: StoreCondition,
    /// Time by which the store's clock has gone back, in all.
    gone_back_ms: u64,
    hosts: ReplicaHosts,
    answers: Vec<SimulatedAnswer>,
    /// By id: the owners of each answer of which the store has had a part.
    owners: BTreeMap<String, BTreeSet<String>>,
    /// By id: time when the store had the end of an answer.
    ended_ms: BTreeMap<String, u64>,
    readers: Vec<SimulatedReader>,
    responses: WorldResponses,
    chats: WorldChats,
    connections: u64,
    /// Connections without the right token.
    intruders: BTreeSet<u64>,
    glue: Option<GlueFault>,
    epochs: BTreeSet<(usize, u64)>,
    laws: WorldLaws,
    history: WorldHistory,
}

/// Runs the world of `seed` with the planted faults of `planting`.
pub fn run(seed: u64, planting: &WorldPlanting) -> WorldReport {
    let mut world = ReplicaWorld::new(seed, planting);
    world.run();
    let is_whole = |reader: &&SimulatedReader| matches!(reader.state, ReaderState::Done);
    let whole = world.readers.iter().filter(is_whole).count();
    WorldReport {
        seed,
        broken: world.laws.broken().map(str::to_owned),
        whole,
        clients: world.responses.done(),
        excused: world.readers.len() - whole,
        takeovers: world.epochs.len(),
        history: world.history,
    }
}

impl ReplicaWorld {
    fn new(seed: u64, planting: &WorldPlanting) -> Self {
        let store = SimulatedStore::new(planting, seed);
        let plan = WorldPlan::draw(seed);
        let may_differ = plan.update.is_some_and(|update| !update.is_told);
        let responses = WorldResponses::new(seed, &plan.responses, may_differ);
        let mut hosts = ReplicaHosts::new(seed, plan.update, planting.glue);
        (0..REPLICAS).for_each(|at| hosts.start(at, 0, &store));
        Self {
            now_ms: 0,
            plan,
            next_fault: 0,
            next_question: 0,
            dice: Dice::new(seed, 5),
            store,
            condition: StoreCondition::default(),
            gone_back_ms: 0,
            hosts,
            answers: Vec::new(),
            owners: BTreeMap::new(),
            ended_ms: BTreeMap::new(),
            readers: Vec::new(),
            responses,
            chats: WorldChats::new(seed),
            connections: 0,
            intruders: BTreeSet::new(),
            glue: planting.glue,
            epochs: BTreeSet::new(),
            laws: WorldLaws::default(),
            history: WorldHistory::default(),
        }
    }

    fn run(&mut self) {
        while self.laws.broken().is_none() && !self.is_through() {
            // Leases last longer by the time by which the clock has gone back.
            if self.now_ms >= FAULTS_END_MS + CALM_MS + self.gone_back_ms {
                return self.check_readers();
            }
            // Without readers, only what is left over can be wrong.
            let is_read =
                !self.readers.iter().all(SimulatedReader::is_over) || !self.are_clients_over();
            self.step(if is_read { STEP_MS } else { REST_STEP_MS });
        }
        let through_ms = self.now_ms;
        while self.laws.broken().is_none() && !self.is_at_rest() {
            if self.now_ms >= through_ms + REST_MS + self.gone_back_ms {
                let held: usize = self.hosts.held().iter().map(|held| held.bytes).sum();
                return self.laws.breach(match self.lost_chat() {
                    Some(answer) => format!("the chat of answer {answer} is never stored"),
                    None => format!("something is left of the answers, {held} bytes at replicas"),
                });
            }
            self.step(REST_STEP_MS);
        }
    }

    /// True if all has been asked and read, and nothing fails any more.
    fn is_through(&self) -> bool {
        let is_asked = self.next_question == self.plan.questions.len();
        let is_calm = self.now_ms >= FAULTS_END_MS;
        let is_read = self.readers.iter().all(SimulatedReader::is_over);
        is_asked && is_calm && is_read && self.are_clients_over()
    }

    /// True if the clients of responses and chats are through.
    fn are_clients_over(&self) -> bool {
        self.responses.is_over() && self.chats.is_over()
    }

    /// True if replicas hold nothing any more, nor the store, unless an owner has ended.
    fn is_at_rest(&self) -> bool {
        let is_kept = |(id, owners): (&String, &BTreeSet<String>)| {
            let may_stay = self.is_any_dead(owners) || self.has_untold_update();
            !may_stay && !self.is_deletion_lost(id) && self.store.field(id, "s").is_some()
                || self.is_deleted(id) && self.store.log_bytes(id) > 0
        };
        let is_free = self.hosts.held().iter().all(|held| *held == HeldShares::default());
        let are_ended = self.hosts.responses() == 0;
        let are_deleted = self.responses.are_deleted(&self.store, self.now_ms)
            && self.chats.are_deleted(&self.store, self.now_ms);
        let are_stored = self.lost_chat().is_none();
        is_free && are_ended && are_deleted && are_stored && !self.owners.iter().any(is_kept)
    }

    fn is_any_dead(&self, owners: &BTreeSet<String>) -> bool {
        owners.iter().any(|owner| self.hosts.dead.contains(owner))
    }

    fn check_readers(&mut self) {
        self.responses.check_end(&self.hosts, &mut self.laws);
        for at in 0..self.readers.len() {
            let answer = self.readers[at].answer;
            let is_deleted = self.answers[answer].deletion.holds(self.now_ms);
            if !self.readers[at].is_over() && (is_deleted || !self.is_excused(answer)) {
                let what = format!("reader {at} never gets the whole answer {answer}");
                self.laws.breach(what);
            }
        }
    }

    /// True if an answer may be lost: somebody deletes it, or a replica that generated it has ended
    /// and the store has lost a part of it, or never had it, or no replica has its version.
    fn is_excused(&self, answer: usize) -> bool {
        let SimulatedAnswer { handle, is_lossy, version, deletion, .. } = &self.answers[answer];
        let owners = handle.and_then(|handle| self.owners.get(&handle.id_hex()));
        let is_lost = *is_lossy || !self.hosts.has_version(*version);
        deletion.was_asked
            || self.has_untold_update()
            || owners.is_none_or(|owners| is_lost && self.is_any_dead(owners))
    }

    /// True if replicas take answers over whose version only seems to be theirs. The third of them
    /// ends such an answer with an error.
    fn has_untold_update(&self) -> bool {
        self.plan.update.is_some_and(|update| !update.is_told)
    }

    /// True if nothing has happened to a replica and the store for long.
    fn is_undisturbed(&self, replica: usize) -> bool {
        self.hosts.is_settled(replica, self.now_ms) && self.condition.is_settled(self.now_ms)
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
        self.drive_deletions();
        let moment = self.condition.moment(self.now_ms, &self.hosts);
        self.responses.drive(&moment, &mut self.history);
        self.chats.drive(&moment, &mut self.history);
        (0..self.readers.len()).for_each(|reader| self.drive_reader(reader));
        self.hosts.run_until(self.now_ms);
        self.store.run_until(self.now_ms, &mut self.history);
        for (connection, news) in self.hosts.take_news() {
            self.handle_news(connection, news);
        }
        let (objects, laws) = (self.store.take_objects(), &mut self.laws);
        let moment = self.condition.moment(self.now_ms, &self.hosts);
        self.responses.note_store(&mut self.store, &objects, &moment, laws);
        self.chats.note_objects(&objects, self.now_ms, laws);
        self.note_writes();
        self.note_takeovers();
        for (seed, key) in self.hosts.take_taken() {
            if key != key_of(seed) {
                self.laws.breach(format!("an answer is generated again for {key:?}, not its key"));
            }
        }
    }

    fn begin(&mut self, fault: PlannedFault) {
        if fault.kind.hits_replica() {
            return self.hosts.begin(fault, &mut self.store, &mut self.history);
        }
        if self.condition.fault.is_some() {
            return;
        }
        (self.condition.fault, self.condition.touched_ms) = (Some(fault), self.now_ms);
        self.history.tell(self.now_ms, &format!("store: {:?}", fault.kind));
        self.store.set_state(match fault.kind {
            WorldFault::StorePause => StoreState::Stands,
            WorldFault::StoreRefuses => StoreState::Refuses,
            WorldFault::LostReplies => StoreState::LosesReplies,
            WorldFault::Slow => StoreState::IsSlow,
            WorldFault::ClockJump | WorldFault::ClockBack | WorldFault::Eviction => {
                StoreState::Works
            }
            _ => StoreState::IsAway,
        });
        if matches!(fault.kind, WorldFault::ClockJump | WorldFault::Eviction) {
            self.condition.leases_gone_until_ms = self.now_ms + LEASES_BACK_MS;
        }
        if fault.kind == WorldFault::Slow {
            // Who has to connect again meanwhile may miss a whole lease.
            self.condition.leases_gone_until_ms = fault.until_ms + LEASES_BACK_MS;
        }
        match fault.kind {
            WorldFault::Failover => {
                self.store.fail_over(self.dice.between(100, 1_900));
                self.note_loss();
            }
            WorldFault::Eviction => {
                let evicted = self.store.evict().unwrap_or_default();
                self.history.tell(self.now_ms, &format!("store: evicts {evicted}"));
                self.note_loss();
            }
            WorldFault::ClockJump => self.store.jump_ahead(self.dice.between(500, 20_000)),
            WorldFault::ClockBack => {
                let back_ms = self.dice.between(500, 20_000);
                self.store.jump_back(back_ms);
                self.gone_back_ms += back_ms;
            }
            _ => {}
        }
    }

    /// Notes that the store has lost something.
    fn note_loss(&mut self) {
        for answer in &mut self.answers {
            answer.is_lossy = true;
            answer.deletion.note_loss();
        }
        self.responses.note_loss();
        self.chats.note_loss();
    }

    fn mend(&mut self) {
        self.hosts.mend(self.now_ms, &mut self.store, &mut self.history);
        if self.condition.fault.is_some_and(|fault| fault.until_ms <= self.now_ms) {
            (self.condition.fault, self.condition.touched_ms) = (None, self.now_ms);
            self.history.tell(self.now_ms, "store: works");
            self.store.set_state(StoreState::Works);
        }
    }

    /// Asks a question; returns false if its replica takes none now.
    fn ask(&mut self, question: PlannedQuestion) -> bool {
        let PlannedQuestion { replica, seed, readers, deleted_at_ms, .. } = question;
        if self.hosts.ready(replica).is_none() {
            return false;
        }
        let answer = self.answers.len();
        let version = self.hosts.note_question(replica, seed);
        let versions = if self.has_untold_update() { 0..=1 } else { version..=version };
        if is_stored(seed) {
            self.chats.add(answer, seed, versions.clone(), self.now_ms, &mut self.history);
        }
        self.answers.push(SimulatedAnswer {
            question,
            wholes: versions.map(|version| AnswerText::of(seed, version).whole()).collect(),
            handle: None,
            version,
            is_lossy: false,
            deletion: AnswerDeletion::planned(deleted_at_ms),
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
                self.check_wait(at);
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
        let answer = self.readers[at].answer;
        // A client that was told of the deletion may still ask for the beginning.
        if self.answers[answer].deletion.holds(now_ms) && self.dice.chance(50) {
            self.readers[at].begin_again();
        }
        let transport = self.draw_transport();
        if matches!(transport, ReaderTransport::Datagrams(_)) {
            // A receiver begins with a whole record.
            self.readers[at].forget_partial();
        }
        let position = self.readers[at].position;
        let is_calm = now_ms >= FAULTS_END_MS;
        // In the calm, readers stay where they get something.
        let leaves = !is_calm && self.dice.chance(40);
        let leaves_ms = if leaves { now_ms + self.dice.between(50, 4_000) } else { u64::MAX };
        let to = self.hosts.ready(replica).expect("it was chosen because it is ready");
        let task = match self.answers[answer].handle {
            Some(handle) => to.attach(handle, position, number, transport),
            None => to.ask(self.answers[answer].question.seed, number, transport),
        };
        let Position { epoch, offset } = position;
        let line = format!(
            "reader {at} of answer {answer} reads on from {offset} of epoch {epoch} at {}{transport}",
            name_of(replica)
        );
        self.history.tell(now_ms, &line);
        let patience_ms = now_ms + self.dice.between(4_000, 9_000);
        let was_there = self.has(answer, position);
        let connection = ReaderConnection {
            number,
            replica,
            since_ms: now_ms,
            leaves_ms,
            patience_ms,
            takes_all: transport.takes_all(),
            was_there,
            task,
        };
        self.readers[at].state = ReaderState::Reads(connection);
        if let Some(handle) = self.answers[answer].handle.filter(|_| self.dice.chance(15)) {
            self.intrude(handle, replica);
        }
    }

    /// Draws the way in which a reader gets its answer.
    fn draw_transport(&self) -> ReaderTransport {
        if self.dice.chance(40) {
            return ReaderTransport::Datagrams(PathQuality::draw(&self.dice));
        }
        let rest_ms = match self.dice.between(0, 9) {
            0 => self.dice.between(20, 300),
            // It trickles.
            1 => self.dice.between(500, 2_500),
            _ => 0,
        };
        ReaderTransport::Events { rest: Duration::from_millis(rest_ms) }
    }

    /// Ends a reader's connection. Without a handle, there is nothing to come back to.
    fn leave(&mut self, at: usize, why: &str) {
        self.history.tell(self.now_ms, &format!("reader {at} {why}"));
        let ReaderState::Reads(connection) = &self.readers[at].state else { return };
        connection.task.abort();
        let answer = self.readers[at].answer;
        if self.now_ms >= FAULTS_END_MS + CALM_MS / 2 + self.gone_back_ms
            && self.is_excused(answer)
            && !self.answers[answer].deletion.holds(self.now_ms)
        {
            self.history.tell(self.now_ms, &format!("reader {at}: its answer is lost"));
            self.readers[at].state = ReaderState::Gone;
            return;
        }
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
        if let ReaderNews::Response(news) = news {
            let moment = self.condition.moment(self.now_ms, &self.hosts);
            let (laws, history) = (&mut self.laws, &mut self.history);
            return self.responses.handle_news(connection, news, &moment, laws, history);
        }
        if let ReaderNews::Chat(news) = news {
            let (laws, history) = (&mut self.laws, &mut self.history);
            return self.chats.handle_news(connection, news, self.now_ms, laws, history);
        }
        if self.intruders.contains(&connection) {
            return self.check_intruder(&news);
        }
        if let ReaderNews::Stopped(outcome) = news {
            return self.handle_stopped(connection, outcome);
        }
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
            ReaderNews::Rejected => self.handle_rejection(at, answer),
            ReaderNews::Stopped(_) | ReaderNews::Response(_) | ReaderNews::Chat(_) => {}
            ReaderNews::Ended => self.leave(at, "is cut off"),
            ReaderNews::Unreadable(error) => {
                self.laws.breach(format!("reader {at} cannot read answer {answer}: {error}"));
            }
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
        let may_fail = self.has_untold_update();
        self.laws.check_reader(&self.readers[at], &self.answers[answer].wholes, may_fail);
        if let ReaderState::Reads(ReaderConnection { replica, since_ms, .. }) =
            self.readers[at].state
        {
            self.check_fresh_read(answer, replica, since_ms);
        }
        let patience_ms = self.now_ms + self.dice.between(4_000, 9_000);
        if let ReaderState::Reads(connection) = &mut self.readers[at].state {
            connection.patience_ms = patience_ms;
        }
    }

    /// A reader that takes all at once has an answer soon after the store has it, however slowly
    /// others read, wherever nothing is disturbed.
    fn check_wait(&mut self, at: usize) {
        let SimulatedReader { answer, state: ReaderState::Reads(connection), .. } =
            &self.readers[at]
        else {
            return;
        };
        let known = &self.answers[*answer];
        let ended_ms = known.handle.and_then(|handle| self.ended_ms.get(&handle.id_hex()));
        let since_ms = ended_ms.copied().unwrap_or(u64::MAX).max(connection.since_ms);
        let is_late = self.now_ms >= since_ms.saturating_add(SOON_MS) && connection.takes_all;
        let is_excused = known.is_lossy || known.deletion.was_asked;
        if is_late && !is_excused && self.is_undisturbed(connection.replica) {
            let name = name_of(connection.replica);
            self.laws.breach(format!("reader {at} waits at {name} for an answer that has ended"));
        }
    }

    /// A key is refused only if it may have all of its places.
    fn handle_rejection(&mut self, at: usize, answer: usize) {
        let PlannedQuestion { replica, seed, .. } = self.answers[answer].question;
        let asked = self.hosts.asked_by_key_of(replica, seed);
        if asked <= ANSWERS_PER_KEY {
            self.laws.breach(format!("a key is refused its place {asked} of {ANSWERS_PER_KEY}"));
        }
        self.leave(at, "is rejected");
    }

    fn handle_refusal(&mut self, at: usize, why: Unreachable) {
        let ReaderState::Reads(ReaderConnection { replica, was_there, .. }) =
            self.readers[at].state
        else {
            return;
        };
        if why == Unreachable::Unknown {
            let answer = self.readers[at].answer;
            let deletion = self.answers[answer].deletion;
            // Until then it comes back, and may find an owner that has not heard of it.
            if deletion.holds(self.now_ms.saturating_sub(2 * HEARD_AFTER_MS)) {
                self.history.tell(self.now_ms, &format!("reader {at}: its answer is deleted"));
                self.readers[at].state = ReaderState::Gone;
                return;
            }
            let is_settled = self.is_undisturbed(replica) && !deletion.was_asked;
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
            self.check_revival(&id, "taken over");
            self.owners.entry(id.clone()).or_default().insert(to.clone());
            let Some(host) = self.hosts.host_of(&from) else { continue };
            let has_lease = self.condition.has_leases(self.now_ms);
            if from != to && has_lease && self.hosts.is_settled(host, self.now_ms) {
                let what = format!("answer {id} is taken from {}, which lives", name_of(host));
                self.laws.breach(what);
            }
        }
    }

    fn note_writes(&mut self) {
        for write in self.store.take_writes() {
            self.laws.note_write(&write);
            if write.is_end {
                self.ended_ms.entry(write.id.clone()).or_insert(self.now_ms);
                self.check_chat(&write.id);
            }
            self.check_revival(&write.id, "written");
            self.owners.entry(write.id).or_default().insert(write.owner);
        }
    }

    /// Returns an answer that has ended and whose chat is not stored, though its owners live, and
    /// try again for as long as the store is away.
    fn lost_chat(&self) -> Option<usize> {
        let is_lost = |answer: &usize| {
            let SimulatedAnswer { handle, deletion, .. } = &self.answers[*answer];
            let Some(id) = handle.map(|handle| handle.id_hex()) else { return false };
            let is_excused = deletion.was_asked
                || self.has_untold_update()
                || self.owners.get(&id).is_none_or(|owners| self.is_any_dead(owners));
            !is_excused && self.ended_ms.contains_key(&id) && !self.chats.is_stored(*answer)
        };
        (0..self.answers.len()).find(is_lost)
    }

    /// The chat of an answer is stored before the answer's end, wherever nothing is disturbed.
    fn check_chat(&mut self, id: &str) {
        let is_calm = (0..REPLICAS).all(|replica| self.is_undisturbed(replica));
        let Some(answer) = self.answer_of(id).filter(|_| is_calm && !self.has_untold_update())
        else {
            return;
        };
        if !self.answers[answer].deletion.was_asked && !self.chats.is_stored(answer) {
            self.laws.breach(format!("answer {answer} has ended, and its chat is not stored"));
        }
    }

    /// Asks for the deletions that are due.
    fn drive_deletions(&mut self) {
        for answer in 0..self.answers.len() {
            let Some(handle) = self.answers[answer].handle else { continue };
            if self.answers[answer].deletion.is_due(self.now_ms, ASK_AGAIN_MS) {
                self.delete(answer, handle);
            }
        }
    }

    fn delete(&mut self, answer: usize, handle: AnswerHandle) {
        let (replica, now_ms) = (self.dice.index(REPLICAS), self.now_ms);
        // It stays planned for the next step, and another replica.
        let Some(to) = self.hosts.ready(replica) else { return };
        self.connections += 1;
        to.stop(handle, self.connections);
        self.answers[answer].deletion.ask(self.connections, now_ms);
        let line = format!("answer {answer} is to be deleted at {}", name_of(replica));
        self.history.tell(now_ms, &line);
    }

    /// Takes the outcome of a deletion.
    fn handle_stopped(&mut self, connection: u64, outcome: Result<(), Unreachable>) {
        // An earlier attempt that is answered late says nothing about the one under way.
        let is_its = |state: DeletionState| match state {
            DeletionState::Asked { connection: of, .. } => of == connection,
            _ => false,
        };
        let Some(answer) = self.answers.iter().position(|answer| is_its(answer.deletion.state))
        else {
            return;
        };
        let at_ms = self.now_ms;
        self.history.tell(at_ms, &format!("answer {answer} is deleted: {outcome:?}"));
        self.answers[answer].deletion.state = match outcome {
            Ok(()) => DeletionState::Confirmed { at_ms },
            Err(Unreachable::Unknown) => DeletionState::Unknown,
            Err(_) => DeletionState::Planned { at_ms: at_ms + PAUSE_MS },
        };
    }

    /// True if the answer with this `id` is deleted for good.
    fn is_deleted(&self, id: &str) -> bool {
        self.deletion_of(id).is_some_and(|deletion| deletion.holds(self.now_ms))
    }

    /// True if the store may have lost the deletion of the answer with this `id`.
    fn is_deletion_lost(&self, id: &str) -> bool {
        self.deletion_of(id).is_some_and(|deletion| deletion.is_lost)
    }

    fn deletion_of(&self, id: &str) -> Option<&AnswerDeletion> {
        self.answer_of(id).map(|answer| &self.answers[answer].deletion)
    }

    /// Returns the number of the answer with this `id`.
    fn answer_of(&self, id: &str) -> Option<usize> {
        let is_its = |handle: AnswerHandle| handle.id_hex() == id;
        self.answers.iter().position(|answer| answer.handle.is_some_and(is_its))
    }

    /// A deleted answer is not read afresh at a replica that nothing disturbs. An owner is not told
    /// at once, but hears of it when it writes, or asks for the answers that it keeps.
    fn check_fresh_read(&mut self, answer: usize, replica: usize, since_ms: u64) {
        let id = self.answers[answer].handle.map(|handle| handle.id_hex()).unwrap_or_default();
        let mut owners = self.owners.get(&id).into_iter().flatten();
        let may_own = owners.any(|owner| self.hosts.host_of(owner) == Some(replica));
        let heard_ms = since_ms.saturating_sub(if may_own { HEARD_AFTER_MS } else { 0 });
        if self.answers[answer].deletion.holds(heard_ms) && self.is_undisturbed(replica) {
            let name = name_of(replica);
            self.laws.breach(format!("{name} shows answer {answer}, which is deleted"));
        }
    }

    /// A deleted answer is neither written nor taken over, unless the store has lost its deletion.
    fn check_revival(&mut self, id: &str, what: &str) {
        if self.is_deleted(id) {
            self.laws.breach(format!("answer {id} is {what} after it was deleted"));
        }
    }

    /// Lets somebody who knows an answer's id, and not its token, try to read or to delete it.
    fn intrude(&mut self, handle: AnswerHandle, replica: usize) {
        let Some(at) = self.hosts.ready(replica) else { return };
        let mut wrong = handle;
        if self.glue != Some(GlueFault::TokenIgnored) {
            // A single bit is enough to be refused.
            wrong.token[0] ^= 1;
        }
        self.connections += 1;
        self.intruders.insert(self.connections);
        // Where the calls have a planted fault, other laws show it better.
        if self.glue.is_some() || self.dice.chance(50) {
            let transport = ReaderTransport::Events { rest: Duration::ZERO };
            at.attach(wrong, Position::default(), self.connections, transport);
        } else {
            at.stop(wrong, self.connections);
        }
    }

    /// Nobody reads or deletes an answer without its token, or learns that it is there.
    fn check_intruder(&mut self, news: &ReaderNews) {
        let is_refused = match news {
            ReaderNews::Refused(why) | ReaderNews::Stopped(Err(why)) => {
                matches!(why, Unreachable::Unknown | Unreachable::Away)
            }
            _ => false,
        };
        if !is_refused {
            let told = match news {
                ReaderNews::Piece { .. } => "the answer".to_owned(),
                other => format!("{other:?}"),
            };
            self.laws.breach(format!("somebody without the token is told {told}"));
        }
    }
}
