//! The stored chats of a run: their clients, and the laws that hold for them.

use loquent_serving::identity::Owner;
use serde_json::Value;
use tokio::task::AbortHandle;

use crate::deletion::{AnswerDeletion, DeletionState};
use crate::dice::Dice;
use crate::history::WorldHistory;
use crate::laws::WorldLaws;
use crate::news::ChatNews;
use crate::plan::REPLICAS;
use crate::requests::{ChatRequest, OWNER, annotation};
use crate::responses::{LAST_LOOK_MS, PATIENCE_MS, WorldMoment};
use crate::service::{AnswerText, chat_id};
use crate::store::{AcceptedObject, SimulatedStore, name_of};

/// Number of the first connection of a client of a chat.
const FIRST_CONNECTION: u64 = 1 << 33;

/// State of an annotation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Annotation {
    Never,
    Planned { at_ms: u64 },
    Asked { connection: u64, at_ms: u64 },
    Confirmed { at_ms: u64 },
}

/// State of the client that reads a chat.
enum ReadingState {
    Waits { until_ms: u64 },
    Asks(ReadingCall),
    Done,
}

/// A call that is under way.
struct ReadingCall {
    connection: u64,
    replica: usize,
    since_ms: u64,
    /// True if the store had the chat before the call.
    was_stored: bool,
    /// True if the caller does not have the key of the chat.
    is_stranger: bool,
    task: AbortHandle,
}

/// A chat whose answer is to be stored.
struct SimulatedChat {
    /// The answer's number.
    answer: usize,
    id: String,
    /// Its texts and their lengths in tokens, by version.
    wholes: Vec<(String, usize)>,
    /// True if the store has lost something since it began.
    is_lossy: bool,
    /// True once the store has had it.
    is_stored: bool,
    annotation: Annotation,
    deletion: AnswerDeletion,
    /// True if the store had the chat before its deletion was asked for.
    was_stored: bool,
    reading: ReadingState,
}

impl SimulatedChat {
    /// True if the store must still have it, once it has had it.
    const fn must_stay(&self) -> bool {
        !self.is_lossy && !self.deletion.was_asked
    }
}

/// All stored chats of a run.
pub struct WorldChats {
    dice: Dice,
    chats: Vec<SimulatedChat>,
    connections: u64,
}

impl WorldChats {
    /// Creates the chats of the run with this `seed`: none yet.
    pub fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed, 10), chats: Vec::new(), connections: FIRST_CONNECTION }
    }

    /// Notes that the answer with this number is asked for, and to be stored. Its text is that of
    /// one of the `versions`.
    pub fn add(
        &mut self,
        answer: usize,
        seed: u64,
        versions: impl Iterator<Item = u64>,
        now_ms: u64,
        history: &mut WorldHistory,
    ) {
        let line =
            format!("chat {} is that of answer {answer}: {}", self.chats.len(), chat_id(seed));
        history.tell(now_ms, &line);
        let later =
            |percent| self.dice.chance(percent).then(|| now_ms + self.dice.between(50, 14_000));
        let annotation = later(50).map_or(Annotation::Never, |at_ms| Annotation::Planned { at_ms });
        let deletion = AnswerDeletion::planned(later(30));
        let texts = versions.map(|version| AnswerText::of(seed, version));
        self.chats.push(SimulatedChat {
            answer,
            id: chat_id(seed),
            wholes: texts.map(|text| (text.whole(), text.tokens.len())).collect(),
            is_lossy: false,
            is_stored: false,
            annotation,
            deletion,
            was_stored: false,
            reading: ReadingState::Waits { until_ms: now_ms + self.dice.between(20, 3_000) },
        });
    }

    /// True if every client has looked at its chat for the last time.
    pub fn is_over(&self) -> bool {
        self.chats.iter().all(|chat| matches!(chat.reading, ReadingState::Done))
    }

    /// Notes that the store has lost something.
    pub fn note_loss(&mut self) {
        for chat in &mut self.chats {
            chat.is_lossy = true;
            chat.deletion.note_loss();
        }
    }

    /// Asks for what is due, and gives up what takes too long.
    pub fn drive(&mut self, moment: &WorldMoment<'_>, history: &mut WorldHistory) {
        for at in 0..self.chats.len() {
            self.drive_reading(at, moment, history);
            self.drive_annotation(at, moment, history);
            self.drive_deletion(at, moment, history);
        }
    }

    fn drive_reading(&mut self, at: usize, moment: &WorldMoment<'_>, history: &mut WorldHistory) {
        let now_ms = moment.now_ms;
        match &self.chats[at].reading {
            ReadingState::Waits { until_ms } if *until_ms <= now_ms => {
                // An id is no secret.
                let is_stranger = self.dice.chance(10) && now_ms < LAST_LOOK_MS;
                let owner = if is_stranger { Owner([8; 16]) } else { OWNER };
                let asked = self.ask(at, ChatRequest::Read(owner), moment, history);
                let Some((connection, replica, task)) = asked else {
                    return self.wait(at, now_ms, 200);
                };
                let (since_ms, was_stored) = (now_ms, self.chats[at].is_stored);
                let call =
                    ReadingCall { connection, replica, since_ms, was_stored, is_stranger, task };
                self.chats[at].reading = ReadingState::Asks(call);
            }
            ReadingState::Asks(call) => {
                let is_cut = !moment.hosts.is_up(call.replica);
                if is_cut || call.since_ms + PATIENCE_MS <= now_ms {
                    call.task.abort();
                    self.wait(at, now_ms, 1_000);
                }
            }
            _ => {}
        }
    }

    fn wait(&mut self, at: usize, now_ms: u64, most_ms: u64) {
        let until_ms = now_ms + self.dice.between(20, most_ms);
        self.chats[at].reading = ReadingState::Waits { until_ms };
    }

    fn drive_annotation(
        &mut self,
        at: usize,
        moment: &WorldMoment<'_>,
        history: &mut WorldHistory,
    ) {
        let is_due = match self.chats[at].annotation {
            Annotation::Planned { at_ms } => at_ms <= moment.now_ms,
            Annotation::Asked { at_ms, .. } => at_ms + PATIENCE_MS <= moment.now_ms,
            _ => false,
        };
        if !is_due || self.chats[at].deletion.was_asked || moment.now_ms >= LAST_LOOK_MS {
            return;
        }
        if let Some((connection, ..)) = self.ask(at, ChatRequest::Annotate, moment, history) {
            let chat = &mut self.chats[at];
            chat.annotation = Annotation::Asked { connection, at_ms: moment.now_ms };
            let is_to_be_deleted = matches!(chat.deletion.state, DeletionState::Planned { .. });
            if is_to_be_deleted && self.dice.chance(30) {
                // Between the two calls of the annotation, or nearly so.
                let at_ms = moment.now_ms + self.dice.between(0, 15);
                chat.deletion.state = DeletionState::Planned { at_ms };
            }
        }
    }

    fn drive_deletion(&mut self, at: usize, moment: &WorldMoment<'_>, history: &mut WorldHistory) {
        let is_due = self.chats[at].deletion.is_due(moment.now_ms, PATIENCE_MS);
        if !is_due || moment.now_ms >= LAST_LOOK_MS {
            return;
        }
        if let Some((connection, ..)) = self.ask(at, ChatRequest::Delete, moment, history) {
            let chat = &mut self.chats[at];
            // A deletion whose reply was lost leaves nothing for the next one.
            chat.was_stored = chat.is_stored;
            chat.deletion.ask(connection, moment.now_ms);
        }
    }

    /// Sends a request to some replica, if that takes requests.
    fn ask(
        &mut self,
        at: usize,
        request: ChatRequest,
        moment: &WorldMoment<'_>,
        history: &mut WorldHistory,
    ) -> Option<(u64, usize, AbortHandle)> {
        let replica = self.dice.index(REPLICAS);
        let to = moment.hosts.ready(replica)?;
        self.connections += 1;
        let line = format!("chat {at}: {request} at {}", name_of(replica));
        history.tell(moment.now_ms, &line);
        let task = to.request_chat(&self.chats[at].id, request, self.connections);
        Some((self.connections, replica, task))
    }

    /// Takes the news of a connection.
    pub fn handle_news(
        &mut self,
        connection: u64,
        news: ChatNews,
        now_ms: u64,
        laws: &mut WorldLaws,
        history: &mut WorldHistory,
    ) {
        match news {
            ChatNews::Completion(outcome) => {
                let is_its = |chat: &SimulatedChat| match &chat.reading {
                    ReadingState::Asks(call) => call.connection == connection,
                    _ => false,
                };
                let Some(at) = self.chats.iter().position(is_its) else { return };
                let what = match &outcome {
                    Ok(completion) => format!("metadata {}", completion["metadata"]),
                    Err(status) => status.to_string(),
                };
                history.tell(now_ms, &format!("chat {at} is read: {what}"));
                if let Err(what) = self.check_read(at, &outcome) {
                    laws.breach(what);
                }
                // Only an answer of the store is a last look.
                if now_ms >= LAST_LOOK_MS && !matches!(outcome, Err(503)) {
                    self.chats[at].reading = ReadingState::Done;
                } else {
                    self.wait(at, now_ms, 2_000);
                }
            }
            ChatNews::Annotated(outcome) => {
                let is_its = |chat: &SimulatedChat| match chat.annotation {
                    Annotation::Asked { connection: of, .. } => of == connection,
                    _ => false,
                };
                let Some(at) = self.chats.iter().position(is_its) else { return };
                history.tell(now_ms, &format!("chat {at} is annotated: {outcome:?}"));
                self.chats[at].annotation = match outcome {
                    Ok(()) => Annotation::Confirmed { at_ms: now_ms },
                    Err(_) => Annotation::Planned { at_ms: now_ms + self.dice.between(50, 300) },
                };
            }
            ChatNews::Deleted(outcome) => self.note_deleted(connection, outcome, now_ms, history),
        }
    }

    fn note_deleted(
        &mut self,
        connection: u64,
        outcome: Result<(), u16>,
        at_ms: u64,
        history: &mut WorldHistory,
    ) {
        let is_its = |chat: &SimulatedChat| match chat.deletion.state {
            DeletionState::Asked { connection: of, .. } => of == connection,
            _ => false,
        };
        let Some(at) = self.chats.iter().position(is_its) else { return };
        history.tell(at_ms, &format!("chat {at} is deleted: {outcome:?}"));
        let chat = &mut self.chats[at];
        chat.deletion.state = match outcome {
            Ok(()) => DeletionState::Confirmed { at_ms },
            Err(404) if chat.was_stored && !chat.is_lossy => DeletionState::Confirmed { at_ms },
            // It may be stored again, by an owner whom nobody has told.
            Err(404) if chat.was_stored => DeletionState::Unknown,
            // It is not stored yet, or the store is away.
            Err(_) => DeletionState::Planned { at_ms: at_ms + self.dice.between(100, 900) },
        };
    }

    /// A completion is whole, has the usage of a whole answer, and has its annotation; it is shown
    /// to its owner alone. It is there if it was stored, and gone if it was deleted.
    fn check_read(&self, at: usize, outcome: &Result<Value, u16>) -> Result<(), String> {
        let chat = &self.chats[at];
        let ReadingState::Asks(call) = &chat.reading else { return Ok(()) };
        let completion = match outcome {
            // Without the store nobody can tell whose it is.
            Err(404 | 503) if call.is_stranger => return Ok(()),
            Err(503) => return Ok(()),
            Err(404) if call.was_stored && chat.must_stay() => {
                return Err(format!("chat {at} is gone"));
            }
            Err(404) => return Ok(()),
            Err(status) => return Err(format!("chat {at} is answered with {status}")),
            Ok(_) if call.is_stranger => return Err(format!("chat {at} is shown to another key")),
            Ok(completion) => completion,
        };
        if chat.deletion.holds(call.since_ms) {
            let name = name_of(call.replica);
            return Err(format!("{name} shows chat {at}, which is deleted"));
        }
        let text = completion["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        let tokens = completion["usage"]["completion_tokens"].as_u64().unwrap_or_default();
        let is_whole = |(whole, len): &(String, usize)| whole == text && *len as u64 == tokens;
        if !chat.wholes.iter().any(is_whole) {
            return Err(format!("chat {at} is not a whole answer: {tokens} tokens, {text:?}"));
        }
        // A store that has lost data may have lost the change, and kept the chat.
        let is_kept = match chat.annotation {
            Annotation::Confirmed { at_ms } => at_ms >= call.since_ms || chat.is_lossy,
            _ => true,
        };
        if !is_kept && completion["metadata"] != annotation() {
            return Err(format!("chat {at} has lost its annotation"));
        }
        Ok(())
    }

    /// Notes what the store has accepted: nothing of a chat that is deleted.
    pub fn note_objects(&mut self, objects: &[AcceptedObject], now_ms: u64, laws: &mut WorldLaws) {
        for AcceptedObject { id, .. } in objects {
            let Some(chat) = self.chats.iter_mut().find(|chat| chat.id == *id) else { continue };
            chat.is_stored = true;
            if chat.deletion.holds(now_ms) {
                laws.breach(format!("{id} is stored after it was deleted"));
            }
        }
    }

    /// True if the chat of an answer, if it has one, is stored, or need not be any more.
    pub fn is_stored(&self, answer: usize) -> bool {
        let mut of_answer = self.chats.iter().filter(|chat| chat.answer == answer);
        of_answer.all(|chat| chat.is_stored || !chat.must_stay())
    }

    /// True if the store has nothing of the chats that are deleted.
    pub fn are_deleted(&self, store: &SimulatedStore, now_ms: u64) -> bool {
        let is_left =
            |chat: &SimulatedChat| chat.deletion.holds(now_ms) && store.has_chat(&chat.id);
        !self.chats.iter().any(is_left)
    }
}
