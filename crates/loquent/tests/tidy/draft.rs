//! The protocol's two texts, the short one and the Internet-Draft: they state the same rules, and
//! the figures in the draft's table of limits are those of the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use loquent_proto::assembler::AssemblerLimits;
use loquent_proto::pacing::SendPacer;
use loquent_proto::sender::MAX_IN_FLIGHT_BYTES;
use loquent_proto::{
    ACK_STEP_BYTES, Micros, ReceiverConfig, SenderConfig, delta, frame, message, wire,
};

use crate::sources::root;

const DRAFT: &str = "spec/draft-loquent-delivery.md";

fn read(place: &str) -> String {
    fs::read_to_string(root().join(place)).unwrap()
}

/// The rule number that stands at the beginning of `text`: `D-2.1`, `S-4.11`.
fn rule_at_start(text: &str) -> Option<&str> {
    let rest = text.strip_prefix(['D', 'S'])?.strip_prefix('-')?;
    let len = rest.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(rest.len());
    let number = rest[..len].trim_end_matches('.');
    let (section, rule) = number.split_once('.')?;
    let whole = [section, rule].iter().all(|part| part.parse::<u32>().is_ok());
    whole.then(|| &text[..2 + number.len()])
}

/// Every mention of a rule, wherever it stands.
fn mentioned(text: &str) -> BTreeSet<&str> {
    let at = text.match_indices(['D', 'S']).map(|(at, _)| at);
    let is_word = |at: &usize| !text[..*at].ends_with(|it: char| it.is_ascii_alphanumeric());
    at.filter(is_word).filter_map(|at| rule_at_start(&text[at..])).collect()
}

/// The rules that a short text states: `- **D-1.1** …`.
fn short_rules(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| rule_at_start(line.strip_prefix("- **")?)).collect()
}

/// The rules that the draft states: a paragraph begins with `(D-1.1) `.
fn draft_rules(text: &str) -> Vec<&str> {
    text.split("\n\n").filter_map(|part| rule_at_start(part.strip_prefix('(')?)).collect()
}

#[test]
fn the_draft_states_the_rules_of_the_short_texts_each_once() {
    let (delivery, session) = (read("spec/delivery.md"), read("spec/session.md"));
    let short: Vec<_> = [short_rules(&delivery), short_rules(&session)].concat();
    let draft = read(DRAFT);
    let long = draft_rules(&draft);
    let (short_set, long_set): (BTreeSet<_>, BTreeSet<_>) =
        (short.iter().copied().collect(), long.iter().copied().collect());
    assert!(short_set.len() > 80, "the rules were not found: {short_set:?}");
    assert_eq!(short_set.len(), short.len(), "a rule stands twice in the short texts");
    assert_eq!(long_set.len(), long.len(), "a rule stands twice in {DRAFT}");
    let missing: Vec<_> = short_set.symmetric_difference(&long_set).collect();
    assert!(missing.is_empty(), "these stand in one of the texts only: {missing:?}");
    for text in [&delivery, &session, &draft] {
        let unknown: Vec<_> = mentioned(text).difference(&short_set).copied().collect();
        assert!(unknown.is_empty(), "these rules do not exist: {unknown:?}");
    }
}

/// The rows of the table of limits: what, and its figure.
fn limits(draft: &str) -> BTreeMap<String, String> {
    let end = draft.find("{: #limit-table").expect("the table");
    let table = draft[..end].rsplit("\n\n").next().unwrap_or_default();
    let rows = table.lines().skip(2).map(|row| {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().to_owned()).collect();
        assert_eq!(cells.len(), 6, "{row}");
        (cells[1].clone(), cells[2].clone())
    });
    rows.collect()
}

fn time(time: Micros) -> String {
    match time.0 {
        us if us.is_multiple_of(1_000_000) => format!("{} s", us / 1_000_000),
        us if us.is_multiple_of(1_000) => format!("{} ms", us / 1_000),
        us => format!("{us} us"),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

#[test]
fn the_drafts_limits_are_those_of_the_code() {
    let limits = limits(&read(DRAFT));
    let (receiver, sender) = (ReceiverConfig::default(), SenderConfig::default());
    let client = ReceiverConfig::with_another_path();
    let rows = [
        ("Padding step", size(sender.padding_step_bytes as u64)),
        ("Padding step of ACK frames", size(ACK_STEP_BYTES as u64)),
        ("Padding step", size(sender.padding_step_bytes as u64)),
        ("Padding step of ACK frames", size(ACK_STEP_BYTES as u64)),
        ("Body of a record", size(delta::MAX_RECORD_BYTES as u64)),
        ("Packets in Missing", frame::ACK_WINDOW.to_string()),
        ("Unit of Hold", time(Micros(frame::Ack::HOLD_UNIT_MICROS))),
        ("Ranges in an ACK frame", frame::MAX_ACK_RANGES.to_string()),
        ("Bytes in flight beyond Cumulative", size(MAX_IN_FLIGHT_BYTES)),
        ("Bytes on a QUIC stream beyond what is shown", size(MAX_IN_FLIGHT_BYTES)),
        ("Sending without an acknowledgement", time(sender.suspend_after)),
        ("Bytes without news per second", size(sender.bucket_bytes_per_s)),
        ("Bytes without news at once", size(sender.bucket_depth_bytes)),
        ("Headers counted for a datagram", size(sender.packet_overhead_bytes)),
        ("Standing queue", time(sender.queue_tolerance)),
        ("Gap between packets while a queue stands", time(SendPacer::MOST)),
        ("Frame that a sender stays below", size(sender.max_datagram_bytes as u64)),
        ("Lingering", time(receiver.linger)),
        ("ACK frames without news, one every", time(receiver.ack_gap)),
        ("Silence before the first probe", time(receiver.probe_after)),
        ("The same, with another path", time(client.probe_after)),
        ("Silence that is reported", time(receiver.silent_after)),
        ("Silence that is reported, with another path", time(client.silent_after)),
        ("Message to a client", size(message::MAX_MESSAGE_BYTES as u64)),
    ];
    for (what, figure) in rows {
        assert_eq!(limits.get(what), Some(&figure), "{what}");
    }
    assert_eq!(wire::MAX_INT, (1 << 53) - 1);
    assert_eq!(limits["Largest integer and offset"], "2^53 - 1");
    assert!(AssemblerLimits::default().max_bytes >= 32 << 10);
    assert_eq!(limits["Bytes that a receiver can hold, at least"], "32 KiB");
}

/// Rows whose constants are private: where each stands, and what it is there.
const PRIVATE: &[(&str, &str, &str, &str, &str)] = &[
    (
        "Idle connection",
        "30 s",
        "crates/server/src/quic/mod.rs",
        "IDLE_TIMEOUT",
        "Duration::from_secs(30)",
    ),
    (
        "Message to a server",
        "64 KiB",
        "crates/server/src/quic/message.rs",
        "MAX_CLIENT_MESSAGE_BYTES",
        "64 * 1024",
    ),
    (
        "Idempotency key",
        "128 characters",
        "crates/resumable/src/idempotency.rs",
        "MAX_KEY_BYTES",
        "128",
    ),
    (
        "Missing acknowledgements, at a path's start",
        "500 ms",
        "crates/proto/src/fallback.rs",
        "MISSING_AT_START",
        "Micros::from_ms(500)",
    ),
    (
        "Missing acknowledgements, later",
        "1 s",
        "crates/proto/src/fallback.rs",
        "MISSING",
        "Micros::from_ms(1_000)",
    ),
    (
        "Waiting for an ACK frame before a reset",
        "1 s",
        "crates/proto/src/fallback.rs",
        "LAST_WAIT",
        "Micros::from_ms(1_000)",
    ),
];

/// What the constant `name` is in the file at `place`.
fn constant(place: &str, name: &str) -> Option<String> {
    let text = read(place);
    let (_, rest) = text.split_once(&format!("const {name}: "))?;
    let (_, value) = rest.split_once(';')?.0.split_once(" = ")?;
    Some(value.trim().to_owned())
}

#[test]
fn the_drafts_limits_are_those_of_private_constants() {
    let limits = limits(&read(DRAFT));
    for (what, figure, place, name, value) in PRIVATE {
        assert_eq!(limits.get(*what).map(String::as_str), Some(*figure), "{what}");
        assert_eq!(constant(place, name).as_deref(), Some(*value), "{name} in {place}: {what}");
    }
}

/// D-2.7 has the step; the draft says it there and in its table.
#[test]
fn the_padding_step_is_said_alike() {
    let step = |place: &str| {
        let text = read(place).split_whitespace().collect::<Vec<_>>().join(" ");
        let (before, _) = text.split_once(" bytes unless").expect("a step");
        before.rsplit(' ').next().map(str::to_owned).expect("a figure")
    };
    let short = step("spec/delivery.md");
    assert_eq!(short, step(DRAFT));
    assert_eq!(limits(&read(DRAFT))["Padding step"], format!("{short} bytes"));
}

#[test]
fn a_rule_is_found_where_it_stands() {
    assert_eq!(rule_at_start("D-2.1** A frame"), Some("D-2.1"));
    assert_eq!(rule_at_start("S-4.11) A server"), Some("S-4.11"));
    assert_eq!(rule_at_start("D-2, section"), None);
    assert_eq!(draft_rules("a\n\n(D-1.1) An\n(D-9.9) as\n\n(S-2.6) b"), ["D-1.1", "S-2.6"]);
    assert_eq!(mentioned("as in D-7.3 and S-4.5."), BTreeSet::from(["D-7.3", "S-4.5"]));
    assert!(mentioned("the CRC-32C, UTF-8, MD-5.1").is_empty());
}
