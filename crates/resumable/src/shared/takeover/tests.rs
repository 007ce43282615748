//! Ownership of an answer after its owner has ended, despite other failures: against a real store.

use std::sync::Mutex;
use std::time::Duration;

use loquent_needs::redis::RedisServer;
use loquent_store::address::SharedAddress;
use redis::Cmd;
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::shared::followed::FollowedPiece;
use crate::shared::kept_request::KeptService;
use crate::shared::kept_request::tests::encoded;
use crate::shared::offers::notice_of;
use crate::shared::state::{LogState, StoreNews};
use loquent_serving::entropy::Entropy;

const HANDLE: AnswerHandle = AnswerHandle { id: [1; 16], token: [2; 16] };
/// Time limit for an expected event.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the address of `server`.
fn address_of(server: &RedisServer) -> SharedAddress {
    SharedAddress::parse(&server.url()).unwrap()
}

/// A fake task of an answer, which records the store's news.
#[derive(Default)]
struct Task(Mutex<Vec<StoreNews>>);

impl NewsSink for Task {
    fn tell(&self, news: StoreNews) {
        self.0.lock().unwrap().push(news);
    }

    fn is_gone(&self) -> bool {
        false
    }
}

impl Task {
    /// Waits for `news`.
    async fn hears(&self, news: StoreNews) {
        until(|| self.0.lock().unwrap().contains(&news)).await;
    }
}

/// A successor that refuses to begin any request, and gives a reason.
#[derive(Default)]
struct Reluctant {
    has_no_model: bool,
}

impl TakeoverStarter for Reluctant {
    fn is_ready(&self) -> bool {
        true
    }

    fn offers(&self) -> Vec<TakeoverOffer> {
        Vec::new()
    }

    fn check(&self, request: &ReplayableRequest) -> Result<(), ApiError> {
        match self.has_no_model {
            true => Err(ApiError::model_not_found(&request.marks.model, ["another"])),
            false => Ok(()),
        }
    }

    fn begin(
        &self,
        _: ReplayableRequest,
        _: FirstAnswer,
    ) -> Pin<Box<dyn Future<Output = Result<SecondAnswer, ApiError>> + Send + '_>> {
        Box::pin(async { Err(ApiError::overloaded("The server is busy.", 1)) })
    }
}

async fn until(holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "it does not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A replica that lives until [`Self::die`].
struct Replica {
    logs: Arc<SharedLogs>,
    connection: SharedConnection,
    announcing: tokio::task::JoinHandle<()>,
}

impl Replica {
    async fn start(server: &RedisServer) -> Self {
        let address = address_of(server);
        let opened = SharedConnection::open(&address, 1 << 20, Entropy::system()).await;
        let connection = opened.unwrap();
        let logs = crate::shared::start(connection.clone(), Duration::from_secs(60));
        let announced = connection.clone();
        let announcing = tokio::spawn(async move { announced.keep_announced().await });
        Self { logs, connection, announcing }
    }

    /// Makes this replica dead for the others, though it may still write.
    async fn die(&self) {
        self.announcing.abort();
        until(|| self.announcing.is_finished()).await;
        self.connection.retire().await;
    }

    /// Shares an answer; returns once its `records` are stored.
    async fn share(&self, records: &[u8]) -> (Arc<LogSlot>, Arc<Task>) {
        let task = Arc::new(Task::default());
        let slot = self.logs.share(&HANDLE, Some(request()), task.clone());
        put(&slot, records);
        until(|| slot.stored() == records.len() as u64).await;
        (slot, task)
    }

    async fn take(&self, head: u64) -> Result<u64, Refused> {
        let epochs = self.epochs().await;
        self.take_from(head, &epochs).await
    }

    /// Takes the answer over as a mirror does whose log has had the owners of `epochs`.
    async fn take_from(&self, head: u64, epochs: &Epochs) -> Result<u64, Refused> {
        let taken = self.logs.take(&HANDLE, head, epochs, TakeMode::Take).await;
        taken.map(|taken| taken.fence)
    }

    async fn succeed(&self, head: u64, successor: &Reluctant) -> TakeoverOutcome {
        let (task, epochs) = (Arc::new(Task::default()), self.epochs().await);
        self.logs.succeed(&HANDLE, head, epochs, task, successor).await
    }

    /// Returns the owners that the log has had.
    async fn epochs(&self) -> Epochs {
        let read = self.logs.read(&[(&HANDLE.id_hex(), 0)]).await.unwrap();
        read.into_iter().next().unwrap().epochs
    }

    /// Returns the store's reply to the command `words`.
    async fn ask(server: &RedisServer, words: &[&[u8]]) -> redis::Value {
        let mut link = address_of(server).client.get_multiplexed_async_connection().await.unwrap();
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query_async(&mut link).await.unwrap()
    }
}

fn put(slot: &LogSlot, bytes: &[u8]) {
    slot.put(LogState::Running, true, |_, waiting| {
        waiting.extend_from_slice(bytes);
        true
    });
}

/// Makes the store forget the answer, and checks that an owner that wakes up later does not write
/// it again.
async fn writes_nothing_of_what_is_gone(
    server: &RedisServer,
    slot: &LogSlot,
    task: &Task,
    log: &[u8],
) {
    Replica::ask(server, &[b"DEL", &key('a'), &key('g')]).await;
    slot.restart();
    put(slot, log);
    task.hears(StoreNews::Taken).await;
    let left = Replica::ask(server, &[b"EXISTS", &key('a'), &key('g')]).await;
    assert_eq!(left, redis::Value::Int(0));
}

fn request() -> Arc<[u8]> {
    encoded("m", KeptService::default())
}

fn records(deltas: &[Delta]) -> Vec<u8> {
    let mut bytes = Vec::new();
    deltas.iter().for_each(|delta| delta.encode(&mut bytes).unwrap());
    bytes
}

fn beginning() -> Vec<u8> {
    let meta = json!({"id": "chatcmpl-1", "created": 7}).to_string();
    records(&[Delta::Open { meta }, Delta::text("one")])
}

fn why(succession: &TakeoverOutcome) -> &str {
    match succession {
        TakeoverOutcome::Lost(why) => why,
        TakeoverOutcome::Owned(_) => "owned",
        TakeoverOutcome::Follow(_) => "follow",
    }
}

fn key(kind: char) -> Vec<u8> {
    format!("loquent:1:{kind}:{}", HANDLE.id_hex()).into_bytes()
}

#[tokio::test]
async fn an_answer_has_one_owner_whichever_of_them_die() {
    let Some(server) = RedisServer::start() else { return };
    let (first, second) = (Replica::start(&server).await, Replica::start(&server).await);
    let third = Replica::start(&server).await;
    let log = beginning();
    let head = log.len() as u64;
    let (slot, task) = first.share(&log).await;
    assert!(matches!(second.take(head).await, Err(Refused::NotYet)), "its owner lives");
    first.die().await;
    assert!(matches!(second.take(head).await, Ok(2)));
    assert!(matches!(third.take(head).await, Err(Refused::NotYet)), "one is enough");
    // The reply was lost, and it asks again.
    assert!(matches!(second.take(head).await, Ok(3)));
    second.die().await;
    assert!(matches!(third.take(head).await, Ok(4)), "before it has written anything");
    put(&slot, b"more");
    task.hears(StoreNews::Taken).await;
    let stored = Replica::ask(&server, &[b"GET", &key('g')]).await;
    assert_eq!(stored, redis::Value::BulkString(log), "who was succeeded appends nothing");
}

#[tokio::test]
async fn a_replica_knows_the_offers_of_others_until_they_withdraw_them_or_end() {
    let Some(server) = RedisServer::start() else { return };
    let (first, second) = (Replica::start(&server).await, Replica::start(&server).await);
    let (third, request) = (Replica::start(&server).await, request());
    let offers = Arc::new(Mutex::new(vec![TakeoverOffer {
        model: "m".to_owned(),
        answered_by: KeptService::default(),
    }]));
    for replica in [&first, &second] {
        let announced = offers.clone();
        let notice = move || notice_of(&announced.lock().unwrap());
        replica.connection.announce_as(Box::new(notice));
        replica.connection.announce().await.unwrap();
    }
    // The third one is of an older version, and has no notice.
    let covers = async |replica: &Replica| {
        let others = replica.logs.offers_without_this(false).await.unwrap();
        others.cover(&request)
    };
    assert!(covers(&first).await && covers(&third).await);
    second.die().await;
    assert!(!covers(&first).await, "its own offers do not count");
    assert!(covers(&third).await);
    // As a replica does that shuts down.
    offers.lock().unwrap().clear();
    assert!(!covers(&first).await && !covers(&third).await);
}

#[tokio::test]
async fn an_owner_that_slept_for_long_does_not_bring_its_answer_back() {
    let Some(server) = RedisServer::start() else { return };
    let (first, second) = (Replica::start(&server).await, Replica::start(&server).await);
    let log = beginning();
    let (slot, task) = first.share(&log).await;
    first.die().await;
    assert!(matches!(second.take(log.len() as u64).await, Ok(2)));
    // The answer has ended, and is too old.
    writes_nothing_of_what_is_gone(&server, &slot, &task, &log).await;
}

#[tokio::test]
async fn a_takeover_that_comes_late_does_not_take_the_answer_from_its_new_owner() {
    let Some(server) = RedisServer::start() else { return };
    let (first, second) = (Replica::start(&server).await, Replica::start(&server).await);
    let log = beginning();
    let (head, before) = (log.len() as u64, Epochs::default());
    first.share(&log).await;
    first.die().await;
    assert!(matches!(second.take_from(head, &before).await, Ok(2)));
    // The same call once more, as it comes from a connection that was given up.
    assert!(matches!(second.take_from(head, &before).await, Err(Refused::NotYet)));
    let fence = Replica::ask(&server, &[b"HGET", &key('a'), b"f"]).await;
    assert_eq!(fence, redis::Value::BulkString(b"2".to_vec()));
}

#[tokio::test]
async fn an_ended_answer_of_which_the_store_has_lost_the_end_is_written_again() {
    let Some(server) = RedisServer::start() else { return };
    let owner = Replica::start(&server).await;
    let log = beginning();
    let (slot, task) = owner.share(&log).await;
    let end = records(&[Delta::Done]);
    slot.put(LogState::Ended, true, |_, waiting| {
        waiting.extend_from_slice(&end);
        true
    });
    let whole = log.len() + end.len();
    until(|| slot.stored() == whole as u64 && !slot.is_of_use()).await;
    // A failover that lost the last write, and no lease.
    Replica::ask(&server, &[b"HSET", &key('a'), b"s", b"running"]).await;
    Replica::ask(&server, &[b"SET", &key('g'), &log]).await;
    task.hears(StoreNews::Lost).await;
}

#[tokio::test]
async fn what_an_owner_wrote_before_its_answer_was_stopped_is_not_stored_after_that() {
    let Some(server) = RedisServer::start() else { return };
    let owner = Replica::start(&server).await;
    assert_eq!(owner.logs.stop(&HANDLE).await.ok(), Some(false), "the store does not know it yet");
    let task = Arc::new(Task::default());
    owner.logs.share(&HANDLE, Some(request()), task.clone());
    task.hears(StoreNews::Taken).await;
    let stored = Replica::ask(&server, &[b"EXISTS", &key('a'), &key('g')]).await;
    assert_eq!(stored, redis::Value::Int(0));
}

#[tokio::test]
async fn a_store_that_has_lost_all_believes_the_newest_owner() {
    let Some(server) = RedisServer::start() else { return };
    let (first, second) = (Replica::start(&server).await, Replica::start(&server).await);
    let log = beginning();
    let (slot, task) = first.share(&log).await;
    first.die().await;
    assert!(matches!(second.take(log.len() as u64).await, Ok(2)));
    Replica::ask(&server, &[b"FLUSHALL"]).await;
    // The older one is the first that writes its log again.
    slot.restart();
    put(&slot, &log);
    until(|| slot.stored() == log.len() as u64).await;
    let newer = LogSlot::new(&HANDLE, 2, Arc::new(Task::default()));
    let newer = second.logs.add(newer.beginning_at(log.len() as u64, &Epochs::default()));
    newer.restart();
    let other = records(&[Delta::text("other")]);
    put(&newer, &other);
    until(|| newer.stored() == other.len() as u64).await;
    put(&slot, b"more");
    task.hears(StoreNews::Taken).await;
    let stored = Replica::ask(&server, &[b"GET", &key('g')]).await;
    assert_eq!(stored, redis::Value::BulkString(other));
}

#[tokio::test]
async fn what_one_replica_cannot_generate_is_left_to_another() {
    let Some(server) = RedisServer::start() else { return };
    let (first, second) = (Replica::start(&server).await, Replica::start(&server).await);
    let third = Replica::start(&server).await;
    let log = beginning();
    let head = log.len() as u64;
    first.share(&log).await;
    first.die().await;
    let without = Reluctant { has_no_model: true };
    let lost = second.succeed(head, &without).await;
    assert!(why(&lost).contains("'m'"), "{}", why(&lost));
    assert!(matches!(third.take(head).await, Ok(2)), "it was not even taken");
    third.die().await;
    // It has the model, and no room: what it has taken it gives back.
    let lost = second.succeed(head, &Reluctant::default()).await;
    assert_eq!(why(&lost), "The server is busy.");
    let fourth = Replica::start(&server).await;
    let begun = Instant::now();
    while !matches!(fourth.take(head).await, Ok(4)) {
        assert!(begun.elapsed() < PATIENCE, "it is kept by who does not generate it");
    }
}

#[tokio::test]
async fn what_its_owner_wrote_last_is_read_before_it_is_succeeded() {
    let Some(server) = RedisServer::start() else { return };
    let (first, second) = (Replica::start(&server).await, Replica::start(&server).await);
    let log = beginning();
    let more = records(&[Delta::text(" more")]);
    let (slot, _task) = first.share(&log).await;
    first.die().await;
    put(&slot, &more);
    until(|| slot.stored() == (log.len() + more.len()) as u64).await;
    let succession = second.succeed(log.len() as u64, &Reluctant::default()).await;
    let TakeoverOutcome::Follow(mut follower) = succession else { panic!("{}", why(&succession)) };
    assert_eq!(follower.next().await, FollowedPiece::Records(more));
    assert_eq!(follower.next().await, FollowedPiece::Orphaned);
}

#[tokio::test]
async fn an_entry_that_is_damaged_or_of_another_version_is_not_taken() {
    let Some(server) = RedisServer::start() else { return };
    let (first, second) = (Replica::start(&server).await, Replica::start(&server).await);
    let log = beginning();
    let head = log.len() as u64;
    first.share(&log).await;
    first.die().await;
    let set = async |bytes: &[u8]| {
        Replica::ask(&server, &[b"HSET", &key('a'), b"q", bytes]).await;
    };
    for (request, expected) in [
        (&b"{\"endpoint\":\"songs\"}"[..], "its request cannot be read"),
        (b"", "its store does not have all of it"),
        (&vec![b' '; REQUEST_BYTES + 1], "its store does not have all of it"),
    ] {
        set(request).await;
        assert_eq!(why(&second.succeed(head, &Reluctant::default()).await), expected);
    }
    set(&request()).await;
    let cut = records(&[Delta::Error { code: "x".into(), message: "y".into() }]);
    let odd = [&log[..], &cut].concat();
    let length = odd.len().to_string();
    Replica::ask(&server, &[b"SET", &key('g'), &odd]).await;
    Replica::ask(&server, &[b"HSET", &key('a'), b"h", length.as_bytes()]).await;
    let lost = second.succeed(odd.len() as u64, &Reluctant::default()).await;
    assert_eq!(why(&lost), "its log has what cannot be compared");
    // Another log in place of what is lost would have other offsets.
    Replica::ask(&server, &[b"SET", &key('g'), &log[..log.len() - 1]]).await;
    let lost = second.succeed(head, &Reluctant::default()).await;
    assert_eq!(why(&lost), "its store does not have all of it");
    let owner = Replica::ask(&server, &[b"HMGET", &key('a'), b"o", b"f"]).await;
    let first = first.connection.replica().as_bytes().to_vec();
    let expected = [redis::Value::BulkString(first), redis::Value::BulkString(b"1".to_vec())];
    assert_eq!(owner, redis::Value::Array(expected.to_vec()), "nobody has taken it");
}

#[tokio::test]
async fn an_answer_that_has_ended_is_written_once_more_for_a_store_that_has_lost_it() {
    let Some(server) = RedisServer::start() else { return };
    let owner = Replica::start(&server).await;
    let (slot, task) = owner.share(&beginning()).await;
    let end = records(&[Delta::Done]);
    let put_end = |bytes: &[u8]| {
        slot.put(LogState::Ended, true, |_, waiting| {
            waiting.extend_from_slice(bytes);
            true
        })
    };
    put_end(&end);
    let whole = [beginning(), end].concat();
    until(|| slot.stored() == whole.len() as u64 && !slot.is_of_use()).await;
    Replica::ask(&server, &[b"FLUSHALL"]).await;
    // Nothing of it is to be written, and still it is noticed.
    task.hears(StoreNews::Lost).await;
    slot.restart();
    put_end(&whole);
    until(|| slot.stored() == whole.len() as u64).await;
    let stored = Replica::ask(&server, &[b"GET", &key('g')]).await;
    assert_eq!(stored, redis::Value::BulkString(whole));
}

/// Checks the state of the answer, and its effect on mirrors.
#[tokio::test]
async fn an_answer_that_its_owner_cannot_share_any_more_was_not_stopped_by_a_client() {
    let Some(server) = RedisServer::start() else { return };
    let (owner, other) = (Replica::start(&server).await, Replica::start(&server).await);
    let log = beginning();
    let (slot, _task) = owner.share(&log).await;
    let (followed, mut follower) = FollowedLog::new(&HANDLE);
    other.logs.follow(followed);
    assert_eq!(follower.next().await, FollowedPiece::Records(log));
    slot.give_up();
    assert!(matches!(follower.next().await, FollowedPiece::Lost(_)), "nobody has stopped it");
    assert_eq!(other.logs.has(&HANDLE).await.ok(), Some(false));
}

#[tokio::test]
async fn a_replica_with_another_answer_leaves_it_to_two_others_before_it_ends_it() {
    let Some(server) = RedisServer::start() else { return };
    let first = Replica::start(&server).await;
    let log = beginning();
    let head = log.len() as u64;
    first.share(&log).await;
    first.die().await;
    let mut tried = Vec::new();
    for (at, is_last) in [(0, false), (1, false), (2, true)] {
        let replica = Replica::start(&server).await;
        let epochs = replica.epochs().await;
        let taken = replica.logs.take(&HANDLE, head, &epochs, TakeMode::Take).await.ok().unwrap();
        assert_eq!(taken.is_last, is_last, "replica {at}");
        let known = taken.epochs.end_of(0);
        assert_eq!(known, Some(head), "the first owner's log is this one up to there");
        replica.logs.give_back(&HANDLE.id_hex(), taken.fence, GivenBack::Differs).await;
        let again = replica.take(head).await;
        assert!(matches!(again, Err(Refused::Lost(why)) if why.contains("another answer")));
        tried.push(replica);
    }
}

#[tokio::test]
async fn a_stopped_answer_is_not_written_again_by_an_owner_that_slept() {
    let Some(server) = RedisServer::start() else { return };
    let owner = Replica::start(&server).await;
    let log = beginning();
    let (slot, task) = owner.share(&log).await;
    assert_eq!(owner.logs.stop(&HANDLE).await.ok(), Some(true));
    // It is too old to be remembered as such.
    writes_nothing_of_what_is_gone(&server, &slot, &task, &log).await;
}

#[tokio::test]
async fn another_replicas_reader_counts_as_long_as_it_reads_and_no_longer() {
    let Some(server) = RedisServer::start() else { return };
    let (owner, other) = (Replica::start(&server).await, Replica::start(&server).await);
    let (slot, _task) = owner.share(&beginning()).await;
    let (followed, mut follower) = FollowedLog::new(&HANDLE);
    other.logs.follow(followed);
    follower.next().await;
    until(|| slot.is_read()).await;
    let end = records(&[Delta::Done]);
    slot.put(LogState::Ended, true, |_, waiting| {
        waiting.extend_from_slice(&end);
        true
    });
    follower.next().await;
    drop(follower);
    until(|| !slot.is_read()).await;
}
