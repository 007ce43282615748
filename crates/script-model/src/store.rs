//! The store of the model: every key space and every call's outcome exists once.
//!
//! Many states of the world differ only in what replicas and readers know. A script runs once for
//! each key space and arguments; from then on its outcome is looked up.

use std::collections::HashMap;
use std::rc::Rc;

use crate::calls::{Epoch, ID, PREFIX, StoreCall, parse_epochs};
use crate::interpreter::Interpreter;
use crate::keyspace::{Keyspace, RedisReply};
use crate::log_text::LogText;
use crate::scripts::ScriptTexts;

/// Number of a key space in [`ModelStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyspaceId(u32);

/// A key of the observer: set once the answer was stopped in the store.
const STOPPED_KEY: &str = "observer:stopped";

/// The answer as a key space has it.
#[derive(Debug)]
pub struct AnswerFacts {
    /// True if the store knows it.
    pub is_known: bool,
    /// True if it is generated.
    pub is_running: bool,
    /// True if it was stopped.
    pub is_stopped: bool,
    /// The owner's name; `None` if it has none.
    pub owner: Option<char>,
    /// True if the owner has a lease.
    pub has_lease: bool,
    /// The highest fence with which it was written, or with which alone it may be.
    pub fence: u64,
    /// The log, and the owners that it has had.
    pub log: LogText,
    pub epochs: Vec<Epoch>,
}

impl AnswerFacts {
    fn of(keys: &Keyspace) -> Self {
        let answer = format!("{PREFIX}a:{ID}");
        let field = |name| keys.hash_field(&answer, name).unwrap_or_default();
        let text = |name: &str| {
            let bytes = keys.bytes(&format!("{PREFIX}{name}:{ID}")).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let number = |text: String| text.parse::<u64>().unwrap_or_default();
        let owner = field("o").chars().next();
        Self {
            is_known: keys.has(&answer),
            is_running: field("s") == "running",
            is_stopped: keys.has(STOPPED_KEY),
            owner,
            has_lease: owner.is_some_and(|owner| keys.has(&format!("{PREFIX}p:{owner}"))),
            fence: number(field("f")).max(number(text("x"))),
            log: LogText::of(&text("g")),
            epochs: parse_epochs(&field("e")),
        }
    }
}

/// All key spaces reached so far, and the outcomes of calls.
pub struct ModelStore {
    interpreter: Interpreter,
    spaces: Vec<(Rc<Keyspace>, Rc<AnswerFacts>)>,
    ids: HashMap<Rc<Keyspace>, KeyspaceId>,
    outcomes: HashMap<(KeyspaceId, StoreCall), (KeyspaceId, Rc<RedisReply>)>,
    aged: HashMap<(KeyspaceId, u64), KeyspaceId>,
}

impl ModelStore {
    /// Creates a store that runs `texts`.
    pub fn new(texts: &ScriptTexts) -> Self {
        Self {
            interpreter: Interpreter::new(texts),
            spaces: Vec::new(),
            ids: HashMap::new(),
            outcomes: HashMap::new(),
            aged: HashMap::new(),
        }
    }

    /// Returns the number of `keys`.
    pub fn intern(&mut self, keys: Keyspace) -> KeyspaceId {
        if let Some(id) = self.ids.get(&keys) {
            return *id;
        }
        let (id, keys) = (KeyspaceId(self.spaces.len() as u32), Rc::new(keys));
        self.spaces.push((keys.clone(), Rc::new(AnswerFacts::of(&keys))));
        self.ids.insert(keys, id);
        id
    }

    /// Returns what the key space `id` says of the answer.
    pub fn answer(&self, id: KeyspaceId) -> Rc<AnswerFacts> {
        self.spaces[id.0 as usize].1.clone()
    }

    /// Notes, for the observer, that the answer was stopped.
    pub fn note_stop(&mut self, id: KeyspaceId) -> KeyspaceId {
        let mut keys = self.keys(id).clone();
        keys.set(STOPPED_KEY.to_owned(), b"1", None);
        self.intern(keys)
    }

    fn keys(&self, id: KeyspaceId) -> &Keyspace {
        &self.spaces[id.0 as usize].0
    }

    /// Runs `call` on the key space `id`; returns the one after it, and the reply.
    pub fn run(&mut self, id: KeyspaceId, call: &StoreCall) -> (KeyspaceId, Rc<RedisReply>) {
        let key = (id, call.clone());
        if let Some((after, reply)) = self.outcomes.get(&key) {
            return (*after, reply.clone());
        }
        let (script, arguments) = (call.script(), call.arguments());
        let (keys, reply) = self.interpreter.run(script, &arguments, self.keys(id).clone());
        let outcome = (self.intern(keys), Rc::new(reply));
        self.outcomes.insert(key, outcome.clone());
        outcome
    }

    /// Lets `ms` pass for the key space `id`.
    pub fn age(&mut self, id: KeyspaceId, ms: u64) -> KeyspaceId {
        if let Some(after) = self.aged.get(&(id, ms)) {
            return *after;
        }
        let mut keys = self.keys(id).clone();
        keys.age(ms);
        let after = self.intern(keys);
        self.aged.insert((id, ms), after);
        after
    }

    /// Number of calls that ran a script.
    pub fn runs(&self) -> usize {
        self.outcomes.len()
    }
}
