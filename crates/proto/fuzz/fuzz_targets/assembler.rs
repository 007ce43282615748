//! Any ranges in any order stay within the limits, and no delta comes twice.
#![no_main]

use libfuzzer_sys::fuzz_target;
use loquent_proto::{Assembler, AssemblerLimits};

fuzz_target!(|input: &[u8]| {
    let limits = AssemblerLimits { max_bytes: 1_000, max_ranges: 4 };
    let mut assembler = Assembler::new(0, limits);
    let mut cursor = 0;
    // Each range: offset (two bytes), length (one), bytes.
    let mut rest = input;
    while let [high, low, len, tail @ ..] = rest {
        let (bytes, after) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = after;
        let _ = assembler.insert(u64::from(u16::from_be_bytes([*high, *low])), bytes);
        while let Ok(Some((offset, _))) = assembler.poll() {
            assert!(offset > cursor);
            cursor = offset;
        }
        let waiting = (assembler.cumulative() - assembler.cursor()) as usize;
        assert!(waiting + assembler.held_bytes() <= limits.max_bytes);
        assert!(assembler.held().count() <= limits.max_ranges);
    }
});
