//! The client against a stand-in server over bad networks, and against bad servers.

mod relay;
mod stand_in;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::Method;
use loquent_client::{Answer, Asked, Client, ClientError, Config, Request, Transport};
use loquent_proto::{Delta, Micros, Playout};
use relay::{NetworkConditions, Relay};
use stand_in::{Fault, Says, Seen, StandIn};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

const GAP: Duration = Duration::from_millis(10);
/// Far above what any of these takes: a test that hangs fails.
const LIMIT: Duration = Duration::from_secs(60);

/// How long the machine kept this test from running while it looked: what a busy one adds to any
/// time that is measured meanwhile.
struct Lateness(Arc<AtomicU64>);

impl Lateness {
    /// Looks from here on, as long as the test's runtime lasts.
    fn watch() -> Self {
        let late = Arc::new(AtomicU64::new(0));
        let sum = late.clone();
        tokio::spawn(async move {
            let tick = Duration::from_millis(5);
            loop {
                let before = Instant::now();
                tokio::time::sleep(tick).await;
                let more = before.elapsed().saturating_sub(2 * tick);
                sum.fetch_add(more.as_micros() as u64, Ordering::Relaxed);
            }
        });
        Self(late)
    }

    fn so_far(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// Pieces as a model gives them, some of them in many bytes.
fn pieces(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{}{n} ", ["wört", "🙂", "x", "\"\\"][n % 4])).collect()
}

fn config(server: &StandIn) -> Config {
    Config { head_start: LIMIT, ..Config::new(server.url()) }
}

fn client(server: &StandIn) -> Client {
    Client::new(config(server)).unwrap()
}

fn question() -> Request {
    Request::new(Method::POST, "/v1/chat/completions", r#"{"stream":true,"messages":[]}"#)
}

async fn begin(client: &Client) -> Answer {
    match timeout(LIMIT, client.ask(&question())).await.unwrap().unwrap() {
        Asked::Answer(answer) => answer,
        Asked::Reply(reply) => panic!("refused with {}", reply.status),
    }
}

/// What came of an answer.
#[derive(Debug, Default)]
struct Whole {
    text: String,
    dones: usize,
    longest_stall: Duration,
    end: Option<ClientError>,
}

/// Reads to the end; `at` is called with the text after each piece.
async fn read(answer: &mut Answer, mut at: impl FnMut(&str)) -> Whole {
    let mut whole = Whole::default();
    let mut last = Instant::now();
    loop {
        match timeout(LIMIT, answer.next()).await.expect("the answer hangs") {
            Ok(Some(step)) => {
                for delta in step.into_deltas().unwrap() {
                    match delta {
                        Delta::Text { text, .. } => {
                            whole.longest_stall = whole.longest_stall.max(last.elapsed());
                            last = Instant::now();
                            whole.text.push_str(&text);
                            at(&whole.text);
                        }
                        Delta::Done => whole.dones += 1,
                        _ => {}
                    }
                }
            }
            Ok(None) => return whole,
            Err(error) => {
                whole.end = Some(error);
                return whole;
            }
        }
    }
}

async fn whole(client: &Client) -> (Whole, Answer) {
    let mut answer = begin(client).await;
    (read(&mut answer, |_| ()).await, answer)
}

fn assert_whole(whole: &Whole, expected: &[String]) {
    assert_eq!(whole.end, None);
    assert_eq!(whole.text, expected.concat());
    assert_eq!(whole.dones, 1);
}

/// Waits until `is_so`.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let reached = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, reached).await.unwrap_or_else(|_| panic!("not so after a minute: {what}"));
}

/// Waits until the stand-in has seen what `wanted` looks for.
async fn wait_for(server: &StandIn, wanted: impl Fn(&Seen) -> bool) {
    until("the stand-in sees it", || server.seen().iter().any(&wanted)).await;
}

#[tokio::test]
async fn an_answer_comes_by_quic_with_the_key_and_the_body_as_they_were() {
    let expected = pieces(50);
    let server = StandIn::start(&expected, GAP, Fault::None).await;
    let config = Config { api_key: Some("sk-1".into()), ..config(&server) };
    let client = Client::new(config).unwrap();
    let (whole, answer) = whole(&client).await;
    assert_whole(&whole, &expected);
    assert_eq!((answer.transport(), answer.resumes()), (Transport::Quic, 0));
    let [Seen::Quic(head, body)] = &server.seen()[..] else { panic!("{:?}", server.seen()) };
    assert_eq!(body, r#"{"stream":true,"messages":[]}"#);
    assert_eq!((&head["key"], &head["method"]), (&"sk-1".into(), &"POST".into()));
    assert_eq!(head["headers"]["content-type"], "application/json");
}

#[tokio::test]
async fn a_third_of_all_packets_may_be_lost() {
    let expected = pieces(150);
    let server = StandIn::start(&expected, GAP, Fault::None).await;
    let weather = NetworkConditions { loss: 0.3, delay: Duration::from_millis(15), seed: 7 };
    let relay = Relay::start(server.quic, weather).await;
    server.offer_port(relay.address.port());
    let client = client(&server);
    client.warm_up().await;
    let (whole, answer) = timeout(LIMIT, whole(&client)).await.expect("it takes too long");
    assert_whole(&whole, &expected);
    assert_eq!(answer.transport(), Transport::Quic);
    assert!(relay.dropped() > 20, "the relay lost {} packets only", relay.dropped());
}

#[tokio::test]
async fn no_packet_probes_for_a_larger_one() {
    let pieces = pieces(20);
    let (_server, relay, client) = over_relay(&pieces).await;
    assert_whole(&whole(&client).await.0, &pieces);
    assert_eq!(relay.longest(), 1_200, "that of the handshake, RFC 9000 section 14.1");
}

#[tokio::test]
async fn many_answers_share_one_lossy_connection() {
    let expected = pieces(40);
    let server = StandIn::start(&expected, GAP, Fault::None).await;
    let relay = Relay::start(
        server.quic,
        NetworkConditions { loss: 0.2, seed: 3, ..NetworkConditions::FINE },
    )
    .await;
    server.offer_port(relay.address.port());
    let client = client(&server);
    client.warm_up().await;
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { whole(&client).await.0 })
        })
        .collect();
    for task in tasks {
        assert_whole(&task.await.unwrap(), &expected);
    }
}

#[tokio::test]
async fn a_new_address_in_mid_answer_shows_every_token_once() {
    let expected = pieces(120);
    for own in [false, true] {
        let server = StandIn::start(&expected, GAP, Fault::None).await;
        let weather =
            NetworkConditions { delay: Duration::from_millis(20), ..NetworkConditions::FINE };
        let relay = Relay::start(server.quic, weather).await;
        server.offer_port(relay.address.port());
        let client = client(&server);
        let mut answer = begin(&client).await;
        let lateness = Lateness::watch();
        let (half, mut moved) = (expected[..60].concat().len(), false);
        let whole = read(&mut answer, |text| {
            if text.len() >= half && !std::mem::replace(&mut moved, true) {
                match own {
                    true => assert!(client.rebind()),
                    false => relay.move_client(),
                }
            }
        })
        .await;
        assert_whole(&whole, &expected);
        assert_eq!((answer.transport(), answer.resumes()), (Transport::Quic, 0), "own: {own}");
        // 2 RTT + 300 ms, and room for a busy machine.
        println!("own: {own}, longest stall {:?}", whole.longest_stall);
        let most = Duration::from_millis(1500) + lateness.so_far();
        assert!(whole.longest_stall < most, "{:?} of {most:?}", whole.longest_stall);
    }
}

/// Starts a server, and a client whose QUIC connection to it goes through a relay.
async fn over_relay(pieces: &[String]) -> (StandIn, Relay, Client) {
    let server = StandIn::start(pieces, GAP, Fault::None).await;
    let relay = Relay::start(server.quic, NetworkConditions::FINE).await;
    server.offer_port(relay.address.port());
    // Long enough for a handshake on a busy machine; where QUIC is dead it is waited for in vain.
    let client = Client::new(Config { head_start: Duration::from_secs(3), ..config(&server) });
    let client = client.unwrap();
    assert_eq!(client.warm_up().await, Transport::Quic);
    (server, relay, client)
}

#[tokio::test]
async fn quic_that_dies_for_good_is_replaced_by_server_sent_events() {
    let expected = pieces(200);
    let (server, relay, client) = over_relay(&expected).await;
    let mut answer = begin(&client).await;
    let lateness = Lateness::watch();
    let third = expected[..60].concat().len();
    let whole = read(&mut answer, |text| {
        if text.len() >= third {
            relay.cut();
        }
    })
    .await;
    assert_whole(&whole, &expected);
    assert_eq!((answer.transport(), answer.resumes()), (Transport::Http, 1));
    let most = Duration::from_secs(15) + lateness.so_far();
    assert!(whole.longest_stall < most, "{:?} of {most:?}", whole.longest_stall);
    let resumed =
        |seen: &Seen| matches!(seen, Seen::Http(line, _) if line.starts_with("GET /v1/streams/"));
    assert!(server.seen().iter().any(resumed));
}

#[tokio::test]
async fn a_request_that_cannot_be_sent_again_outlives_an_outage_that_answers_flee() {
    let expected = pieces(200);
    let (_server, relay, client) = over_relay(&expected).await;
    let mut answer = begin(&client).await;
    let patient = Request::new(Method::POST, "/patient", "");
    let third = expected[..60].concat().len();
    let reading = read(&mut answer, |text| match text.len() {
        len if len >= 2 * third => relay.mend(),
        len if len >= third => relay.cut(),
        _ => {}
    });
    let (whole, reply) = tokio::join!(reading, client.request(&patient));
    assert_whole(&whole, &expected);
    assert_eq!((answer.transport(), answer.resumes()), (Transport::Http, 1));
    let mut reply = reply.unwrap();
    assert_eq!((reply.status, reply.transport()), (200, Transport::Quic));
    assert_eq!(reply.read_all(1000).await.unwrap(), r#"{"said":"all"}"#);
}

#[tokio::test]
async fn an_outage_is_survived_over_quic() {
    let expected = pieces(150);
    let server = StandIn::start(&expected, GAP, Fault::None).await;
    let relay = Relay::start(server.quic, NetworkConditions::FINE).await;
    server.offer_port(relay.address.port());
    let client = client(&server);
    let mut answer = begin(&client).await;
    let third = expected[..50].concat().len();
    let (outage, mut is_cut) = (Notify::new(), false);
    let reading = read(&mut answer, |text| {
        if text.len() >= third && !std::mem::replace(&mut is_cut, true) {
            relay.cut();
            outage.notify_one();
        }
    });
    let mending = async {
        outage.notified().await;
        // The server's datagrams and its repetitions of them.
        until("packets are lost", || relay.stopped() >= 30).await;
        relay.mend();
    };
    let (whole, ()) = tokio::join!(reading, mending);
    assert_whole(&whole, &expected);
    assert_eq!((answer.transport(), answer.resumes()), (Transport::Quic, 0));
}

#[tokio::test]
async fn a_lost_connection_is_replaced_and_the_answer_goes_on() {
    for fault in [Fault::CloseAfter(20), Fault::EndAfter(20)] {
        let expected = pieces(60);
        let server = StandIn::start(&expected, GAP, fault).await;
        let (whole, answer) = whole(&client(&server)).await;
        assert_whole(&whole, &expected);
        assert_eq!((answer.transport(), answer.resumes()), (Transport::Quic, 1), "{fault:?}");
    }
}

#[tokio::test]
async fn without_datagrams_the_log_comes_on_the_stream() {
    let expected = pieces(60);
    let server = StandIn::start(&expected, GAP, Fault::NoDatagrams).await;
    let (whole, answer) = whole(&client(&server)).await;
    assert_whole(&whole, &expected);
    assert_eq!((answer.transport(), answer.resumes()), (Transport::Quic, 0));
}

#[tokio::test]
async fn acknowledgements_leave_on_the_quic_stream_where_their_datagrams_are_lost() {
    // Longer than the stand-in waits for an acknowledgement before it stops for good.
    let expected = pieces(300);
    let server = StandIn::start(&expected, GAP, Fault::Deaf).await;
    let lateness = Lateness::watch();
    let (whole, answer) = whole(&client(&server)).await;
    assert_whole(&whole, &expected);
    assert_eq!((answer.transport(), answer.resumes()), (Transport::Quic, 0));
    let most = Duration::from_secs(1) + lateness.so_far();
    assert!(whole.longest_stall < most, "{:?} of {most:?}", whole.longest_stall);
}

#[tokio::test]
async fn the_second_unanswered_probe_leaves_on_the_quic_stream_too() {
    let expected = pieces(60);
    let server = StandIn::start(&expected, GAP, Fault::Hushed(20)).await;
    let (whole, answer) = whole(&client(&server)).await;
    assert_whole(&whole, &expected);
    // By then the path counts as lost neither for its silence nor for its lack of packets.
    assert_eq!((answer.transport(), answer.resumes()), (Transport::Quic, 0));
    assert!(whole.longest_stall > Duration::from_millis(1_500), "{:?}", whole.longest_stall);
}

#[tokio::test]
async fn a_reset_says_whether_to_come_back() {
    for (code, end) in [
        (0, None),
        (2, None),
        (4, Some(ClientError::Superseded)),
        (5, Some(ClientError::Gone)),
        (6, Some(ClientError::ShuttingDown)),
        (77, None),
    ] {
        let expected = pieces(60);
        let server = StandIn::start(&expected, GAP, Fault::ResetAfter(20, code)).await;
        let (whole, answer) = whole(&client(&server)).await;
        assert_eq!(whole.end, end, "code {code}");
        let is_final = end.is_some();
        assert_eq!((whole.dones, answer.resumes()), if is_final { (0, 0) } else { (1, 1) });
        let sought = |seen: &Seen| match seen {
            Seen::Resume(_) => true,
            Seen::Http(line, _) => line.contains("/v1/streams/"),
            _ => false,
        };
        assert_eq!(server.seen().iter().any(sought), !is_final, "code {code}: {:?}", server.seen());
        if !is_final {
            assert_eq!(whole.text, expected.concat(), "code {code}");
        }
    }
}

#[tokio::test]
async fn what_waits_to_be_shown_is_told_before_the_error_that_ends_the_answer() {
    const CAME: usize = 20;
    let expected = pieces(60);
    let server = StandIn::start(&expected, GAP, Fault::ResetAfter(2 * CAME, 5)).await;
    let mut config = config(&server);
    config.receiver.playout =
        Playout { buffer: Micros::from_ms(2_000), max_tokens_per_s: Some(20) };
    let (whole, _) = whole(&Client::new(config).unwrap()).await;
    assert_eq!((whole.end, whole.dones), (Some(ClientError::Gone), 0));
    assert!(expected.concat().starts_with(&whole.text));
    assert!(whole.text.len() >= expected[..CAME].concat().len(), "{:?}", whole.text);
}

#[tokio::test]
async fn a_question_that_a_replica_refuses_while_it_shuts_down_is_asked_once_by_http() {
    let expected = pieces(10);
    let server = StandIn::start(&expected, GAP, Fault::Drains).await;
    let (whole, answer) = whole(&client(&server)).await;
    assert_whole(&whole, &expected);
    assert_eq!(answer.transport(), Transport::Http);
    let seen = server.seen();
    let [Seen::Quic(head, _), Seen::Http(line, _), Seen::Key(key)] = &seen[..] else {
        panic!("{seen:?}");
    };
    assert_eq!(line, "POST /v1/chat/completions");
    assert_eq!(head["headers"]["idempotency-key"], key.as_str());
}

#[tokio::test]
async fn a_server_that_shuts_down_is_not_asked_again() {
    let expected = pieces(60);
    let server = StandIn::start(&expected, GAP, Fault::ShutsDownAfter(20)).await;
    let (whole, answer) = whole(&client(&server)).await;
    assert_eq!((whole.end, answer.resumes()), (Some(ClientError::ShuttingDown), 0));
    assert!(expected.concat().starts_with(&whole.text));
}

#[tokio::test]
async fn noise_between_datagrams_changes_nothing() {
    let expected = pieces(60);
    let server = StandIn::start(&expected, GAP, Fault::Noise).await;
    let (whole, answer) = whole(&client(&server)).await;
    assert_whole(&whole, &expected);
    assert_eq!(answer.resumes(), 0);
}

#[tokio::test]
async fn what_breaks_the_rules_is_asked_by_http_instead() {
    let expected = pieces(10);
    for fault in [Fault::UnknownMessage, Fault::HugeMessage, Fault::WrongStream, Fault::WrongHash] {
        let server = StandIn::start(&expected, GAP, fault).await;
        let (whole, answer) = whole(&client(&server)).await;
        assert_whole(&whole, &expected);
        assert_eq!(answer.transport(), Transport::Http, "{fault:?}");
        // The same key on either way, so that a server does the work once (S-4.9).
        let by_quic = server.seen().into_iter().find_map(|seen| match seen {
            Seen::Quic(head, _) => Some(head["headers"]["idempotency-key"].as_str()?.to_owned()),
            _ => None,
        });
        let asked = fault != Fault::WrongHash;
        assert_eq!(by_quic.is_some(), asked, "{fault:?}");
        if let Some(key) = by_quic {
            wait_for(&server, |seen| *seen == Seen::Key(key.clone())).await;
        }
    }
}

#[tokio::test]
async fn a_log_that_cannot_be_read_is_never_taken_for_complete() {
    let server = StandIn::start(&pieces(10), GAP, Fault::BadLog).await;
    let (whole, _) = whole(&client(&server)).await;
    assert!(matches!(whole.end, Some(ClientError::Malformed(_))), "{whole:?}");
    assert_eq!(whole.dones, 0);
    wait_for(&server, |seen| *seen == Seen::Stop).await;
}

#[tokio::test]
async fn a_servers_error_is_told_after_what_came() {
    for quic in [true, false] {
        let expected = pieces(10);
        let server = StandIn::start(&expected, GAP, Fault::ServerError).await;
        let client = Client::new(Config { quic, ..config(&server) }).unwrap();
        let (whole, _) = whole(&client).await;
        assert_eq!(whole.text, expected.concat());
        assert_eq!((whole.dones, whole.end), (0, Some(ClientError::Stream("engine".into()))));
    }
}

#[tokio::test]
async fn a_server_that_forgot_the_answer_ends_it_with_an_error() {
    let expected = pieces(60);
    let server = StandIn::start(&expected, GAP, Fault::Forgets).await;
    let relay = Relay::start(server.quic, NetworkConditions::FINE).await;
    server.offer_port(relay.address.port());
    let client = client(&server);
    let mut answer = begin(&client).await;
    let half = expected[..20].concat().len();
    let whole = read(&mut answer, |text| {
        if text.len() >= half {
            relay.cut();
        }
    })
    .await;
    assert_eq!((whole.end, whole.dones), (Some(ClientError::Gone), 0));
    assert!(expected.concat().starts_with(&whole.text));
}

/// A reader by QUIC whose server ends, and what it reads of the one that takes its answer over.
/// The client keeps its connection.
async fn ahead_of_the_next_server(
    says: Says,
    next_is_by_quic: bool,
) -> (Whole, Answer, StandIn, Client) {
    let expected = pieces(60);
    let server = StandIn::start(&expected, GAP, Fault::TakenOver(20, says)).await;
    let relay = Relay::start(server.quic, NetworkConditions::FINE).await;
    server.offer_port(relay.address.port());
    let client = client(&server);
    let mut answer = begin(&client).await;
    // Before the server ends: its last datagrams may be lost with it.
    let some = expected[..10].concat().len();
    let whole = read(&mut answer, |text| {
        if text.len() >= some && !next_is_by_quic {
            relay.cut();
        }
    })
    .await;
    (whole, answer, server, client)
}

#[tokio::test]
async fn a_reader_ahead_of_the_next_server_reads_again_and_shows_nothing_twice() {
    for next_is_by_quic in [true, false] {
        let (whole, answer, server, _client) =
            ahead_of_the_next_server(Says::Same, next_is_by_quic).await;
        assert_whole(&whole, &pieces(60));
        assert_eq!(answer.resumes(), 1, "{:?}", server.seen());
        assert_eq!(answer.transport() == Transport::Quic, next_is_by_quic);
    }
}

#[tokio::test]
async fn a_reader_of_another_answer_than_the_next_servers_is_told() {
    for next_is_by_quic in [true, false] {
        let (whole, _, server, _client) =
            ahead_of_the_next_server(Says::Other, next_is_by_quic).await;
        assert_eq!((whole.end, whole.dones), (Some(ClientError::Differs), 0));
        assert!(pieces(60).concat().starts_with(&whole.text));
        if next_is_by_quic {
            wait_for(&server, |seen| *seen == Seen::Left).await;
        }
    }
}

#[tokio::test]
async fn blocked_udp_costs_the_head_start_once() {
    let expected = pieces(5);
    let server = StandIn::start(&expected, GAP, Fault::None).await;
    let relay = Relay::start(server.quic, NetworkConditions::FINE).await;
    relay.cut();
    server.offer_port(relay.address.port());
    let folder = tempfile::tempdir().unwrap();
    let head_start = Duration::from_millis(300);
    let memory = Some(folder.path().to_owned());
    let config = Config { head_start, memory, ..config(&server) };
    let first = Client::new(config.clone()).unwrap();
    let began = Instant::now();
    let (answer, _) = whole(&first).await;
    assert_whole(&answer, &expected);
    assert!(began.elapsed() >= head_start);
    // The attempt ends by itself, and says so to the next client.
    let remembered = async {
        while !folder.path().join("servers.json").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, remembered).await.unwrap();
    let head_start = LIMIT;
    let second = Client::new(Config { head_start, ..config }).unwrap();
    let began = Instant::now();
    let (answer, stream) = whole(&second).await;
    assert_whole(&answer, &expected);
    assert_eq!(stream.transport(), Transport::Http);
    assert!(began.elapsed() < LIMIT / 2, "waited for what lost the last time");
}

#[tokio::test]
async fn event_streams_that_break_are_resumed_exactly_once() {
    let expected = pieces(40);
    let server = StandIn::start(&expected, GAP, Fault::BreakSse(15)).await;
    let client = Client::new(Config { quic: false, ..config(&server) }).unwrap();
    let (whole, answer) = whole(&client).await;
    assert_whole(&whole, &expected);
    assert_eq!((answer.transport(), answer.resumes()), (Transport::Http, 1));
}

#[tokio::test]
async fn event_streams_are_resumed_at_once_on_another_network() {
    static MOVED: AtomicBool = AtomicBool::new(false);
    let network = || Some(IpAddr::from([10, 0, 0, u8::from(MOVED.load(Ordering::Relaxed))]));
    let expected = pieces(40);
    let server = StandIn::start(&expected, GAP, Fault::HangSse(15)).await;
    let client = Client::new(Config { quic: false, network, ..config(&server) }).unwrap();
    let mut answer = begin(&client).await;
    let began = Instant::now();
    let whole = read(&mut answer, |_| MOVED.store(true, Ordering::Relaxed)).await;
    assert_whole(&whole, &expected);
    assert_eq!(answer.resumes(), 1);
    assert!(began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_answer_that_began_by_http_moves_to_quic_when_that_comes_up() {
    // Under way for longer than a lost handshake takes to be tried again, on a busy machine too.
    let expected = pieces(500);
    let server = StandIn::start(&expected, GAP, Fault::None).await;
    let relay = Relay::start(server.quic, NetworkConditions::FINE).await;
    relay.cut();
    server.offer_port(relay.address.port());
    let client = Client::new(Config { head_start: Duration::ZERO, ..config(&server) }).unwrap();
    let mut answer = begin(&client).await;
    assert_eq!(answer.transport(), Transport::Http);
    relay.mend();
    let whole = read(&mut answer, |_| ()).await;
    assert_whole(&whole, &expected);
    assert_eq!(answer.transport(), Transport::Quic);
}

#[tokio::test]
async fn resuming_with_the_handle_alone_gives_the_rest() {
    let expected = pieces(60);
    for quic in [true, false] {
        let server = StandIn::start(&expected, GAP, Fault::None).await;
        let first = client(&server);
        let mut answer = begin(&first).await;
        let (mut seen, mut offset) = (String::new(), 0);
        while seen.len() < 100 {
            let step = answer.next().await.unwrap().unwrap();
            offset = step.offset;
            for delta in step.into_deltas().unwrap() {
                if let Delta::Text { text, .. } = delta {
                    seen.push_str(&text);
                }
            }
        }
        let handle = answer.handle();
        answer.leave();
        let second = Client::new(Config { quic, ..config(&server) }).unwrap();
        let mut rest = timeout(LIMIT, second.resume(handle, offset)).await.unwrap().unwrap();
        let rest = read(&mut rest, |_| ()).await;
        assert_eq!((rest.end, rest.dones), (None, 1));
        assert_eq!(seen + &rest.text, expected.concat(), "by QUIC: {quic}");
        assert!(!server.seen().contains(&Seen::Stop));
        let mut wrong = handle;
        wrong.token[0] ^= 1;
        let refused = timeout(LIMIT, second.resume(wrong, 0)).await.unwrap();
        assert!(matches!(refused, Err(ClientError::Gone)));
    }
}

#[tokio::test]
async fn dropping_an_answer_stops_it_at_the_server() {
    let server = StandIn::start(&pieces(1000), GAP, Fault::None).await;
    let client = client(&server);
    let mut answer = begin(&client).await;
    answer.next().await.unwrap();
    drop(answer);
    wait_for(&server, |seen| *seen == Seen::Stop).await;
    let by_http = Client::new(Config { quic: false, ..config(&server) }).unwrap();
    let answer = begin(&by_http).await;
    let path = format!("DELETE /v1/streams/{}", answer.handle().id_hex());
    timeout(LIMIT, answer.cancel()).await.unwrap();
    assert!(server.seen().contains(&Seen::Http(path, String::new())));
}

#[tokio::test]
async fn a_question_that_is_dropped_before_its_answer_begins_is_given_up() {
    let server = StandIn::start(&pieces(1), GAP, Fault::Silent).await;
    let client = client(&server);
    let asked = question();
    let asking = client.ask(&asked);
    tokio::select! {
        _ = asking => panic!("the server says nothing"),
        () = wait_for(&server, |seen| matches!(seen, Seen::Quic(..))) => {}
    }
    wait_for(&server, |seen| *seen == Seen::Stop).await;
}

#[tokio::test]
async fn a_reader_that_stops_reading_loses_nothing() {
    let expected = pieces(400);
    let server = StandIn::start(&expected, Duration::from_millis(1), Fault::None).await;
    let client = client(&server);
    let mut answer = begin(&client).await;
    until("all is said", || server.has_said_all()).await;
    let whole = read(&mut answer, |_| ()).await;
    assert_whole(&whole, &expected);
}

#[tokio::test]
async fn a_reader_that_pauses_does_not_make_its_client_move_to_another_port() {
    /// Longer than a silent path is waited for, beyond the time in which the client's queue
    /// fills.
    const PAUSE: Duration = Duration::from_secs(5);
    let expected = pieces(400);
    let (_server, relay, client) = over_relay(&expected).await;
    let mut answer = begin(&client).await;
    tokio::time::sleep(PAUSE).await;
    let whole = read(&mut answer, |_| ()).await;
    assert_whole(&whole, &expected);
    assert_eq!((answer.transport(), answer.resumes()), (Transport::Quic, 0));
    assert_eq!(relay.clients(), 1, "the reader was silent, not the server");
}

#[tokio::test]
async fn refusals_and_other_requests_come_through_the_tunnel() {
    let server = StandIn::start(&pieces(1), GAP, Fault::Refuse).await;
    let refusing = client(&server);
    let Asked::Reply(mut reply) = refusing.ask(&question()).await.unwrap() else {
        panic!("it was not refused");
    };
    assert_eq!((reply.status, reply.transport()), (429, Transport::Quic));
    assert_eq!(reply.headers["retry-after"], "7");
    let body = reply.read_all(1000).await.unwrap();
    assert!(body.starts_with(br#"{"error":{"message":"try later""#));

    let server = StandIn::start(&pieces(1), GAP, Fault::None).await;
    let client = client(&server);
    client.warm_up().await;
    let models = Request::new(Method::GET, "/v1/models", "");
    let mut reply = client.request(&models).await.unwrap();
    assert_eq!((reply.status, reply.transport()), (200, Transport::Quic));
    assert_eq!(reply.read_all(1000).await.unwrap(), r#"{"data":[{"id":"m"}]}"#);
    let lost = Request::new(Method::GET, "/nowhere", "");
    assert_eq!(client.request(&lost).await.unwrap().status, 404);
}

#[tokio::test]
async fn no_server_is_an_error_that_names_it() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Client::new(Config::new(format!("http://{closed}"))).unwrap();
    let refused = timeout(LIMIT, client.ask(&question())).await.unwrap();
    let Err(ClientError::Connect { authority, .. }) = refused else { panic!("it was reached") };
    assert_eq!(authority, closed.to_string());
}
