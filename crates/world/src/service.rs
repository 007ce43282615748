//! The service in a model's place: its texts depend on the question alone, so that a takeover can
//! generate them again.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use loquent_infer::tenant::TenantId;
use loquent_infer::vocab::Vocab;
use loquent_proto::Delta;
use loquent_resumable::shared::kept_request::{
    KeptService, ReplayAsker, ReplayInputs, ReplayMetadata, ReplayableBody, ReplayableRequest,
};
use loquent_resumable::shared::offers::TakeoverOffer;
use loquent_resumable::shared::takeover::{FirstAnswer, SecondAnswer, TakeoverStarter};
use loquent_serving::active_request::{ActiveRequest, AdmittedRequest, FlushSource, Observers};
use loquent_serving::api::head::AnswerHead;
use loquent_serving::api::request::{Endpoint, StreamParams};
use loquent_serving::api::sampling::GeneralSampling;
use loquent_serving::clock::{Clock, unix_time_s};
use loquent_serving::error::ApiError;
use loquent_serving::flush::{CompletionTimings, End, FinishReason, Flush};
use loquent_serving::flush_channel::{FlushSender, flush_channel};
use loquent_serving::metrics::Metrics;
use loquent_serving::model::unknown_vocab::UnknownVocab;
use loquent_serving::records::RecordContext;
use loquent_serving::request_log::RequestLog;
use serde_json::{Map, json};

use crate::dice::Dice;
use crate::glue::GlueFault;
use crate::requests::OWNER;
use crate::stored_chats::ReplicaChats;

/// Name of the model.
const MODEL: &str = "m";
/// Unread bytes at which a generation pauses.
const MOST_UNREAD_BYTES: usize = 8 << 10;
/// Interval at which a paused generation looks whether it may go on.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerText {
    /// Its tokens.
    pub tokens: Vec<String>,
    /// Time for each.
    pub token_time: Duration,
}

impl AnswerText {
    /// Returns the answer of this `version` to the question with this `seed`.
    pub fn of(seed: u64, version: u64) -> Self {
        let mut answer = Self::first_version(seed);
        // The versions' answers have the same beginning.
        let same = Dice::new(seed, 7).index(answer.tokens.len());
        for token in answer.tokens[same..].iter_mut().filter(|_| version > 0) {
            token.push_str(&format!("v{version}"));
        }
        answer
    }

    fn first_version(seed: u64) -> Self {
        const WORDS: [&str; 8] = [" one", " 2", " three ", "é", "\n", " ", " a longer word", "."];
        let dice = Dice::new(seed, 3);
        let tokens = (0..dice.between(10, 200)).map(|at| match dice.chance(30) {
            true => format!(" {at}"),
            false => WORDS[dice.index(WORDS.len())].to_owned(),
        });
        let tokens = tokens.collect();
        Self { tokens, token_time: Duration::from_millis(dice.between(20, 80)) }
    }

    /// Returns the whole text.
    pub fn whole(&self) -> String {
        self.tokens.concat()
    }
}

/// Settings in which replicas differ.
#[derive(Debug, Clone, Copy)]
pub struct ServiceSettings {
    /// Tokens in a flush, by which records are cut.
    pub flush_tokens: usize,
    /// Version, on which texts depend.
    pub version: u64,
    /// Version that the fingerprint tells.
    pub told_version: u64,
}

impl ServiceSettings {
    /// Returns what is stored of the service.
    fn kept(self) -> KeptService {
        let fingerprint = format!("version {}", self.told_version);
        KeptService { fingerprint, context_tokens: 4096 }
    }
}

/// Seed from which on questions are those of background responses.
pub const RESPONSE_SEEDS: u64 = 1 << 40;

/// Returns the key that asks the question with this `seed`. Each background response has one of its
/// own, since its places are not counted here.
pub const fn key_of(seed: u64) -> TenantId {
    TenantId(if seed < RESPONSE_SEEDS { 1 + seed % 3 } else { seed })
}

/// Creation time of all chats, later than any clock of a test: none is too old to be stored.
const CHAT_CREATED_S: u64 = 4_000_000_000;

/// True if the answer to the question with this `seed` is a chat to be stored.
pub const fn is_stored(seed: u64) -> bool {
    seed < RESPONSE_SEEDS && seed % 5 < 2
}

/// Returns the id of the answer to the question with this `seed`.
pub fn chat_id(seed: u64) -> String {
    format!("chatcmpl-{seed}")
}

/// A request that was begun again for this key.
pub type TakenRequests = Arc<Mutex<Vec<(u64, TenantId)>>>;

/// The service of one replica.
#[derive(Clone)]
pub struct SimulatedService {
    /// Metrics and clock.
    pub observers: Observers,
    /// Settings.
    pub settings: ServiceSettings,
    /// Requests begun again, each with its seed and key.
    pub taken: TakenRequests,
    /// True once every generation ends with an error.
    pub has_failed: Arc<AtomicBool>,
    /// The replica's stored chats.
    pub chats: ReplicaChats,
    /// True once the replica takes no requests.
    pub is_leaving: Arc<AtomicBool>,
    /// The planted fault.
    glue: Option<GlueFault>,
}

impl SimulatedService {
    /// Creates the service of a replica that starts now.
    pub fn new(
        metrics: Arc<Metrics>,
        clock: Clock,
        settings: ServiceSettings,
        chats: ReplicaChats,
        glue: Option<GlueFault>,
    ) -> Self {
        let request_log = RequestLog::default();
        let observers = Observers { metrics, clock, telemetry: None, request_log };
        let (taken, has_failed) = (TakenRequests::default(), Arc::default());
        let is_leaving = Arc::default();
        Self { observers, settings, taken, has_failed, chats, is_leaving, glue }
    }

    /// Begins to generate the answer to the question with this `seed`, asked with `key`.
    pub fn begin(&self, seed: u64, key: TenantId) -> ActiveRequest {
        let now = self.observers.clock.now();
        let head = AnswerHead {
            endpoint: Endpoint::Chat,
            id: chat_id(seed),
            model: MODEL.to_owned(),
            // A response whose end is not stored is kept until it is too old.
            created_s: if seed < RESPONSE_SEEDS { CHAT_CREATED_S } else { unix_time_s() },
            fingerprint: None,
        };
        let admitted = AdmittedRequest {
            head,
            stream: StreamParams::default(),
            prompt_tokens: vec![5],
            n: 1,
            arrived: now,
            accepted: now,
            tokenized: now,
            trace_parent: None,
            span: None,
            id: None,
            key: None,
            tenant: key,
        };
        let (sender, flushes) = flush_channel();
        let answer = AnswerText::of(seed, self.settings.version);
        let (flush_tokens, has_failed) = (self.settings.flush_tokens, self.has_failed.clone());
        tokio::spawn(generate(answer, flush_tokens, has_failed, sender));
        ActiveRequest::new(admitted, FlushSource::Upstream(flushes), self.observers.clone())
    }
}

async fn generate(
    answer: AnswerText,
    flush_tokens: usize,
    has_failed: Arc<AtomicBool>,
    sender: FlushSender,
) {
    for tokens in answer.tokens.chunks(flush_tokens) {
        tokio::time::sleep(answer.token_time * tokens.len() as u32).await;
        if has_failed.load(Ordering::Relaxed) {
            // An end without a finish is an error.
            return;
        }
        while sender.unread_bytes() > MOST_UNREAD_BYTES {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let (count, text) = (tokens.len() as u32, tokens.concat());
        let deltas = vec![Delta::Text { choice: 0, tokens: count, text }];
        if !sender.send(Flush { tokens: count, deltas, ..Flush::default() }) {
            return;
        }
    }
    let end = End {
        reason: FinishReason::Stop,
        completion_tokens: answer.tokens.len() as u32,
        reasoning_tokens: 0,
        timings: CompletionTimings::default(),
    };
    let deltas = vec![Delta::Finish { choice: 0, reason: "stop".to_owned() }];
    // Nobody reads it any more if this fails.
    sender.send(Flush { deltas, end: Some(Box::new(end)), ..Flush::default() });
}

/// Returns the vocabulary of all answers.
pub fn vocab() -> Arc<dyn Vocab> {
    Arc::new(UnknownVocab)
}

/// Returns the question with this `seed`, which a replica with `settings` answers, as the store
/// keeps it.
///
/// # Panics
/// Never: it is short.
pub fn kept_question(seed: u64, settings: ServiceSettings) -> Arc<[u8]> {
    let marks = ReplayInputs {
        model: MODEL.to_owned(),
        seed,
        sampling: GeneralSampling::LlamaServer.values(),
        call_ids: 0,
        asked_at_s: 7,
        trace_parent: None,
        stored: is_stored(seed).then(|| ReplayMetadata { owner: OWNER, metadata: json!({}) }),
        asker: ReplayAsker { tenant: key_of(seed).0, ..ReplayAsker::default() },
        answered_by: settings.kept(),
    };
    let body = ReplayableBody::of(Endpoint::Chat, &Map::new()).expect("it is short");
    body.encode(&marks).expect("it is short")
}

impl TakeoverStarter for SimulatedService {
    fn is_ready(&self) -> bool {
        !self.is_leaving.load(Ordering::Relaxed)
    }

    fn offers(&self) -> Vec<TakeoverOffer> {
        let offer = TakeoverOffer { model: MODEL.to_owned(), answered_by: self.settings.kept() };
        Vec::from_iter(self.is_ready().then_some(offer))
    }

    fn check(&self, request: &ReplayableRequest) -> Result<(), ApiError> {
        let is_same = request.marks.answered_by == self.settings.kept();
        if is_same || self.glue == Some(GlueFault::SettingsUnchecked) {
            return Ok(());
        }
        Err(ApiError::unavailable("It is another version's answer.", 1))
    }

    fn begin(
        &self,
        request: ReplayableRequest,
        first: FirstAnswer,
    ) -> Pin<Box<dyn Future<Output = Result<SecondAnswer, ApiError>> + Send + '_>> {
        Box::pin(async move {
            let (mut seed, mut key) = (request.marks.seed, TenantId(request.marks.asker.tenant));
            match self.glue {
                Some(GlueFault::AskerForgotten) => key = TenantId::default(),
                Some(GlueFault::SeedForgotten) => seed += 1,
                _ => {}
            }
            let taken = (request.marks.seed, key);
            self.taken.lock().expect("nothing panics under this lock").push(taken);
            let mut active = Self::begin(self, seed, key);
            active.take_over(first.name);
            if request.marks.stored.is_some() {
                self.chats.take_over(&mut active, first.fence).await?;
            }
            let vocab = vocab();
            let context = RecordContext { vocab: &vocab, echo: &[], logprobs: None };
            Ok(SecondAnswer::open(active, &context))
        })
    }
}
