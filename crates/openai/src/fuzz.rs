//! Fuzz targets of the client: data from other servers, and URLs written by users.

use crate::BaseUrl;
use crate::chunk::{ChunkEvent, error_message};

#[path = "../../../fuzz/target.rs"]
mod target;
pub use target::{Target, pieces};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "base_url", run: base_url, base_kib: 4, per_byte: 16 },
    Target { name: "upstream_chunk", run: upstream_chunk, base_kib: 16, per_byte: 600 },
];

/// A URL is either rejected, or its canonical form parses to the same URL.
fn base_url(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else { return };
    let Ok(url) = BaseUrl::parse(text) else { return };
    let (written, path) = (url.to_string(), http::Uri::from_static("/a/b?c"));
    assert!(!url.authority().contains('@') && !written.contains('?'), "{written}");
    assert!(url.join(&path).is_ok_and(|full| full.authority().is_some()), "{written}");
    let _ = (url.host(), url.is_https());
    // A port that is written is the one that is used.
    let written_port = url.authority().rsplit_once(':').map(|(_, port)| port);
    if let Some(port) = written_port.filter(|port| !port.is_empty() && !port.ends_with(']')) {
        assert_eq!(port.parse(), Ok(url.port()), "{written}");
    }
    let _ = url.without_suffix("/v2");
}

/// Any event of a stream is a chunk or is rejected; a chunk's records can be put into a log.
fn upstream_chunk(input: &[u8]) {
    match ChunkEvent::parse(input) {
        Ok(ChunkEvent::Chunk(chunk)) => {
            let mut log = Vec::new();
            for delta in &chunk.deltas {
                delta.encode(&mut log).expect("an event is shorter than a record may be");
            }
        }
        Ok(ChunkEvent::Failed(error)) => assert!(error_message(&error).chars().count() <= 300),
        Ok(ChunkEvent::Done) | Err(_) => {}
    }
}

#[test]
fn corpora() {
    target::run_corpora(TARGETS);
}
