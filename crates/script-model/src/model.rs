//! The steps of the model: what a replica, a reader, the store or a fault does next.
//!
//! A step of a replica is one call of a script and the use of its reply, as in
//! `crates/resumable/src/shared`. Steps of several replicas interleave in any order, so a
//! replica may be as slow as it likes; only its lease does not wait.

use std::rc::Rc;

use crate::calls::{
    Epoch, LEASE_TICKS, ReplyFields, StoreCall, TICK_MS, WrittenState, parse_epochs,
};
use crate::keyspace::RedisReply;
use crate::log_text::LogText;
use crate::store::{KeyspaceId, ModelStore};
use crate::world::{
    EpochLog, MirrorNews, MirroredLog, ModelReader, ModelReplica, ModelWorld, OwnedLog,
    RepeatedCall, ReplicaHealth, ReplicaRole, current, goes_on, has_position, name_of,
};

/// A step. Replicas and readers are named by their numbers; `lost` says that the call of the step
/// is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelStep {
    /// The owner generates a byte.
    Generate(u8),
    /// The owner writes.
    Append { by: u8, lost: bool },
    /// A mirror reads.
    Read { by: u8, lost: bool },
    /// A mirror takes the answer over.
    Take { by: u8, lost: bool },
    /// A mirror waits no longer for what the store lacks.
    Forget(u8),
    /// A new owner gives the answer back, which is another one here if it `differs`.
    GiveBack { by: u8, differs: bool, lost: bool },
    /// A replica repeats a call.
    Repeat(u8),
    /// A reader connects to a replica.
    Attach { reader: u8, to: u8 },
    /// A reader shows what its replica has.
    Show(u8),
    /// A reader leaves its replica.
    Detach(u8),
    /// A client stops the answer at a replica.
    Stop { at: u8, lost: bool },
    /// A second passes, and the replicas renew their leases.
    Tick,
    /// A replica ends.
    Die(u8),
    /// A replica ends after it gave its answers back.
    Retire(u8),
    /// A replica stands still from now on.
    Pause(u8),
    /// A replica loses its connection to the store.
    Cut(u8),
    /// A replica works again.
    Mend(u8),
    /// The store stands still for a lease.
    StorePause,
    /// The store's writes do not reach the standby any more.
    Lag,
    /// The standby takes the store's place.
    Failover,
    /// The call that was not answered runs now.
    LateCall,
}

/// The rules of the callers that a planted fault can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallerRules {
    /// A silent owner counts as dead only after a whole lease of a working store.
    pub waits_for_the_store: bool,
    /// An epoch gets a number that no other epoch has, lost ones included.
    pub numbers_are_new: bool,
    /// A call that gives an answer back is repeated until it is answered.
    pub repeats_releases: bool,
    /// An owner whose client stops the answer while the store is away repeats `stop.lua`, and not
    /// an append, which is refused after a takeover.
    pub stops_for_all: bool,
    /// An owner asks for its answer regularly after its end too.
    pub asks_after_the_end: bool,
    /// A mirror lets a reader wait whose epoch it has not heard of yet.
    pub waits_for_epochs: bool,
}

impl Default for CallerRules {
    fn default() -> Self {
        Self {
            waits_for_the_store: true,
            numbers_are_new: true,
            repeats_releases: true,
            stops_for_all: true,
            asks_after_the_end: true,
            waits_for_epochs: true,
        }
    }
}

/// A law that a step breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenLaw(pub String);

type Checked<T> = Result<T, BrokenLaw>;

/// The model: its rules, its store, and the story of the steps if one is told.
pub struct ScriptModel {
    pub store: ModelStore,
    pub rules: CallerRules,
    /// Length of the answer in bytes.
    pub bytes: usize,
    /// Sentences on what the steps did; `None` while nobody listens.
    pub story: Option<Vec<String>>,
}

fn law<T>(what: impl Into<String>) -> Checked<T> {
    Err(BrokenLaw(what.into()))
}

impl ScriptModel {
    /// Returns the first state: replica A has just begun the answer for its only connected reader,
    /// the first.
    pub fn first(&mut self, replicas: usize, readers: usize) -> ModelWorld {
        let replica = || ModelReplica {
            health: ReplicaHealth::Live,
            role: ReplicaRole::Idle,
            worked: LEASE_TICKS,
            unheard: 0,
            repeats: None,
        };
        let reader = || ModelReader { at: None, epoch: 0, shown: LogText::default() };
        let mut world = ModelWorld {
            store: self.store.intern(Default::default()),
            standby: None,
            replicas: (0..replicas).map(|_| replica()).collect(),
            readers: (0..readers).map(|_| reader()).collect(),
            late: None,
            budget: Default::default(),
            epochs: vec![EpochLog { number: 0, letter: b'a', prefix: LogText::default() }],
            is_announced: false,
            is_lossy: false,
            is_stopped: false,
        };
        world.readers[0].at = Some(0);
        world.replicas[0].role = ReplicaRole::Owner(OwnedLog {
            fence: 1,
            letter: b'a',
            log: LogText::default(),
            epochs: Vec::new(),
            stored: 0,
            is_read: false,
            has_lapsed: false,
        });
        self.announce_all(&mut world);
        world
    }

    /// Does `step` in `before`; returns the state after it, or `None` if it cannot happen.
    ///
    /// # Errors
    /// [`BrokenLaw`], if the step breaks a law.
    pub fn step(&mut self, before: &ModelWorld, step: ModelStep) -> Checked<Option<ModelWorld>> {
        let mut world = before.clone();
        let is_possible = self.apply(&mut world, step)?;
        if !is_possible {
            return Ok(None);
        }
        self.check_names(&world)?;
        Ok(Some(world))
    }

    fn apply(&mut self, world: &mut ModelWorld, step: ModelStep) -> Checked<bool> {
        match step {
            ModelStep::Generate(by) => Ok(self.generate(world, by.into())),
            ModelStep::Append { by, lost } => self.append(world, by.into(), lost),
            ModelStep::Read { by, lost } => self.read(world, by.into(), lost),
            ModelStep::Take { by, lost } => self.take(world, by.into(), lost),
            ModelStep::Forget(by) => Ok(self.forget(world, by.into())),
            ModelStep::GiveBack { by, differs, lost } => {
                self.give_back(world, by.into(), differs, lost)
            }
            ModelStep::Repeat(by) => self.repeat(world, by.into()),
            ModelStep::Attach { reader, to } => self.attach(world, reader.into(), to.into()),
            ModelStep::Show(reader) => Ok(self.show(world, reader.into())),
            ModelStep::Detach(reader) => {
                self.say(|| format!("reader {reader} leaves its replica"));
                Ok(world.readers[usize::from(reader)].at.take().is_some())
            }
            ModelStep::Stop { at, lost } => self.stop(world, at.into(), lost),
            ModelStep::Tick => self.tick(world),
            ModelStep::LateCall => {
                let Some(call) = world.late.take() else { return Ok(false) };
                self.say(|| format!("the call that was not answered runs: {call:?}"));
                self.run(world, &call).map(|_| true)
            }
            fault => self.fail(world, fault),
        }
    }

    /// Applies a fault.
    fn fail(&mut self, world: &mut ModelWorld, fault: ModelStep) -> Checked<bool> {
        self.say(|| match fault {
            ModelStep::Die(at) => format!("{} dies", name_of(at.into())),
            ModelStep::Retire(at) => format!("{} is told to end", name_of(at.into())),
            ModelStep::Pause(at) => format!("{} stands still", name_of(at.into())),
            ModelStep::Cut(at) => format!("{} cannot reach the store", name_of(at.into())),
            ModelStep::Mend(at) => format!("{} works again", name_of(at.into())),
            ModelStep::StorePause => "the store stands still for a lease".to_owned(),
            ModelStep::Lag => "writes from here on do not reach the standby".to_owned(),
            _ => "failover: the standby takes the store's place".to_owned(),
        });
        match fault {
            ModelStep::Die(at) => kill(world, at.into()),
            ModelStep::Retire(at) => return self.retire(world, at.into()),
            ModelStep::Pause(at) => world.replicas[usize::from(at)].health = ReplicaHealth::Paused,
            ModelStep::Cut(at) => world.replicas[usize::from(at)].health = ReplicaHealth::Cut,
            ModelStep::Mend(at) => mend(&mut world.replicas[usize::from(at)]),
            ModelStep::StorePause => {
                world.replicas.iter_mut().for_each(|replica| replica.worked = 0);
                self.age(world, u64::from(LEASE_TICKS))?;
            }
            ModelStep::Lag => world.standby = Some(world.store),
            _ => {
                let Some(standby) = world.standby.take() else { return Ok(false) };
                // Connections to the old store break, and a call fails.
                world.replicas.iter_mut().for_each(|replica| replica.worked = 0);
                world.store = standby;
                world.is_lossy = true;
                world.is_stopped &= self.store.answer(standby).is_stopped;
            }
        }
        Ok(true)
    }

    fn say(&mut self, sentence: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(sentence());
        }
    }

    // Calls.

    /// Calls the store for replica `by`; `None` if the call is not answered.
    fn call(
        &mut self,
        world: &mut ModelWorld,
        by: usize,
        call: &StoreCall,
        lost: bool,
    ) -> Checked<Option<Rc<RedisReply>>> {
        let is_cut = world.replicas[by].health == ReplicaHealth::Cut;
        if lost && !is_cut {
            world.late = Some(call.clone());
        }
        if lost || is_cut {
            world.replicas[by].worked = 0;
            return Ok(None);
        }
        self.run(world, call).map(Some)
    }

    /// Runs a call, and looks at what it does.
    fn run(&mut self, world: &mut ModelWorld, call: &StoreCall) -> Checked<Rc<RedisReply>> {
        let before = world.store;
        let (after, reply) = self.store.run(before, call);
        world.store = after;
        let is = |outcome| ReplyFields::of(&reply).text() == outcome;
        match call {
            StoreCall::Append { fence, state, .. } if is("stored") => {
                self.watch_append(world, before, *fence, *state)?;
            }
            StoreCall::Take { replica, .. } if is("ours") => {
                self.watch_take(world, before, *replica)?;
            }
            StoreCall::Stop => {
                world.store = self.store.note_stop(world.store);
            }
            _ => {}
        }
        Ok(reply)
    }

    fn watch_append(
        &mut self,
        world: &mut ModelWorld,
        before: KeyspaceId,
        fence: u64,
        state: WrittenState,
    ) -> Checked<()> {
        if state == WrittenState::Stopped {
            world.store = self.store.note_stop(world.store);
            return Ok(());
        }
        let answer = self.store.answer(before);
        if answer.is_stopped {
            return law("an owner writes an answer that a client has stopped");
        }
        if fence < answer.fence {
            let highest = answer.fence;
            return law(format!("an owner writes with fence {fence} after one with {highest}"));
        }
        world.is_announced = true;
        Ok(())
    }

    fn watch_take(
        &mut self,
        world: &mut ModelWorld,
        before: KeyspaceId,
        replica: char,
    ) -> Checked<()> {
        let answer = self.store.answer(before);
        if answer.is_stopped {
            return law("a replica takes over an answer that a client has stopped");
        }
        if let Some(owner) = answer.owner.filter(|owner| *owner != replica && answer.has_lease) {
            return law(format!("{replica} takes over the answer of {owner}, which has a lease"));
        }
        let letter = b'a' + world.epochs.len() as u8;
        let after = self.store.answer(world.store);
        let number = current(&after.epochs);
        world.epochs.push(EpochLog { number, letter, prefix: after.log });
        Ok(())
    }

    // The owner.

    fn generate(&mut self, world: &mut ModelWorld, by: usize) -> bool {
        let bytes = self.bytes;
        let Some(owned) = owner(world, by) else { return false };
        if owned.log.is_whole() || owned.log.len() >= bytes {
            return false;
        }
        let is_last = owned.log.len() + 1 == bytes;
        let letter = if is_last { owned.letter.to_ascii_uppercase() } else { owned.letter };
        owned.log.push(letter);
        let text = owned.log.text().to_owned();
        self.say(|| format!("{} has generated \"{text}\"", name_of(by)));
        true
    }

    fn append(&mut self, world: &mut ModelWorld, by: usize, lost: bool) -> Checked<bool> {
        let asks_after_the_end = self.rules.asks_after_the_end;
        let Some(owned) = owner(world, by) else { return Ok(false) };
        let is_due = owned.stored() < owned.log.len() || !owned.log.is_whole();
        if !(is_due || owned.is_read || owned.has_lapsed || asks_after_the_end) {
            return Ok(false);
        }
        let state = if owned.log.is_whole() { WrittenState::Ended } else { WrittenState::Running };
        let call = StoreCall::Append {
            replica: name_of(by),
            fence: owned.fence,
            offset: owned.stored(),
            state,
            bytes: owned.log.text()[owned.stored()..].to_owned(),
            epochs: owned.epochs.clone(),
        };
        let reply = self.call(world, by, &call, lost)?;
        let Some(reply) = reply else {
            self.say(|| format!("{} writes, without an answer", name_of(by)));
            return Ok(true);
        };
        let mut fields = ReplyFields::of(&reply);
        let (outcome, head, is_read) = (fields.text(), fields.number(), fields.number() == 1);
        self.say(|| format!("{} writes: {outcome}, {head} bytes", name_of(by)));
        let Some(owned) = owner(world, by) else { return Ok(true) };
        owned.is_read = is_read;
        owned.has_lapsed = false;
        match outcome.as_str() {
            "stored" => owned.stored = owned.log.len() as u8,
            "lost" => owned.stored = 0,
            _ => idle(world, by),
        }
        Ok(true)
    }

    fn give_back(
        &mut self,
        world: &mut ModelWorld,
        by: usize,
        differs: bool,
        lost: bool,
    ) -> Checked<bool> {
        let Some(owned) = owner(world, by) else { return Ok(false) };
        // A new owner knows it before it has generated a byte beyond the log.
        let has_begun = owned.epochs.is_empty()
            || owned.log.len() > owned.epochs.last().map_or(0, |last| usize::from(last.1));
        if has_begun {
            return Ok(false);
        }
        let call = StoreCall::Release { replica: name_of(by), fence: owned.fence, differs };
        idle(world, by);
        let is_answered = self.call(world, by, &call, lost)?.is_some();
        self.say(|| {
            let answered = if is_answered { "" } else { ", without an answer" };
            let why = if differs { "differs" } else { "is not generated" };
            format!("{} gives the answer back, which {why} there{answered}", name_of(by))
        });
        if !is_answered && self.rules.repeats_releases {
            world.replicas[by].repeats = Some(RepeatedCall(call));
        }
        Ok(true)
    }

    fn repeat(&mut self, world: &mut ModelWorld, by: usize) -> Checked<bool> {
        if world.replicas[by].health != ReplicaHealth::Live {
            return Ok(false);
        }
        let Some(RepeatedCall(call)) = world.replicas[by].repeats.take() else {
            return Ok(false);
        };
        self.say(|| format!("{} repeats its call", name_of(by)));
        self.run(world, &call).map(|_| true)
    }

    // A mirror.

    fn read(&mut self, world: &mut ModelWorld, by: usize, lost: bool) -> Checked<bool> {
        let Some(mirrored) = mirror(world, by) else { return Ok(false) };
        if mirrored.news == MirrorNews::Whole {
            return Ok(false);
        }
        let call = StoreCall::Read { replica: name_of(by), offset: mirrored.log.len() };
        let Some(reply) = self.call(world, by, &call, lost)? else {
            self.say(|| format!("{} reads, without an answer", name_of(by)));
            return Ok(true);
        };
        let read = ReadReply::of(&reply);
        let ReadReply { state, owner, head, bytes, .. } = &read;
        self.say(|| {
            let at = name_of(by);
            format!("{at} reads: {state}, its owner {owner}, {head} bytes, new are \"{bytes}\"")
        });
        let knows_the_dead =
            world.replicas[by].worked >= LEASE_TICKS || !self.rules.waits_for_the_store;
        let Some(mirrored) = mirror(world, by) else { return Ok(true) };
        if note(mirrored, &read, knows_the_dead) == MirrorFate::Ends {
            idle(world, by);
        } else if mirrored.news == MirrorNews::Orphaned {
            self.check_death(world, by)?;
        }
        Ok(true)
    }

    /// Checks that the answer's owner, which mirror `by` has found dead, had time to say otherwise.
    fn check_death(&self, world: &ModelWorld, by: usize) -> Checked<()> {
        let Some(owner) = self.store.answer(world.store).owner else { return Ok(()) };
        let is_other = owner != name_of(by);
        if is_other && world.replicas[owner as usize - 'A' as usize].unheard < LEASE_TICKS {
            return law(format!("{owner} counts as dead, and the store has worked for no lease"));
        }
        Ok(())
    }

    fn take(&mut self, world: &mut ModelWorld, by: usize, lost: bool) -> Checked<bool> {
        let step = self.epoch_step(world);
        let Some(mirrored) = mirror(world, by) else { return Ok(false) };
        if mirrored.news != MirrorNews::Orphaned {
            return Ok(false);
        }
        // Whatever comes of it, a mirror that goes on reads first.
        mirrored.news = MirrorNews::Follows;
        let (log, epochs) = (mirrored.log, mirrored.epochs.clone());
        let call = StoreCall::Take { replica: name_of(by), head: log.len(), epochs, step };
        let Some(reply) = self.call(world, by, &call, lost)? else {
            self.say(|| format!("{} takes the answer over, without an answer", name_of(by)));
            return Ok(true);
        };
        let mut fields = ReplyFields::of(&reply);
        let (whose, fence, head) = (fields.text(), fields.number(), fields.number());
        fields.text();
        let epochs = fields.text();
        self.say(|| {
            let at = name_of(by);
            format!("{at} asks to take the answer over: {whose}, fence {fence}, epochs {epochs:?}")
        });
        let epochs = parse_epochs(&epochs);
        match whose.as_str() {
            "ours" if head as usize == log.len() => {
                let letter = world.epochs.last().expect("it is the newest").letter;
                world.replicas[by].role = ReplicaRole::Owner(OwnedLog {
                    fence,
                    letter,
                    log,
                    epochs,
                    stored: log.len() as u8,
                    is_read: false,
                    has_lapsed: false,
                });
            }
            "ours" | "others" => {}
            _ => idle(world, by),
        }
        Ok(true)
    }

    /// Returns the distance from the last epoch's number in the store to the next one's. The
    /// server draws it at random from thousands; the model draws one that was never used.
    fn epoch_step(&self, world: &ModelWorld) -> u16 {
        if !self.rules.numbers_are_new {
            return 1;
        }
        let last = current(&self.store.answer(world.store).epochs);
        let highest = world.epochs.iter().map(|log| log.number).max().unwrap_or_default();
        highest + 1 - last
    }

    fn forget(&mut self, world: &mut ModelWorld, by: usize) -> bool {
        let is_missing = mirror(world, by).is_some_and(|it| it.news == MirrorNews::Missing);
        if is_missing {
            self.say(|| format!("{} waits no longer for what the store lacks", name_of(by)));
            idle(world, by);
        }
        is_missing
    }

    // Readers.

    fn attach(&mut self, world: &mut ModelWorld, reader: usize, to: usize) -> Checked<bool> {
        let health = world.replicas[to].health;
        if world.readers[reader].at.is_some() || world.readers[reader].shown.is_whole() {
            return Ok(false);
        }
        let is_cut = health == ReplicaHealth::Cut;
        if !matches!(health, ReplicaHealth::Live | ReplicaHealth::Cut) {
            return Ok(false);
        }
        let (epochs, len, is_open) = match &world.replicas[to].role {
            ReplicaRole::Owner(owned) => (owned.epochs.clone(), owned.log.len(), false),
            ReplicaRole::Mirror(mirrored) => {
                let is_open = mirrored.news != MirrorNews::Whole;
                (mirrored.epochs.clone(), mirrored.log.len(), is_open)
            }
            ReplicaRole::Idle if is_cut => return Ok(false),
            ReplicaRole::Idle => return self.load(world, reader, to),
        };
        self.answer(world, reader, to, &epochs, len, is_open)
    }

    /// Answers a reader from the log of replica `to`, which has `len` bytes.
    fn answer(
        &mut self,
        world: &mut ModelWorld,
        reader: usize,
        to: usize,
        epochs: &[Epoch],
        len: usize,
        is_open: bool,
    ) -> Checked<bool> {
        let position = &world.readers[reader];
        let (offset, epoch) = (position.shown.len(), position.epoch);
        let is_known = has_position(epochs, position);
        if is_known && offset <= len {
            self.say(|| {
                let at = name_of(to);
                format!("reader {reader} goes on at {at} from epoch {epoch}, offset {offset}")
            });
            world.readers[reader].at = Some(to as u8);
            return Ok(true);
        }
        let stored = self.store.answer(world.store);
        let is_newer = epoch > current(epochs);
        let is_ahead = is_known || is_newer && self.rules.waits_for_epochs;
        let can_come = stored.log.len() >= offset && has_position(&stored.epochs, position);
        if is_ahead && is_open && can_come {
            // It waits, and the mirror reads on.
            return Ok(false);
        }
        // An owner that has not heard of its successor does not know the successor's epoch.
        let is_superseded = !is_open && is_newer;
        let is_stored = stored.log.text().starts_with(position.shown.text());
        if !world.is_lossy && !is_known && is_stored && !is_superseded {
            return law("a reader's place is refused, though the store has all that it has shown");
        }
        self.say(|| {
            let at = name_of(to);
            format!("reader {reader} is refused at {at}, and reads again from the beginning")
        });
        let position = &mut world.readers[reader];
        (position.epoch, position.shown) = (0, LogText::default());
        Ok(true)
    }

    /// Looks for the answer in the store, for a reader at a replica that does not have it.
    fn load(&mut self, world: &mut ModelWorld, reader: usize, to: usize) -> Checked<bool> {
        let found = self.run(world, &StoreCall::Find)?;
        let state = match &*found {
            RedisReply::Nil => String::new(),
            found => {
                let mut fields = ReplyFields::of(found);
                fields.text();
                fields.text()
            }
        };
        if !matches!(state.as_str(), "running" | "ended") {
            let answer = self.store.answer(world.store);
            if answer.is_known && !answer.is_stopped {
                return law("an answer that exists is not found");
            }
            return Ok(false);
        }
        let call = StoreCall::Read { replica: name_of(to), offset: 0 };
        let reply = self.run(world, &call)?;
        let ReadReply { bytes, epochs, .. } = ReadReply::of(&reply);
        let log = LogText::of(&bytes);
        let is_attached = self.answer(world, reader, to, &epochs, log.len(), false)?;
        if world.readers[reader].at.is_some() {
            let news = if log.is_whole() { MirrorNews::Whole } else { MirrorNews::Follows };
            world.replicas[to].role = ReplicaRole::Mirror(MirroredLog { log, epochs, news });
        }
        Ok(is_attached)
    }

    fn show(&mut self, world: &mut ModelWorld, reader: usize) -> bool {
        let Some(at) = world.readers[reader].at.map(usize::from) else { return false };
        let health = world.replicas[at].health;
        let (log, epoch) = match &world.replicas[at].role {
            ReplicaRole::Owner(owned) => (owned.log, current(&owned.epochs)),
            ReplicaRole::Mirror(mirrored) => (mirrored.log, current(&mirrored.epochs)),
            ReplicaRole::Idle => return false,
        };
        if !matches!(health, ReplicaHealth::Live | ReplicaHealth::Cut) {
            return false;
        }
        let position = &mut world.readers[reader];
        for byte in log.text().bytes().skip(position.shown.len()) {
            position.shown.push(byte);
        }
        position.epoch = epoch;
        if position.shown.is_whole() {
            position.at = None;
        }
        let shown = position.shown.text().to_owned();
        self.say(|| format!("reader {reader} shows \"{shown}\", in epoch {epoch}"));
        true
    }

    fn stop(&mut self, world: &mut ModelWorld, at: usize, lost: bool) -> Checked<bool> {
        let is_reachable = self.store.answer(world.store).is_known;
        if !is_working(world, at) {
            return Ok(false);
        }
        let again = owner(world, at).map(|owned| StoreCall::Append {
            replica: name_of(at),
            fence: owned.fence,
            offset: owned.stored(),
            state: WrittenState::Stopped,
            bytes: String::new(),
            epochs: owned.epochs.clone(),
        });
        if again.is_none() && !is_reachable {
            return Ok(false);
        }
        let is_answered = self.call(world, at, &StoreCall::Stop, lost)?.is_some();
        self.say(|| {
            let answered = if is_answered { "" } else { ", and the store does not answer" };
            format!("a client stops the answer at {}{answered}", name_of(at))
        });
        if let Some(again) = again {
            // Its client is told so in any case: it is generated no more.
            world.is_stopped = true;
            let again = if self.rules.stops_for_all { StoreCall::Stop } else { again };
            if !is_answered {
                world.replicas[at].repeats = Some(RepeatedCall(again));
            }
            idle(world, at);
        } else if is_answered {
            world.is_stopped = true;
            idle(world, at);
        }
        Ok(true)
    }

    // Time and faults.

    fn tick(&mut self, world: &mut ModelWorld) -> Checked<bool> {
        self.say(|| "a second passes".to_owned());
        self.age(world, 1)?;
        for replica in &mut world.replicas {
            if replica.health == ReplicaHealth::Live {
                replica.unheard = 0;
                replica.worked = (replica.worked + 1).min(LEASE_TICKS);
            } else {
                replica.unheard = (replica.unheard + 1).min(LEASE_TICKS);
            }
        }
        self.announce_all(world);
        Ok(true)
    }

    fn announce_all(&mut self, world: &mut ModelWorld) {
        for at in 0..world.replicas.len() {
            if world.replicas[at].health != ReplicaHealth::Live {
                continue;
            }
            let call = StoreCall::Announce { replica: name_of(at) };
            let (after, known) = self.store.run(world.store, &call);
            world.store = after;
            if let (RedisReply::Int(0), Some(owned)) = (&*known, owner(world, at)) {
                owned.has_lapsed = true;
            }
        }
    }

    /// Lets `ticks` pass in the store and in its standby.
    fn age(&mut self, world: &mut ModelWorld, ticks: u64) -> Checked<()> {
        let before = world.store;
        world.store = self.store.age(before, ticks * TICK_MS);
        world.standby = world.standby.map(|standby| self.store.age(standby, ticks * TICK_MS));
        let is_gone = !self.store.answer(world.store).is_known;
        if is_gone && self.store.answer(before).is_running {
            return law("an answer that is generated expires");
        }
        Ok(())
    }

    fn retire(&mut self, world: &mut ModelWorld, at: usize) -> Checked<bool> {
        if world.replicas[at].health != ReplicaHealth::Live {
            return Ok(false);
        }
        if let Some(owned) = owner(world, at) {
            // All of it is written before.
            if owned.stored() < owned.log.len() {
                return Ok(false);
            }
            let (replica, fence) = (name_of(at), owned.fence);
            self.run(world, &StoreCall::Release { replica, fence, differs: false })?;
        }
        self.run(world, &StoreCall::Retire { replica: name_of(at) })?;
        kill(world, at);
        world.replicas[at].unheard = LEASE_TICKS;
        Ok(true)
    }

    // Laws.

    /// Checks that an epoch and an offset name one byte, wherever they are known, and so that what
    /// is shown is the beginning of one answer.
    fn check_names(&self, world: &ModelWorld) -> Checked<()> {
        let stored = self.store.answer(world.store);
        self.check_log(world, || "the store".into(), current(&stored.epochs), &stored.log)?;
        for (at, replica) in world.replicas.iter().enumerate() {
            let (log, epochs) = match &replica.role {
                ReplicaRole::Owner(owned) => (owned.log, &owned.epochs),
                ReplicaRole::Mirror(mirrored) => (mirrored.log, &mirrored.epochs),
                ReplicaRole::Idle => continue,
            };
            let whose = || format!("replica {}", name_of(at));
            self.check_log(world, whose, current(epochs), &log)?;
        }
        for (at, reader) in world.readers.iter().enumerate() {
            self.check_log(world, || format!("reader {at}"), reader.epoch, &reader.shown)?;
        }
        Ok(())
    }

    fn check_log(
        &self,
        world: &ModelWorld,
        whose: impl FnOnce() -> String,
        epoch: u16,
        log: &LogText,
    ) -> Checked<()> {
        let named = world.epoch_log(epoch);
        if named.is_some_and(|named| named.begins_with(log, self.bytes)) {
            return Ok(());
        }
        let (whose, text) = (whose(), log.text());
        let Some(named) = named else {
            return law(format!("{whose} has \"{text}\" in epoch {epoch}, which does not exist"));
        };
        let right: String =
            (0..self.bytes).map(|at| char::from(named.byte(at, self.bytes))).collect();
        law(format!("{whose} has \"{text}\" in epoch {epoch}, whose log is \"{right}\""))
    }

    /// True if a reader need not get a whole answer, as the manual says: it was stopped, or the
    /// store lost in a failover that its owner gave it up.
    pub fn is_excused(&self, world: &ModelWorld) -> bool {
        let answer = self.store.answer(world.store);
        let gave_up = |(at, replica): (usize, &ModelReplica)| {
            let is_named = answer.owner == Some(name_of(at));
            is_named && replica.health != ReplicaHealth::Dead && !world.is_owner(at)
        };
        let has_forgotten = world.is_lossy && world.replicas.iter().enumerate().any(gave_up);
        answer.is_stopped || has_forgotten
    }

    /// True if nobody has the answer: it is over, or the store lost it together with its owner.
    pub fn is_gone(&self, world: &ModelWorld) -> bool {
        let has_owner = (0..world.replicas.len()).any(|at| world.is_owner(at));
        !self.store.answer(world.store).is_known && !has_owner
    }

    /// Checks the end of a calm: an answer of which a client was told that it is stopped does not
    /// go on.
    ///
    /// # Errors
    /// [`BrokenLaw`], if it does.
    pub fn check_stop(&self, world: &ModelWorld) -> Checked<()> {
        let answer = self.store.answer(world.store);
        if world.is_stopped && !answer.is_stopped && answer.is_known {
            return law("a client was told that the answer is stopped, and it goes on");
        }
        Ok(())
    }
}

/// True if a mirror follows its log further.
#[derive(Debug, PartialEq, Eq)]
enum MirrorFate {
    GoesOn,
    Ends,
}

/// The reply about a log that was read.
struct ReadReply {
    state: String,
    owner: String,
    head: usize,
    bytes: String,
    epochs: Vec<Epoch>,
}

impl ReadReply {
    fn of(reply: &RedisReply) -> Self {
        let mut fields = ReplyFields::of(reply);
        Self {
            state: fields.text(),
            owner: fields.text(),
            head: fields.number() as usize,
            bytes: fields.text(),
            epochs: parse_epochs(&fields.text()),
        }
    }
}

/// Applies what was read to a mirror, as `followed.rs` does.
fn note(mirrored: &mut MirroredLog, read: &ReadReply, knows_the_dead: bool) -> MirrorFate {
    let next = mirrored.log.len();
    mirrored.news = match read.state.as_str() {
        "running" | "ended" if read.head >= next => MirrorNews::Follows,
        "running" | "ended" | "unknown" => MirrorNews::Missing,
        _ => return MirrorFate::Ends,
    };
    if mirrored.news == MirrorNews::Missing {
        return MirrorFate::GoesOn;
    }
    if read.epochs != mirrored.epochs {
        if !goes_on(&read.epochs, &mirrored.epochs, next) {
            return MirrorFate::Ends;
        }
        // The records come next time.
        mirrored.epochs.clone_from(&read.epochs);
        return MirrorFate::GoesOn;
    }
    read.bytes.bytes().for_each(|byte| mirrored.log.push(byte));
    let is_orphaned = read.owner == "none" || read.owner == "silent" && knows_the_dead;
    if mirrored.log.is_whole() {
        mirrored.news = MirrorNews::Whole;
    } else if read.head == next && is_orphaned {
        mirrored.news = MirrorNews::Orphaned;
    }
    MirrorFate::GoesOn
}

impl OwnedLog {
    fn stored(&self) -> usize {
        self.stored.into()
    }
}

fn is_working(world: &ModelWorld, at: usize) -> bool {
    matches!(world.replicas[at].health, ReplicaHealth::Live | ReplicaHealth::Cut)
}

fn owner(world: &mut ModelWorld, at: usize) -> Option<&mut OwnedLog> {
    let is_working = is_working(world, at);
    match &mut world.replicas[at].role {
        ReplicaRole::Owner(owned) if is_working => Some(owned),
        _ => None,
    }
}

fn mirror(world: &mut ModelWorld, at: usize) -> Option<&mut MirroredLog> {
    let is_working = is_working(world, at);
    match &mut world.replicas[at].role {
        ReplicaRole::Mirror(mirrored) if is_working => Some(mirrored),
        _ => None,
    }
}

/// Ends what the replica has of the answer; its readers are disconnected.
fn idle(world: &mut ModelWorld, at: usize) {
    world.replicas[at].role = ReplicaRole::Idle;
    world.disconnect(at);
}

fn kill(world: &mut ModelWorld, at: usize) {
    idle(world, at);
    let replica = &mut world.replicas[at];
    (replica.health, replica.worked, replica.repeats) = (ReplicaHealth::Dead, 0, None);
}

fn mend(replica: &mut ModelReplica) {
    (replica.health, replica.worked) = (ReplicaHealth::Live, 0);
}
