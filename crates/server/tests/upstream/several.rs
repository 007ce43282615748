//! Several servers behind one upstream: whatever one of them does, a request whose answer has not
//! begun is answered by another, once, and one whose answer has begun is continued by another or
//! ends honestly.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use http_body_util::BodyExt;
use loquent_server::{ApiKeys, Routing};
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use super::speaking::Upstream;
use super::stand_in::{Act, StandIn, head, piece, stream, whole};
use super::{FINISH, FIRST, Front, PATIENCE, SECOND, USAGE, json_of, read};

/// What vLLM and SGLang announce an answer with, before its first token.
const ROLE: &str = r#"{"id":"up-1","object":"chat.completion.chunk","created":5,"model":"theirs","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#;

fn answer() -> Vec<u8> {
    stream(&[FIRST, SECOND, FINISH, "[DONE]"])
}

/// A port on which nobody listens, and that nobody else is given as long as it is held.
fn unused() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    (socket, url)
}

/// The sum of a metric over all servers.
pub fn total(front: &Front, name: &str) -> f64 {
    let (text, name) = (front.app.metrics.render(), format!("loquent_upstream_{name}{{"));
    let lines = text.lines().filter(|line| line.starts_with(&name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Waits until no server has a request, and none waits. A client may have the end of its answer a
/// moment before the server's place is given back.
pub async fn settled(front: &Front) {
    let wait = async {
        while total(front, "running") + total(front, "waiting_requests") > 0.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("places are given back");
}

/// More prompts than all belong to the same server by chance: where one goes depends on the ports.
pub const PROMPTS: usize = 100;

/// Asks until the metric `met` says that a request met the server that misbehaves; each gets the
/// whole answer.
async fn all_are_whole(urls: &[&str], what: &str, met: &str) -> Front {
    let front = Front::new(&urls.join(","));
    for question in 0..PROMPTS {
        let messages = [json!({"role": "user", "content": format!("{what} {question}")})];
        let read = read(front.ask(json!({"messages": messages})).await).await;
        assert!(read.done && !read.broken, "{what}");
        assert_eq!((read.text().as_str(), read.finish()), ("Hello", Some("stop")), "{what}");
        if question >= 5 && total(&front, met) >= 1.0 {
            return front;
        }
    }
    panic!("no request met a server that {what}");
}

#[tokio::test]
async fn an_answer_that_has_not_begun_comes_from_another_server() {
    let role = || [head(), piece(&format!("data: {ROLE}\n\n"))].concat();
    let cases = [
        ("closes without a word", Act::Close(Vec::new())),
        ("ends after the head", Act::Close(head())),
        ("ends after the role", Act::Close(role())),
        ("ends cleanly after the role", Act::Keep([role(), b"0\r\n\r\n".to_vec()].concat())),
        ("is busy", Act::Keep(whole("503 Service Unavailable", "{}"))),
        ("limits", Act::Keep(whole("429 Too Many Requests", "{}"))),
        ("has nobody behind it", Act::Keep(whole("502 Bad Gateway", "<html>"))),
    ];
    for (what, act) in cases {
        let (bad, good) = (StandIn::start(act).await, StandIn::start(Act::Keep(answer())).await);
        let urls = [bad.url.as_str(), &good.url];
        let front = all_are_whole(&urls, what, "moved_requests_total").await;
        settled(&front).await;
    }
    let (good, (_held, gone)) = (StandIn::start(Act::Keep(answer())).await, unused());
    all_are_whole(&[&gone, &good.url], "is not there", "failures_total").await;
}

/// The bodies of the completions that a stand-in was asked for.
fn asked(server: &mut StandIn) -> Vec<Value> {
    let requests = std::iter::from_fn(|| server.requests.try_recv().ok());
    let bodies = requests.filter(|request| request.starts_with("POST /v1/chat/completions"));
    bodies
        .map(|request| serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap())
        .collect()
}

/// Servers that break off behind "Hel", each in its way, of an answer to a request with `more`.
async fn broken_off(more: Value, servers: usize) -> (super::Read, Vec<Value>) {
    let begun = [head(), piece(&format!("data: {ROLE}\n\ndata: {FIRST}\n\n"))].concat();
    let mut all = Vec::new();
    for _ in 0..servers {
        all.push(StandIn::start(Act::Close(begun.clone())).await);
    }
    let urls: Vec<&str> = all.iter().map(|server| server.url.as_str()).collect();
    let read = read(Front::new(&urls.join(",")).ask(more).await).await;
    (read, all.iter_mut().flat_map(asked).collect())
}

#[tokio::test]
async fn an_answer_goes_on_at_another_server_behind_what_has_arrived() {
    let begun = [head(), piece(&format!("data: {FIRST}\n\n"))].concat();
    let torn = [begun.clone(), piece("data: {\"cho")].concat();
    let dead = r#"{"error":{"message":"EngineDeadError","type":"InternalServerError","code":500}}"#;
    let dead = [begun.clone(), piece(&format!("data: {dead}\n\n"))].concat();
    let unfinished = stream(&[FIRST, "[DONE]"]);
    let silent = Act::Slowly(vec![begun.clone()], Duration::ZERO);
    let acts =
        [Act::Close(begun), Act::Close(torn), Act::Close(dead), Act::Keep(unfinished), silent];
    for act in acts {
        let rest = stream(&[ROLE, SECOND, FINISH, USAGE, "[DONE]"]);
        let (mut bad, mut good) =
            (StandIn::start(act.clone()).await, StandIn::start(Act::Keep(rest)).await);
        let front = Front::with(&format!("{},{}", bad.url, good.url), |settings| {
            settings.upstream.pool.silence_limit = Duration::from_millis(300);
        });
        // Where a prompt goes depends on the ports.
        for question in 0..PROMPTS {
            let messages = json!([{"role": "user", "content": format!("{question}")}]);
            let options = json!({"include_usage": true});
            let body = json!({"messages": messages, "max_tokens": 9, "stream_options": options});
            let read = read(front.ask(body).await).await;
            assert!(read.done && !read.broken, "{act:?}");
            if asked(&mut bad).is_empty() {
                asked(&mut good);
                continue;
            }
            assert_eq!((read.text().as_str(), read.finish()), ("Hello", Some("stop")), "{act:?}");
            let body = asked(&mut good).pop().expect("it was asked for the rest");
            let last = json!({"role": "assistant", "content": "Hel"});
            assert_eq!((&body["messages"][1], &body["max_tokens"]), (&last, &json!(8)));
            assert_eq!(body["continue_final_message"], true);
            let marked = read.events.iter().filter(|event| event["continued"]["after_tokens"] == 1);
            assert_eq!(marked.count(), 1, "{:?}", read.events);
            let usage = &read.events.last().unwrap()["usage"];
            let counts = ["prompt_tokens", "completion_tokens", "total_tokens"];
            assert_eq!(counts.map(|count| usage[count].as_u64()), [Some(2), Some(3), Some(5)]);
            break;
        }
        settled(&front).await;
    }
}

/// Waits until a metric has the value `wanted`.
async fn becomes(metric: impl Fn() -> f64, wanted: f64) {
    let changed = async {
        while metric() != wanted {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, changed).await;
    waited.unwrap_or_else(|_| panic!("{} instead of {wanted}", metric()));
}

#[tokio::test]
async fn tokens_are_counted_though_the_client_leaves_while_no_server_goes_on() {
    let begun = [head(), piece(&format!("data: {FIRST}\n\n"))].concat();
    let (bad, (_held, gone)) = (StandIn::start(Act::Close(begun)).await, unused());
    let front = Front::new(&format!("{},{gone}", bad.url));
    becomes(|| total(&front, "up"), 1.0).await;
    let response = front.ask(json!({})).await;
    becomes(|| total(&front, "failures_total"), 1.0).await;
    assert_eq!(front.metric("generation_tokens_total"), 0.0, "another server is waited for");
    drop(response);
    becomes(|| front.metric("generation_tokens_total"), 1.0).await;
}

#[tokio::test]
async fn the_rest_of_an_answer_waits_for_a_server_that_is_down() {
    let begun = [head(), piece(&format!("data: {FIRST}\n\n"))].concat();
    let (bad, (held, gone)) = (StandIn::start(Act::Close(begun)).await, unused());
    let front = Front::new(&format!("{},{gone}", bad.url));
    becomes(|| total(&front, "up"), 1.0).await;
    let asking = async { read(front.ask(json!({})).await).await };
    let returning = async {
        becomes(|| total(&front, "failures_total"), 1.0).await;
        let rest = stream(&[ROLE, SECOND, FINISH, "[DONE]"]);
        StandIn::on(held.listen(64).unwrap(), Act::Keep(rest))
    };
    let (read, _back) = tokio::join!(asking, returning);
    assert!(read.done && !read.broken, "{:?}", read.events);
    assert_eq!((read.text().as_str(), read.finish()), ("Hello", Some("stop")));
}

#[tokio::test]
async fn servers_that_all_break_off_are_not_tried_for_ever() {
    let (read, requests) = broken_off(json!({}), 6).await;
    assert!(read.broken && !read.done);
    assert_eq!(read.text(), "Hel".repeat(5), "one beginning, and four continuations");
    assert_eq!(requests.len(), 5);
    let error = read.events.last().unwrap()["error"]["message"].as_str().unwrap();
    assert!(error.contains("too many servers broke off"), "{error}");
}

#[tokio::test]
async fn an_answer_that_cannot_be_continued_is_not_begun_again() {
    let form = json!({"response_format": {"type": "json_object"}});
    let (read, requests) = broken_off(form, 3).await;
    assert!(read.broken && !read.done && read.text() == "Hel");
    let error = read.events.last().unwrap()["error"]["message"].as_str().unwrap();
    assert!(error.ends_with("No other server continues the answer: its form is prescribed."));
    assert_eq!(requests.len(), 1);
}

#[tokio::test]
async fn a_finished_answer_is_not_continued() {
    let events = [FIRST, FINISH].map(|event| piece(&format!("data: {event}\n\n"))).concat();
    let act = Act::Close([head(), events].concat());
    let mut servers = [StandIn::start(act.clone()).await, StandIn::start(act).await];
    let front = Front::new(&format!("{},{}", servers[0].url, servers[1].url));
    let read = read(front.ask(json!({})).await).await;
    assert!(read.done && !read.broken && read.text() == "Hel", "{:?}", read.events);
    assert!(read.events.iter().all(|event| event.get("continued").is_none()));
    settled(&front).await;
    assert_eq!(servers.iter_mut().flat_map(asked).count(), 1);
}

#[tokio::test]
async fn two_completions_are_not_continued() {
    let (read, requests) = broken_off(json!({"n": 2}), 3).await;
    assert!(read.broken && !read.done && read.text() == "Hel");
    assert_eq!(requests.len(), 1);
}

#[tokio::test]
async fn what_ends_a_server_is_not_tried_on_all_of_them() {
    let mut servers = Vec::new();
    for _ in 0..4 {
        servers.push(Upstream::start([("POST /v1/chat/completions", Vec::new())]).await);
    }
    let urls: Vec<&str> = servers.iter().map(|server| server.url.as_str()).collect();
    let front = Front::new(&urls.join(","));
    assert_eq!(front.ask(json!({})).await.status().as_u16(), 502);
    let asked: usize = servers.iter().map(|server| server.asked("POST /v1/chat/completions")).sum();
    assert_eq!(asked, 2);
}

#[tokio::test]
async fn what_ends_servers_with_warm_connections_is_not_tried_on_all_of_them() {
    let mut servers = Vec::new();
    for _ in 0..4 {
        servers.push(StandIn::start(Act::DieOf("poison", answer())).await);
    }
    let urls: Vec<&str> = servers.iter().map(|server| server.url.as_str()).collect();
    let front = Front::with(&urls.join(","), |settings| {
        settings.upstream.pool.routing = Routing::RoundRobin;
    });
    for _ in 0..servers.len() {
        assert!(read(front.ask(json!({})).await).await.done);
        settled(&front).await;
    }
    assert!(servers.iter_mut().all(|server| !asked(server).is_empty()), "each is warm");
    let poison = json!({"messages": [{"role": "user", "content": "poison"}]});
    assert_eq!(front.ask(poison).await.status().as_u16(), 502);
    let asked: usize = servers.iter_mut().map(|server| asked(server).len()).sum();
    assert_eq!(asked, 2);
}

#[tokio::test]
async fn a_refusal_is_the_clients_own() {
    let bad = whole("400 Bad Request", r#"{"error":{"message":"too long"}}"#);
    let broken = whole("500 Internal Server Error", r#"{"error":{"message":"oh"}}"#);
    for (status, reply) in [(400, bad), (500, broken)] {
        let servers = [
            Upstream::start([("POST /v1/chat/completions", reply.clone())]).await,
            Upstream::start([("POST /v1/chat/completions", reply)]).await,
        ];
        let front = Front::new(&format!("{},{}", servers[0].url, servers[1].url));
        // More than open a breaker.
        for stream in [true, false, true, false, true, false, true, false] {
            let response = front.ask(json!({"stream": stream})).await;
            assert_eq!(response.status().as_u16(), status);
            assert!(json_of(response).await["error"]["message"].is_string());
        }
        assert_eq!(total(&front, "up"), 2.0, "a client's errors take no server from others");
        assert_eq!(total(&front, "moved_requests_total"), 0.0);
    }
}

#[tokio::test]
async fn the_operators_key_is_not_the_clients_to_mend() {
    let theirs = r#"{"error":{"message":"Incorrect key of org-7","type":"invalid_request_error"}}"#;
    let refusing = || Act::Keep(whole("401 Unauthorized", theirs));
    let one = StandIn::start(refusing()).await;
    let with_key = |settings: &mut super::Settings| {
        settings.http.api_keys = ApiKeys::new(["own".into()]);
        settings.upstream.pool.keeps_keys = true;
        settings.upstream.pool.api_key = Some("operators".into());
    };
    let front = Front::with(&one.url, with_key);
    for stream in [true, false] {
        let response = front.ask(json!({"stream": stream})).await;
        assert_eq!(response.status().as_u16(), 502);
        let body = json_of(response).await.to_string();
        assert!(body.contains("--upstream-api-key") && !body.contains("org-7"), "{body}");
    }
    // A key of the client's own is its own to mend.
    assert_eq!(Front::new(&one.url).ask(json!({})).await.status().as_u16(), 401);
    // Another server may know the key.
    let (mut bad, good) =
        (StandIn::start(refusing()).await, StandIn::start(Act::Keep(answer())).await);
    let front = Front::with(&format!("{},{}", bad.url, good.url), |settings| {
        settings.upstream.pool.routing = Routing::RoundRobin;
        with_key(settings);
    });
    for _ in 0..2 {
        assert_eq!(read(front.ask(json!({})).await).await.text(), "Hello");
    }
    assert!(!asked(&mut bad).is_empty());
}

#[tokio::test]
async fn one_clients_rate_is_not_anothers_loss() {
    let limited = whole("429 Too Many Requests", r#"{"error":{"message":"your rate"}}"#);
    let servers = [
        StandIn::start(Act::Keep(limited.clone())).await,
        StandIn::start(Act::Keep(limited)).await,
    ];
    let urls = format!("{},{}", servers[0].url, servers[1].url);
    let clients_keys = Front::new(&urls);
    let response = clients_keys.ask(json!({})).await;
    assert_eq!(response.status().as_u16(), 429);
    assert_eq!(json_of(response).await["error"]["message"], "your rate");
    assert_eq!(total(&clients_keys, "up"), 2.0);
    let one_key = Front::with(&urls, |it| it.upstream.pool.api_key = Some("ours".into()));
    assert_eq!(one_key.ask(json!({})).await.status().as_u16(), 429);
    let response = one_key.ask(json!({})).await;
    assert_eq!(response.status().as_u16(), 503);
    let after: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((2..=7).contains(&after), "{after} s: what is left of the 7 that the servers said");
}

#[tokio::test]
async fn while_all_are_down_clients_are_told_when_to_come_again() {
    let ((_held, one), (_held_too, other)) = (unused(), unused());
    let front = Front::new(&format!("{one},{other}"));
    assert_eq!(front.ask(json!({})).await.status().as_u16(), 502, "nobody knows it yet");
    let told = async {
        // A breaker that has opened lets a request through again a second later: a machine that
        // stands still so long sees one more 502.
        for stream in [false, true].into_iter().cycle() {
            let response = front.ask(json!({"stream": stream})).await;
            let is_down = total(&front, "up") == 0.0;
            match response.status().as_u16() {
                503 if is_down => return response,
                502 | 503 => {}
                other => panic!("{other}"),
            }
        }
        unreachable!("it has no end")
    };
    let response = tokio::time::timeout(PATIENCE, told).await.expect("both breakers are open");
    let after: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=30).contains(&after), "{after} s");
    assert!(total(&front, "breaker_opened_total") >= 2.0);
}

#[tokio::test]
async fn prompts_that_begin_alike_go_to_one_server() {
    let reply = || ("POST /v1/chat/completions", answer());
    let servers = [
        Upstream::start([reply()]).await,
        Upstream::start([reply()]).await,
        Upstream::start([reply()]).await,
    ];
    let urls: Vec<&str> = servers.iter().map(|server| server.url.as_str()).collect();
    let front = Front::new(&urls.join(","));
    let counts = || {
        let asked = servers.each_ref().map(|it| it.asked("POST /v1/chat/completions"));
        asked.to_vec()
    };
    let mut used = 0;
    // Until each server has one, and some more.
    for conversation in 0..PROMPTS {
        if conversation >= 12 && used == 0b111 {
            break;
        }
        let before = counts();
        let mut messages = vec![json!({"role": "user", "content": format!("c{conversation}")})];
        for _ in 0..3 {
            assert!(read(front.ask(json!({"messages": messages})).await).await.done);
            messages.push(json!({"role": "assistant", "content": "Hello"}));
            messages.push(json!({"role": "user", "content": "Go on."}));
        }
        let grown: Vec<usize> =
            counts().iter().zip(&before).map(|(after, before)| after - before).collect();
        assert_eq!(grown.iter().max(), Some(&3), "one server has the whole conversation");
        used |= 1 << grown.iter().position(|&it| it == 3).unwrap();
    }
    assert_eq!(used, 0b111, "and conversations are spread");
}

#[tokio::test]
async fn each_server_gets_its_own_name_of_a_named_model() {
    let list = |names: &str| ("GET /v1/models", whole("200 OK", names));
    let chat = || ("POST /v1/chat/completions", answer());
    let one = Upstream::start([list(r#"{"data":[{"id":"org/Model-8B"}]}"#), chat()]).await;
    let other = Upstream::start([list(r#"{"data":[{"id":"x"},{"id":"big"}]}"#), chat()]).await;
    for (server, name) in [(&one, "org/Model-8B"), (&other, "big")] {
        let front = Front::with(&server.url, |it| it.upstream.pool.name = Some("big".into()));
        for stream in [true, false] {
            let response = front.ask(json!({"model": "big", "stream": stream})).await;
            response.into_body().collect().await.unwrap();
            assert_eq!(server.body("POST /v1/chat/completions")["model"], name);
        }
    }
}

#[tokio::test]
async fn a_health_check_brings_a_server_back() {
    let good = StandIn::start(Act::Keep(answer())).await;
    let (held, gone) = unused();
    let front = Front::new(&format!("{},{gone}", good.url));
    let up = async |wanted: f64| {
        while total(&front, "up") != wanted {
            let asked: Value = json!({"messages": [{"role": "user", "content": "x"}]});
            assert!(read(front.ask(asked).await).await.done);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, up(1.0)).await.expect("checks find it down");
    let listener = held.listen(64).unwrap();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                use tokio::io::{AsyncReadExt, AsyncWriteExt};
                let mut request = [0; 4096];
                while connection.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let _ = connection.write_all(&whole("200 OK", "{}")).await;
                }
            });
        }
    });
    tokio::time::timeout(PATIENCE, up(2.0)).await.expect("and up again");
}

#[tokio::test]
async fn requests_beyond_the_servers_limit_wait_here() {
    let slow = || StandIn::start(Act::Slowly(vec![answer()], Duration::from_millis(100)));
    let servers = [slow().await, slow().await];
    let urls = format!("{},{}", servers[0].url, servers[1].url);
    let front = Front::with(&urls, |it| {
        it.upstream.pool.max_running = Some(1);
        it.bounds.max_inflight_requests = 16;
        it.bounds.max_inflight_per_tenant = Some(16);
    });
    let asks = (0..8).map(|_| async { read(front.ask(json!({})).await).await.done });
    let mut waited: f64 = 0.0;
    let watch = async {
        loop {
            assert!(total(&front, "running") <= 2.0);
            waited = waited.max(total(&front, "waiting_requests"));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let all = async {
        let mut set: Vec<_> = asks.map(Box::pin).collect();
        let mut done = 0;
        std::future::poll_fn(|context| {
            set.retain_mut(|ask| match ask.as_mut().poll(context) {
                Poll::Ready(whole) => {
                    done += usize::from(whole);
                    false
                }
                Poll::Pending => true,
            });
            if set.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        done
    };
    let done = tokio::select! {
        done = all => done,
        () = watch => unreachable!("it has no end"),
    };
    assert_eq!(done, 8);
    assert!(waited >= 4.0, "{waited} waited");
    settled(&front).await;
}

#[tokio::test]
async fn requests_that_both_servers_refuse_do_not_wait_for_each_other() {
    // Late enough that each server has one request, and each request waits for the other's place.
    let limited = whole("429 Too Many Requests", "{}");
    let slow = || StandIn::start(Act::Slowly(vec![limited.clone()], Duration::from_millis(100)));
    let servers = [slow().await, slow().await];
    let front = Front::with(&format!("{},{}", servers[0].url, servers[1].url), |settings| {
        settings.upstream.pool.max_running = Some(1);
    });
    let both = async { tokio::join!(front.ask(json!({})), front.ask(json!({"stream": false}))) };
    let (one, other) = tokio::time::timeout(PATIENCE / 3, both).await.expect("they are refused");
    assert_eq!((one.status().as_u16(), other.status().as_u16()), (429, 429));
    drop((one, other));
    settled(&front).await;
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_leaves_nothing_behind() {
    let server = StandIn::start(Act::Slowly(vec![head()], Duration::ZERO)).await;
    let front = Front::with(&server.url, |it| it.upstream.pool.max_running = Some(1));
    let mut first = Box::pin(front.ask(json!({})));
    let mut second = Box::pin(front.ask(json!({})));
    while total(&front, "waiting_requests") == 0.0 {
        tokio::select! {
            _ = &mut first => panic!("nothing was answered"),
            _ = &mut second => panic!("nothing was answered"),
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
    }
    drop(second);
    let left = async {
        while total(&front, "waiting_requests") > 0.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, left).await.expect("it left the room");
    drop(first);
    settled(&front).await;
}
