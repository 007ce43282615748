//! Tests of the folder: its bound, its sharing, its damage.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// A time at which nothing in the tests is abandoned.
fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn open(folder: &Path, max_bytes: u64) -> PrefixStore {
    PrefixStore::open(PrefixStoreConfig { folder: folder.join("cache"), max_bytes }).unwrap()
}

fn key(number: u8) -> BlockKey {
    BlockKey([number; 32])
}

fn write(store: &PrefixStore, number: u8, index: u32, state: &[u8], seconds: u64) -> bool {
    store.write(&key(number), state, BlockUse { at: at(seconds), index }, at(seconds))
}

/// Number of blocks in the folder of `store`.
fn blocks(store: &PrefixStore) -> usize {
    let names = fs::read_dir(&store.folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| BlockKey::of_file_name(name.to_str().unwrap()).is_some()).count()
}

#[test]
fn blocks_are_found_again_after_a_restart_and_by_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (open(folder.path(), 10_000), open(folder.path(), 10_000));
    assert!(write(&first, 1, 0, b"state", 10));
    assert!(!write(&first, 1, 0, b"state", 10), "it is there already");
    assert!(!second.has(&key(1)), "it was opened before");
    second.list(at(20)).unwrap();
    for store in [first, second, open(folder.path(), 10_000)] {
        assert!(store.has(&key(1)) && !store.has(&key(2)));
        assert_eq!(store.read(&key(1), BlockUse { at: at(30), index: 0 }), Some(b"state".to_vec()));
        assert_eq!(store.read(&key(2), BlockUse { at: at(30), index: 0 }), None);
    }
}

#[test]
fn only_the_owner_can_read_and_all_processes_have_one_secret() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 10_000);
    write(&store, 1, 0, b"state", 10);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&store.folder), 0o700);
    for entry in fs::read_dir(&store.folder).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    let secret = store.secret();
    assert_eq!(open(folder.path(), 10_000).secret(), secret);
    fs::write(store.folder.join(SECRET_FILE), b"short").unwrap();
    let other = open(folder.path(), 10_000).secret();
    assert_ne!(other, secret, "a damaged one is replaced");
    assert_eq!(open(folder.path(), 10_000).secret(), other);
}

#[test]
fn the_least_recently_used_blocks_go_and_tails_before_heads() {
    let folder = tempfile::tempdir().unwrap();
    let state = [0; 1000];
    let store = open(folder.path(), 5 * (1000 + HEAD_BYTES as u64));
    // Two prompts of two blocks each, and one block more.
    for (number, index, seconds) in [(1, 0, 10), (2, 1, 10), (3, 0, 20), (4, 1, 20), (5, 0, 30)] {
        assert!(write(&store, number, index, &state, seconds));
    }
    assert_eq!(
        store.read(&key(1), BlockUse { at: at(40), index: 0 }).map(|state| state.len()),
        Some(1000)
    );
    assert!(write(&store, 6, 0, &state, 50));
    let kept = |number| store.has(&key(number));
    assert!(!kept(2), "it was used first, and is of no use alone");
    assert!(kept(1) && kept(3) && kept(5) && kept(6));
    assert_eq!(blocks(&store), store.known().blocks.len());
    // After a restart, too, it is known what was used.
    let store = open(folder.path(), 3 * (1000 + HEAD_BYTES as u64));
    assert!(write(&store, 7, 0, &state, 60));
    assert!(store.has(&key(7)) && store.has(&key(6)) && !store.has(&key(3)));
    assert!(store.known().bytes <= store.max_bytes);
}

#[test]
fn a_block_larger_than_the_store_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1000);
    assert!(write(&store, 1, 0, &[0; 100], 10));
    assert!(!write(&store, 2, 0, &[0; 1000], 20));
    assert!(store.has(&key(1)), "nothing had to go for it");
}

#[test]
fn a_damaged_block_is_removed_and_a_foreign_file_stays() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 10_000);
    for (number, damage) in [(1, vec![]), (2, b"foreign".to_vec()), (3, vec![0; 500])] {
        assert!(write(&store, number, 0, b"state", 10));
        fs::write(store.path(&key(number)), damage).unwrap();
        assert_eq!(store.read(&key(number), BlockUse { at: at(20), index: 0 }), None);
        assert!(!store.has(&key(number)) && !store.path(&key(number)).exists());
    }
    // One block under another's name.
    assert!(write(&store, 4, 0, b"state", 10));
    fs::rename(store.path(&key(4)), store.path(&key(5))).unwrap();
    assert_eq!(store.read(&key(5), BlockUse { at: at(20), index: 0 }), None);
    let foreign = store.folder.join("notes.txt");
    fs::write(&foreign, "not ours").unwrap();
    store.list(at(30)).unwrap();
    assert!(foreign.exists() && store.known().blocks.is_empty());
}

#[test]
fn files_that_others_removed_are_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 2500);
    for number in 1..3 {
        assert!(write(&store, number, 0, &[0; 1000], 10));
    }
    fs::remove_file(store.path(&key(1))).unwrap();
    assert_eq!(store.read(&key(1), BlockUse { at: at(10), index: 0 }), None);
    fs::remove_file(store.path(&key(2))).unwrap();
    assert!(write(&store, 3, 0, &[0; 2000], 10), "what must go is gone");
}

#[test]
fn a_folder_that_cannot_be_written_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 10_000);
    fs::remove_dir_all(&store.folder).unwrap();
    fs::write(&store.folder, "a file in its place").unwrap();
    assert!(!write(&store, 1, 0, b"state", 10));
    assert!(
        !store.has(&key(1)) && store.read(&key(1), BlockUse { at: at(10), index: 0 }).is_none()
    );
    fs::remove_file(&store.folder).unwrap();
    fs::create_dir(&store.folder).unwrap();
    assert!(!write(&store, 1, 0, b"state", 20), "it is left alone for a while");
    assert!(write(&store, 1, 0, b"state", 40), "it goes on when that is mended");
}

#[test]
fn a_full_disk_gets_back_a_part_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 1 << 20);
    for number in 1..=20 {
        assert!(write(&store, number, 0, &[0; 1000], number.into()));
    }
    store.note_failure(&ErrorKind::PermissionDenied.into(), at(30));
    assert_eq!(blocks(&store), 20, "others gain nothing by it");
    store.note_failure(&ErrorKind::StorageFull.into(), at(40));
    assert_eq!(blocks(&store), 18);
    assert!(!store.has(&key(2)) && store.has(&key(3)), "the least recently used go");
}

#[test]
#[cfg(target_os = "linux")]
fn a_block_that_the_disk_cannot_read_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 10_000);
    assert!(write(&store, 1, 0, b"state", 10));
    fs::remove_file(store.path(&key(1))).unwrap();
    // Reading its first bytes is an I/O error.
    std::os::unix::fs::symlink("/proc/self/mem", store.path(&key(1))).unwrap();
    assert_eq!(store.read(&key(1), BlockUse { at: at(20), index: 0 }), None);
    assert!(fs::symlink_metadata(store.path(&key(1))).is_err());
    assert!(write(&store, 1, 0, b"state", 30), "it is written anew");
}

#[test]
fn a_secret_is_made_where_there_are_no_hard_links_and_by_all_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let secret = || secret_of(folder.path(), |_, _| Err(ErrorKind::Unsupported.into())).unwrap();
    let secrets: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(secret)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(secrets.iter().all(|one| *one == secrets[0]));
    assert_eq!(fs::read(folder.path().join(SECRET_FILE)).unwrap(), secrets[0].0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
}

#[test]
fn unfinished_files_go_after_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 10_000);
    let unfinished = store.folder.join("1-2-3.tmp");
    let file = File::create(&unfinished).unwrap();
    file.set_modified(at(1000)).unwrap();
    store.list(at(1001)).unwrap();
    assert!(unfinished.exists(), "another process may be writing it");
    store.list(at(1000 + ABANDONED_AFTER.as_secs())).unwrap();
    assert!(!unfinished.exists());
}
