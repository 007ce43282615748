//! Fuzz targets of the simulator: plans and captures written by others.

use crate::channel::Channel;
use crate::plan::Plan;
use crate::trace;

#[path = "../../../fuzz/target.rs"]
mod target;
pub use target::Target;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    // A capture's text is put together in memory, up to 64 MiB.
    Target { name: "capture", run: capture, base_kib: 256 * 1024, per_byte: 4096 },
    Target { name: "plan", run: plan, base_kib: 256, per_byte: 1024 },
];

/// Any capture is read as far as possible, or rejected; a trace that was read can be shown and
/// replayed.
fn capture(input: &[u8]) {
    let source = std::io::Cursor::new(input.to_vec());
    let Ok(trace) = trace::read_from("capture", source, None) else { return };
    assert!(!trace.packets.is_empty() && (0.0..=1.0).contains(&trace.loss));
    let channel = trace.channel();
    // Longer than a simulation may be, it is refused when it is to be replayed.
    let is_long = matches!(&channel, Channel::Trace { length_ms, .. } if *length_ms > 1e7);
    assert!(is_long || channel.fault().is_none(), "{channel:?}");
    assert!(!trace.table().is_empty());
}

/// Any text is a plan or rejected; a serialized plan parses to the same plan.
fn plan(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else { return };
    let Ok(plan) = Plan::parse("plan", text) else { return };
    let written = toml::to_string(&plan).expect("what was read can be written");
    let again = Plan::parse("again", &written).expect("a plan");
    // As text, since a plan may have NaN, which equals nothing.
    assert_eq!(toml::to_string(&again).expect("a plan"), written);
    for case in &plan.case {
        assert_eq!(plan.generator(case).fault(), None);
    }
}

#[test]
fn corpora() {
    target::run_corpora(TARGETS);
}
