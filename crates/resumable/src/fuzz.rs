//! Fuzz targets of this crate: what a shared store may hold of answers.

use redis::parse_redis_value;

use crate::shared::epochs::Epochs;
use crate::shared::kept_request::{ReplayableBody, decode};
use crate::shared::reply::{appended, found, read, taken};
use loquent_store::shared::reply::StoreReply;

#[path = "../../../fuzz/target.rs"]
mod target;
pub use target::Target;

/// Fuzz targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "kept_request", run: kept_request, base_kib: 16, per_byte: 600 },
    // The library reserves room for 4,096 values of each of 100 nested arrays before it reads them.
    Target { name: "store_reply", run: store_reply, base_kib: 64 * 1024, per_byte: 256 },
];

/// Every kept request that can be read is the same after it is stored again.
fn kept_request(input: &[u8]) {
    let Some(kept) = decode(input) else { return };
    let Some(body) = ReplayableBody::of(kept.endpoint, kept.fields.map()) else { return };
    let Some(again) = body.encode(&kept.marks) else { return };
    let again = decode(&again).expect("what is written can be read");
    assert_eq!(again.marks, kept.marks);
    assert_eq!(again.fields.map(), kept.fields.map());
}

/// A reply (RESP) is an error, or has values for as many logs as were asked for, within bounds.
fn store_reply(input: &[u8]) {
    const LOGS: usize = 2;
    const MOST_BYTES: usize = 64;
    let Ok(value) = parse_redis_value(input) else { return };
    let reply = || StoreReply(value.clone());
    if let Ok(all) = appended(reply(), LOGS) {
        assert_eq!(all.len(), LOGS);
    }
    if let Ok(all) = read(reply(), LOGS, MOST_BYTES) {
        assert_eq!(all.len(), LOGS);
        assert!(all.iter().map(|one| one.bytes.len()).sum::<usize>() <= MOST_BYTES);
        for one in all {
            assert_eq!(Epochs::parse(&one.epochs.to_text()), Some(one.epochs));
        }
    }
    let _ = (taken(reply(), MOST_BYTES), found(reply()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora() {
        target::run_corpora(TARGETS);
    }
}
