//! What a fuzz target is. Each crate with targets includes this file by path (`src/fuzz.rs`),
//! because crates that must not know each other share it; so does the fuzzer.

/// A parser of bytes from outside, and what it may cost.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its folder in `fuzz/corpus`.
    pub name: &'static str,
    /// Parses the bytes; panics where something that the parser promises does not hold.
    pub run: fn(&[u8]),
    /// Most bytes on the heap at once for an empty input, in KiB.
    pub base_kib: usize,
    /// Most bytes on the heap at once for each byte of the input, in addition.
    pub per_byte: usize,
}

impl Target {
    /// Asserts that an input of `input_bytes` may hold `peak_bytes` of memory.
    ///
    /// # Panics
    /// If it is more than the target's bound.
    pub fn check_memory(&self, input_bytes: usize, peak_bytes: u64) {
        let most = (self.base_kib * 1024 + self.per_byte * input_bytes) as u64;
        let name = self.name;
        assert!(peak_bytes <= most, "{name}: {input_bytes} B took {peak_bytes} B, not {most} B");
    }
}

/// Cuts `input` into pieces, each behind a byte with its length: how bytes become a stream that
/// arrives in parts.
#[allow(dead_code, reason = "not every crate has targets that read streams")]
pub fn pieces(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = input;
    core::iter::from_fn(move || {
        let (&len, tail) = rest.split_first()?;
        let (piece, after) = tail.split_at(tail.len().min(usize::from(len)));
        rest = after;
        Some(piece)
    })
}

/// Runs every target over the inputs in its corpus.
///
/// # Panics
/// If a target has no corpus, breaks a promise, or takes more memory or time than it may.
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "it measures, in crates that never read a clock")]
pub fn run_corpora(targets: &[Target]) {
    /// No measure of speed, which the fuzzer has (1 s): only what never ends is found here.
    const LONGEST: std::time::Duration = std::time::Duration::from_secs(60);
    for target in targets {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/");
        let folder = std::path::Path::new(folder).join(target.name);
        let files = std::fs::read_dir(&folder);
        let files = files.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut inputs = vec![Vec::new()];
        inputs.extend(files.map(|file| std::fs::read(file.unwrap().path()).unwrap()));
        assert!(inputs.len() > 1, "{} is empty", folder.display());
        for input in inputs {
            let started = std::time::Instant::now();
            let cost = allocation_counter::measure(|| (target.run)(&input));
            target.check_memory(input.len(), cost.bytes_max);
            assert!(started.elapsed() < LONGEST, "{}: {} B", target.name, input.len());
        }
    }
}
