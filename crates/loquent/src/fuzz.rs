//! Fuzz targets of the command line: files of earlier runs, the hub, and answers on a terminal.

use std::time::{Duration, SystemTime};

use crate::chat::{AnswerPart, Columns, Screen, Style};
use crate::connect::resume_store;
use crate::hub::HubSpec;
use crate::hub::listing::Listing;

#[path = "../../../fuzz/target.rs"]
mod target;
pub use target::{Target, pieces};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "hub_listing", run: hub_listing, base_kib: 16, per_byte: 600 },
    Target { name: "hub_spec", run: hub_spec, base_kib: 4, per_byte: 16 },
    Target { name: "resume_store", run: resume_store, base_kib: 16, per_byte: 600 },
    Target { name: "terminal", run: terminal, base_kib: 256, per_byte: 1000 },
];

/// No name in a listing may lead out of the target folder.
fn hub_listing(input: &[u8]) {
    let Ok(listing) = Listing::parse(input) else { return };
    assert!(listing.commit.bytes().all(|byte| byte.is_ascii_hexdigit()));
    for file in &listing.files {
        let steps = std::path::Path::new(&file.path).components();
        assert!(steps.into_iter().all(|step| matches!(step, std::path::Component::Normal(_))));
    }
}

/// A model's name on the hub is rejected, or parses to the same value after formatting.
fn hub_spec(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else { return };
    let Ok(spec) = text.parse::<HubSpec>() else { return };
    assert_eq!(spec.to_string().parse::<HubSpec>().expect("as it was written"), spec);
}

/// Any file is accepted; unreadable entries are dropped.
fn resume_store(input: &[u8]) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let answers = resume_store::parse(&String::from_utf8_lossy(input), now);
    assert!(answers.len() <= resume_store::MAX_ANSWERS);
}

/// A terminal must not receive control characters of an answer, however the answer is cut.
fn terminal(input: &[u8]) {
    let show = |columns| {
        let mut out = Vec::new();
        let style = Style { terminal: true, colour: false, columns };
        let mut screen = Screen::new(&mut out, style);
        for piece in pieces(input) {
            screen.answer(&String::from_utf8_lossy(piece)).expect("memory takes everything");
        }
        screen.error(&String::from_utf8_lossy(input)).expect("memory takes everything");
        String::from_utf8(out).expect("text")
    };
    let _ = render(input, 7);
    let rendered = render(input, 40);
    // What it writes besides text: the looks of text, and where rows are rewritten.
    let orders = ["m", "A", "J"];
    for sequence in rendered.split("\x1b").skip(1) {
        let order = sequence.strip_prefix('[').and_then(|it| it.find(char::is_alphabetic));
        let order = order.map(|at| &sequence[at + 1..at + 2]);
        assert!(order.is_some_and(|order| orders.contains(&order)), "{sequence:?}");
    }
    let harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
    assert!(!show(Columns::Unlimited).contains(harmful));
    let _ = show(Columns::Fixed(7));
}

/// Returns the terminal output of an answer with rendered Markdown.
fn render(input: &[u8], columns: usize) -> String {
    let mut out = Vec::new();
    let style = Style { terminal: true, colour: true, columns: Columns::Fixed(columns) };
    let mut screen = Screen::new(&mut out, style).with_markdown();
    for (index, piece) in pieces(input).enumerate() {
        let text = String::from_utf8_lossy(piece);
        let part = match index % 8 {
            6 => AnswerPart::Reasoning(&text),
            7 => AnswerPart::Call { index: 0, name: &text, arguments: &text },
            _ => AnswerPart::Text(&text),
        };
        screen.show(part).expect("memory takes everything");
    }
    screen.end_line().expect("memory takes everything");
    String::from_utf8(out).expect("text")
}

#[test]
fn corpora() {
    target::run_corpora(TARGETS);
}
