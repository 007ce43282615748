//! Downloads from a local stand-in of the hub's API, over real sockets, into a temporary cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::hub_stand_in::{Fault, StandIn};
use loquent::hub::{FetchEvent, Hub, HubError, HubSpec};
use tempfile::TempDir;

const REPO: &str = "acme/Small-GGUF";
const FILE: &str = "small-Q4_K_M.gguf";
const SIZE: usize = 700_000;

/// Bytes that differ from place to place, so that a range put in the wrong place shows.
fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

struct Setup {
    server: StandIn,
    cache: TempDir,
    hub: Hub,
}

impl Setup {
    fn new() -> Setup {
        let server =
            StandIn::start(REPO, &[(FILE, content(SIZE)), ("README.md", b"# hi".to_vec())]);
        let cache = tempfile::tempdir().unwrap();
        let hub = Hub {
            endpoint: server.url(),
            token: None,
            cache_dir: cache.path().to_owned(),
            offline: false,
            max_attempts: 3,
            retry_delay: Duration::from_millis(1),
            stopped: Arc::default(),
        };
        Setup { server, cache, hub }
    }

    fn fetch(&self, spec: &str) -> (Result<PathBuf, HubError>, Vec<FetchEvent>) {
        let mut events = Vec::new();
        let spec: HubSpec = spec.parse().unwrap();
        let result = self.hub.fetch(&spec, &mut |event| events.push(event));
        (result, events)
    }

    fn fails(&self, spec: &str) -> HubError {
        self.fetch(spec).0.expect_err("the download should fail")
    }

    fn blobs(&self) -> Vec<String> {
        let dir = self.cache.path().join("models--acme--Small-GGUF/blobs");
        let Ok(entries) = fs::read_dir(dir) else {
            return Vec::new();
        };
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn incomplete(&self) -> PathBuf {
        let blobs = self.cache.path().join("models--acme--Small-GGUF/blobs");
        fs::create_dir_all(&blobs).unwrap();
        blobs.join(format!("{}.incomplete", self.server.sha256(FILE)))
    }
}

fn assert_content(path: &Path) {
    assert!(fs::read(path).unwrap() == content(SIZE), "the file differs from the hub's");
}

#[test]
fn a_model_arrives_whole_in_the_hubs_cache_layout() {
    let setup = Setup::new();
    let (path, events) = setup.fetch(REPO);
    let path = path.unwrap();
    assert_content(&path);
    let commit = setup.server.commit();
    let repo = setup.cache.path().join("models--acme--Small-GGUF");
    assert_eq!(path, repo.join("snapshots").join(&commit).join(FILE));
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), commit);
    assert_eq!(setup.blobs(), [setup.server.sha256(FILE)]);
    #[cfg(unix)]
    {
        let link = fs::read_link(&path).unwrap();
        let blob = format!("../../blobs/{}", setup.server.sha256(FILE));
        assert_eq!(link.to_str().unwrap(), blob);
    }
    assert_eq!(events.last(), Some(&FetchEvent::Verified { file: FILE.into() }));
    let total_bytes = SIZE as u64;
    assert!(events.contains(&FetchEvent::Advanced { have_bytes: total_bytes }));
}

#[test]
fn a_cached_model_is_not_asked_for_again() {
    let setup = Setup::new();
    let first = setup.fetch(REPO).0.unwrap();
    assert_eq!(setup.server.count("/resolve/"), 1);
    let second = setup.fetch(&format!("{REPO}:{FILE}")).0.unwrap();
    assert_eq!(first, second);
    assert_eq!(setup.server.count("/resolve/"), 1, "only the listing may be asked for again");
}

#[cfg(unix)]
#[test]
fn a_cached_model_is_found_in_a_cache_that_is_not_written() {
    use std::os::unix::fs::MetadataExt;
    let setup = Setup::new();
    let first = setup.fetch(REPO).0.unwrap();
    let record = setup.cache.path().join("models--acme--Small-GGUF/refs/main");
    let number = fs::metadata(&record).unwrap().ino();
    let changed = fs::metadata(&record).unwrap().modified().unwrap();
    let (second, events) = setup.fetch(REPO);
    assert_eq!((second.unwrap(), events), (first.clone(), Vec::new()));
    let after = fs::metadata(&record).unwrap();
    assert_eq!((after.ino(), after.modified().unwrap()), (number, changed), "nothing was new");
    // Also for root, whom no mode keeps from writing.
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
    let (third, events) = setup.fetch(REPO);
    assert_eq!(third.unwrap(), first);
    assert!(matches!(&events[..], [FetchEvent::NotRecorded { .. }]), "{events:?}");
}

#[test]
fn files_outside_lfs_are_verified_by_their_git_id() {
    let setup = Setup::new();
    setup.server.leave_lfs();
    setup.server.inject(Fault::FlipLastByte);
    let error = setup.fails(REPO);
    assert!(matches!(error, HubError::WrongHash { .. }), "{error}");
    assert_eq!(setup.blobs(), Vec::<String>::new(), "a damaged file stays nowhere");
    setup.server.inject(Fault::CutAfter(300_000));
    assert_content(&setup.fetch(REPO).0.unwrap());
    assert_eq!(setup.blobs()[0].len(), 40);
}

#[test]
fn a_cut_line_is_continued_where_it_broke() {
    let setup = Setup::new();
    setup.server.inject(Fault::CutAfter(300_000));
    let (path, events) = setup.fetch(REPO);
    assert_content(&path.unwrap());
    assert!(events.iter().any(|event| matches!(event, FetchEvent::Retrying { .. })));
    let ranges = setup.server.headers("/storage/", "range");
    assert_eq!(ranges, [None, Some("bytes=300000-".to_owned())]);
}

#[test]
fn another_run_continues_what_a_dead_one_left() {
    let setup = Setup::new();
    fs::write(setup.incomplete(), &content(SIZE)[..123_456]).unwrap();
    let (path, events) = setup.fetch(REPO);
    assert_content(&path.unwrap());
    assert_eq!(setup.server.headers("/storage/", "range"), [Some("bytes=123456-".to_owned())]);
    let started = events.iter().find(|event| matches!(event, FetchEvent::Started { .. }));
    assert!(
        matches!(started, Some(FetchEvent::Started { have_bytes: 123_456, .. })),
        "{started:?}"
    );
    assert!(!setup.incomplete().exists());
}

#[test]
fn a_server_without_ranges_starts_over_and_still_arrives() {
    let setup = Setup::new();
    setup.server.inject(Fault::IgnoreRange);
    fs::write(setup.incomplete(), &content(SIZE)[..5_000]).unwrap();
    assert_content(&setup.fetch(REPO).0.unwrap());
}

#[test]
fn a_line_that_never_gets_further_is_given_up_and_its_bytes_kept() {
    let setup = Setup::new();
    for _ in 0..3 {
        setup.server.inject(Fault::CutAfter(0));
    }
    fs::write(setup.incomplete(), &content(SIZE)[..1_000]).unwrap();
    let error = setup.fails(REPO);
    assert!(matches!(error, HubError::Interrupted { have_bytes: 1_000, .. }), "{error}");
    assert_eq!(fs::metadata(setup.incomplete()).unwrap().len(), 1_000);
    assert_content(&setup.fetch(REPO).0.unwrap());
}

#[test]
fn an_overloaded_storage_is_asked_again() {
    let setup = Setup::new();
    setup.server.inject(Fault::Status(503));
    assert_content(&setup.fetch(REPO).0.unwrap());
    assert_eq!(setup.server.count("/resolve/"), 2);
}

#[test]
fn a_wrong_hash_is_refused_and_the_blob_deleted() {
    let setup = Setup::new();
    setup.server.inject(Fault::FlipLastByte);
    let error = setup.fails(REPO);
    assert!(matches!(error, HubError::WrongHash { .. }), "{error}");
    assert!(setup.blobs().is_empty(), "left behind: {:?}", setup.blobs());
    assert!(!setup.cache.path().join("models--acme--Small-GGUF/snapshots").exists());
    assert_content(&setup.fetch(REPO).0.unwrap());
}

#[test]
fn a_damaged_beginning_is_found_when_it_is_continued() {
    let setup = Setup::new();
    fs::write(setup.incomplete(), vec![7; 10_000]).unwrap();
    assert!(matches!(setup.fails(REPO), HubError::WrongHash { .. }));
    assert_content(&setup.fetch(REPO).0.unwrap());
}

#[test]
fn a_wrong_size_is_refused_and_nothing_is_kept() {
    for fault in [Fault::ExtraBytes(10), Fault::ExtraBytesUnannounced(10), Fault::MissingBytes(10)]
    {
        let setup = Setup::new();
        setup.server.inject(fault);
        let error = setup.fails(REPO);
        assert!(matches!(error, HubError::WrongSize { expected_bytes: 700_000, .. }), "{error}");
        assert!(setup.blobs().is_empty(), "left behind: {:?}", setup.blobs());
    }
}

#[cfg(unix)]
#[test]
fn a_model_larger_than_the_disk_is_refused_before_its_transfer() {
    let setup = Setup::new();
    let announced = 1 << 60;
    setup.server.announce(announced);
    fs::write(setup.incomplete(), &content(SIZE)[..1_000]).unwrap();
    let error = setup.fails(REPO);
    let HubError::NoSpace { missing_bytes, free_bytes: Some(free_bytes), .. } = error else {
        panic!("{error}");
    };
    assert_eq!(missing_bytes, announced as u64 - 1_000);
    let said = error.to_string();
    assert!(said.contains(FILE) && said.contains(&format!("and {free_bytes} are free")), "{said}");
    assert_eq!(setup.server.count("/resolve/"), 0, "nothing is transferred");
    assert_eq!(fs::metadata(setup.incomplete()).unwrap().len(), 1_000, "the beginning is kept");
}

#[test]
fn a_missing_repository_is_named() {
    let setup = Setup::new();
    let error = setup.fails("acme/None-GGUF");
    assert!(matches!(error, HubError::RepoNotFound { .. }));
    assert!(error.to_string().contains("acme/None-GGUF"), "{error}");
}

#[test]
fn a_missing_file_lists_those_there_are() {
    let setup = Setup::new();
    let error = setup.fails(&format!("{REPO}:Q5_K_M")).to_string();
    assert!(error.contains("Q5_K_M") && error.contains(FILE), "{error}");
    assert!(!error.contains("README"), "{error}");
}

#[test]
fn a_gated_model_says_what_to_do() {
    let mut setup = Setup::new();
    setup.server.require_token("good");
    let error = setup.fails(REPO);
    assert!(matches!(error, HubError::AccessDenied { status: 401, .. }), "{error}");
    assert!(error.to_string().contains("HF_TOKEN"), "{error}");
    setup.hub.token = Some("bad".into());
    let error = setup.fails(REPO);
    assert!(matches!(error, HubError::AccessDenied { status: 403, .. }), "{error}");
    assert!(error.to_string().contains("terms"), "{error}");
    setup.hub.token = Some("good".into());
    assert_content(&setup.fetch(REPO).0.unwrap());
}

#[test]
fn the_token_does_not_follow_a_redirect_to_the_storage() {
    let mut setup = Setup::new();
    setup.server.require_token("good");
    setup.hub.token = Some("good".into());
    assert_content(&setup.fetch(REPO).0.unwrap());
    let to_hub = setup.server.headers("/resolve/", "authorization");
    assert_eq!(to_hub, [Some("Bearer good".to_owned())]);
    assert_eq!(setup.server.headers("/storage/", "authorization"), [None]);
}

#[test]
fn a_renamed_repository_is_followed_with_the_token() {
    let mut setup = Setup::new();
    setup.server.require_token("good");
    setup.hub.token = Some("good".into());
    let path = setup.fetch("acme/Old-Name").0.unwrap();
    assert_content(&path);
    assert!(path.to_str().unwrap().contains("models--acme--Old-Name"), "{}", path.display());
}

#[test]
fn a_mirror_without_hashes_is_asked_for_the_linked_etag() {
    let setup = Setup::new();
    setup.server.omit_hashes();
    assert_content(&setup.fetch(REPO).0.unwrap());
    assert_eq!(setup.blobs(), [setup.server.sha256(FILE)]);
    setup.server.inject(Fault::FlipLastByte);
    fs::remove_dir_all(setup.cache.path().join("models--acme--Small-GGUF")).unwrap();
    assert!(matches!(setup.fails(REPO), HubError::WrongHash { .. }));
}

#[test]
fn offline_uses_the_cache_and_no_network() {
    let mut setup = Setup::new();
    setup.hub.offline = true;
    assert!(matches!(setup.fails(REPO), HubError::NotCached { .. }));
    assert_eq!(setup.server.count("/"), 0);
    setup.hub.offline = false;
    let online = setup.fetch(REPO).0.unwrap();
    let asked = setup.server.count("/");
    setup.hub.offline = true;
    assert_eq!(setup.fetch(REPO).0.unwrap(), online);
    assert_eq!(setup.fetch(&format!("{REPO}:q4_k_m")).0.unwrap(), online);
    assert!(matches!(setup.fails(&format!("{REPO}:Q8_0")), HubError::NotCached { .. }));
    assert_eq!(setup.server.count("/"), asked);
}

#[test]
fn an_unreachable_hub_falls_back_to_the_cache() {
    let mut setup = Setup::new();
    let online = setup.fetch(REPO).0.unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    setup.hub.endpoint = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let (path, events) = setup.fetch(REPO);
    assert_eq!(path.unwrap(), online);
    assert_eq!(events, [FetchEvent::Unreachable]);
    assert!(matches!(setup.fails("acme/Other"), HubError::Unreachable { .. }));
}

#[test]
fn a_server_that_speaks_no_tls_is_an_error() {
    let mut setup = Setup::new();
    setup.hub.endpoint = setup.server.url().replace("http://", "https://");
    assert!(matches!(setup.fails(REPO), HubError::Unreachable { .. }));
}

#[test]
fn all_parts_of_a_split_model_arrive() {
    let parts = ["Q8_0/big-00001-of-00002.gguf", "Q8_0/big-00002-of-00002.gguf"];
    let mut setup = Setup::new();
    setup.server = StandIn::start(REPO, &[(parts[1], content(2_000)), (parts[0], content(3_000))]);
    setup.hub.endpoint = setup.server.url();
    let (path, events) = setup.fetch(&format!("{REPO}:Q8_0"));
    let path = path.unwrap();
    assert!(path.ends_with(parts[0]), "{}", path.display());
    assert_eq!(fs::read(&path).unwrap(), content(3_000));
    assert_eq!(fs::read(path.with_file_name("big-00002-of-00002.gguf")).unwrap(), content(2_000));
    let places = events.iter().filter_map(|event| match event {
        FetchEvent::Started { part, .. } => Some(*part),
        _ => None,
    });
    assert_eq!(places.collect::<Vec<_>>(), [(1, 2), (2, 2)]);
}

#[test]
fn names_that_lead_out_of_the_cache_are_ignored() {
    let mut setup = Setup::new();
    setup.server = StandIn::start(REPO, &[("../../../evil.gguf", content(10))]);
    setup.hub.endpoint = setup.server.url();
    assert!(matches!(setup.fails(REPO), HubError::NoGguf { .. }));
    assert_eq!(setup.server.count("/resolve/"), 0);
}

#[test]
fn two_fetches_at_once_bring_the_file_once() {
    let setup = Setup::new();
    let paths: Vec<PathBuf> = std::thread::scope(|scope| {
        let fetch = || scope.spawn(|| setup.fetch(REPO).0.unwrap());
        let threads: Vec<_> = (0..4).map(|_| fetch()).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    paths.iter().for_each(|path| assert_content(path));
    assert_eq!(setup.server.count("/storage/"), 1);
}

#[test]
fn the_environment_is_read_as_the_hubs_tools_read_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("token"), "from-file\n").unwrap();
    let home = dir.path().to_str().unwrap().to_owned();
    let hub = |pairs: &[(&str, &str)]| {
        Hub::from_variables(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    };
    let plain = hub(&[("HF_HOME", &home)]).unwrap();
    assert_eq!(plain.cache_dir, dir.path().join("hub"));
    assert_eq!(plain.token.as_deref(), Some("from-file"));
    assert_eq!((plain.endpoint.as_str(), plain.offline), ("https://huggingface.co", false));
    let all = [
        ("HOME", "/home/me"),
        ("HF_HUB_CACHE", "/c"),
        ("HF_TOKEN", "t"),
        ("HF_ENDPOINT", "http://x/"),
        ("HF_HUB_OFFLINE", "1"),
    ];
    let set = hub(&all).unwrap();
    assert_eq!(set.cache_dir, Path::new("/c"));
    assert_eq!(
        (set.token.as_deref(), set.endpoint.as_str(), set.offline),
        (Some("t"), "http://x", true)
    );
    let default = hub(&[("HOME", "/home/me")]).unwrap();
    assert_eq!(default.cache_dir, Path::new("/home/me/.cache/huggingface/hub"));
    assert!(matches!(hub(&[]), Err(HubError::NoCacheDir)));
}
