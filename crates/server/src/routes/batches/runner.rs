//! Runs a batch: its lines one after the other, each stored as soon as it is answered.
//!
//! Whatever ends the process, a stored line is not computed again: the next run finds it, and goes
//! on with the others. The output files have ids made from the batch's, so that writing them again
//! changes nothing.

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use bytes::Bytes;
use http::{HeaderMap, Request, header};
use serde_json::Value;
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::app::App;
use crate::live_batches::{BatchEntry, LinePermit, LiveBatch, MAX_LINES_AT_ONCE};
use crate::routes::batches::round::Round;
use crate::routes::files::{find_file, put_file};
use crate::routes::{completions, embeddings, responses};
use loquent_dialects::batches::batch::{
    BatchEndpoint, BatchStatus, LineError, RequestBatch, RequestCounts,
};
use loquent_dialects::batches::file::{FileFacts, StoredFile};
use loquent_dialects::batches::lines::{BatchRequest, answer_line, error_line, find_lines};
use loquent_serving::clock::unix_time_s;
use loquent_serving::identity::{Identity, Owner};
use loquent_serving::request_log::RequestId;
use loquent_store::object::{AnswerFence, Kind, Progress, StoredObject, WriteMode};

/// Time between two looks at whether a line may begin. Others' requests come first, so nothing is
/// gained by being quicker.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time after which the store is tried again.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// Longest wait before a line that was refused is sent again.
const MAX_RETRY: Duration = Duration::from_secs(60);

/// Part of an owner's bytes in the store that the output of one batch may have.
const OUTPUT_PART: usize = 4;

/// Status of an answer.
const ANSWERED: u16 = 200;
/// Statuses of refusals that another try may not get.
const REFUSED: [u16; 2] = [429, 503];

/// First byte of a stored line, before its text: it has an answer, or an error.
const ANSWER: u8 = b'+';
const ERROR: u8 = b'-';

/// Why a line has no answer.
enum NoAnswer {
    /// The server refuses it now, and may answer it after this time.
    Refused(Duration),
    /// It has an error with this code and message.
    Failed(&'static str, &'static str),
}

const BROKE_OFF: NoAnswer =
    NoAnswer::Failed("invalid_response", "The answer broke off, or is too long.");
const NOT_JSON: NoAnswer = NoAnswer::Failed("invalid_response", "The answer is not JSON.");
const KEY_REVOKED: NoAnswer = NoAnswer::Failed(
    "key_revoked",
    "The API key of the batch was removed or has expired before this request.",
);

/// Place of a line whose input was deleted.
const GONE: Range<usize> = 0..0;

/// Why a run ends before its batch has.
enum Stopped {
    /// Another replica has taken the batch over.
    TakenOver,
}

/// A batch that runs. Clones share its counts.
#[derive(Clone)]
struct Run {
    app: Arc<App>,
    /// Answers the lines.
    router: Router,
    owner: Owner,
    /// Sends the lines, as it was when the batch began.
    identity: Identity,
    live: Arc<LiveBatch>,
    fence: AnswerFence,
    input: Bytes,
    lines: Arc<[Range<usize>]>,
    /// Bytes of the stored lines: together they must fit into a file.
    output_bytes: Arc<AtomicUsize>,
}

/// Returns a batch in its stored form.
pub fn stored(batch: &RequestBatch) -> StoredObject {
    let progress = if batch.status.is_final() { Progress::Ended } else { Progress::Running };
    let json = Bytes::from(batch.json());
    StoredObject { id: batch.id.clone(), created_s: batch.created_at, progress, json }
}

/// Returns the id under which the wish to cancel the batch `id` is stored.
pub fn wish_id(id: &str) -> String {
    format!("{id}.cancel")
}

/// Runs the batch `entry` of `identity` from now on.
pub fn start(app: &Arc<App>, identity: &Identity, entry: BatchEntry, fence: AnswerFence) {
    let router = Router::new()
        .merge(completions::routes())
        .merge(embeddings::routes())
        .merge(responses::routes())
        .with_state(app.clone());
    let run = Run {
        app: app.clone(),
        router,
        owner: identity.owner(),
        identity: identity.of_batches(),
        live: entry.batch.clone(),
        fence,
        input: Bytes::new(),
        lines: Arc::default(),
        output_bytes: Arc::default(),
    };
    tokio::spawn(async move {
        let ended = run.run().await;
        if matches!(ended, Err(Stopped::TakenOver)) {
            tracing::info!(batch = entry.batch.now().id, "another replica runs the batch");
        }
        // Not before: until then the batch is found there.
        drop::<BatchEntry>(entry);
    });
}

impl Run {
    async fn run(mut self) -> Result<(), Stopped> {
        let before = self.live.now();
        if self.find(Kind::BatchLine, &wish_id(&before.id)).await.is_some() {
            self.live.cancel();
        }
        let now_s = unix_time_s();
        let left = Duration::from_secs(before.expires_at.saturating_sub(now_s));
        let live = self.live.clone();
        let worked = tokio::select! {
            worked = self.work(before.status != BatchStatus::Validating) => Some(worked?),
            () = live.cancelled() => None,
            () = tokio::time::sleep(left) => None,
        };
        if worked == Some(Worked::Refused) {
            self.forget_lines(&before.id).await;
            return Ok(());
        }
        // From here on nothing can be cancelled any more.
        let batch = self.live.change(|batch| {
            if batch.status == BatchStatus::InProgress && worked.is_some() {
                batch.enter(BatchStatus::Finalizing, unix_time_s());
            }
        });
        self.save(&batch).await?;
        // The files first: whoever sees the final state finds them.
        let batch = self.finish(batch).await;
        self.save(&batch).await?;
        // Last, because until then another run could need them.
        self.forget_lines(&batch.id).await;
        Ok(())
    }

    /// Checks the input and answers the lines.
    async fn work(&mut self, is_checked: bool) -> Result<Worked, Stopped> {
        // One input is in memory for each permit.
        let mut permit = self.app.batches.work_permit(self.owner).await;
        if let Err(errors) = self.load().await {
            return self.refuse(errors).await;
        }
        let total = self.lines.len();
        let batch = self.live.change(|batch| {
            batch.request_counts.total = total;
            if batch.status == BatchStatus::Validating {
                batch.enter(BatchStatus::InProgress, unix_time_s());
            }
        });
        self.save(&batch).await?;
        let mut pending = self.pending(&batch.id, is_checked).await;
        loop {
            let (left, wait) = self.answer_all(pending).await;
            if left.is_empty() {
                return Ok(Worked::Answered);
            }
            pending = left;
            // Others have the turn until then, and the memory.
            (self.input, self.lines) = (Bytes::new(), Arc::default());
            drop(permit);
            tokio::time::sleep(wait).await;
            permit = self.app.batches.work_permit(self.owner).await;
            if let Err(errors) = self.load().await {
                return self.refuse(errors).await;
            }
        }
    }

    /// Reads the input, and finds its lines. A wrong input has none; of one that was deleted
    /// meanwhile, those that were counted are [`GONE`].
    async fn load(&mut self) -> Result<(), Vec<LineError>> {
        let batch = self.live.now();
        let found = self.find_lines(&batch).await;
        let (lines, result) = match found {
            Ok(lines) => (lines, Ok(())),
            Err(errors) => (vec![GONE; batch.request_counts.total], Err(errors)),
        };
        self.lines = lines.into();
        result
    }

    async fn find_lines(
        &mut self,
        batch: &RequestBatch,
    ) -> Result<Vec<Range<usize>>, Vec<LineError>> {
        let Some(input) = self.read_input(&batch.input_file_id).await else {
            let message = "The input file is no longer there.".to_owned();
            return Err(vec![LineError::of_file("invalid_input_file", message)]);
        };
        self.input = input.clone();
        let endpoint = batch.endpoint;
        let find = move || Ok(find_lines(&input, endpoint));
        let found = self.app.bodies.workers().run_if(true, find).await;
        found.map_err(|error| vec![LineError::of_file("server_error", error.to_string())])?
    }

    /// Ends the batch because of `errors` in its input.
    async fn refuse(&mut self, errors: Vec<LineError>) -> Result<Worked, Stopped> {
        let mut written = self.live.now();
        // Nothing, unless lines were answered before the input was deleted.
        self.write_files(&mut written).await;
        let batch = self.live.change(|batch| {
            // Whoever cancels it meanwhile sees it cancelled.
            if !matches!(batch.status, BatchStatus::Cancelling | BatchStatus::Finalizing) {
                *batch = written;
                batch.fail(errors, unix_time_s());
            }
        });
        match batch.status {
            BatchStatus::Failed => self.save(&batch).await.map(|()| Worked::Refused),
            _ => Ok(Worked::Answered),
        }
    }

    /// Returns the numbers of the lines without a stored answer, and counts the others.
    async fn pending(&self, id: &str, is_checked: bool) -> Vec<usize> {
        if !is_checked {
            return (0..self.lines.len()).collect();
        }
        self.live.change(|batch| {
            batch.request_counts.completed = 0;
            batch.request_counts.failed = 0;
        });
        let mut pending = Vec::new();
        for at in 0..self.lines.len() {
            match self.find(Kind::BatchLine, &line_id(id, at)).await {
                Some(line) => self.count(&line),
                None => pending.push(at),
            }
        }
        pending
    }

    /// Counts a stored line.
    fn count(&self, line: &Bytes) {
        self.output_bytes.fetch_add(line.len(), Ordering::Relaxed);
        self.live.change(|batch| match line.first() {
            Some(&ANSWER) => batch.request_counts.completed += 1,
            _ => batch.request_counts.failed += 1,
        });
    }

    /// Answers the lines in `pending`, some at a time, until all have an answer or the server
    /// refuses whatever is sent; returns the others, and when to send them. Dropped, it ends those
    /// that are being answered.
    async fn answer_all(&self, pending: Vec<usize>) -> (Vec<usize>, Duration) {
        let (run, round) = (Arc::new(self.clone()), Arc::new(Round::new(pending)));
        // Dropping the set ends its tasks, and with them the requests under way.
        let mut workers = JoinSet::new();
        for _ in 0..MAX_LINES_AT_ONCE {
            let (run, round) = (run.clone(), round.clone());
            workers.spawn(async move {
                while let Some(at) = round.take() {
                    match run.answer_line(at).await {
                        None => round.on_answer(),
                        Some(wait) => round.on_refusal(at, wait),
                    }
                }
            });
        }
        // A panic in a handler would be a fault of the server: the line stays without answer.
        while workers.join_next().await.is_some() {}
        round.left()
    }

    /// Stores the answer of a line, or its error; returns when to send it again if it is refused.
    async fn answer_line(&self, at: usize) -> Option<Duration> {
        let id = self.live.now().id;
        // At another replica the client may have cancelled the batch.
        if self.app.store.shared().is_some()
            && self.find(Kind::BatchLine, &wish_id(&id)).await.is_some()
        {
            self.live.cancel();
        }
        let request = BatchRequest::parse(&self.input[self.lines[at].clone()])?;
        let (id_in_log, custom_id) = (RequestId::of(&HeaderMap::new()), request.custom_id.clone());
        let request_id = id_in_log.as_str().to_owned();
        let (mut mark, mut line) = match self.ask(request, id_in_log).await {
            Ok((status, body)) => {
                let mark = if status == ANSWERED { ANSWER } else { ERROR };
                (mark, answer_line(&custom_id, &request_id, status, body))
            }
            Err(NoAnswer::Refused(wait)) => return Some(wait),
            Err(NoAnswer::Failed(code, why)) => {
                (ERROR, error_line(&custom_id, &request_id, code, why))
            }
        };
        // The lines, the output made of them, and the input have room at the same time.
        let room = self.app.store.most_json_bytes() / OUTPUT_PART;
        if self.output_bytes.load(Ordering::Relaxed) + line.len() > room {
            let why = "The output of the batch would exceed what is stored for one owner.";
            line = error_line(&custom_id, &request_id, "output_too_large", why);
            mark = ERROR;
        }
        line.insert(0, mark);
        self.store_line(&id, at, line.into()).await;
        None
    }

    /// Stores a line, however long the store is away: it was computed.
    async fn store_line(&self, id: &str, at: usize, json: Bytes) {
        let created_s = unix_time_s();
        let object = StoredObject {
            id: line_id(id, at),
            created_s,
            progress: Progress::Ended,
            json: json.clone(),
        };
        until_done("store a line of a batch", || {
            self.app.store.put(Kind::BatchLine, self.owner, object.clone())
        })
        .await;
        self.app.metrics.on_batch_line(json.first() == Some(&ANSWER));
        self.count(&json);
    }

    /// Sends a request as soon as it may begin.
    async fn ask(&self, request: BatchRequest, id: RequestId) -> Result<(u16, Value), NoAnswer> {
        let endpoint = self.live.now().endpoint;
        let mut body = request.body;
        if endpoint == BatchEndpoint::Responses {
            // Its output is stored here, once.
            body.entry("store").or_insert(Value::Bool(false));
        }
        let body = Value::Object(body).to_string();
        let permit = self.line_permit().await;
        let identity = self.current_identity().ok_or(KEY_REVOKED)?;
        let call = Request::post(endpoint.path());
        let call = call.header(header::CONTENT_TYPE, "application/json");
        let call = call.extension(id).extension(identity);
        let call = call.body(Body::from(body)).expect("its parts are valid");
        let Ok(response) = self.router.clone().oneshot(call).await;
        let (head, answer) = response.into_parts();
        // The permit is held until the whole answer is there.
        let answer = to_bytes(answer, self.app.store.most_json_bytes()).await;
        drop(permit);
        let status = head.status.as_u16();
        // An engine that ends takes its answers with it; the line is whole again later.
        let failed = status >= 500 && self.app.ready().is_err();
        if REFUSED.contains(&status) || failed {
            return Err(NoAnswer::Refused(retry_after(&head.headers)));
        }
        let answer = answer.map_err(|_| BROKE_OFF)?;
        let json = serde_json::from_slice(&answer);
        Ok((status, json.map_err(|_| NOT_JSON)?))
    }

    /// Returns who sends the next line, with the limits that hold now; `None` if the key is gone.
    fn current_identity(&self) -> Option<Identity> {
        let Some(key) = &self.identity.key else { return Some(self.identity.clone()) };
        let key = self.app.config.api_keys.current(key, unix_time_s()).ok()?;
        Some(Identity::of_key(key).of_batches())
    }

    /// Waits until a line may begin.
    async fn line_permit(&self) -> LinePermit {
        loop {
            let models = &self.app.models;
            if self.app.ready().is_ok()
                && let Some(permit) =
                    self.app.batches.line_permit(models.in_flight(), models.waiting())
            {
                return permit;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Writes the output files of `batch`, and returns it in its final state.
    async fn finish(&mut self, mut batch: RequestBatch) -> RequestBatch {
        // It was cancelled, or ran out, before its turn.
        if self.lines.is_empty() {
            let _ = self.load().await;
        }
        self.write_files(&mut batch).await;
        let end = match batch.status {
            BatchStatus::Cancelling => BatchStatus::Cancelled,
            BatchStatus::Validating | BatchStatus::InProgress => BatchStatus::Expired,
            _ => BatchStatus::Completed,
        };
        batch.enter(end, unix_time_s());
        self.live.change(|live| *live = batch.clone())
    }

    /// Writes the output files of `batch`, and counts its requests.
    async fn write_files(&self, batch: &mut RequestBatch) {
        let (mut answers, mut errors, mut completed) = (Vec::new(), Vec::new(), 0);
        for (at, place) in self.lines.iter().enumerate() {
            match self.find(Kind::BatchLine, &line_id(&batch.id, at)).await.as_deref() {
                Some([ANSWER, line @ ..]) => {
                    answers.extend_from_slice(line);
                    completed += 1;
                }
                Some([_, line @ ..]) => errors.extend_from_slice(line),
                // Its id is not known any more.
                _ if *place == GONE => {}
                _ => errors.extend(unanswered(&self.input[place.clone()], batch.status)),
            }
        }
        batch.output_file_id = self.write(batch, "output", answers).await;
        batch.error_file_id = self.write(batch, "error", errors).await;
        let total = self.lines.len();
        batch.request_counts = RequestCounts { total, completed, failed: total - completed };
    }

    /// Stores a file of `content` unless it is empty; returns its id.
    async fn write(&self, batch: &RequestBatch, what: &str, content: Vec<u8>) -> Option<String> {
        if content.is_empty() {
            return None;
        }
        let id = format!("file-{}-{what}", batch.id.trim_start_matches("batch_"));
        let facts = FileFacts {
            id: id.clone(),
            filename: format!("{}_{what}.jsonl", batch.id),
            purpose: "batch_output".into(),
            created_at: unix_time_s(),
            expires_at: None,
        };
        let file = StoredFile { facts, content: content.into() };
        until_done("store a file of a batch", || put_file(&self.app, self.owner, &file)).await;
        Some(id)
    }

    async fn read_input(&self, id: &str) -> Option<Bytes> {
        let read = || find_file(&self.app, self.owner, id);
        until_done("read the input of a batch", read).await.map(|file| file.content)
    }

    async fn find(&self, kind: Kind, id: &str) -> Option<Bytes> {
        let read = || self.app.store.get(kind, self.owner, id);
        until_done("read a line of a batch", read).await.map(|found| found.json)
    }

    /// Stores the batch, however long the store is away.
    async fn save(&self, batch: &RequestBatch) -> Result<(), Stopped> {
        let mode = WriteMode::Checkpoint(self.fence);
        let write = || self.app.store.write(Kind::Batch, self.owner, stored(batch), mode);
        match until_done("store a batch", write).await {
            true => Ok(()),
            false => Err(Stopped::TakenOver),
        }
    }

    /// Deletes what the output files have now.
    async fn forget_lines(&self, id: &str) {
        let ids = (0..self.lines.len()).map(|at| line_id(id, at)).chain([wish_id(id)]);
        for one in ids {
            // What stays expires as everything in the store.
            let _ = self.app.store.delete(Kind::BatchLine, self.owner, &one).await;
        }
    }
}

/// Result of the work on a batch.
#[derive(PartialEq, Eq)]
enum Worked {
    /// Each line has an answer or an error.
    Answered,
    /// The input is wrong, and the batch has ended.
    Refused,
}

/// Tries `attempt` again until it succeeds: a batch outlasts a store that is away. The log says
/// `what` fails.
async fn until_done<T, E, F>(what: &str, mut attempt: impl FnMut() -> F) -> T
where
    E: Display,
    F: Future<Output = Result<T, E>>,
{
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => tracing::warn!("cannot {what}: {error}"),
        }
        tokio::time::sleep(STORE_RETRY).await;
    }
}

fn line_id(batch: &str, at: usize) -> String {
    format!("{batch}.{at}")
}

fn retry_after(headers: &HeaderMap) -> Duration {
    let text = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let seconds = text.and_then(|text| text.parse().ok()).unwrap_or(1);
    Duration::from_secs(seconds).clamp(LOOK_EVERY, MAX_RETRY)
}

/// Writes the line of a request that was not answered when its batch left the state `status`.
fn unanswered(line: &[u8], status: BatchStatus) -> Vec<u8> {
    let custom_id = BatchRequest::parse(line).map_or_else(String::new, |one| one.custom_id);
    let (code, why) = match status {
        BatchStatus::Cancelling => {
            ("batch_cancelled", "The batch was cancelled before this request.")
        }
        BatchStatus::Validating | BatchStatus::InProgress => {
            ("batch_expired", "The batch expired before this request.")
        }
        // The store made room, or a handler failed.
        _ => ("answer_lost", "The answer is no longer there. Send the request again."),
    };
    let request_id = RequestId::of(&HeaderMap::new());
    error_line(&custom_id, request_id.as_str(), code, why)
}
