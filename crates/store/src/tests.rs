//! Stores in memory, on disk and at a server keep objects within the bounds, in order, and separate
//! for each owner. A file survives restarts and damage.

use bytes::Bytes;
use loquent_needs::redis::RedisServer;

use super::index::OBJECT_BYTES;
use super::ledger::USAGE_DAYS;
use super::object::MAX_ID_BYTES;
use super::*;
use loquent_serving::usage::UsageCounts;

const ANN: Owner = Owner([1; 16]);
const BOB: Owner = Owner([2; 16]);
const CHAT: Kind = Kind::ChatCompletion;

fn limits(objects: usize, objects_per_owner: usize) -> StoreLimits {
    let bytes = |objects| objects * (OBJECT_BYTES + 100);
    StoreLimits {
        bytes: bytes(objects),
        bytes_per_owner: bytes(objects_per_owner),
        age: Duration::from_secs(1000),
    }
}

fn object(id: &str) -> StoredObject {
    let json = Bytes::from(format!("{:100}", format!("{{\"id\":\"{id}\"}}")));
    StoredObject { id: id.into(), created_s: unix_time_s(), progress: Progress::Ended, json }
}

async fn ids(store: &Store, owner: Owner, page: ListPage) -> Vec<String> {
    let found = store.list(CHAT, owner, page, |_| true).await.unwrap();
    found.objects.into_iter().map(|object| object.id).collect()
}

fn page(after: Option<&str>, limit: usize, newest_first: bool) -> ListPage {
    ListPage { after: after.map(str::to_owned), limit, newest_first }
}

/// Returns the address of `server`.
fn address_of(server: &RedisServer) -> SharedAddress {
    SharedAddress::parse(&server.url()).unwrap()
}

/// Resources that a test's stores live in.
struct Places {
    _folder: tempfile::TempDir,
    _server: Option<RedisServer>,
}

/// Creates a store of each kind that contains objects with `ids`; also returns the resources that
/// the stores live in.
async fn filled(limits: StoreLimits, owner: Owner, ids: &[&str]) -> (Places, Vec<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let on_disk = Store::open(&folder.path().join("store"), limits).unwrap();
    let mut stores = vec![Store::in_memory(limits), on_disk];
    let server = RedisServer::start();
    if let Some(server) = &server {
        stores.push(Store::connect(&address_of(server), limits).await.unwrap());
    }
    for store in &stores {
        for id in ids {
            store.put(CHAT, owner, object(id)).await.unwrap();
        }
    }
    (Places { _folder: folder, _server: server }, stores)
}

#[tokio::test]
async fn an_object_is_found_by_its_owner_and_kind_alone() {
    let (_folder, stores) = filled(limits(9, 9), ANN, &["a"]).await;
    for store in stores {
        let found = store.get(CHAT, ANN, "a").await.unwrap().expect("it was put");
        assert_eq!(
            (&*found.id, found.progress, found.json),
            ("a", Progress::Ended, object("a").json)
        );
        assert_eq!(store.get(CHAT, BOB, "a").await, Ok(None));
        assert_eq!(store.get(Kind::Response, ANN, "a").await, Ok(None));
        assert_eq!(store.delete(CHAT, BOB, "a").await, Ok(false));
        assert_eq!(store.delete(CHAT, ANN, "a").await, Ok(true));
        assert_eq!(store.get(CHAT, ANN, "a").await, Ok(None));
        assert_eq!(store.delete(CHAT, ANN, "a").await, Ok(false));
    }
}

#[tokio::test]
async fn lists_have_an_order_and_pages() {
    let (_folder, stores) = filled(limits(9, 9), ANN, &["a", "b", "c", "d"]).await;
    for store in stores {
        store.put(CHAT, BOB, object("x")).await.unwrap();
        store.put(Kind::Response, ANN, object("y")).await.unwrap();
        store.put(CHAT, ANN, object("b")).await.unwrap(); // it keeps its place
        assert_eq!(ids(&store, ANN, page(None, 9, false)).await, ["a", "b", "c", "d"]);
        assert_eq!(ids(&store, ANN, page(None, 3, true)).await, ["d", "c", "b"]);
        assert_eq!(ids(&store, ANN, page(Some("b"), 1, false)).await, ["c"]);
        assert_eq!(ids(&store, ANN, page(Some("b"), 9, true)).await, ["a"]);
        let first = store.list(CHAT, ANN, page(None, 3, false), |_| true).await.unwrap();
        let last = store.list(CHAT, ANN, page(None, 4, false), |_| true).await.unwrap();
        assert_eq!((first.has_more, last.has_more), (true, false));
        let foreign = store.list(CHAT, ANN, page(Some("x"), 9, true), |_| true).await;
        assert_eq!(foreign, Err(StoreError::UnknownAfter));
        let chosen = store.list(CHAT, ANN, page(None, 9, true), |object| object.id != "c").await;
        assert_eq!(chosen.unwrap().objects.len(), 3);
    }
}

#[tokio::test]
async fn a_list_longer_than_one_part_is_whole() {
    let names: Vec<String> = (0..100).map(|n| format!("id-{n:03}")).collect();
    let refs: Vec<&str> = names.iter().map(String::as_str).collect();
    let (_folder, stores) = filled(limits(200, 200), ANN, &refs).await;
    for store in stores {
        assert_eq!(ids(&store, ANN, page(None, 200, false)).await, names);
        let last =
            store.list(CHAT, ANN, page(None, 1, false), |object| object.id == "id-099").await;
        let last = last.unwrap();
        assert_eq!((last.objects.len(), last.has_more), (1, false));
    }
}

#[tokio::test]
async fn large_objects_make_a_page_shorter() {
    let store = Store::in_memory(StoreLimits::default());
    for id in ["a", "b", "c"] {
        let json = vec![b' '; MAX_LIST_BYTES / 2].into();
        store.put(CHAT, ANN, StoredObject { json, ..object(id) }).await.unwrap();
    }
    let found = store.list(CHAT, ANN, page(None, 9, false), |_| true).await.unwrap();
    assert_eq!((found.objects.len(), found.has_more), (2, true));
    assert_eq!(ids(&store, ANN, page(Some("b"), 9, false)).await, ["c"]);
}

#[tokio::test]
async fn what_was_deleted_is_not_replaced() {
    let (_folder, stores) = filled(limits(9, 9), ANN, &["a"]).await;
    for store in stores {
        assert_eq!(store.replace(CHAT, ANN, object("a")).await, Ok(true));
        store.delete(CHAT, ANN, "a").await.unwrap();
        assert_eq!(store.replace(CHAT, ANN, object("a")).await, Ok(false));
        assert_eq!(store.get(CHAT, ANN, "a").await, Ok(None));
    }
}

#[tokio::test]
async fn an_owner_with_too_much_loses_its_oldest() {
    let (_folder, stores) = filled(limits(9, 3), ANN, &["a", "b", "c", "d", "e"]).await;
    for store in stores {
        assert_eq!(ids(&store, ANN, page(None, 9, false)).await, ["c", "d", "e"]);
    }
}

#[tokio::test]
async fn whoever_has_the_most_makes_room() {
    let (_folder, stores) = filled(limits(6, 5), BOB, &["x", "y"]).await;
    for store in stores {
        for id in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            store.put(CHAT, ANN, object(id)).await.unwrap();
        }
        assert_eq!(ids(&store, ANN, page(None, 9, false)).await, ["e", "f", "g", "h"]);
        assert_eq!(ids(&store, BOB, page(None, 9, false)).await, ["x", "y"]);
    }
}

#[tokio::test]
async fn what_alone_is_too_large_is_refused_and_nothing_goes_for_it() {
    let (_folder, stores) = filled(limits(9, 3), ANN, &["a"]).await;
    for store in stores {
        let large =
            StoredObject { json: vec![b' '; 4 * (OBJECT_BYTES + 100)].into(), ..object("b") };
        let refused = store.put(CHAT, ANN, large).await.unwrap_err();
        assert!(matches!(refused, StoreError::TooLarge { .. }), "{refused}");
        assert_eq!(ids(&store, ANN, page(None, 9, false)).await, ["a"]);
        let long = StoredObject { id: "i".repeat(MAX_ID_BYTES + 1), ..object("") };
        assert_eq!(store.put(CHAT, ANN, long.clone()).await, Err(StoreError::LongId));
        assert_eq!(store.get(CHAT, ANN, &long.id).await, Ok(None));
    }
}

#[tokio::test]
async fn what_is_too_old_is_not_found_and_goes() {
    let (_folder, stores) = filled(limits(9, 9), ANN, &["young"]).await;
    for store in stores {
        let old = StoredObject { created_s: unix_time_s() - 1001, ..object("old") };
        store.put(CHAT, ANN, old).await.unwrap();
        assert_eq!(store.get(CHAT, ANN, "old").await, Ok(None));
        assert_eq!(ids(&store, ANN, page(None, 9, false)).await, ["young"]);
    }
}

mod file {
    //! Restarts, damage and misuse of the file.
    use std::path::PathBuf;

    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store");
        (folder, file)
    }

    async fn names(store: &Store) -> Vec<String> {
        ids(store, ANN, page(None, 99, false)).await
    }

    fn refusal(file: &Path) -> String {
        Store::open(file, limits(9, 9)).unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_closed_store_is_whole_when_it_is_opened_again() {
        let (_folder, file) = place();
        let store = Store::open(&file, limits(9, 9)).unwrap();
        let running = StoredObject { progress: Progress::Running, ..object("b") };
        for object in [object("a"), running.clone(), object("c")] {
            store.put(CHAT, ANN, object).await.unwrap();
        }
        store.delete(CHAT, ANN, "a").await.unwrap();
        store.close().await;
        let closed = store.put(CHAT, ANN, object("d")).await;
        assert!(matches!(closed, Err(StoreError::Failed(_))), "{closed:?}");
        let store = Store::open(&file, limits(9, 9)).unwrap();
        assert_eq!(store.get(CHAT, ANN, "b").await, Ok(Some(running)));
        store.put(CHAT, ANN, object("a")).await.unwrap(); // a new place, behind the others
        assert_eq!(names(&store).await, ["b", "c", "a"]);
    }

    #[tokio::test]
    async fn lower_bounds_hold_from_the_next_start_on() {
        let (_folder, file) = place();
        let store = Store::open(&file, limits(9, 9)).unwrap();
        for id in ["a", "b", "c", "d"] {
            store.put(CHAT, ANN, object(id)).await.unwrap();
        }
        store.close().await;
        let store = Store::open(&file, limits(2, 2)).unwrap();
        store.sweep().await;
        assert_eq!(names(&store).await, ["c", "d"]);
    }

    #[tokio::test]
    async fn a_store_has_one_server() {
        let (_folder, file) = place();
        let first = Store::open(&file, limits(9, 9)).unwrap();
        let refusal = refusal(&file);
        assert!(refusal.contains("another process has it open"), "{refusal}");
        first.close().await;
        Store::open(&file, limits(9, 9)).unwrap();
    }

    #[tokio::test]
    async fn nobody_else_may_read_it() {
        let (_folder, file) = place();
        let _store = Store::open(&file, limits(9, 9)).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[tokio::test]
    async fn a_file_that_is_no_store_is_refused_and_stays_as_it_is() {
        let (folder, file) = place();
        std::fs::write(&file, "my only copy").unwrap();
        let said = refusal(&file);
        assert!(said.contains("not a Loquent store, or damaged") && said.contains("move it away"));
        assert!(said.contains(&file.display().to_string()), "{said}");
        assert_eq!(std::fs::read(&file).unwrap(), b"my only copy");
        let missing = refusal(&folder.path().join("missing/store"));
        assert!(missing.contains("missing/store: No such file"), "{missing}");
    }

    #[tokio::test]
    async fn a_file_whose_creation_was_cut_short_is_a_new_one() {
        let zeros = vec![0_u8; 1 << 20];
        let mut header = zeros.clone();
        header[9..16].copy_from_slice(&[2, 0, 0, 0, 16, 0, 0]);
        for unfinished in [&zeros[..], &zeros[..5], &header[..]] {
            let (_folder, file) = place();
            std::fs::write(&file, unfinished).unwrap();
            let store = Store::open(&file, limits(9, 9)).unwrap();
            store.put(CHAT, ANN, object("a")).await.unwrap();
            store.close().await;
            let store = Store::open(&file, limits(9, 9)).unwrap();
            assert_eq!(names(&store).await, ["a"]);
        }
        let mut foreign = zeros;
        foreign[1 << 19] = 1;
        let (_folder, file) = place();
        std::fs::write(&file, &foreign).unwrap();
        assert!(refusal(&file).contains("not a Loquent store"));
        assert!(std::fs::read(&file).unwrap() == foreign, "it is somebody else's");
    }

    /// If any byte is damaged, the store reports an error, returns the object as stored, or lacks
    /// it.
    #[tokio::test]
    async fn a_damaged_file_never_gives_a_damaged_object() {
        let (folder, file) = place();
        let store = Store::open(&file, limits(99, 99)).unwrap();
        let all: Vec<String> = (0..20).map(|n| format!("id-{n:02}")).collect();
        for id in &all {
            store.put(CHAT, ANN, object(id)).await.unwrap();
        }
        store.close().await;
        let whole = std::fs::read(&file).unwrap();
        let used = whole.len() - whole.iter().rev().take_while(|byte| **byte == 0).count();
        let (mut refused, mut read) = (0, 0);
        for at in (0..used).step_by(used / 150) {
            let copy = folder.path().join(format!("copy-{at}"));
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            std::fs::write(&copy, damaged).unwrap();
            let Ok(store) = Store::open(&copy, limits(99, 99)) else {
                refused += 1;
                continue;
            };
            for id in &all {
                if let Ok(Some(found)) = store.get(CHAT, ANN, id).await {
                    assert_eq!(found.json, object(id).json, "byte {at}");
                    read += 1;
                }
            }
            let _ = store.list(CHAT, ANN, page(None, 99, true), |_| true).await;
            let _ = store.put(CHAT, ANN, object("new")).await;
            store.close().await;
            std::fs::remove_file(&copy).unwrap();
        }
        assert!(refused > 0 && read > 0, "{refused} refused, {read} read");
    }
}

mod bounds {
    //! After any puts and deletions, the sums are right and the bounds hold.
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::super::index::Index;
    use super::*;

    #[test]
    fn a_clock_that_is_ahead_for_a_moment_hides_everything_and_deletes_little() {
        const OBJECTS: usize = 6400;
        let mut index = Index::new(StoreLimits { bytes: 1 << 30, ..limits(9, 1 << 20) });
        let key = |id: usize| ObjectKey::new(CHAT, ANN, &id.to_string()).unwrap();
        let (now_s, ahead_s) = (10_000, 10_000 + 40 * 24 * 60 * 60);
        for id in 0..OBJECTS {
            index.put(&key(id), now_s, 1, Progress::Ended, now_s);
        }
        assert!(index.find(&key(OBJECTS - 1), ahead_s).is_none());
        assert_eq!(index.sweep(ahead_s).len(), OBJECTS / 64);
        // A write makes no room where there is enough.
        index.put(&key(OBJECTS), ahead_s, 1, Progress::Ended, ahead_s);
        assert_eq!(index.make_room(Some(&key(OBJECTS)), ahead_s), []);
        assert!(index.find(&key(OBJECTS - 1), now_s).is_some(), "the clock is right again");
        // Where it stays right, all go.
        while index.has_to_sweep(ahead_s) {
            assert!(!index.sweep(ahead_s).is_empty());
        }
        assert_eq!(index.len(), 1);
    }

    proptest! {
        #[test]
        fn hold_after_every_change(
            changes in proptest::collection::vec((0u8..3, 0u8..12, 0usize..900, 0u64..3), 1..200),
        ) {
            let limits = limits(6, 4);
            let mut index = Index::new(limits);
            let (mut sizes, mut now_s) = (HashMap::new(), 0);
            for (owner, id, bytes, later) in changes {
                now_s += later * 200;
                let key = ObjectKey::new(CHAT, Owner([owner; 16]), &id.to_string()).unwrap();
                if bytes % 7 == 0 {
                    prop_assert_eq!(index.remove(&key).is_some(), sizes.remove(&key).is_some());
                } else if index.check(bytes).is_ok() {
                    let created_s = index.put(&key, now_s, bytes, Progress::Ended, now_s).position.created_s;
                    sizes.insert(key.clone(), (created_s, bytes + OBJECT_BYTES));
                    for gone in index.make_room(Some(&key), now_s) {
                        prop_assert!(sizes.remove(&gone).is_some());
                    }
                    prop_assert!(
                        sizes.contains_key(&key) || now_s - created_s > limits.age.as_secs()
                    );
                    for gone in index.sweep(now_s) {
                        let (created_s, _) = sizes.remove(&gone).expect("it was there");
                        prop_assert!(now_s - created_s > limits.age.as_secs());
                    }
                }
                let sum = |wanted: &dyn Fn(&ObjectKey) -> bool| {
                    sizes.iter().filter(|(key, _)| wanted(key)).map(|(_, (_, size))| *size).sum::<usize>()
                };
                prop_assert_eq!(index.bytes(), sum(&|_| true));
                prop_assert_eq!(index.len(), sizes.len());
                prop_assert!(index.bytes() <= limits.bytes);
                prop_assert!(sum(&|key| key.owner == Owner([owner; 16])) <= limits.bytes_per_owner);
            }
        }
    }
}

#[test]
fn what_is_too_old_is_not_there_to_be_put_again_or_deleted() {
    let (early, late) = (1_000, 10_000);
    let backend = MemoryBackend::new(limits(4, 4));
    let key = ObjectKey::new(CHAT, ANN, "a").unwrap();
    let made_at = |created_s| StoredObject { created_s, ..object("a") };
    backend.write(key.clone(), made_at(early), WriteMode::Put, early).unwrap();
    // Put again with its own age, it stays for as long as a new one.
    backend.write(key.clone(), made_at(late), WriteMode::Put, late).unwrap();
    assert_eq!(backend.get(&key, late).map(|object| object.created_s), Some(late));
    let too_late = late + 1_001;
    assert!(!backend.delete(&key, too_late), "it was gone");
    backend.write(key.clone(), made_at(late), WriteMode::Put, late).unwrap();
    assert!(backend.delete(&key, late));
    assert_eq!(backend.get(&key, late), None);
}

mod shared {
    //! Replicas share a store at a server, which may become unavailable.

    use std::net::SocketAddr;

    use redis::Value;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::watch;

    use super::*;
    use crate::address::SharedAddress;

    #[tokio::test]
    async fn replicas_see_each_others_objects_and_which_of_them_live() {
        let Some(server) = RedisServer::start() else { return };
        let first = Store::connect(&address_of(&server), limits(9, 9)).await.unwrap();
        let second = Store::connect(&address_of(&server), limits(9, 9)).await.unwrap();
        let running = StoredObject { progress: Progress::Running, ..object("a") };
        first.put(CHAT, ANN, running).await.unwrap();
        second.put(CHAT, ANN, object("b")).await.unwrap();
        let progress =
            async |store: &Store| store.get(CHAT, ANN, "a").await.unwrap().unwrap().progress;
        assert_eq!(progress(&second).await, Progress::RunningElsewhere);
        assert_eq!(ids(&first, ANN, page(None, 9, false)).await, ["a", "b"]);
        first.close().await;
        assert_eq!(progress(&second).await, Progress::Running, "nobody stores it again");
        assert_eq!(second.delete(CHAT, ANN, "a").await, Ok(true));
    }

    #[tokio::test]
    async fn who_was_succeeded_stores_nothing_of_the_answer_any_more() {
        let Some(server) = RedisServer::start() else { return };
        let first = Store::connect(&address_of(&server), limits(9, 9)).await.unwrap();
        let second = Store::connect(&address_of(&server), limits(9, 9)).await.unwrap();
        let alive = tokio::spawn(second.clone().keep_current());
        let running = StoredObject { progress: Progress::Running, ..object("a") };
        let checkpoint = async |store: &Store, fence| {
            store.write(CHAT, ANN, running.clone(), WriteMode::Checkpoint(fence)).await.unwrap()
        };
        assert!(checkpoint(&first, AnswerFence::FIRST).await);
        first.close().await;
        assert_eq!(second.claim(CHAT, BOB, "a").await, Ok(None), "another's");
        assert_eq!(second.claim(CHAT, ANN, "a").await, Ok(Some(AnswerFence(2))));
        assert_eq!(first.claim(CHAT, ANN, "a").await, Ok(None), "its owner lives");
        assert!(!checkpoint(&first, AnswerFence::FIRST).await);
        assert!(checkpoint(&second, AnswerFence(2)).await);
        let whole = WriteMode::Complete(AnswerFence::FIRST);
        assert_eq!(second.write(CHAT, ANN, object("b"), whole).await, Ok(true));
        assert_eq!(second.claim(CHAT, ANN, "b").await, Ok(None), "it has ended");
        assert_eq!(first.delete(CHAT, ANN, "a").await, Ok(true));
        assert!(!checkpoint(&second, AnswerFence(2)).await, "what was deleted does not come back");
        assert_eq!(first.get(CHAT, ANN, "a").await, Ok(None));
        alive.abort();
    }

    #[tokio::test]
    async fn an_answer_that_was_taken_over_is_completed_once() {
        let Some(server) = RedisServer::start() else { return };
        let store = Store::connect(&address_of(&server), limits(9, 9)).await.unwrap();
        let complete = async |id: &str, fence| {
            store.write(CHAT, ANN, object(id), WriteMode::Complete(AnswerFence(fence))).await
        };
        store.raise_fence(CHAT, ANN, "a", AnswerFence(2)).await.unwrap();
        assert_eq!(complete("a", 1).await, Ok(false), "it has slept meanwhile");
        assert_eq!(complete("a", 2).await, Ok(true));
        assert_eq!(complete("a", 2).await, Ok(false));
        assert_eq!(store.delete(CHAT, ANN, "a").await, Ok(true));
        assert_eq!(complete("a", 1).await, Ok(false), "what was deleted does not come back");
        // Complete before its owner ended, and changed by its client since.
        assert_eq!(complete("b", 1).await, Ok(true));
        assert_eq!(complete("b", 1).await, Ok(false), "it is tried again: the reply was lost");
        store.raise_fence(CHAT, ANN, "b", AnswerFence(3)).await.unwrap();
        store.raise_fence(CHAT, ANN, "b", AnswerFence(2)).await.unwrap();
        assert_eq!(complete("b", 3).await, Ok(false));
        assert_eq!(complete("b", 2).await, Ok(false), "a fence never falls");
    }

    #[tokio::test]
    async fn a_store_that_is_away_is_an_error_and_no_wait() {
        let Some(server) = RedisServer::start() else { return };
        let address = address_of(&server);
        let store = Store::connect(&address, limits(9, 9)).await.unwrap();
        assert_eq!(store.outage(), None);
        drop(server);
        let refused = store.put(CHAT, ANN, object("a")).await;
        assert!(matches!(refused, Err(StoreError::Failed(_))), "{refused:?}");
        assert!(store.outage().is_some());
        let begun_without = Store::connect(&address, limits(9, 9)).await.unwrap();
        assert!(begun_without.outage().is_some());
    }

    #[tokio::test]
    async fn a_replica_that_is_ahead_of_its_time_stores_nothing_that_outlives_the_rest() {
        let Some(server) = RedisServer::start() else { return };
        let store = Store::connect(&address_of(&server), limits(9, 9)).await.unwrap();
        let now = loquent_serving::clock::unix_time_s();
        let ahead = StoredObject { created_s: now + 1_000_000, ..object("a") };
        store.put(CHAT, ANN, ahead).await.unwrap();
        let created_s = store.get(CHAT, ANN, "a").await.unwrap().unwrap().created_s;
        assert!((now..now + 60).contains(&created_s), "by the store's clock: {created_s}");
    }

    /// Relays connections to `server`. Those that are open when `silenced` changes carry nothing
    /// more, and stay open; new ones work.
    async fn relay(server: SocketAddr, silenced: watch::Receiver<u32>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut silenced = silenced.clone();
                silenced.mark_unchanged();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    let relayed = tokio::io::copy_bidirectional(&mut client, &mut server);
                    let is_silent = tokio::select! {
                        _ = relayed => false,
                        changed = silenced.changed() => changed.is_ok(),
                    };
                    if is_silent {
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn a_connection_that_fell_silent_is_replaced() {
        let Some(server) = RedisServer::start() else { return };
        let (silence, silenced) = watch::channel(0);
        let through = relay(server.socket_address(), silenced).await;
        let address = SharedAddress::parse(&format!("redis://{through}")).unwrap();
        let store = Store::connect(&address, limits(9, 9)).await.unwrap();
        let connection = store.shared().unwrap().clone();
        assert_eq!(connection.health(), StoreHealth::Well);
        let announcing = connection.clone();
        let announcing = tokio::spawn(async move { announcing.keep_announced().await });
        let until = async |wanted: fn(&StoreHealth) -> bool| {
            let changed = async {
                while !wanted(&connection.health()) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), changed).await.expect("it changes");
        };
        silence.send(1).unwrap();
        // Until nothing comes over it: a call that begins after that ends with an error.
        while store.get(CHAT, ANN, "a").await.is_ok() {}
        until(|health| *health == StoreHealth::Well).await;
        announcing.abort();
    }

    #[tokio::test]
    async fn calls_of_a_store_that_does_not_answer_end_with_an_error_in_time() {
        let Some(server) = RedisServer::start() else { return };
        let store = Store::connect(&address_of(&server), limits(9, 9)).await.unwrap();
        store.put(CHAT, ANN, object("a")).await.unwrap();
        server.mute(true);
        let calls = async {
            let put = store.put(CHAT, ANN, object("b"));
            let list = store.list(CHAT, ANN, page(None, 9, true), |_| true);
            tokio::join!(put, store.get(CHAT, ANN, "a"), list, store.delete(CHAT, ANN, "a"))
        };
        let patience = Duration::from_secs(60);
        let calls = tokio::time::timeout(patience, calls).await.expect("no call waits for ever");
        let failed = |error: Option<StoreError>| matches!(error, Some(StoreError::Failed(_)));
        assert!(failed(calls.0.err()) && failed(calls.1.err()));
        assert!(failed(calls.2.err()) && failed(calls.3.err()));
        assert!(store.outage().is_some());
        let address = address_of(&server);
        let begin = Store::connect(&address, limits(9, 9));
        let begun = tokio::time::timeout(patience, begin).await.expect("the start does not wait");
        assert!(begun.unwrap().outage().is_some(), "it starts without its store, and says so");
        server.mute(false);
        let back = async {
            while store.get(CHAT, ANN, "a").await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(patience, back).await.expect("it answers again");
        assert_eq!(store.outage(), None);
    }

    #[tokio::test]
    async fn sweeps_reach_every_owner_however_many_there_are() {
        let Some(server) = RedisServer::start() else { return };
        let store = Store::connect(&address_of(&server), limits(9, 9)).await.unwrap();
        store.put(CHAT, ANN, object("a")).await.unwrap();
        // Too old, of the owner with the most, behind more owners than one sweep visits.
        let mut raw = address_of(&server).client.get_multiplexed_async_connection().await.unwrap();
        let age = "local p, ann = 'loquent:1:', string.rep('01', 16)
            local old = string.rep('0', 32) .. '1a'
            redis.call('HSET', p .. 'o:' .. ann .. ':1a', 'm', old)
            redis.call('DEL', p .. 'l:' .. ann)
            redis.call('ZADD', p .. 'l:' .. ann, 0, old)
            redis.call('ZADD', p .. 'w', 1000000, ann)
            for n = 1, 10000 do redis.call('ZADD', p .. 'w', 1, 'o' .. n) end
            return redis.call('EXISTS', p .. 'o:' .. ann .. ':1a')";
        let aged: i64 = redis::Script::new(age).invoke_async(&mut raw).await.unwrap();
        assert_eq!(aged, 1);
        let object = format!("loquent:1:o:{}:1a", "01".repeat(16));
        let mut exists = async || {
            let mut command = redis::cmd("EXISTS");
            command.arg(&object).query_async::<i64>(&mut raw).await.unwrap()
        };
        store.sweep().await;
        assert_eq!(exists().await, 1, "the first sweep ends before it");
        store.sweep().await;
        assert_eq!(exists().await, 0);
    }

    #[tokio::test]
    async fn what_somebody_else_wrote_is_an_error() {
        let Some(server) = RedisServer::start() else { return };
        let store = Store::connect(&address_of(&server), limits(9, 9)).await.unwrap();
        store.put(CHAT, ANN, object("a")).await.unwrap();
        let mut raw = address_of(&server).client.get_multiplexed_async_connection().await.unwrap();
        let owner = "01".repeat(16);
        let key = format!("loquent:1:o:{owner}:1a");
        let long = vec![b'x'; 10 * (OBJECT_BYTES + 100)];
        for (field, value) in [("p", b"walking".to_vec()), ("j", long), ("m", b"\xff".to_vec())] {
            let mut change = redis::cmd("HSET");
            change.arg(&key).arg(field).arg(value);
            change.query_async::<Value>(&mut raw).await.unwrap();
            let read = store.get(CHAT, ANN, "a").await;
            assert!(matches!(read, Err(StoreError::Failed(_))), "{field}: {read:?}");
        }
    }
}

/// A row of the ledger.
fn usage(day: u32, owner: Owner, name: &str, requests: u64) -> UsageRow {
    let counts = UsageCounts {
        requests,
        prompt_tokens: 10 * requests,
        cached_tokens: requests,
        completion_tokens: 5 * requests,
    };
    UsageRow { day, owner, name: (!name.is_empty()).then(|| name.to_owned()), counts }
}

#[tokio::test]
async fn usage_is_found_by_day_and_owner_and_a_row_replaces_the_one_before() {
    let (_places, stores) = filled(limits(9, 9), ANN, &[]).await;
    for store in stores {
        let rows = vec![usage(7, ANN, "ann", 1), usage(7, BOB, "", 2), usage(9, ANN, "ann", 3)];
        store.record_usage(rows).await.unwrap();
        store.record_usage(vec![usage(7, ANN, "ann", 4)]).await.unwrap();
        let read = async |days, owner| store.usage(UsageQuery { days, owner }).await.unwrap();
        let all = [usage(7, ANN, "ann", 4), usage(7, BOB, "", 2), usage(9, ANN, "ann", 3)];
        assert_eq!(read(0..=9, None).await, all);
        assert_eq!(read(8..=9, None).await, all[2..]);
        assert_eq!(read(0..=9, Some(BOB)).await, all[1..2]);
        assert_eq!(read(10..=30, None).await, []);
    }
}

#[tokio::test]
async fn usage_older_than_it_is_kept_is_forgotten_and_outlives_objects() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    for store in [Store::in_memory(limits(1, 1)), Store::open(&file, limits(1, 1)).unwrap()] {
        store.record_usage(vec![usage(1, ANN, "ann", 1), usage(2, ANN, "ann", 2)]).await.unwrap();
        // Objects push each other out, and never the ledger's rows.
        for id in ["a", "b", "c"] {
            store.put(CHAT, ANN, object(id)).await.unwrap();
        }
        store.record_usage(vec![usage(2 + USAGE_DAYS, BOB, "", 3)]).await.unwrap();
        let rows = store.usage(UsageQuery { days: 0..=u32::MAX, owner: None }).await.unwrap();
        assert_eq!(rows, [usage(2, ANN, "ann", 2), usage(2 + USAGE_DAYS, BOB, "", 3)]);
        store.close().await;
    }
    let again = Store::open(&file, limits(1, 1)).unwrap();
    let rows = again.usage(UsageQuery { days: 2..=2, owner: Some(ANN) }).await.unwrap();
    assert_eq!(rows, [usage(2, ANN, "ann", 2)]);
}

#[tokio::test]
async fn replicas_add_up_their_usage_and_none_counts_twice() {
    let Some(server) = RedisServer::start() else { return };
    let connect = async || Store::connect(&address_of(&server), limits(9, 9)).await.unwrap();
    let (one, two) = (connect().await, connect().await);
    for _ in 0..2 {
        one.record_usage(vec![usage(7, ANN, "ann", 1)]).await.unwrap();
        two.record_usage(vec![usage(7, ANN, "ann", 2)]).await.unwrap();
    }
    let rows = two.usage(UsageQuery { days: 7..=7, owner: None }).await.unwrap();
    assert_eq!(rows, [usage(7, ANN, "ann", 3)]);
}
