//! `spec/vectors/events.json`: the events that a log becomes (S-6), from its beginning and from
//! the end of a record; and the appendix of the Internet-Draft that shows one such event stream.
//!
//! `web/client/test/events.test.mjs` replays the file.

use std::fmt::Write;

use loquent_proto::chunk::ChunkWriter;
use loquent_proto::{Delta, Progress};
use serde_json::{Value, json};

use super::draft::{self, Dump};
use super::vector_file::{check, delta_json, hex};

const ABOUT: &str = "Event streams (session, section 6). `log` is a whole log in hex and `records` \
    what it says: each record ends at log offset `end`, and `delta` is null if its kind is unknown. \
    A reader that begins at offset `from`, a record's end, gets `events`: `data` is the JSON of an \
    event's data, or the text [DONE]; `id` is its `id:` field, null if it has none. The order of \
    JSON members is free. An answer that ends with an error breaks its connection after the last \
    event.";

/// A log, and where readers of it begin: from which record on.
struct Case {
    name: &'static str,
    deltas: Vec<Delta>,
    /// Put in front of the delta with this index: bytes of a record of an unknown kind.
    unknown: Option<usize>,
    from: &'static [usize],
}

fn open(object: &str, more: &str) -> Delta {
    let meta =
        format!(r#"{{"id":"c-1","object":"{object}","created":1767225600,"model":"m"{more}}}"#);
    Delta::Open { meta }
}

fn chat(more: &str) -> Delta {
    open("chat.completion.chunk", more)
}

fn text(choice: u32, text: &str) -> Delta {
    Delta::Text { choice, tokens: 1, text: text.into() }
}

fn finish(choice: u32, reason: &str) -> Delta {
    Delta::Finish { choice, reason: reason.into() }
}

fn usage(completion: u64, reasoning: u64) -> Delta {
    Delta::Usage { prompt: 12, completion, cached: 8, reasoning }
}

fn call(id: &str, name: &str, arguments: &str) -> Delta {
    let (id, name, arguments) = (id.into(), name.into(), arguments.into());
    Delta::ToolCall { choice: 0, index: 0, tokens: 2, id, name, arguments }
}

fn other(json: &str) -> Delta {
    Delta::Other { choice: 0, json: json.into() }
}

fn progress(queued: u32, processed: u32) -> Delta {
    let eta_ms = (queued == 0).then_some(1500);
    Delta::Progress(Progress { queued, eta_ms, total: 40, cached: 4, processed, elapsed_ms: 7 })
}

fn case(name: &'static str, deltas: Vec<Delta>) -> Case {
    Case { name, deltas, unknown: None, from: &[0] }
}

fn cases() -> Vec<Case> {
    let logprobs = |choice, json: &str| Delta::Logprobs { choice, json: json.into() };
    let failed = |code: &str| Delta::Error { code: code.into(), message: "it \"broke\"".into() };
    let reasoning = |text: &str| Delta::Reasoning { choice: 0, tokens: 3, text: text.into() };
    let null = r#","usage":"null""#;
    let short = vec![
        chat(null),
        text(0, "To"),
        text(0, " be"),
        finish(0, "stop"),
        usage(3, 0),
        Delta::Done,
    ];
    let two = vec![
        chat(r#","system_fingerprint":"f","usage":"none""#),
        text(0, "a\nb"),
        text(1, "语"),
        text(0, ""),
        finish(1, "length"),
        finish(0, "stop"),
        Delta::Done,
    ];
    let counted = vec![
        chat(r#","usage":"counts""#),
        usage(1, 0),
        text(0, "a"),
        usage(2, 1),
        finish(0, "stop"),
        usage(3, 1),
        Delta::Done,
    ];
    vec![
        Case { from: &[0, 2, 4, 6], ..case("a chat, with usage in the last chunk", short) },
        Case { from: &[0, 3, 4], ..case("two choices, without usage", two) },
        Case {
            from: &[0, 3],
            ..case("a text completion whose log probabilities wait for their text", {
                let logprobs = |choice| logprobs(choice, r#"{"tokens":["a"]}"#);
                let log =
                    vec![open("text_completion", ""), logprobs(1), text(0, "x"), text(1, "a")];
                [log, vec![finish(0, "stop"), finish(1, "stop"), Delta::Done]].concat()
            })
        },
        case(
            "reasoning, then a tool call in pieces",
            vec![
                chat(r#","usage":"null","obfuscation":false"#),
                reasoning("let me see"),
                call("call_1", "weather", ""),
                call("", "", r#"{"city":"#),
                call("", "", r#""Oslo"}"#),
                finish(0, "tool_calls"),
                usage(9, 3),
                Delta::Done,
            ],
        ),
        case(
            "a text completion with reasoning",
            vec![open("text_completion", null), reasoning("so"), text(0, "a"), Delta::Done],
        ),
        case("usage in every chunk, the last alone", counted),
        case(
            "usage in every chunk, which the last chunk carried",
            vec![
                chat(r#","usage":"counts""#),
                usage(1, 0),
                text(0, "a"),
                finish(0, "stop"),
                Delta::Done,
            ],
        ),
        case(
            "what else a chunk carried",
            vec![
                chat(null),
                other(r#"{"timings":{"prompt_ms":1.5}}"#),
                other(r#"{"choices":[{"index":0,"delta":{"refusal":"no"}}]}"#),
                text(0, "a"),
                finish(0, "stop"),
                Delta::Done,
            ],
        ),
        case(
            "progress, for a reader that asked for it",
            vec![
                chat(r#","usage":"null","progress":true"#),
                progress(2, 0),
                progress(0, 12),
                text(0, "a"),
                finish(0, "stop"),
                Delta::Done,
            ],
        ),
        case(
            "progress of a text completion, for a reader that did not ask",
            vec![
                open("text_completion", ""),
                progress(0, 12),
                text(0, "a"),
                finish(0, "stop"),
                Delta::Done,
            ],
        ),
        Case {
            unknown: Some(2),
            ..case("a record of an unknown kind", vec![chat(null), text(0, "a"), Delta::Done])
        },
        case("an answer that failed", vec![chat(null), text(0, "a"), failed("internal_error")]),
        case("an answer that failed without a code", vec![chat(null), failed("")]),
        case("an answer without text", vec![chat(null), finish(0, "stop"), Delta::Done]),
    ]
}

/// Kind 27, one that nobody will ever give a meaning (S-2.7), with three bytes.
const UNKNOWN: &[u8] = b"\x05\x0f\x1babc";

/// The log's bytes, and its records: where each ends, and what it says.
fn log(case: &Case) -> (Vec<u8>, Vec<(u64, Option<Delta>)>) {
    let (mut bytes, mut records) = (Vec::new(), Vec::new());
    for (at, delta) in case.deltas.iter().enumerate() {
        if case.unknown == Some(at) {
            bytes.extend_from_slice(UNKNOWN);
            records.push((bytes.len() as u64, None));
        }
        delta.encode(&mut bytes).expect("a short record");
        records.push((bytes.len() as u64, Some(delta.clone())));
    }
    assert_eq!(read(&bytes), records, "{}", case.name);
    (bytes, records)
}

fn read(log: &[u8]) -> Vec<(u64, Option<Delta>)> {
    let (mut at, mut records) = (0, Vec::new());
    while let Some((len, delta)) = Delta::decode(&log[at..]).expect("a good record") {
        at += len;
        records.push((at as u64, delta));
    }
    assert_eq!(at, log.len());
    records
}

/// The event stream of a reader that has the first `before` records: the writer goes on as if it
/// had written them.
fn event_stream(records: &[(u64, Option<Delta>)], before: usize) -> String {
    let (mut writer, mut out) = (ChunkWriter::new(), Vec::new());
    for (at, (end, delta)) in records.iter().enumerate() {
        if at == before {
            out.clear();
        }
        if let Some(delta) = delta {
            writer.write(Some(*end), delta, &mut out).expect("a good record");
        }
    }
    String::from_utf8(if before < records.len() { out } else { Vec::new() }).expect("text")
}

fn event_json(event: &str) -> Value {
    let (id, data) = match event.strip_prefix("id: ") {
        Some(rest) => rest.split_once('\n').map(|(id, data)| (id.parse::<u64>().ok(), data)),
        None => Some((None, event)),
    }
    .expect("an id has its own line");
    let data = data.strip_prefix("data: ").expect("one line of data");
    match data {
        "[DONE]" => json!({ "id": id, "data": data }),
        json => json!({ "id": id, "data": serde_json::from_str::<Value>(json).expect("JSON") }),
    }
}

fn case_json(case: &Case, before: usize) -> Value {
    let (bytes, records) = log(case);
    let from = before.checked_sub(1).map_or(0, |last| records[last].0);
    let stream = event_stream(&records, before);
    // Comments are no events (S-6.8).
    let events = stream.split_terminator("\n\n").filter(|event| !event.starts_with(':'));
    let events: Vec<_> = events.map(event_json).collect();
    let record = |(end, delta): &(u64, Option<Delta>)| json!({ "end": end, "delta": delta.as_ref().map(delta_json) });
    json!({
        "name": case.name, "log": hex(&bytes), "from": from, "events": events,
        "records": records.iter().map(record).collect::<Vec<_>>(),
    })
}

#[test]
fn events_are_what_the_file_says() {
    let all = cases();
    let each = all.iter().flat_map(|case| case.from.iter().map(|from| case_json(case, *from)));
    check("events.json", ABOUT, "session, version 1", &each.collect::<Vec<_>>());
}

#[test]
fn the_draft_shows_an_event_stream() {
    let all = cases();
    let (bytes, records) = log(&all[0]);
    let mut text =
        String::from("The bytes of a log's records, and the offset of each one's end:\n\n~~~\n");
    let mut from = 0;
    for (end, delta) in &records {
        let what = delta.as_ref().map_or("skipped", draft::record_name);
        let len = *end as usize - from;
        Dump::new(&mut text).bytes(&bytes[from..], len, &format!("{what}, up to {end}"));
        from = *end as usize;
    }
    text.push_str("~~~\n{: #event-stream-log title=\"A Log\"}\n\n");
    text.push_str(
        "The event stream of a reader without an offset; long lines are folded as in {{RFC8792}}:\n\n",
    );
    text.push_str("~~~\n===== NOTE: '\\' line wrapping per RFC 8792 =====\n\n");
    for line in event_stream(&records, 0).lines() {
        let _ = writeln!(text, "{}", draft::folded(line));
    }
    text.push_str("~~~\n{: #event-stream-events title=\"Its Event Stream\"}\n\n");
    let from = records[1].0;
    let _ = writeln!(
        text,
        "A reader that sends `Last-Event-ID: {from}` gets the same without the first two events. The event\n\
         without an id has the role: a reader that has seen it keeps the id before it, here none, and\n\
         gets the role again when it resumes from there."
    );
    draft::check_part("events.rs", &text);
}
