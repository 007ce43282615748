//! What a token costs as a chunk: `cargo run --release -p loquent-proto --example chunk_cost`.
//!
//! Prints nanoseconds per token for chat chunks of an event stream, the best of several rounds.

use std::hint::black_box;
use std::time::Instant;

use loquent_proto::Delta;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::obfuscation::Obfuscation;

const TOKENS: usize = 1_000_000;
const ROUNDS: usize = 9;
/// Events that a body gathers before they leave.
const FRAME_BYTES: usize = 16 * 1024;

fn main() {
    for (name, usage) in [("plain", "none"), ("with counts in every chunk", "counts")] {
        for (ids, offset) in [("no ids", None), ("ids", Some(123_456))] {
            let best = (0..ROUNDS).map(|_| round(usage, offset, None)).fold(f64::MAX, f64::min);
            println!("{best:6.1} ns per token, {name}, {ids}");
        }
    }
    let padded = || Some(Obfuscation::new(1, true));
    let best = (0..ROUNDS).map(|_| round("none", None, padded())).fold(f64::MAX, f64::min);
    println!("{best:6.1} ns per token, padded, no ids");
}

// The crate takes the time as an argument; an example that measures reads the clock itself.
#[expect(clippy::disallowed_methods)]
fn round(usage: &str, offset: Option<u64>, obfuscation: Option<Obfuscation>) -> f64 {
    let meta = format!(
        r#"{{"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk","created":1763800000,"model":"loquent-tiny","usage":"{usage}"}}"#
    );
    let (mut chunks, mut out) = (ChunkWriter::new(), Vec::new());
    if let Some(obfuscation) = obfuscation {
        chunks = chunks.obfuscate(obfuscation);
    }
    let texts = [" the", " quick", " brown", " fox", " jumps", " \"over\"", ",\n", " dog"];
    let tokens = texts.map(Delta::text);
    let counts = Delta::Usage { prompt: 20, completion: 300, cached: 0, reasoning: 0 };
    chunks.write(offset, &Delta::Open { meta }, &mut out).expect("the meta is valid");
    let start = Instant::now();
    for at in 0..TOKENS {
        if out.len() > FRAME_BYTES {
            black_box(&out);
            out.clear();
        }
        if usage == "counts" {
            chunks.write(offset, black_box(&counts), &mut out).expect("the log is open");
        }
        let token = black_box(&tokens[at % tokens.len()]);
        chunks.write(offset, token, &mut out).expect("the log is open");
    }
    start.elapsed().as_nanos() as f64 / TOKENS as f64
}
