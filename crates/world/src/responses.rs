//! The background responses of a run: their clients, and the laws that hold for them.

use std::collections::BTreeMap;

use loquent_serving::identity::Owner;
use serde_json::Value;
use tokio::task::AbortHandle;

use crate::deletion::{AnswerDeletion, DeletionState};
use crate::dice::Dice;
use crate::history::WorldHistory;
use crate::hosts::ReplicaHosts;
use crate::laws::WorldLaws;
use crate::news::ResponseNews;
use crate::plan::{FAULTS_END_MS, PlannedResponse, REPLICAS};
use crate::requests::{OWNER, ResponseRequest};
use crate::service::AnswerText;
use crate::store::{AcceptedObject, SimulatedStore, name_of};

/// Number of the first connection of a client of a response.
pub const FIRST_CONNECTION: u64 = 1 << 32;
/// Time after which a call without an answer is given up.
pub const PATIENCE_MS: u64 = 6_000;
/// Pause before a call is tried again.
const PAUSE_MS: u64 = 300;
/// Time in which an owner hears that its response was deleted: with its next checkpoint.
const HEARD_AFTER_MS: u64 = 6_000;
/// Time at which a last client looks at each response: nothing is disturbed any more.
pub const LAST_LOOK_MS: u64 = FAULTS_END_MS + 8_000;

/// Facts about the world at this moment.
pub struct WorldMoment<'a> {
    /// Time.
    pub now_ms: u64,
    /// Hosts of the replicas.
    pub hosts: &'a ReplicaHosts,
    /// True if nothing has happened to the store for long.
    pub is_store_settled: bool,
    /// True if the store has the lease of every replica that lives.
    pub has_leases: bool,
}

impl WorldMoment<'_> {
    fn is_undisturbed(&self, replica: usize) -> bool {
        self.is_store_settled && self.hosts.is_settled(replica, self.now_ms)
    }
}

/// State of the creation of a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CreationState {
    Planned,
    Asked {
        connection: u64,
        at_ms: u64,
    },
    /// It was acknowledged.
    Created,
    /// Nobody knows whether there is one.
    Unknown,
}

/// State of a cancellation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CancelState {
    Never,
    Planned {
        at_ms: u64,
    },
    Asked {
        connection: u64,
        at_ms: u64,
    },
    /// It is confirmed. The response has ended.
    Confirmed {
        at_ms: u64,
        was_in_time: bool,
    },
}

/// A background response.
struct SimulatedResponse {
    plan: PlannedResponse,
    id: String,
    creation: CreationState,
    cancel: CancelState,
    was_cancel_asked: bool,
    deletion: AnswerDeletion,
    /// Its texts, by version.
    wholes: Vec<String>,
    /// Version of the replica that was asked.
    version: u64,
    /// True if the store has lost something since it began.
    is_lossy: bool,
    /// True once the store has had its end.
    has_end: bool,
    /// Name in the store of the replica that generates it.
    owner: Option<String>,
    /// Name in the store of the owner that first told a client of the end.
    told_by: Option<String>,
    /// By number: name and text of the events that clients have seen.
    events: BTreeMap<u64, (String, String)>,
}

/// State of a client.
enum ClientState {
    Waits { until_ms: u64 },
    Asks(ClientCall),
    Done,
}

/// A call of a client that is under way.
struct ClientCall {
    connection: u64,
    replica: usize,
    since_ms: u64,
    patience_ms: u64,
    /// True if the client does not know the key of the response.
    is_stranger: bool,
    task: AbortHandle,
}

/// A client that reads a response, by polls or as a stream.
struct ResponseClient {
    response: usize,
    streams: bool,
    state: ClientState,
    /// Number of the next event.
    next: u64,
    text: String,
}

/// All responses of a run.
pub struct WorldResponses {
    dice: Dice,
    responses: Vec<SimulatedResponse>,
    clients: Vec<ResponseClient>,
    connections: u64,
    /// True if replicas take responses over whose version only seems to be theirs.
    may_differ: bool,
}

impl WorldResponses {
    /// Creates the responses of `plan`, which nobody has asked for yet.
    pub fn new(seed: u64, plan: &[PlannedResponse], may_differ: bool) -> Self {
        let dice = Dice::new(seed, 9);
        let simulated = |plan: &PlannedResponse| SimulatedResponse {
            plan: *plan,
            id: format!("resp_{:032x}", plan.seed),
            creation: CreationState::Planned,
            cancel: match plan.cancelled_at_ms {
                Some(at_ms) => CancelState::Planned { at_ms },
                None => CancelState::Never,
            },
            was_cancel_asked: false,
            deletion: AnswerDeletion::planned(plan.deleted_at_ms),
            wholes: Vec::new(),
            version: 0,
            is_lossy: false,
            has_end: false,
            owner: None,
            told_by: None,
            events: BTreeMap::new(),
        };
        let responses = plan.iter().map(simulated).collect();
        Self { dice, responses, clients: Vec::new(), connections: FIRST_CONNECTION, may_differ }
    }

    /// True if all have been asked for, and their clients know how they ended.
    pub fn is_over(&self) -> bool {
        let is_planned = |it: &SimulatedResponse| it.creation == CreationState::Planned;
        let is_done = |client: &ResponseClient| matches!(client.state, ClientState::Done);
        !self.responses.iter().any(is_planned) && self.clients.iter().all(is_done)
    }

    /// Notes that the store has lost something.
    pub fn note_loss(&mut self) {
        for response in &mut self.responses {
            response.is_lossy = true;
            response.deletion.note_loss();
        }
    }

    /// Asks for what is due, and gives up what takes too long.
    pub fn drive(&mut self, moment: &WorldMoment<'_>, history: &mut WorldHistory) {
        for at in 0..self.responses.len() {
            self.drive_creation(at, moment, history);
            if self.responses[at].creation == CreationState::Created {
                self.drive_cancel(at, moment, history);
                self.drive_deletion(at, moment, history);
            }
        }
        (0..self.clients.len()).for_each(|at| self.drive_client(at, moment, history));
    }

    fn drive_creation(&mut self, at: usize, moment: &WorldMoment<'_>, history: &mut WorldHistory) {
        let PlannedResponse { at_ms, replica, seed, .. } = self.responses[at].plan;
        match self.responses[at].creation {
            CreationState::Planned if at_ms <= moment.now_ms => {
                let request = ResponseRequest::Create(seed);
                let Some((connection, _)) = self.ask(at, replica, request, moment) else { return };
                let response = &mut self.responses[at];
                response.creation = CreationState::Asked { connection, at_ms: moment.now_ms };
                response.version = moment.hosts.version(replica);
                response.owner = moment.hosts.name(replica);
                let versions =
                    if self.may_differ { 0..=1 } else { response.version..=response.version };
                response.wholes = versions.map(|it| AnswerText::of(seed, it).whole()).collect();
                let (id, name) = (&self.responses[at].id, name_of(replica));
                let line = format!("response {at} is asked for as {id} at {name}");
                history.tell(moment.now_ms, &line);
            }
            CreationState::Asked { at_ms, .. } if at_ms + PATIENCE_MS <= moment.now_ms => {
                self.responses[at].creation = CreationState::Unknown;
            }
            _ => {}
        }
    }

    fn drive_cancel(&mut self, at: usize, moment: &WorldMoment<'_>, history: &mut WorldHistory) {
        let is_due = match self.responses[at].cancel {
            CancelState::Planned { at_ms } => at_ms <= moment.now_ms,
            CancelState::Asked { at_ms, .. } => at_ms + PATIENCE_MS <= moment.now_ms,
            CancelState::Never | CancelState::Confirmed { .. } => false,
        };
        // What is deleted has no status that could be final.
        if !is_due || self.responses[at].deletion.was_asked {
            return;
        }
        let replica = self.dice.index(REPLICAS);
        let asked = self.ask(at, replica, ResponseRequest::Cancel, moment);
        let Some((connection, _)) = asked else { return };
        let response = &mut self.responses[at];
        response.was_cancel_asked = true;
        response.cancel = CancelState::Asked { connection, at_ms: moment.now_ms };
        let line = format!("response {at} is to be cancelled at {}", name_of(replica));
        history.tell(moment.now_ms, &line);
    }

    fn drive_deletion(&mut self, at: usize, moment: &WorldMoment<'_>, history: &mut WorldHistory) {
        if !self.responses[at].deletion.is_due(moment.now_ms, PATIENCE_MS) {
            return;
        }
        let replica = self.dice.index(REPLICAS);
        let asked = self.ask(at, replica, ResponseRequest::Delete, moment);
        let Some((connection, _)) = asked else { return };
        self.responses[at].deletion.ask(connection, moment.now_ms);
        let line = format!("response {at} is to be deleted at {}", name_of(replica));
        history.tell(moment.now_ms, &line);
    }

    /// Sends a request to a replica, if that takes requests.
    fn ask(
        &mut self,
        at: usize,
        replica: usize,
        request: ResponseRequest,
        moment: &WorldMoment<'_>,
    ) -> Option<(u64, AbortHandle)> {
        let to = moment.hosts.ready(replica)?;
        self.connections += 1;
        Some((self.connections, to.request(&self.responses[at].id, request, self.connections)))
    }

    fn drive_client(&mut self, at: usize, moment: &WorldMoment<'_>, history: &mut WorldHistory) {
        let now_ms = moment.now_ms;
        match &self.clients[at].state {
            ClientState::Waits { until_ms } if *until_ms <= now_ms => {
                self.connect(at, moment, history);
            }
            ClientState::Asks(call) => {
                let is_cut = !moment.hosts.is_up(call.replica);
                // A replica that is gone closes its connections.
                if is_cut || call.patience_ms <= now_ms {
                    call.task.abort();
                    self.wait(at, now_ms, 1_000);
                }
            }
            _ => {}
        }
    }

    fn connect(&mut self, at: usize, moment: &WorldMoment<'_>, history: &mut WorldHistory) {
        let (now_ms, replica) = (moment.now_ms, self.dice.index(REPLICAS));
        let ResponseClient { response, streams, next, .. } = self.clients[at];
        // An id is no secret.
        let is_stranger = self.dice.chance(10);
        let request = match streams {
            _ if is_stranger => ResponseRequest::Retrieve(Owner([8; 16])),
            true => ResponseRequest::Stream(next),
            false => ResponseRequest::Retrieve(OWNER),
        };
        let Some((connection, task)) = self.ask(response, replica, request, moment) else {
            return self.wait(at, now_ms, 200);
        };
        let name = name_of(replica);
        history.tell(now_ms, &format!("client {at} of response {response}: {request} at {name}"));
        let patience_ms = now_ms + self.dice.between(3_000, 9_000);
        let since_ms = now_ms;
        let call = ClientCall { connection, replica, since_ms, patience_ms, is_stranger, task };
        self.clients[at].state = ClientState::Asks(call);
    }

    fn wait(&mut self, at: usize, now_ms: u64, most_ms: u64) {
        let until_ms = now_ms + self.dice.between(20, most_ms);
        self.clients[at].state = ClientState::Waits { until_ms };
    }

    /// Takes the news of a connection.
    pub fn handle_news(
        &mut self,
        connection: u64,
        news: ResponseNews,
        moment: &WorldMoment<'_>,
        laws: &mut WorldLaws,
        history: &mut WorldHistory,
    ) {
        match news {
            ResponseNews::Created(outcome) => self.note_created(connection, outcome, moment),
            ResponseNews::Cancelled(outcome) => {
                self.note_cancelled(connection, outcome, moment, laws, history);
            }
            ResponseNews::Deleted(outcome) => {
                self.note_deleted(connection, outcome, moment.now_ms, history);
            }
            ResponseNews::Object(_) | ResponseNews::Event(_) | ResponseNews::Ended(_) => {
                let is_its = |client: &ResponseClient| match &client.state {
                    ClientState::Asks(call) => call.connection == connection,
                    _ => false,
                };
                let Some(at) = self.clients.iter().position(is_its) else { return };
                if let Err(what) = self.read(at, news, moment, history) {
                    laws.breach(what);
                }
            }
        }
    }

    fn note_created(
        &mut self,
        connection: u64,
        outcome: Result<(), u16>,
        moment: &WorldMoment<'_>,
    ) {
        let is_its = |it: &SimulatedResponse| match it.creation {
            CreationState::Asked { connection: of, .. } => of == connection,
            _ => false,
        };
        let Some(at) = self.responses.iter().position(is_its) else { return };
        if outcome.is_err() {
            // Nobody has learned its id.
            self.responses[at].creation = CreationState::Unknown;
            return;
        }
        self.responses[at].creation = CreationState::Created;
        for _ in 0..self.responses[at].plan.clients {
            let until_ms = moment.now_ms + self.dice.between(20, 3_000);
            let streams = self.dice.chance(60);
            self.add_client(at, streams, until_ms);
        }
        // The others may have read it before it was cancelled or deleted.
        self.add_client(at, false, LAST_LOOK_MS);
    }

    fn add_client(&mut self, response: usize, streams: bool, until_ms: u64) {
        let state = ClientState::Waits { until_ms };
        let (next, text) = (0, String::new());
        self.clients.push(ResponseClient { response, streams, state, next, text });
    }

    fn note_cancelled(
        &mut self,
        connection: u64,
        outcome: Result<Value, u16>,
        moment: &WorldMoment<'_>,
        laws: &mut WorldLaws,
        history: &mut WorldHistory,
    ) {
        let is_its = |it: &SimulatedResponse| match it.cancel {
            CancelState::Asked { connection: of, .. } => of == connection,
            _ => false,
        };
        let Some(at) = self.responses.iter().position(is_its) else { return };
        let at_ms = moment.now_ms;
        let status = outcome.as_ref().map(status_of);
        history.tell(at_ms, &format!("response {at} is cancelled: {status:?}"));
        self.responses[at].cancel = match &outcome {
            Ok(object) => {
                let was_in_time = status_of(object) == "cancelled";
                CancelState::Confirmed { at_ms, was_in_time }
            }
            // It is deleted, or the store has lost it: laws about that are elsewhere.
            Err(404) => CancelState::Never,
            Err(_) => CancelState::Planned { at_ms: at_ms + PAUSE_MS },
        };
        let checked = outcome.map_or(Ok(()), |object| self.check_object(at, &object));
        if let Err(what) = checked {
            laws.breach(what);
        }
    }

    fn note_deleted(
        &mut self,
        connection: u64,
        outcome: Result<bool, u16>,
        at_ms: u64,
        history: &mut WorldHistory,
    ) {
        let is_its = |it: &SimulatedResponse| match it.deletion.state {
            DeletionState::Asked { connection: of, .. } => of == connection,
            _ => false,
        };
        let Some(at) = self.responses.iter().position(is_its) else { return };
        history.tell(at_ms, &format!("response {at} is deleted: {outcome:?}"));
        self.responses[at].deletion.state = match outcome {
            // Its owner may write again what the store has lost.
            Ok(false) if self.responses[at].is_lossy => DeletionState::Unknown,
            // A deletion whose reply was lost leaves nothing for the next one.
            Ok(_) => DeletionState::Confirmed { at_ms },
            Err(_) => DeletionState::Planned { at_ms: at_ms + PAUSE_MS },
        };
    }

    /// Takes what a client reads.
    fn read(
        &mut self,
        at: usize,
        news: ResponseNews,
        moment: &WorldMoment<'_>,
        history: &mut WorldHistory,
    ) -> Result<(), String> {
        let now_ms = moment.now_ms;
        let ClientState::Asks(call) = &mut self.clients[at].state else { return Ok(()) };
        if call.is_stranger {
            let is_refused = matches!(news, ResponseNews::Object(Err(404 | 503)));
            self.wait(at, now_ms, 500);
            let what = || format!("a stranger is told {news:?}");
            return if is_refused { Ok(()) } else { Err(what()) };
        }
        call.patience_ms = now_ms + PATIENCE_MS;
        match news {
            ResponseNews::Object(Ok(object)) => self.read_object(at, &object, moment, history),
            ResponseNews::Event(event) => self.read_event(at, &event, moment, history),
            ResponseNews::Object(Err(status)) | ResponseNews::Ended(Err(status)) => {
                history.tell(now_ms, &format!("client {at} is refused: {status}"));
                self.read_refusal(at, status, moment)
            }
            _ => {
                self.wait(at, now_ms, 1_000);
                Ok(())
            }
        }
    }

    fn read_object(
        &mut self,
        at: usize,
        object: &Value,
        moment: &WorldMoment<'_>,
        history: &mut WorldHistory,
    ) -> Result<(), String> {
        let response = self.clients[at].response;
        let status = status_of(object);
        history.tell(moment.now_ms, &format!("client {at} reads that it is {status}"));
        self.check_object(response, object)?;
        self.check_finality(at, Some(status), moment)?;
        if is_end(status) {
            return self.end(at, status, moment);
        }
        self.wait(at, moment.now_ms, 2_000);
        Ok(())
    }

    /// An object shows a prefix of the text, and all of it if it is complete.
    fn check_object(&self, response: usize, object: &Value) -> Result<(), String> {
        let known = &self.responses[response];
        let (status, text) = (status_of(object), text_of(object));
        if !known.wholes.iter().any(|whole| whole.starts_with(&text)) {
            return Err(format!("response {response} shows something else"));
        }
        match status {
            "completed" if !known.wholes.contains(&text) => {
                Err(format!("response {response} is complete, and has a part"))
            }
            "cancelled" if !known.was_cancel_asked && !known.deletion.was_asked => {
                Err(format!("response {response} is cancelled, which nobody has asked for"))
            }
            "failed" if !self.may_differ => {
                Err(format!("response {response} has failed: {}", object["error"]["message"]))
            }
            _ => Ok(()),
        }
    }

    fn read_event(
        &mut self,
        at: usize,
        event: &Value,
        moment: &WorldMoment<'_>,
        history: &mut WorldHistory,
    ) -> Result<(), String> {
        let client = &mut self.clients[at];
        let response = client.response;
        let number = event["sequence_number"].as_u64().unwrap_or_default();
        if number < client.next {
            return Err(format!("client {at} gets event {number} of response {response} twice"));
        }
        client.next = number + 1;
        let name = event["type"].as_str().unwrap_or_default();
        let delta = event["delta"].as_str().unwrap_or_default();
        if name == "response.output_text.delta" {
            client.text.push_str(delta);
        }
        let known = &mut self.responses[response];
        let seen = known.events.entry(number).or_insert((name.to_owned(), delta.to_owned()));
        if (&*seen.0, &*seen.1) != (name, delta) {
            return Err(format!("response {response} has two events {number}"));
        }
        if !known.wholes.iter().any(|whole| whole.starts_with(&client.text)) {
            return Err(format!("a stream of response {response} shows something else"));
        }
        if event["response"]["status"].is_null() || !is_end(status_of(&event["response"])) {
            return self.check_finality(at, None, moment);
        }
        let (object, text) = (&event["response"], self.clients[at].text.clone());
        let status = status_of(object);
        history.tell(moment.now_ms, &format!("client {at} reads to the end: {status}"));
        self.check_object(response, object)?;
        self.check_finality(at, Some(status), moment)?;
        // The object comes with the last event, and has what came before.
        if text != text_of(object) {
            return Err(format!("response {response} is polled and streamed differently"));
        }
        self.end(at, status, moment)
    }

    /// Notes that a client knows how its response ended. Where nothing is disturbed, the store has
    /// the end before that, unless nobody can go on with what has failed.
    fn end(&mut self, at: usize, status: &str, moment: &WorldMoment<'_>) -> Result<(), String> {
        let ResponseClient { response, state: ClientState::Asks(call), .. } = &self.clients[at]
        else {
            return Ok(());
        };
        let (response, replica) = (*response, call.replica);
        let known = &mut self.responses[response];
        let teller = moment.hosts.name(replica);
        // Whoever has lost it to another replica may get it back.
        if known.told_by.is_none() && known.owner == teller {
            known.told_by = teller;
        }
        self.clients[at].state = ClientState::Done;
        let known = &self.responses[response];
        let is_excused = known.has_end || known.is_lossy || status == "failed";
        if !is_excused && moment.is_undisturbed(replica) {
            let name = name_of(replica);
            return Err(format!("{name} tells the end of response {response}, not stored"));
        }
        Ok(())
    }

    /// A cancellation or a deletion that was confirmed before a client asks is final, wherever
    /// nothing is disturbed. `status` is that of the object, or `None` for another event.
    fn check_finality(
        &self,
        at: usize,
        status: Option<&str>,
        moment: &WorldMoment<'_>,
    ) -> Result<(), String> {
        let ResponseClient { response, state: ClientState::Asks(call), .. } = &self.clients[at]
        else {
            return Ok(());
        };
        let known = &self.responses[*response];
        // A replica that wakes still has what another one has ended.
        if known.is_lossy || !moment.is_undisturbed(call.replica) {
            return Ok(());
        }
        let name = name_of(call.replica);
        if known.deletion.holds(call.since_ms.saturating_sub(HEARD_AFTER_MS)) {
            return Err(format!("{name} shows response {response}, which is deleted"));
        }
        match known.cancel {
            CancelState::Confirmed { at_ms, was_in_time: true } if at_ms < call.since_ms => {
                match status {
                    Some(status) if status != "cancelled" => {
                        Err(format!("{name} says that response {response}, cancelled, is {status}"))
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn read_refusal(
        &mut self,
        at: usize,
        status: u16,
        moment: &WorldMoment<'_>,
    ) -> Result<(), String> {
        let response = self.clients[at].response;
        let known = &self.responses[response];
        match status {
            404 if known.deletion.was_asked || known.is_lossy => {
                self.clients[at].state = ClientState::Done;
                return Ok(());
            }
            404 => return Err(format!("response {response} is gone")),
            // Its last event was never stored.
            410 => {
                self.clients[at].next = 0;
                self.clients[at].text.clear();
            }
            500 if !self.may_differ => {
                return Err(format!("response {response} is answered with an error"));
            }
            _ => {}
        }
        self.wait(at, moment.now_ms, 1_000);
        Ok(())
    }

    /// Notes what the store has accepted. Nothing of a deleted response is stored, nothing but its
    /// end of one that has ended, and nobody loses a response who lives. A replica that has told
    /// the end does not begin again, unless another one has meanwhile.
    pub fn note_store(
        &mut self,
        store: &mut SimulatedStore,
        objects: &[AcceptedObject],
        moment: &WorldMoment<'_>,
        laws: &mut WorldLaws,
    ) {
        for AcceptedObject { id, is_ended } in objects {
            let Some(known) = self.responses.iter_mut().find(|it| it.id == *id) else { continue };
            if known.deletion.holds(moment.now_ms) {
                laws.breach(format!("{id} is stored after it was deleted"));
            }
            if known.has_end && !*is_ended && !known.is_lossy {
                laws.breach(format!("{id} has ended, and is stored as if it ran"));
            }
            known.has_end |= *is_ended;
        }
        for claim in store.take_claims() {
            if let Some(known) = self.responses.iter_mut().find(|it| it.id == claim.id) {
                if !known.is_lossy && known.told_by.as_ref() == Some(&claim.to) {
                    laws.breach(format!("{} runs again, though its end was told", claim.id));
                }
                known.told_by = None;
                known.owner = Some(claim.to.clone());
            }
            let Some(host) = moment.hosts.host_of(&claim.from) else { continue };
            let is_disturbed = !moment.has_leases || !moment.hosts.is_settled(host, moment.now_ms);
            if claim.from != claim.to && !is_disturbed {
                let name = name_of(host);
                laws.breach(format!("{} is claimed from {name}, which lives", claim.id));
            }
        }
    }

    /// Every client knows how its response ended, unless no replica has its version.
    pub fn check_end(&self, hosts: &ReplicaHosts, laws: &mut WorldLaws) {
        for (at, client) in self.clients.iter().enumerate() {
            let response = &self.responses[client.response];
            let is_done = matches!(client.state, ClientState::Done);
            if !is_done && hosts.has_version(response.version) {
                let what =
                    format!("client {at} never learns the end of response {}", client.response);
                laws.breach(what);
            }
        }
    }

    /// True if the store has nothing of the responses that are deleted.
    pub fn are_deleted(&self, store: &SimulatedStore, now_ms: u64) -> bool {
        let is_left =
            |it: &SimulatedResponse| it.deletion.holds(now_ms) && store.has_response(&it.id);
        !self.responses.iter().any(is_left)
    }

    /// Returns the number of clients that know how their response ended.
    pub fn done(&self) -> usize {
        self.clients.iter().filter(|client| matches!(client.state, ClientState::Done)).count()
    }
}

/// Returns the status of a response's object.
fn status_of(object: &Value) -> &str {
    object["status"].as_str().unwrap_or_default()
}

/// Returns the text of a response's object.
fn text_of(object: &Value) -> String {
    let items = object["output"].as_array().into_iter().flatten();
    let parts = items.flat_map(|item| item["content"].as_array().into_iter().flatten());
    parts.filter_map(|part| part["text"].as_str()).collect()
}

fn is_end(status: &str) -> bool {
    !matches!(status, "queued" | "in_progress")
}
