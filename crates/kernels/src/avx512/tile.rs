//! Tiles: a block of sixteen weight rows in registers in which each lane belongs to a row.
//!
//! Sixteen rows of weights are read together, a block at a time: a register then has four
//! successive weights of each row, and its product with the same four activations, repeated in
//! every lane, adds to sixteen sums at once.

use std::arch::x86_64::*;

use super::{ActivationBlock, GROUPS, LANES};
use crate::BLOCK;

/// One block of sixteen rows: weight = scale * quant - min.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Tile {
    /// Quants as unsigned bytes: lane `r` of register `i` has numbers `4 i` to `4 i + 3` of row
    /// `r`.
    pub(super) quants: [__m512i; BLOCK / 4],
    /// A scale for every 32 (or, of formats with halves, sixteen) weights; the bits of an integer
    /// in formats with grids.
    pub(super) scales: [__m512; GROUPS],
    /// Minima of Q4_K and Q5_K (four) and Q2_K (eight) as pairs of 16-bit integers, in the order
    /// of [`super::ActivationBlock::sums`].
    pub(super) mins: [__m512i; MIN_PAIRS],
    /// Multiplier of the minima or, of scales that are integers, of the scales.
    pub(super) unit: __m512,
    /// Minima of every 32 weights of Q5_1 and Q4_1, which are added: weight = scale * quant + min.
    pub(super) fine_mins: [__m512; FINE_UNITS],
}

/// Blocks of 32 weights that are processed together: as many weights as a block of activations has.
pub(super) const FINE_UNITS: usize = GROUPS / 2;

/// Number of prefetches while a block is multiplied with few rows. More often was slower.
pub(super) const CALLS: usize = 4;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Maximum pairs of minima.
const MIN_PAIRS: usize = GROUPS / 2;

impl Tile {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn zero() -> Self {
        let (floats, integers) = (_mm512_setzero_ps(), _mm512_setzero_si512());
        Self {
            quants: [integers; BLOCK / 4],
            scales: [floats; GROUPS],
            mins: [integers; MIN_PAIRS],
            unit: floats,
            fine_mins: [floats; FINE_UNITS],
        }
    }

    /// Returns the scale of group `group` and, of Q5_1 and Q4_1, its minimum.
    #[inline]
    pub(super) fn group(&self, group: usize) -> [__m512; 2] {
        [self.scales[group], self.fine_mins[group % FINE_UNITS]]
    }

    /// Subtracts the minima, `PAIRS` pairs, each multiplied with the sum of its group's
    /// activations.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn less_minima<const PAIRS: usize>(
        &self,
        sum: __m512,
        activations: &ActivationBlock,
    ) -> __m512 {
        let mut minima = _mm512_setzero_si512();
        for (mins, sums) in self.mins[..PAIRS].iter().zip(activations.sums) {
            minima = _mm512_dpwssd_epi32(minima, *mins, _mm512_set1_epi32(sums));
        }
        _mm512_fnmadd_ps(_mm512_cvtepi32_ps(minima), self.unit, sum)
    }
}

/// Rows of weights whose product is computed together: `W` times sixteen.
#[derive(Clone, Copy)]
pub(super) struct WeightRows {
    /// The first row.
    pub(super) start: *const u8,
    pub(super) row_bytes: usize,
    pub(super) blocks: usize,
    /// Bytes of the last block, which may be incomplete.
    pub(super) last_bytes: usize,
    /// Memory that is read after these rows, to be prefetched meanwhile.
    pub(super) next: *const u8,
}

impl WeightRows {
    /// Returns block `block` of sixteen rows, and the memory to prefetch meanwhile, with the pieces
    /// of each of `calls` calls.
    pub(super) fn block(
        &self,
        block: usize,
        block_bytes: usize,
        calls: usize,
    ) -> (RowBlocks, Prefetch, usize) {
        let start = self.start.wrapping_add(block * block_bytes);
        let ahead = self.ahead(block, block_bytes, LANES, CacheLevel::Second);
        let pieces = ahead.share(calls);
        (RowBlocks { start, row_bytes: self.row_bytes }, ahead, pieces)
    }

    /// Returns the prefetch of block `block` of the next `rows` rows.
    pub(super) fn ahead(
        &self,
        block: usize,
        block_bytes: usize,
        rows: usize,
        level: CacheLevel,
    ) -> Prefetch {
        let at = self.next.wrapping_add(block * block_bytes);
        Prefetch { at, distance: self.row_bytes, bytes: block_bytes, left: rows, level }
    }
}

/// Registers of the longest block: 272 bytes.
const FILLED_REGISTERS: usize = 5;

/// The beginning of a row's block, and zeros.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct FilledRow([__m512i; FILLED_REGISTERS]);

/// The same block of sixteen rows, in memory.
#[derive(Clone, Copy)]
pub(super) struct RowBlocks {
    /// Block of the first row.
    pub(super) start: *const u8,
    /// Bytes from a row to the next.
    pub(super) row_bytes: usize,
}

impl RowBlocks {
    #[inline]
    pub(super) fn row(self, row: usize) -> *const u8 {
        self.start.wrapping_add(row * self.row_bytes)
    }

    /// Returns a copy of the first `bytes` bytes of each row, padded with zeros, for an incomplete
    /// block.
    ///
    /// # Safety
    /// All sixteen rows have these bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn filled(self, bytes: usize) -> [FilledRow; LANES] {
        let mut filled = [FilledRow([_mm512_setzero_si512(); FILLED_REGISTERS]); LANES];
        for (row, filled) in filled.iter_mut().enumerate() {
            for (i, piece) in filled.0.iter_mut().enumerate() {
                let left = bytes.saturating_sub(64 * i).min(64) as u32;
                let mask = u64::MAX.checked_shr(64 - left).unwrap_or(0);
                let at = self.row(row).wrapping_add(64 * i);
                // SAFETY: only the bytes of the mask are read, which the row has by the caller.
                *piece = unsafe { _mm512_maskz_loadu_epi8(mask, at.cast()) };
            }
        }
        filled
    }

    /// Returns sixteen 32-bit words of each row from byte `at` on, as columns: lane `r` of register
    /// `i` is word `i` of row `r`.
    ///
    /// # Safety
    /// All sixteen rows have these 64 bytes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn columns(self, at: usize) -> [__m512i; LANES] {
        let mut rows = [_mm512_setzero_si512(); LANES];
        for (i, row) in rows.iter_mut().enumerate() {
            // SAFETY: the caller guarantees that the row has 64 readable bytes from `at` on.
            *row = unsafe { _mm512_loadu_si512(self.row(i).add(at).cast()) };
        }
        transposed(rows)
    }

    /// Returns four words of each row from byte `at` on, as columns.
    ///
    /// # Safety
    /// All sixteen rows have these sixteen bytes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn four_columns(self, at: usize) -> [__m512i; 4] {
        let mut rows = [_mm512_setzero_si512(); 4];
        for (i, rows) in rows.iter_mut().enumerate() {
            // SAFETY: the caller guarantees that the row has sixteen readable bytes from `at` on.
            let words = |row: usize| unsafe { _mm_loadu_si128(self.row(row).add(at).cast()) };
            // Rows four apart in one register: in each 128 bits four successive rows meet below.
            let low = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(words(i)), words(i + 4));
            let high = _mm512_inserti32x4::<2>(low, words(i + 8));
            *rows = _mm512_inserti32x4::<3>(high, words(i + 12));
        }
        crossed(rows)
    }

    /// Returns eight words of each row from byte `at` on, as columns.
    ///
    /// # Safety
    /// All sixteen rows have these 32 bytes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn eight_columns(self, at: usize) -> [__m512i; 8] {
        // SAFETY: passed on from the caller.
        let [[a, b, c, d], [e, f, g, h]] =
            unsafe { [self.four_columns(at), self.four_columns(at + 16)] };
        [a, b, c, d, e, f, g, h]
    }

    /// Returns a 16-bit float of each row at byte `at`.
    ///
    /// # Safety
    /// All sixteen rows have these two bytes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn halves(self, at: usize) -> __m512 {
        let mut halves = [0u16; LANES];
        for (i, half) in halves.iter_mut().enumerate() {
            // SAFETY: the caller guarantees that the row has two readable bytes at `at`; they need
            // no alignment.
            *half = unsafe { self.row(i).add(at).cast::<u16>().read_unaligned() };
        }
        // SAFETY: `halves` is an array of sixteen 16-bit integers, 32 bytes.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(halves.as_ptr().cast()) })
    }

    /// Returns two successive 16-bit floats of each row from byte `at` on.
    ///
    /// # Safety
    /// All sixteen rows have these four bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn two_halves(self, at: usize) -> [__m512; 2] {
        let mut words = [0u32; LANES];
        for (i, word) in words.iter_mut().enumerate() {
            // SAFETY: the caller guarantees that the row has four readable bytes at `at`; they
            // need no alignment.
            *word = unsafe { self.row(i).add(at).cast::<u32>().read_unaligned() };
        }
        // SAFETY: `words` is an array of sixteen 32-bit integers.
        let words = unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
        let order: [u16; 32] = const { halves_apart() };
        // SAFETY: `order` is an array of 32 16-bit integers.
        let order = unsafe { _mm512_loadu_si512(order.as_ptr().cast()) };
        let apart = _mm512_permutexvar_epi16(order, words);
        let [low, high] = [_mm512_castsi512_si256(apart), _mm512_extracti64x4_epi64::<1>(apart)];
        [_mm512_cvtph_ps(low), _mm512_cvtph_ps(high)]
    }

    /// Returns the byte of each row at byte `at`, as integers.
    ///
    /// # Safety
    /// All sixteen rows have this byte.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn bytes(self, at: usize) -> __m512i {
        let mut bytes = [0u8; LANES];
        for (i, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: the caller guarantees that the row has a readable byte at `at`.
            *byte = unsafe { *self.row(i).add(at) };
        }
        // SAFETY: `bytes` is an array of sixteen bytes.
        _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
    }
}

/// Returns the order in which the lower halves of sixteen words come before their upper halves.
const fn halves_apart() -> [u16; 2 * LANES] {
    let mut order = [0; 2 * LANES];
    let mut i = 0;
    while i < order.len() {
        order[i] = (2 * (i % LANES) + i / LANES) as u16;
        i += 1;
    }
    order
}

/// Transposes squares of four words, in each 128 bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn crossed([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab_low, cd_low),
        _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Transposes a square of sixteen words by sixteen.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    // In each 128 bits of `squares[i][j]`: word 4 q + j, where q is their place, of the rows 4 i
    // to 4 i + 3. Plain loops: a closure given to the library's functions would not be inlined.
    let mut squares = [[_mm512_setzero_si512(); 4]; 4];
    for (square, rows) in squares.iter_mut().zip(rows.as_chunks::<4>().0) {
        *square = crossed(*rows);
    }
    let mut columns = [_mm512_setzero_si512(); LANES];
    for j in 0..4 {
        let [a, b, c, d] = [squares[0][j], squares[1][j], squares[2][j], squares[3][j]];
        let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (even2, odd2) =
            (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        columns[j] = _mm512_shuffle_i32x4::<0x88>(even, even2);
        columns[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd, odd2);
        columns[8 + j] = _mm512_shuffle_i32x4::<0xdd>(even, even2);
        columns[12 + j] = _mm512_shuffle_i32x4::<0xdd>(odd, odd2);
    }
    columns
}

/// Prefetches memory that is needed soon, piece by piece: as it will be read, a block of each row
/// after the other. Row by row, the first blocks of the last rows would come too late. A processor
/// accepts few prefetches at a time and drops the rest, so they are spread over the work.
pub(super) struct Prefetch {
    /// The next piece.
    at: *const u8,
    /// Bytes from a piece to the next.
    distance: usize,
    /// Bytes of a piece.
    bytes: usize,
    /// Number of pieces not prefetched yet.
    left: usize,
    level: CacheLevel,
}

/// Cache level for prefetching. Fewer lines can be in flight to the first level than to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheLevel {
    First,
    Second,
}

impl Prefetch {
    /// Creates a prefetch of `bytes` from `at` on, in lines. They may be beyond the weights:
    /// prefetching unmapped memory has no effect.
    pub(super) fn lines(at: *const u8, bytes: usize) -> Self {
        let level = CacheLevel::Second;
        Self { at, distance: LINE, bytes: LINE, left: bytes.div_ceil(LINE), level }
    }

    /// Number of pieces for each of `times` calls, so that all are prefetched.
    pub(super) fn share(&self, times: usize) -> usize {
        self.left.div_ceil(times)
    }

    /// Prefetches the next `pieces` pieces.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn pieces(&mut self, pieces: usize) {
        let pieces = pieces.min(self.left);
        self.left -= pieces;
        for _ in 0..pieces {
            let end = self.at.wrapping_add(self.bytes);
            let mut line = self.at.map_addr(|at| at & !(LINE - 1));
            while line < end {
                match self.level {
                    CacheLevel::First => _mm_prefetch::<_MM_HINT_T0>(line.cast()),
                    CacheLevel::Second => _mm_prefetch::<_MM_HINT_T1>(line.cast()),
                }
                line = line.wrapping_add(LINE);
            }
            self.at = self.at.wrapping_add(self.distance);
        }
    }
}

/// Returns byte `i` of every word, as integers.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn byte(words: __m512i, i: usize) -> __m512i {
    let low = _mm512_set1_epi32(0xff);
    match i {
        0 => _mm512_and_si512(words, low),
        1 => _mm512_and_si512(_mm512_srli_epi32::<8>(words), low),
        2 => _mm512_and_si512(_mm512_srli_epi32::<16>(words), low),
        _ => _mm512_srli_epi32::<24>(words),
    }
}

/// Returns the lower four bits of every byte.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn low(bytes: __m512i) -> __m512i {
    _mm512_and_si512(bytes, _mm512_set1_epi32(0x0f0f_0f0f))
}

/// Returns the upper four bits of every byte.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn high(bytes: __m512i) -> __m512i {
    low(_mm512_srli_epi32::<4>(bytes))
}

/// Values of nibbles, as bytes around 128, in each 128 bits.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn table(values: [i8; 16]) -> __m512i {
    // SAFETY: `values` is an array of sixteen bytes.
    let values = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
    let sign = _mm512_set1_epi32(0x8080_8080u32 as i32);
    _mm512_xor_si512(_mm512_broadcast_i32x4(values), sign)
}
