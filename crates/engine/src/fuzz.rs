//! Fuzz target of the engine: messages between stages.

use loquent_infer::sampling::Sampler;

use crate::staged::wire::{Dtype, RowFormat, StageMessage};

#[path = "../../../fuzz/target.rs"]
mod target;
pub use target::Target;

/// The targets of this crate.
pub const TARGETS: &[Target] =
    &[Target { name: "stage_message", run: stage_message, base_kib: 64, per_byte: 64 }];

/// A frame between stages is a message or malformed; a decoded message encodes to the same bytes.
fn stage_message(input: &[u8]) {
    let Some((&choice, frame)) = input.split_first() else { return };
    let dtypes = [Dtype::F32, Dtype::F16, Dtype::Q8];
    let dtype = dtypes[usize::from(choice) % dtypes.len()];
    let format = match choice & 0x80 {
        0 => RowFormat { dtype, width: 4, batch_tokens: 64 },
        _ => RowFormat::CLOSED,
    };
    let Ok(message) = StageMessage::decode(frame, &format) else { return };
    let bytes = |message: &StageMessage| {
        let mut bytes = Vec::new();
        message.encode(&format, &mut bytes);
        bytes
    };
    let written = bytes(&message);
    let again = StageMessage::decode(&written[4..], &format).expect("what was written");
    // The scale of 8-bit rows is chosen anew: no writer makes -128, and a reader takes it.
    let is_rounded = dtype == Dtype::Q8 && matches!(message, StageMessage::Rows(_));
    assert!(is_rounded || bytes(&again) == written, "{written:?}");
    if let StageMessage::Assign { sampler, .. } = message {
        let _ = Sampler::from(*sampler);
    }
}

#[test]
fn corpora() {
    target::run_corpora(TARGETS);
}
