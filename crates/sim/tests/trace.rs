//! Captures recorded through a lossy link by `fixtures/record.py`, read and held against what the
//! link did.

use std::path::PathBuf;

use loquent_sim::channel::Channel;
use loquent_sim::trace::{self, Side, Trace};
use serde::Deserialize;

/// What the link did, and when the client's program saw each token.
#[derive(Deserialize)]
struct Truth {
    data: usize,
    dropped: usize,
    token_times: Vec<f64>,
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn read(name: &str) -> Trace {
    trace::read(&fixture(name), Some(8000)).expect("a capture of the server's stream")
}

fn truth() -> Truth {
    let text = std::fs::read_to_string(fixture("lossy-truth.json")).expect("the truth is there");
    serde_json::from_str(&text).expect("the truth is JSON")
}

#[test]
fn at_the_server_every_packet_of_the_link_is_seen() {
    let (trace, truth) = (read("lossy-server.pcapng"), truth());
    assert_eq!(trace.side, Side::Sender);
    assert_eq!(trace.packets.len() + trace.retransmissions, truth.data);
    // Every drop is either a first transmission or a retransmission; the first are the losses.
    let lost = trace.packets.iter().filter(|packet| packet.lost).count();
    assert!(lost <= truth.dropped && lost * 2 > truth.dropped, "{lost} of {}", truth.dropped);
}

#[test]
fn both_sides_agree_about_the_losses() {
    let (server, client) = (read("lossy-server.pcapng"), read("lossy-client.pcap"));
    assert_eq!(client.side, Side::Receiver);
    let lost = |trace: &Trace| trace.packets.iter().filter(|packet| packet.lost).count() as f64;
    assert!(
        (lost(&client) / lost(&server) - 1.0).abs() < 0.1,
        "{} {}",
        lost(&client),
        lost(&server)
    );
    let lost_bytes = |trace: &Trace| -> u64 {
        let lost = trace.packets.iter().filter(|packet| packet.lost);
        lost.map(|packet| packet.bytes).sum()
    };
    let (at_server, at_client) = (lost_bytes(&server) as f64, lost_bytes(&client) as f64);
    assert!(at_server > 0.0);
    assert!((at_client / at_server - 1.0).abs() < 0.1, "{at_client} against {at_server}");
}

#[test]
fn token_times_are_those_of_the_clients_program() {
    let (client, truth) = (read("lossy-client.pcap"), truth());
    assert!(client.events);
    assert_eq!(client.token_ms.len(), truth.token_times.len());
    let first = truth.token_times[0];
    for (captured, seen) in client.token_ms.iter().zip(&truth.token_times) {
        let seen_ms = (seen - first) * 1e3;
        assert!((captured - client.token_ms[0] - seen_ms).abs() < 20.0, "{captured} {seen_ms}");
    }
    assert!(client.gaps.stalls > 0 && client.gaps.stall_ratio > 0.05);
}

#[test]
fn a_trace_becomes_a_channel_of_the_same_loss() {
    let trace = read("lossy-client.pcap");
    let channel = trace.channel();
    assert_eq!(channel.fault(), None);
    let Channel::Trace { steps, length_ms } = channel else { panic!("a trace channel") };
    let ends = steps.iter().skip(1).map(|step| step.0).chain([length_ms]);
    let lossy_ms: f64 = steps.iter().zip(ends).map(|(step, end)| step.1 * (end - step.0)).sum();
    assert!(
        (lossy_ms / length_ms - trace.loss).abs() < 0.08,
        "{} {}",
        lossy_ms / length_ms,
        trace.loss
    );
}

#[test]
fn what_is_no_capture_is_refused() {
    let error = trace::read(&fixture("record.py"), None).expect_err("a script is no capture");
    assert!(error.to_string().contains("not a readable pcap"), "{error}");
    let error = trace::read(&fixture("lossy-client.pcap"), Some(9)).expect_err("no such port");
    assert!(error.to_string().contains("from port 9"), "{error}");
    assert!(trace::read(&fixture("missing.pcap"), None).is_err());
}
