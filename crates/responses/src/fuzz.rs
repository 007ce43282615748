//! Fuzz targets of this crate: what a store may hold of responses.

use crate::stored::StoredResponse;

#[path = "../../../fuzz/target.rs"]
mod target;
pub use target::Target;

/// Fuzz targets of this crate.
pub const TARGETS: &[Target] =
    &[Target { name: "stored_response", run: stored_response, base_kib: 64, per_byte: 1024 }];

/// Every stored response that can be read has an object and an end, and is the same after it is
/// stored again.
fn stored_response(input: &[u8]) {
    let Some(read) = StoredResponse::decode(input) else { return };
    let request = read.request.clone();
    let ended = read.end_if_lost();
    assert!(ended.log.is_ended() && ended.object().is_object());
    let head = StoredResponse::encode_head(&ended.template, &ended.input, request.as_deref());
    let again = StoredResponse::decode(&StoredResponse::encode(&head, ended.log.bytes()));
    let again = again.expect("what is written can be read");
    assert_eq!((&again.input, again.log.bytes()), (&ended.input, ended.log.bytes()));
    assert_eq!(again.object(), ended.object());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora() {
        target::run_corpora(TARGETS);
    }
}
