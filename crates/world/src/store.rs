//! The store: it runs the scripts' files on keys in memory, and has Redis's faults.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use loquent_openai::{BoxFuture, Dial, Io};
use loquent_proto::hex;
use loquent_store::Kind;
use redis::Script;
use script_model::{Keyspace, RedisReply, SCRIPTS, ScriptName, ScriptStore};

use crate::dice::Dice;
use crate::glue::{WireFault, WorldPlanting};
use crate::history::WorldHistory;
use crate::pipe::{StoreEnd, store_pipe};
use crate::plan::REPLICAS;
use crate::requests::OWNER;
use crate::resp::{put_reply, take_command};

/// Prefix of all keys.
const PREFIX: &str = "loquent:1:";
/// Interval between the states to which a failover may go back.
const SNAPSHOT_EVERY_MS: u64 = 100;
/// Number of these states.
const SNAPSHOTS: usize = 20;
/// Error of a store that loads its data.
const LOADING: &[u8] = b"-LOADING Redis is loading the dataset in memory\r\n";

/// State of the network between a replica and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// It works.
    Works,
    /// Connections are closed, and new ones refused.
    Cut,
    /// Nothing passes.
    Stalls,
}

/// State of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreState {
    /// It works.
    Works,
    /// It does nothing.
    Stands,
    /// Every call is an error.
    Refuses,
    /// Some calls run, and the connection ends in place of the reply.
    LosesReplies,
    /// Replies are late.
    IsSlow,
    /// It cannot be reached.
    IsAway,
}

/// The way of the replicas to the store.
struct Network {
    links: [LinkState; REPLICAS],
    is_away: bool,
    /// Connections that the store has not seen yet.
    opened: Vec<(usize, StoreEnd)>,
}

/// Connects one replica to the store.
pub struct StoreDialer {
    replica: usize,
    network: Arc<Mutex<Network>>,
}

fn lock(network: &Mutex<Network>) -> MutexGuard<'_, Network> {
    network.lock().expect("nothing panics under this lock")
}

impl Dial for StoreDialer {
    fn dial(&self, _: Option<u32>) -> BoxFuture<'_, std::io::Result<Box<dyn Io>>> {
        Box::pin(async {
            let link = {
                let network = lock(&self.network);
                if network.is_away { LinkState::Cut } else { network.links[self.replica] }
            };
            match link {
                LinkState::Works => {
                    let (client, store) = store_pipe();
                    lock(&self.network).opened.push((self.replica, store));
                    Ok(Box::new(client) as Box<dyn Io>)
                }
                LinkState::Cut => Err(std::io::ErrorKind::ConnectionRefused.into()),
                LinkState::Stalls => std::future::pending().await,
            }
        })
    }
}

struct StoreLink {
    replica: usize,
    end: StoreEnd,
    calls: Vec<u8>,
    /// Replies, and the times when they leave.
    replies: VecDeque<(u64, Vec<u8>)>,
}

/// A write of an owner that the store has accepted.
pub struct AcceptedWrite {
    /// The answer's id.
    pub id: String,
    /// Epoch of what was written.
    pub epoch: u64,
    /// The owner's name.
    pub owner: String,
    /// True if the answer ends with it.
    pub is_end: bool,
}

/// A takeover that the store has accepted.
pub struct AcceptedTakeover {
    /// The answer's id.
    pub id: String,
    /// Name of the owner before; empty if there was none.
    pub from: String,
    /// Name of the owner from now on.
    pub to: String,
}

/// A response or a chat that the store has accepted.
pub struct AcceptedObject {
    /// Its id.
    pub id: String,
    /// True if its answer has ended.
    pub is_ended: bool,
}

/// The store of the world.
pub struct SimulatedStore {
    scripts: ScriptStore,
    names: HashMap<String, ScriptName>,
    network: Arc<Mutex<Network>>,
    links: Vec<StoreLink>,
    state: StoreState,
    snapshots: VecDeque<(u64, Keyspace)>,
    dice: Dice,
    now_ms: u64,
    writes: Vec<AcceptedWrite>,
    takeovers: Vec<AcceptedTakeover>,
    objects: Vec<AcceptedObject>,
    /// Takeovers of responses.
    claims: Vec<AcceptedTakeover>,
    /// The planted fault.
    wire: Option<WireFault>,
}

impl SimulatedStore {
    /// Creates an empty store with the planted faults of `planting`, for the run with this `seed`.
    pub fn new(planting: &WorldPlanting, seed: u64) -> Self {
        // A client knows a script by the hash of the text that it was built with.
        let named = SCRIPTS.map(|name| (Script::new(name.text()).get_hash().to_owned(), name));
        let network =
            Network { links: [LinkState::Works; REPLICAS], is_away: false, opened: Vec::new() };
        Self {
            scripts: ScriptStore::new(&planting.texts),
            names: named.into(),
            network: Arc::new(Mutex::new(network)),
            links: Vec::new(),
            state: StoreState::Works,
            snapshots: VecDeque::new(),
            dice: Dice::new(seed, 2),
            now_ms: 0,
            writes: Vec::new(),
            takeovers: Vec::new(),
            objects: Vec::new(),
            claims: Vec::new(),
            wire: planting.wire,
        }
    }

    /// Returns the way of a replica to the store.
    pub fn dialer(&self, replica: usize) -> Arc<StoreDialer> {
        Arc::new(StoreDialer { replica, network: self.network.clone() })
    }

    /// Sets the state of a replica's connections.
    pub fn set_link(&mut self, replica: usize, state: LinkState) {
        lock(&self.network).links[replica] = state;
        if state == LinkState::Cut {
            self.links.iter().filter(|link| link.replica == replica).for_each(|it| it.end.close());
        }
    }

    /// Sets the store's own state.
    pub fn set_state(&mut self, state: StoreState) {
        self.state = state;
        lock(&self.network).is_away = state == StoreState::IsAway;
        if state == StoreState::IsAway {
            self.links.iter().for_each(|link| link.end.close());
        }
    }

    /// Goes back to the state of about `lost_ms` ago, aged by the time since then.
    pub fn fail_over(&mut self, lost_ms: u64) {
        let oldest = self.now_ms.saturating_sub(lost_ms);
        let at = self.snapshots.iter().position(|(at_ms, _)| *at_ms >= oldest);
        let Some((at_ms, keys)) = at.and_then(|at| self.snapshots.get(at)) else { return };
        let (at_ms, keys) = (*at_ms, keys.clone());
        self.scripts.restore(keys);
        // Leases run out at the new server too.
        self.scripts.age(self.now_ms - at_ms);
        // Nobody goes back to a state that never was.
        self.snapshots.retain(|(kept_ms, _)| *kept_ms <= at_ms);
    }

    /// Lets the store's clock jump ahead by `ms`.
    pub fn jump_ahead(&mut self, ms: u64) {
        self.scripts.age(ms);
    }

    /// Lets the store's clock go back by `ms`.
    pub fn jump_back(&mut self, ms: u64) {
        self.scripts.rewind(ms);
    }

    /// Evicts a key; returns its name, if there is any key.
    pub fn evict(&mut self) -> Option<String> {
        let mut keys = self.scripts.keys().clone();
        let count = keys.names().count();
        let name = (count > 0).then(|| keys.names().nth(self.dice.index(count)))??.to_owned();
        keys.evict(&name);
        self.scripts.restore(keys);
        Some(name)
    }

    /// Returns the writes accepted since the last call.
    pub fn take_writes(&mut self) -> Vec<AcceptedWrite> {
        std::mem::take(&mut self.writes)
    }

    /// Returns the takeovers accepted since the last call.
    pub fn take_takeovers(&mut self) -> Vec<AcceptedTakeover> {
        std::mem::take(&mut self.takeovers)
    }

    /// Returns the objects accepted since the last call.
    pub fn take_objects(&mut self) -> Vec<AcceptedObject> {
        std::mem::take(&mut self.objects)
    }

    /// Returns the takeovers of responses accepted since the last call.
    pub fn take_claims(&mut self) -> Vec<AcceptedTakeover> {
        std::mem::take(&mut self.claims)
    }

    /// True if there is an object of the response with this `id`.
    pub fn has_response(&self, id: &str) -> bool {
        self.scripts.keys().has(&object_key(&owner_digits(), Kind::Response, id))
    }

    /// True if there is a stored chat with this `id`.
    pub fn has_chat(&self, id: &str) -> bool {
        self.scripts.keys().has(&object_key(&owner_digits(), Kind::ChatCompletion, id))
    }

    /// Returns a field of the answer with this `id`, if there is one.
    pub fn field(&self, id: &str, name: &str) -> Option<String> {
        self.scripts.keys().hash_field(&format!("{PREFIX}a:{id}"), name)
    }

    /// Returns the length of the log of the answer with this `id`.
    pub fn log_bytes(&self, id: &str) -> usize {
        self.scripts.keys().bytes(&format!("{PREFIX}g:{id}")).map_or(0, <[u8]>::len)
    }

    /// Lets time pass until `now_ms`, and does what was asked meanwhile.
    pub fn run_until(&mut self, now_ms: u64, history: &mut WorldHistory) {
        self.scripts.age(now_ms - self.now_ms);
        self.now_ms = now_ms;
        if now_ms.is_multiple_of(SNAPSHOT_EVERY_MS) {
            self.snapshots.push_back((now_ms, self.scripts.keys().clone()));
            if self.snapshots.len() > SNAPSHOTS {
                self.snapshots.pop_front();
            }
        }
        for (replica, end) in std::mem::take(&mut lock(&self.network).opened) {
            let (calls, replies) = (Vec::new(), VecDeque::new());
            self.links.push(StoreLink { replica, end, calls, replies });
        }
        let mut links = std::mem::take(&mut self.links);
        for link in &mut links {
            self.serve(link, history);
        }
        links.retain(|link| !link.end.is_over());
        self.links = links;
    }

    /// Runs the calls of a connection, and sends the replies that are due.
    fn serve(&mut self, link: &mut StoreLink, history: &mut WorldHistory) {
        let state = lock(&self.network).links[link.replica];
        if state == LinkState::Stalls || self.state == StoreState::Stands {
            // What is sent meanwhile stays in the pipe, and arrives later.
            return;
        }
        link.calls.extend(link.end.take());
        while let Some(command) = take_command(&mut link.calls) {
            if self.state == StoreState::IsAway {
                // It was sent to a server that is gone.
                continue;
            }
            let Some(reply) = self.answer(link.replica, &command, history) else {
                link.end.close();
                link.calls.clear();
                return;
            };
            let late_ms = if self.state == StoreState::IsSlow { self.late_ms() } else { 0 };
            // Replies come in the order of their calls: a late one holds up those behind it.
            let after_ms = link.replies.back().map_or(0, |(at_ms, _)| *at_ms);
            link.replies.push_back(((self.now_ms + late_ms).max(after_ms), reply));
        }
        while let Some((at_ms, reply)) = link.replies.pop_front() {
            if at_ms > self.now_ms {
                link.replies.push_front((at_ms, reply));
                return;
            }
            link.end.give(&reply);
        }
    }

    fn late_ms(&self) -> u64 {
        if self.dice.chance(10) { self.dice.between(500, 2_500) } else { self.dice.between(5, 200) }
    }

    /// Runs a command; `None` if the connection ends in place of the reply.
    fn answer(
        &mut self,
        replica: usize,
        command: &[Vec<u8>],
        history: &mut WorldHistory,
    ) -> Option<Vec<u8>> {
        if command[0] != b"EVALSHA" {
            return Some(b"+OK\r\n".to_vec());
        }
        if self.state == StoreState::Refuses {
            return Some(LOADING.to_vec());
        }
        let hash = String::from_utf8_lossy(&command[1]).into_owned();
        let script = *self.names.get(&hash)?;
        let arguments = &command[3..];
        let owner = match script {
            ScriptName::Take => self.field(&text(&arguments[1]), "o").unwrap_or_default(),
            ScriptName::Claim => {
                let (owner, id) = (text(&arguments[1]), text(&arguments[3]));
                let key = object_key(&owner, Kind::Response, &id);
                self.scripts.keys().hash_field(&key, "r").unwrap_or_default()
            }
            _ => String::new(),
        };
        let reply = self.run_planted(script, arguments);
        note_call(history, replica, script, arguments, &reply);
        if let Some(line) = line_of(script, arguments, &reply) {
            let replica = name_of(replica);
            history.tell(self.now_ms, &format!("{replica} {line}"));
        }
        if script == ScriptName::Append {
            self.note_writes(arguments, &reply);
        }
        if script == ScriptName::Take {
            self.note_takeover(arguments, &reply, owner);
        } else {
            self.note_object(script, arguments, &reply, owner);
        }
        if self.state == StoreState::LosesReplies && self.dice.chance(20) {
            return None;
        }
        let mut bytes = Vec::new();
        put_reply(&reply, &mut bytes);
        Some(bytes)
    }

    /// Runs a script, with the planted fault.
    fn run_planted(&mut self, script: ScriptName, arguments: &[Vec<u8>]) -> RedisReply {
        let Some(fault) = self.wire else { return self.scripts.run(script, arguments) };
        let is_unsaid = match fault {
            WireFault::AppendUnsaid => self.dice.chance(5),
            WireFault::PutUnsaid => self.dice.chance(20),
            _ => true,
        };
        if let Some(reply) = fault.reply_unsaid(script, arguments).filter(|_| is_unsaid) {
            return reply;
        }
        // The history and the laws see what the caller sent.
        let mut arguments = arguments.to_vec();
        fault.change_call(script, &mut arguments);
        let is_read = matches!(script, ScriptName::Find | ScriptName::Read);
        // One is kept for each tenth of a second.
        let old = self.snapshots.len().checked_sub(10).map(|at| &self.snapshots[at].1);
        if let Some(old) = old.filter(|_| fault == WireFault::ReadsAreOld && is_read) {
            let keys = self.scripts.keys().clone();
            self.scripts.restore(old.clone());
            let reply = self.scripts.run(script, &arguments);
            self.scripts.restore(keys);
            return reply;
        }
        let mut reply = self.scripts.run(script, &arguments);
        fault.change_reply(script, &mut reply);
        reply
    }

    fn note_writes(&mut self, arguments: &[Vec<u8>], reply: &RedisReply) {
        let RedisReply::List(replies) = reply else { return };
        for (call, reply) in arguments[5..].chunks_exact(8).zip(replies.chunks_exact(3)) {
            let is_stored = reply[0] == RedisReply::Bulk(b"stored".to_vec());
            if is_stored && !call[5].is_empty() {
                let (id, owner) = (text(&call[0]), text(&arguments[1]));
                let epoch = last_epoch(&text(&call[7]));
                let is_end = call[3] == b"ended";
                self.writes.push(AcceptedWrite { id, epoch, owner, is_end });
            }
        }
    }

    fn note_object(
        &mut self,
        script: ScriptName,
        arguments: &[Vec<u8>],
        reply: &RedisReply,
        from: String,
    ) {
        match (script, reply) {
            (ScriptName::Put, RedisReply::Int(1)) => {
                let (id, is_ended) = (text(&arguments[3]), arguments[7] == b"ended");
                self.objects.push(AcceptedObject { id, is_ended });
            }
            (ScriptName::Claim, RedisReply::Int(_)) => {
                let (id, to) = (text(&arguments[3]), text(&arguments[4]));
                self.claims.push(AcceptedTakeover { id, from, to });
            }
            _ => {}
        }
    }

    fn note_takeover(&mut self, arguments: &[Vec<u8>], reply: &RedisReply, from: String) {
        let RedisReply::List(replies) = reply else { return };
        if arguments[3] == b"take" && replies[0] == RedisReply::Bulk(b"ours".to_vec()) {
            let (id, to) = (text(&arguments[1]), text(&arguments[2]));
            self.takeovers.push(AcceptedTakeover { id, from, to });
        }
    }
}

/// Notes a call in the fingerprint. Objects have the time of day, so only their lengths count.
fn note_call(
    history: &mut WorldHistory,
    replica: usize,
    script: ScriptName,
    arguments: &[Vec<u8>],
    reply: &RedisReply,
) {
    match (script, reply) {
        (ScriptName::Put, _) => {
            let (id, len) = (&arguments[3], arguments[9].len());
            history.note(&(replica, script, id, &arguments[6..9], len, reply));
        }
        (ScriptName::Get, RedisReply::List(parts)) => {
            let len = parts.last().map_or(0, |json| said(json).len());
            history.note(&(replica, script, arguments, &parts[..parts.len() - 1], len));
        }
        _ => history.note(&(replica, script, arguments, reply)),
    }
}

fn owner_digits() -> String {
    hex::encode(&OWNER.0)
}

fn object_key(owner: &str, kind: Kind, id: &str) -> String {
    format!("{PREFIX}o:{owner}:{}{id}", kind as u8)
}

/// Returns the name of a replica in histories.
pub fn name_of(replica: usize) -> char {
    char::from(b'A' + replica as u8)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn last_epoch(epochs: &str) -> u64 {
    let last = epochs.rsplit(',').next().and_then(|last| last.split_once(':'));
    last.and_then(|(number, _)| number.parse().ok()).unwrap_or(0)
}

/// Returns the line of a call that changes something other than a time.
fn line_of(script: ScriptName, arguments: &[Vec<u8>], reply: &RedisReply) -> Option<String> {
    let word = |at: usize| arguments.get(at).map(|bytes| text(bytes)).unwrap_or_default();
    let field = |at: usize| match reply {
        RedisReply::List(replies) => said(&replies[at]),
        other => said(other),
    };
    match script {
        ScriptName::Append => {
            let RedisReply::List(replies) = reply else { return None };
            let mut parts = Vec::new();
            for (call, reply) in arguments[5..].chunks_exact(8).zip(replies.chunks_exact(3)) {
                let outcome = said(&reply[0]);
                if call[5].is_empty() && outcome == "stored" {
                    continue;
                }
                let (id, offset, state) = (short(&call[0]), text(&call[2]), text(&call[3]));
                let (fence, len) = (text(&call[1]), call[5].len());
                parts.push(format!("{id} {state} fence {fence} at {offset}+{len}: {outcome}"));
            }
            (!parts.is_empty()).then(|| format!("writes {}", parts.join("; ")))
        }
        ScriptName::Take => {
            let id = short(&arguments[1]);
            let (outcome, fence, epochs) = (field(0), field(1), field(4));
            Some(format!("asks to {} {id}: {outcome} {fence} \"{epochs}\"", word(3)))
        }
        ScriptName::Release => {
            Some(format!("gives back {}: {} {}", short(&arguments[1]), word(4), field(0)))
        }
        ScriptName::Stop => Some(format!("stops {}: {}", short(&arguments[1]), field(0))),
        ScriptName::Put => {
            let (progress, fence, len) = (word(7), word(13), arguments[9].len());
            let id = word(3);
            Some(format!("stores {id} {progress} fence {fence} of {len} bytes: {}", field(0)))
        }
        ScriptName::Claim => Some(format!("claims {}: {}", word(3), field(0))),
        ScriptName::Disown => Some(format!("leaves {}: {}", word(3), field(0))),
        ScriptName::Remove => Some(format!("deletes {}: {}", word(4), field(0))),
        ScriptName::Fence => Some(format!("fences {} with {}: {}", word(3), word(4), field(0))),
        ScriptName::Find
        | ScriptName::Read
        | ScriptName::Announce
        | ScriptName::Others
        | ScriptName::Get => None,
    }
}

/// Returns the beginning of an id.
pub fn short(id: &[u8]) -> String {
    text(&id[..id.len().min(6)])
}

fn said(reply: &RedisReply) -> String {
    match reply {
        RedisReply::Nil => "nothing".to_owned(),
        RedisReply::Int(number) => number.to_string(),
        RedisReply::Bulk(bytes) => text(bytes),
        RedisReply::List(_) => "a list".to_owned(),
    }
}
