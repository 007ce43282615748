//! Measures the limits of this machine: memory bandwidth and multiplication throughput.
//!
//! Measured, not looked up: a virtual machine reveals little about its memory, and clock rates
//! depend on the instructions in use. Every figure is the best of some short rounds, since other
//! work on the machine can only lower it.

use std::num::NonZeroU16;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Minimum memory read for the bandwidth, far more than caches of processors today.
const LEAST_BYTES: usize = 256 << 20;
/// Maximum memory read for the bandwidth.
const MOST_BYTES: usize = 1 << 30;
/// Memory to read, as a multiple of the largest cache: with eight, at most an eighth of a pass
/// finds data that the previous pass left in the cache.
const CACHES: usize = 8;
/// Rounds for each figure; the best counts.
const ROUNDS: usize = 3;

/// Multiply-add throughput of one kind of instructions, all threads together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MultiplyPeak {
    /// Usual name of the instruction set, for example `AVX-512 VNNI`.
    pub name: &'static str,
    /// Products of two numbers, each added to a sum, per second.
    pub per_s: f64,
}

/// Limits of this machine with a given number of threads.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineLimits {
    /// Bytes of memory read per second, from arrays far larger than the caches.
    pub read_bytes_per_s: f64,
    /// Products of 8-bit integers, by the instruction sets of this processor; the kernels of
    /// quantised weights use one of them. Empty if none is known.
    pub int8: Vec<MultiplyPeak>,
    /// Products of 32-bit floats with the widest registers, which attention uses.
    pub float: Option<MultiplyPeak>,
    /// True if the processor has AMX tiles of 8-bit integers. They are measured as `AMX` if Linux
    /// allows this process to use them.
    pub has_amx: bool,
}

impl MachineLimits {
    /// Highest throughput of products of 8-bit integers.
    pub fn best_int8(&self) -> Option<MultiplyPeak> {
        self.int8.iter().copied().max_by(|one, other| one.per_s.total_cmp(&other.per_s))
    }
}

/// Measures the limits of this machine for `threads` threads; each round of each figure takes
/// `round`. Calls `over` before every round, and returns `None` once it returns true.
pub fn machine_limits(
    threads: NonZeroU16,
    round: Duration,
    over: &dyn Fn() -> bool,
) -> Option<MachineLimits> {
    let threads = usize::from(threads.get());
    let peak = |loops: &Loops| {
        let per_s = best(over, || rate(threads, round, &|| (loops.run)(loops.times)))?;
        Some(MultiplyPeak { name: loops.name, per_s: per_s * loops.products() })
    };
    let int8: Option<Vec<_>> = int8_loops().iter().map(peak).collect();
    let float = match float_loops() {
        Some(loops) => Some(peak(&loops)?),
        None => None,
    };
    let read_bytes_per_s = read_bandwidth(threads, round, over)?;
    let has_amx = loquent_kernels::amx::is_there();
    Some(MachineLimits { read_bytes_per_s, int8: int8?, float, has_amx })
}

/// Returns the best of some rounds.
fn best(over: &dyn Fn() -> bool, mut round: impl FnMut() -> f64) -> Option<f64> {
    let mut best: f64 = 0.0;
    for _ in 0..ROUNDS {
        if over() {
            return None;
        }
        best = best.max(round());
    }
    Some(best)
}

/// Executions of `work` per second by all threads together.
fn rate(threads: usize, time: Duration, work: &(dyn Fn() + Sync)) -> f64 {
    let together = Barrier::new(threads);
    let count = || {
        together.wait();
        let (began, mut done) = (Instant::now(), 0.0);
        while began.elapsed() < time {
            work();
            done += 1.0;
        }
        done / began.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(count)).collect();
        count() + others.into_iter().map(|one| one.join().expect("it only counts")).sum::<f64>()
    })
}

/// Bytes read per second, by all threads from parts of one array.
fn read_bandwidth(threads: usize, time: Duration, over: &dyn Fn() -> bool) -> Option<f64> {
    let bytes = array_bytes();
    // Written once: untouched pages would all be one page of zeros.
    let array: Vec<u64> = (0..bytes as u64 / 8).collect();
    let parts: Vec<&[u64]> = array.chunks(array.len().div_ceil(threads)).collect();
    best(over, || {
        let together = Barrier::new(parts.len());
        let read = |part: &[u64]| {
            together.wait();
            let (began, mut passes) = (Instant::now(), 0.0);
            while began.elapsed() < time {
                std::hint::black_box(sum(part));
                passes += 1.0;
            }
            passes * size_of_val(part) as f64 / began.elapsed().as_secs_f64()
        };
        let read = &read;
        std::thread::scope(|scope| {
            let all: Vec<_> = parts.iter().map(|part| scope.spawn(move || read(part))).collect();
            all.into_iter().map(|one| one.join().expect("it only adds")).sum()
        })
    })
}

/// Sums all numbers, in as many sums as vector registers can hold.
fn sum(numbers: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for numbers in numbers.as_chunks::<32>().0 {
        for (sum, number) in sums.iter_mut().zip(numbers) {
            *sum = sum.wrapping_add(*number);
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

/// Bytes of the array for the bandwidth: far more than the largest cache, and at most a quarter of
/// the free memory.
fn array_bytes() -> usize {
    let wanted = (CACHES * largest_cache()).clamp(LEAST_BYTES, MOST_BYTES);
    let free = super::available_bytes().and_then(|bytes| usize::try_from(bytes / 4).ok());
    wanted.min(free.unwrap_or(wanted)).max(1 << 20)
}

/// Size of the first processor's largest cache in bytes; 0 if the system does not report it.
fn largest_cache() -> usize {
    let size = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib << 10)
    };
    (0..8).filter_map(size).max().unwrap_or(0)
}

/// A loop of multiplications.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no loops there"))]
struct Loops {
    name: &'static str,
    /// Runs the loop this many times.
    run: fn(usize),
    times: usize,
    /// Products per register.
    lanes: usize,
}

impl Loops {
    #[cfg(target_arch = "x86_64")]
    fn new(name: &'static str, run: fn(usize), lanes: usize) -> Self {
        // Some microseconds: long beside a look at the clock, short beside a round.
        Self { name, run, times: 4_096, lanes }
    }

    fn products(&self) -> f64 {
        (self.times * self.lanes * SUMS) as f64
    }
}

/// Number of sums that are added to in turn: enough to hide the latency of an instruction, few
/// enough to stay in sixteen registers with their operands.
const SUMS: usize = 12;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use loquent_kernels::amx;

    use super::{Loops, SUMS};

    /// Defines a loop whose every step is one multiplication of whole registers for each of the
    /// sums. The operands are hidden from the compiler, which would otherwise evaluate the loop
    /// itself.
    macro_rules! multiply_loop {
        ($name:ident, $features:literal, $zero:expr, $operand:expr, $step:expr) => {
            fn $name(times: usize) {
                #[target_feature(enable = $features)]
                fn run(times: usize) {
                    let mut sums = [$zero; SUMS];
                    let operand = black_box($operand);
                    for _ in 0..times {
                        for sum in &mut sums {
                            *sum = $step(*sum, operand);
                        }
                    }
                    black_box(sums);
                }
                // SAFETY: offered only where the processor has these instructions.
                unsafe { run(times) }
            }
        };
    }

    multiply_loop!(
        avx512_vnni,
        "avx512f,avx512vnni",
        _mm512_setzero_si512(),
        _mm512_set1_epi8(3),
        |sum, operand| _mm512_dpbusd_epi32(sum, operand, operand)
    );
    multiply_loop!(
        avx_vnni,
        "avx2,avxvnni",
        _mm256_setzero_si256(),
        _mm256_set1_epi8(3),
        |sum, operand| _mm256_dpbusd_avx_epi32(sum, operand, operand)
    );
    multiply_loop!(
        avx2,
        "avx2",
        _mm256_setzero_si256(),
        _mm256_set1_epi8(3),
        // Pairs of products, pairs of pairs, and the sum: what one instruction does with VNNI. The
        // operand changes with the sum, or the products would be computed once for all.
        |sum, operand| {
            let products = _mm256_maddubs_epi16(operand, _mm256_or_si256(operand, sum));
            _mm256_add_epi32(sum, _mm256_madd_epi16(products, operand))
        }
    );
    multiply_loop!(
        avx512_float,
        "avx512f",
        _mm512_setzero_ps(),
        _mm512_set1_ps(0.5),
        |sum, operand| _mm512_fmadd_ps(sum, operand, operand)
    );
    multiply_loop!(
        avx2_float,
        "avx2,fma",
        _mm256_setzero_ps(),
        _mm256_set1_ps(0.5),
        |sum, operand| _mm256_fmadd_ps(sum, operand, operand)
    );

    pub(super) fn int8_loops() -> Vec<Loops> {
        let mut loops = Vec::new();
        if amx::is_usable() {
            // As many products of tiles as there are of registers in the other loops.
            let run = |times| amx::multiply_full_tiles(times * SUMS / 4);
            loops.push(Loops { times: 256, ..Loops::new("AMX", run, amx::FULL_PRODUCTS) });
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
            loops.push(Loops::new("AVX-512 VNNI", avx512_vnni, 64));
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni") {
            loops.push(Loops::new("AVX-VNNI", avx_vnni, 32));
        }
        if is_x86_feature_detected!("avx2") {
            loops.push(Loops::new("AVX2", avx2, 32));
        }
        loops
    }

    pub(super) fn float_loops() -> Option<Loops> {
        if is_x86_feature_detected!("avx512f") {
            Some(Loops::new("AVX-512", avx512_float, 16))
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            Some(Loops::new("AVX2", avx2_float, 8))
        } else {
            None
        }
    }
}

#[cfg(target_arch = "x86_64")]
use x86::{float_loops, int8_loops};

#[cfg(not(target_arch = "x86_64"))]
fn int8_loops() -> Vec<Loops> {
    Vec::new()
}

#[cfg(not(target_arch = "x86_64"))]
fn float_loops() -> Option<Loops> {
    None
}

#[cfg(test)]
mod tests {
    //! Checks that every limit is measured, and that `over` ends the measurement; no figures.
    use super::*;

    #[test]
    fn every_limit_is_measured() {
        let limits = machine_limits(NonZeroU16::MIN, Duration::from_millis(1), &|| false).unwrap();
        assert!(limits.read_bytes_per_s > 0.0 && limits.read_bytes_per_s.is_finite());
        for peak in limits.int8.iter().chain(&limits.float) {
            assert!(peak.per_s > 0.0 && peak.per_s.is_finite(), "{peak:?}");
        }
        let best = limits.best_int8().map_or(0.0, |peak| peak.per_s);
        assert!(limits.int8.iter().all(|peak| peak.per_s <= best));
    }

    #[test]
    fn nothing_is_measured_when_the_time_is_over() {
        assert_eq!(machine_limits(NonZeroU16::MIN, Duration::from_secs(60), &|| true), None);
    }
}
