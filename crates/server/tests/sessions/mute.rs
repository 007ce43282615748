//! Readers whose datagrams do not reach the server though QUIC lives: they acknowledge in FRAME
//! messages, or the server breaks off instead of falling silent (S-4.4, S-4.11).

use std::time::{Duration, Instant};

use loquent_proto::message::Code;
use serde_json::json;

use super::harness::*;

/// A server that gives a mute reader up soon. The protocol's limit is 10 s.
fn impatient() -> Setup {
    Setup { kept: |kept| kept.mute_limit = Duration::from_millis(1500), ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_whole_and_in_time_though_every_datagram_upstream_is_lost() {
    let server = start(impatient()).await;
    // Longer than the limit: without acknowledgements in FRAME messages it would break off.
    let tokens = 600;
    let text = expected(&server, tokens).await;
    let (_endpoint, connection) = connect(&server).await;
    let began = Instant::now();
    let reader = Reader::ask(&connection, 0, &chat(tokens, json!({}))).await;
    let mut reader = reader.with_upstream(Upstream::Frames);
    reader.run(usize::MAX).await;
    let took = began.elapsed();
    assert!(reader.complete, "{:?}", reader.said);
    assert_eq!(reader.text(), text);
    assert!(matches!(&reader.said[..], [Said::Answer(_), Said::End]), "{:?}", reader.said);
    assert!(took > Duration::from_secs(2), "too short to show anything: {took:?}");
    let [by_datagram, by_frame] = reader.frames;
    println!("{by_datagram} frames by datagram, {by_frame} by the QUIC stream, {took:?}");
    assert!(by_datagram > 0 && by_frame > 0, "{:?}", reader.frames);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mute_reader_is_broken_off_and_may_come_back() {
    let server = start(impatient()).await;
    let text = expected(&server, 1000).await;
    let (_endpoint, connection) = connect(&server).await;
    let began = Instant::now();
    let reader = Reader::ask(&connection, 0, &chat(1000, json!({}))).await;
    let mut reader = reader.with_upstream(Upstream::Mute);
    reader.run(usize::MAX).await;
    assert_eq!(reader.said.last(), Some(&Said::Reset(Code::BrokenOff)), "{:?}", reader.said);
    // The limit, and a second in which an acknowledgement might still have come; the server counts
    // in whole milliseconds and from its own first datagram, hence not to the last one.
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(2400), "{took:?}");
    assert!(!reader.complete);
    reader.upstream = Upstream::Datagrams;
    reader.migrate(&connection, 1).await;
    reader.run(usize::MAX).await;
    assert!(reader.complete, "{:?}", reader.said);
    assert_eq!(reader.text(), text);
}
