//! What a request may cost, as laws: the bytes that it holds, and the time for which it keeps a
//! network thread, whatever its endpoint and the shape of its body.
//!
//! The bytes are counted by the allocator, so that these tests have a process of their own and
//! run one after the other.

mod shapes;
#[path = "../simulated/mod.rs"]
mod simulated;
mod stored;

use std::alloc::System;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use cap::Cap;
use http::Request;
use http_body_util::BodyExt;
use loquent_engine::sim::SimOptions;
use loquent_server::{
    AllowedHosts, ApiKeys, App, Clock, HttpConfig, Metrics, OllamaApi, Service, Store, StoreLimits,
    router, start_engine,
};
use nix::time::ClockId;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::sync::Mutex;
use tower::ServiceExt;

use shapes::{ENDPOINTS, MIB, bodies};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Largest body in these tests.
const BODY_BYTES: usize = 8 * MIB;
/// Body of which it is measured, in each shape, how long it takes the network thread.
const TIMED_BODY_BYTES: usize = 4 * MIB;
/// The memory of all requests, `--max-request-memory-bytes`.
const MEMORY_BYTES: usize = 64 * MIB;
/// What a server holds for other reasons: the caches of its allocations, threads, metrics.
const REST_BYTES: usize = 8 * MIB;

/// One test at a time: they count the same allocations.
static TURN: Mutex<()> = Mutex::const_new(());

struct Server {
    app: Arc<App>,
    service: Arc<Service>,
}

impl Server {
    fn start(keys: &[&str]) -> Self {
        Self::with_store(keys, Store::in_memory(StoreLimits::default()))
    }

    fn with_store(keys: &[&str], store: Store) -> Self {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let http = HttpConfig {
            api_keys: ApiKeys::load(&keys, None, None).unwrap(),
            max_request_bytes: BODY_BYTES,
            allowed_hosts: AllowedHosts::default().bound_to(Ipv4Addr::LOCALHOST.into()),
            ollama_api: OllamaApi::Always,
            max_request_memory_bytes: MEMORY_BYTES,
            ..simulated::http_config()
        };
        let limits = simulated::limits();
        let (clock, metrics) = (Clock::start(), Arc::new(Metrics::new()));
        let app = Arc::new(App::new(http, limits, clock, metrics.clone()).with_store(store));
        let loaded = simulated::loaded(SimOptions::default());
        let config = simulated::service_config(16);
        let (service, _engine) = start_engine(&config, loaded, clock, metrics).unwrap();
        app.open(service.clone());
        Self { app, service }
    }

    /// The status of the response to `body`, once all of it has come, and its length.
    async fn post(&self, path: &str, body: Bytes) -> (u16, usize) {
        let request = Request::post(path).body(Body::from(body)).unwrap();
        let response = router(self.app.clone()).oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        (status, response.into_body().collect().await.unwrap().to_bytes().len())
    }

    async fn health(&self) {
        let request = Request::get("/health").body(Body::empty()).unwrap();
        let response = router(self.app.clone()).oneshot(request).await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.service.stop();
    }
}

fn held() -> usize {
    ALLOCATOR.allocated()
}

/// Watches how much is held, many times in the time that a large body takes.
struct Peak {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Peak {
    fn watch() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let has_ended = ended.clone();
        let thread = std::thread::spawn(move || {
            let mut most = held();
            while !has_ended.load(Ordering::Relaxed) {
                most = most.max(held());
                std::thread::sleep(Duration::from_micros(50));
            }
            most
        });
        Self { ended, thread }
    }

    fn end(self) -> usize {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Lets threads that have just ended their work give back what they hold.
async fn until_held(bytes: usize) -> bool {
    for _ in 0..30_000 {
        if held() <= bytes {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

/// Most bytes that a request of the largest body may hold at any time, its response included.
const MOST_OF_ONE_REQUEST: usize = 80 * MIB;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_body_of_any_shape_holds_more_than_ten_times_its_length() {
    let _turn = TURN.lock().await;
    let server = Server::start(&[]);
    server.health().await;
    let mut costliest = (0, String::new());
    for endpoint in ENDPOINTS {
        for (shape, body) in bodies(endpoint, BODY_BYTES) {
            let (before, peak) = (held(), Peak::watch());
            let free = server.app.request_memory_free_bytes();
            let (status, length) = server.post(endpoint.path, body).await;
            let most = peak.end().saturating_sub(before);
            let name = format!("{} {shape}", endpoint.path);
            assert!(matches!(status, 200 | 400), "{name}: {status}");
            assert!(status == 200 || length < 4096, "{name}: an error of {length} bytes");
            assert!(most <= MOST_OF_ONE_REQUEST, "{name}: {} MiB", most / MIB);
            assert!(until_held(before + REST_BYTES).await, "{name} left {}", held() - before);
            assert_eq!(server.app.request_memory_free_bytes(), free, "{name}");
            costliest = costliest.max((most / MIB, name));
        }
    }
    println!("the costliest request holds {} MiB: {}", costliest.0, costliest.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_requests_together_hold_no_more_than_their_memory() {
    let _turn = TURN.lock().await;
    let server = Arc::new(Server::start(&[]));
    let free = server.app.request_memory_free_bytes();
    let (_, body) = bodies(&ENDPOINTS[0], BODY_BYTES).next().unwrap();
    let (before, peak) = (held(), Peak::watch());
    let requests: Vec<_> = (0..32)
        .map(|_| {
            let (server, body) = (server.clone(), body.clone());
            tokio::spawn(async move { server.post(ENDPOINTS[0].path, body).await.0 })
        })
        .collect();
    let mut statuses = Vec::new();
    for request in requests {
        statuses.push(request.await.unwrap());
    }
    let most = peak.end().saturating_sub(before);
    assert!(statuses.iter().all(|status| matches!(status, 400 | 503)), "{statuses:?}");
    assert!(statuses.contains(&400), "none got its turn: {statuses:?}");
    // A growing buffer has up to a quarter of its length to spare.
    let bound = MEMORY_BYTES + MEMORY_BYTES / 4 + REST_BYTES;
    assert!(most <= bound, "{} MiB of {}", most / MIB, bound / MIB);
    assert_eq!(server.app.request_memory_free_bytes(), free);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_with_a_large_body_holds_nothing() {
    let _turn = TURN.lock().await;
    let server = Server::start(&["secret"]);
    server.health().await;
    for endpoint in ENDPOINTS {
        for (shape, body) in bodies(endpoint, BODY_BYTES) {
            let before = held();
            let (status, _) = server.post(endpoint.path, body).await;
            assert_eq!(status, 401, "{} {shape}", endpoint.path);
            assert!(held() <= before + MIB, "{} {shape}: {}", endpoint.path, held() - before);
        }
    }
}

/// Processor time that this thread takes for `work`. In a runtime of one thread it is the
/// network thread, so that what others do meanwhile does not count. The least of some runs, for the
/// first touches memory that is not there yet; none follows one that takes `enough` or less.
async fn least_time(enough: Duration, mut work: impl AsyncFnMut()) -> Duration {
    let now = || Duration::from(ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap());
    let mut least = Duration::MAX;
    for _ in 0..4 {
        let before = now();
        work().await;
        least = least.min(now() - before);
        if least <= enough {
            break;
        }
    }
    least
}

/// Most processor time that a request of `bytes` may take of the network thread: a third of what it
/// takes to skip the values of such a body there.
async fn most_of_network_thread(bytes: usize) -> Duration {
    let (_, body) = bodies(&ENDPOINTS[0], bytes).next().unwrap();
    let skipped = async || drop(serde_json::from_slice::<IgnoredAny>(&body));
    least_time(Duration::ZERO, skipped).await / 3
}

#[tokio::test]
async fn a_large_body_leaves_the_network_thread_to_others() {
    let _turn = TURN.lock().await;
    let server = Server::start(&[]);
    let most = most_of_network_thread(TIMED_BODY_BYTES).await;
    let mut costliest = (Duration::ZERO, String::new());
    for endpoint in ENDPOINTS {
        for (shape, body) in bodies(endpoint, TIMED_BODY_BYTES) {
            let request =
                async || assert_ne!(server.post(endpoint.path, body.clone()).await.0, 500);
            let name = format!("{} {shape}", endpoint.path);
            costliest = costliest.max((least_time(most, request).await, name));
        }
    }
    println!("the costliest request takes {:?}: {}", costliest.0, costliest.1);
    assert!(costliest.0 <= most, "{costliest:?}");
}

/// What is written for a large answer is not written by the network thread either.
#[tokio::test]
async fn a_long_list_of_tokens_is_tokenized_and_written_elsewhere() {
    let _turn = TURN.lock().await;
    let server = Server::start(&[]);
    let body = format!("{{\"prompt\":\"{}\"}}", "7".repeat(MIB));
    let request = async || {
        let request = Request::post("/tokenize").body(Body::from(body.clone())).unwrap();
        let response = router(server.app.clone()).oneshot(request).await.unwrap();
        let written = response.into_body().collect().await.unwrap().to_bytes();
        let checked = tokio::task::spawn_blocking(move || {
            let tokens: Value = serde_json::from_slice(&written).unwrap();
            assert_eq!(tokens["count"], MIB);
            assert_eq!(tokens["tokens"].as_array().unwrap().len(), MIB);
        });
        checked.await.unwrap();
    };
    let most = most_of_network_thread(BODY_BYTES).await;
    let busy = least_time(most / 2, request).await;
    assert!(busy <= most, "{busy:?}");
}
