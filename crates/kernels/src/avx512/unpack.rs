//! Unpacks ggml's block formats to registers in which each lane belongs to a row.
//!
//! Sixteen rows of weights are unpacked together, a block at a time: a register then has four
//! successive weights of each row, and its product with the same four activations, repeated in
//! every lane, adds to sixteen sums at once.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::{ActivationBlock, GROUPS, LANES};
use crate::BLOCK;
use crate::weight_format::{IQ4_VALUES, MXFP4_VALUES};

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

/// Maximum pairs of minima.
const MIN_PAIRS: usize = GROUPS / 2;

/// Blocks of 32 weights that are processed together.
pub(super) const FINE_UNITS: usize = GROUPS / 2;

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
    /// Returns block `block` of sixteen rows, and the memory to prefetch meanwhile, with the lines
    /// of each of `calls` calls.
    pub(super) fn block(
        &self,
        block: usize,
        block_bytes: usize,
        calls: usize,
    ) -> (RowBlocks, Prefetch, usize) {
        let start = self.start.wrapping_add(block * block_bytes);
        let bytes = LANES * block_bytes;
        let ahead = Prefetch::new(self.next.wrapping_add(block * bytes), bytes, CacheLevel::Second);
        let lines = ahead.share(calls);
        (RowBlocks { start, row_bytes: self.row_bytes }, ahead, lines)
    }
}

/// Room for eight blocks of `WORDS` words of sixteen rows.
pub(super) type UnitWords<const WORDS: usize> = MaybeUninit<[[__m512i; WORDS]; FINE_UNITS]>;

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

    /// Returns the first `units` of eight blocks of `WORDS` words of each row, as columns, in
    /// `room`: word `w` of block `u` is number `[u][w]`.
    ///
    /// # Safety
    /// All sixteen rows have these `units` blocks; nothing beyond them is read.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn unit_words<const WORDS: usize>(
        self,
        units: usize,
        room: &mut UnitWords<WORDS>,
    ) -> &[[__m512i; WORDS]] {
        assert!(units <= FINE_UNITS);
        // Pieces of a known length are written without a call.
        let pieces = room.as_mut_ptr().cast::<[__m512i; FINE_UNITS]>();
        let wanted = WORDS * units;
        for (square, first) in (0..wanted).step_by(LANES).enumerate() {
            let mask = (u32::MAX >> (32 - (wanted - first).min(LANES))) as __mmask16;
            let mut rows = [_mm512_setzero_si512(); LANES];
            for (row, words) in rows.iter_mut().enumerate() {
                let at = self.row(row).wrapping_add(64 * square);
                // SAFETY: only the words of the mask are read, which the row has by the caller.
                *words = unsafe { _mm512_maskz_loadu_epi32(mask, at.cast()) };
            }
            for (half, columns) in transposed(rows).as_chunks().0.iter().enumerate() {
                let piece = 2 * square + half;
                if piece < WORDS {
                    // SAFETY: there is room for `WORDS` pieces.
                    unsafe { pieces.add(piece).write(*columns) }
                }
            }
        }
        // SAFETY: the words of these units were written.
        unsafe { std::slice::from_raw_parts(room.as_ptr().cast(), units) }
    }

    /// Returns four words of each row from byte `at` on, as columns.
    ///
    /// # Safety
    /// All sixteen rows have these sixteen bytes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn four_columns(self, at: usize) -> [__m512i; 4] {
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
    #[target_feature(enable = "avx512f")]
    unsafe fn two_halves(self, at: usize) -> [__m512; 2] {
        let mut words = [0u32; LANES];
        for (i, word) in words.iter_mut().enumerate() {
            // SAFETY: the caller guarantees that the row has four readable bytes at `at`; they
            // need no alignment.
            *word = unsafe { self.row(i).add(at).cast::<u32>().read_unaligned() };
        }
        // SAFETY: `words` is an array of sixteen 32-bit integers.
        let words = unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
        let half = |words: __m512i| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
        [half(words), half(_mm512_srli_epi32::<16>(words))]
    }

    /// Returns the byte of each row at byte `at`, as integers.
    ///
    /// # Safety
    /// All sixteen rows have this byte.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn bytes(self, at: usize) -> __m512i {
        let mut bytes = [0u8; LANES];
        for (i, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: the caller guarantees that the row has a readable byte at `at`.
            *byte = unsafe { *self.row(i).add(at) };
        }
        // SAFETY: `bytes` is an array of sixteen bytes.
        _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
    }
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

/// Prefetches memory that is needed soon, line by line. A processor accepts few prefetches at a
/// time and drops the rest, so they are spread over the work.
pub(super) struct Prefetch {
    at: *const u8,
    /// Number of lines not prefetched yet.
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
    /// Creates a prefetch of `bytes` from `at` on. They may be beyond the weights: prefetching
    /// unmapped memory has no effect.
    pub(super) fn new(at: *const u8, bytes: usize, level: CacheLevel) -> Self {
        Self { at, left: bytes.div_ceil(64), level }
    }

    /// Number of lines for each of `times` calls, so that all are prefetched.
    pub(super) fn share(&self, times: usize) -> usize {
        self.left.div_ceil(times)
    }

    /// Prefetches the next `lines` lines.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn lines(&mut self, lines: usize) {
        let lines = lines.min(self.left);
        self.left -= lines;
        for _ in 0..lines {
            match self.level {
                CacheLevel::First => _mm_prefetch::<_MM_HINT_T0>(self.at.cast()),
                CacheLevel::Second => _mm_prefetch::<_MM_HINT_T1>(self.at.cast()),
            }
            self.at = self.at.wrapping_add(64);
        }
    }
}

/// Returns byte `i` of every word, as integers.
#[inline]
#[target_feature(enable = "avx512f")]
fn byte(words: __m512i, i: usize) -> __m512i {
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

/// Unpacks scales and minima of Q4_K and Q5_K, packed in 6 bits after their units: sixteen bytes.
///
/// # Safety
/// All sixteen rows have these bytes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn scales_and_mins(rows: RowBlocks, tile: &mut Tile) {
    // SAFETY: the caller guarantees that the rows have sixteen bytes, which are all that is read.
    let [units, first, second, third] = unsafe { rows.four_columns(0) };
    tile.unit = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(units)));
    let unit = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(units));
    // The first four scales and minima have 6 bits in a byte each, whose upper two bits are those
    // of the last four; the lower four bits of these share bytes.
    let own = |words: __m512i| _mm512_and_si512(words, _mm512_set1_epi32(0x3f3f_3f3f));
    let upper = |words: __m512i| {
        let bits = _mm512_and_si512(_mm512_srli_epi32::<6>(words), _mm512_set1_epi32(0x0303_0303));
        _mm512_slli_epi32::<4>(bits)
    };
    let scales = [own(first), _mm512_or_si512(low(third), upper(first))];
    let mins = [own(second), _mm512_or_si512(high(third), upper(second))];
    for half in 0..2 {
        for i in 0..4 {
            let scale = _mm512_cvtepi32_ps(byte(scales[half], i));
            tile.scales[4 * half + i] = _mm512_mul_ps(scale, unit);
        }
        let even = _mm512_set1_epi32(0x00ff_00ff);
        tile.mins[2 * half] = _mm512_and_si512(mins[half], even);
        tile.mins[2 * half + 1] = _mm512_and_si512(_mm512_srli_epi32::<8>(mins[half]), even);
    }
}

/// A block of sixteen rows in a format with a scale for every sixteen weights, still packed.
pub(super) trait PackedSixteens: Sized {
    /// Bytes of a block.
    const BYTES: usize;

    /// Reads a block, and stores its scales and minima in `tile`.
    ///
    /// # Safety
    /// All sixteen rows have a readable block, and the processor has AVX-512.
    unsafe fn read(rows: RowBlocks, tile: &mut Tile) -> Self;

    /// Returns word `word` of each of the four groups of 32 weights in half `half` of the block.
    ///
    /// # Safety
    /// The processor has AVX-512.
    unsafe fn words(&self, half: usize, word: usize) -> [__m512i; 4];
}

/// Unpacks a block of Q2_K or Q3_K.
///
/// # Safety
/// All sixteen rows have a readable block.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn sixteens<P: PackedSixteens>(
    rows: RowBlocks,
    tile: &mut Tile,
    ahead: &mut Prefetch,
    lines: usize,
) {
    ahead.lines(lines);
    // SAFETY: by the caller.
    let packed = unsafe { P::read(rows, tile) };
    ahead.lines(lines);
    for (half, quants) in tile.quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for word in 0..8 {
            // SAFETY: this function has AVX-512.
            let words = unsafe { packed.words(half, word) };
            for (group, words) in words.into_iter().enumerate() {
                quants[8 * group + word] = words;
            }
        }
    }
}

/// Returns the four pairs of bits in each byte, the lowest first.
#[inline]
#[target_feature(enable = "avx512f")]
fn pairs_of_bits(words: __m512i) -> [__m512i; 4] {
    let lowest = |words: __m512i| _mm512_and_si512(words, _mm512_set1_epi32(0x0303_0303));
    [
        lowest(words),
        lowest(_mm512_srli_epi32::<2>(words)),
        lowest(_mm512_srli_epi32::<4>(words)),
        lowest(_mm512_srli_epi32::<6>(words)),
    ]
}

/// A block of Q2_K: pairs of bits.
pub(super) struct PackedQ2K([__m512i; 16]);

impl PackedSixteens for PackedQ2K {
    const BYTES: usize = 84;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn read(rows: RowBlocks, tile: &mut Tile) -> Self {
        // The block: sixteen scales and minima of 4 bits, 64 bytes of bit pairs, both units.
        // SAFETY: a block has 84 bytes.
        let (scales, [unit, min_unit]) = unsafe { (rows.four_columns(0), rows.two_halves(80)) };
        tile.unit = min_unit;
        let even = _mm512_set1_epi32(0x00ff_00ff);
        for (i, words) in scales.into_iter().enumerate() {
            for j in 0..4 {
                let scale = _mm512_cvtepi32_ps(byte(low(words), j));
                tile.scales[4 * i + j] = _mm512_mul_ps(scale, unit);
            }
            let mins = high(words);
            tile.mins[2 * i] = _mm512_and_si512(mins, even);
            tile.mins[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi32::<8>(mins), even);
        }
        // SAFETY: a block has 84 bytes; 64 from 16 on are read.
        Self(unsafe { rows.columns(16) })
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn words(&self, half: usize, word: usize) -> [__m512i; 4] {
        pairs_of_bits(self.0[8 * half + word])
    }
}

/// A block of Q3_K: pairs of bits, and third bits.
pub(super) struct PackedQ3K {
    pairs: [__m512i; 16],
    /// Bit `n` of byte `i` is the third bit of weight `i` in group `n` of 32.
    thirds: [__m512i; 8],
}

impl PackedSixteens for PackedQ3K {
    const BYTES: usize = 110;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn read(rows: RowBlocks, tile: &mut Tile) -> Self {
        // The block: 32 bytes of third bits, 64 of bit pairs, twelve of scales, the unit.
        // SAFETY: a block has 110 bytes; the last that is read is 108 + 1.
        let ([_, first, second, upper], unit) =
            unsafe { (rows.four_columns(92), rows.halves(108)) };
        // Scales have four bits in the first eight bytes, low nibbles before high ones, and two in
        // the last four.
        let lower = [low(first), low(second), high(first), high(second)];
        let upper = pairs_of_bits(upper);
        for (i, lower) in lower.into_iter().enumerate() {
            let words = _mm512_or_si512(lower, _mm512_slli_epi32::<4>(upper[i]));
            for j in 0..4 {
                let scale = _mm512_sub_epi32(byte(words, j), _mm512_set1_epi32(32));
                tile.scales[4 * i + j] = _mm512_mul_ps(_mm512_cvtepi32_ps(scale), unit);
            }
        }
        // SAFETY: a block has 110 bytes; 64 from 0 and from 32 on are read.
        let (start, pairs) = unsafe { (rows.columns(0), rows.columns(32)) };
        Self { pairs, thirds: start.as_chunks().0[0] }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn words(&self, half: usize, word: usize) -> [__m512i; 4] {
        let [a, b, c, d] = pairs_of_bits(self.pairs[8 * half + word]);
        // The lower four bits of each byte are those of this half.
        let thirds = _mm512_srl_epi32(self.thirds[word], _mm_cvtsi32_si128(4 * half as i32));
        let with = |pair: __m512i, moved: __m512i| {
            _mm512_or_si512(pair, _mm512_and_si512(moved, _mm512_set1_epi32(0x0404_0404)))
        };
        [
            with(a, _mm512_slli_epi32::<2>(thirds)),
            with(b, _mm512_slli_epi32::<1>(thirds)),
            with(c, thirds),
            with(d, _mm512_srli_epi32::<1>(thirds)),
        ]
    }
}

/// Unpacks a block of Q4_K.
///
/// # Safety
/// All sixteen rows have a readable block of 144 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn q4_k(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // SAFETY: a block has 144 bytes.
    unsafe { scales_and_mins(rows, tile) }
    for half in 0..2 {
        // SAFETY: a block has 144 bytes; the last that is read is 16 + 64 + 63.
        let packed = unsafe { rows.columns(16 + 64 * half) };
        ahead.lines(lines);
        // 32 bytes have the low nibbles of 32 weights and the high ones of the next 32.
        for (i, packed) in packed.into_iter().enumerate() {
            let at = 32 * half + 16 * (i / 8) + i % 8;
            tile.quants[at] = low(packed);
            tile.quants[at + 8] = high(packed);
        }
    }
}

/// Unpacks a block of Q5_K.
///
/// # Safety
/// All sixteen rows have a readable block of 176 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn q5_k(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // SAFETY: a block has 176 bytes.
    unsafe { scales_and_mins(rows, tile) }
    // Eight words of fifth bits, then 32 of nibbles: bit `n` of byte `i` of the former is the fifth
    // bit of weight `i` in group `n`.
    // SAFETY: a block has 176 bytes; 64 from 16 on are read.
    let first = unsafe { rows.columns(16) };
    let fifth = |i: usize, group: usize| {
        let bits = _mm512_srl_epi32(first[i], _mm_cvtsi32_si128(group as i32));
        _mm512_slli_epi32::<4>(_mm512_and_si512(bits, _mm512_set1_epi32(0x0101_0101)))
    };
    let mut put = |word: usize, packed: __m512i| {
        let (group, i) = (2 * (word / 8), word % 8);
        tile.quants[8 * group + i] = _mm512_or_si512(low(packed), fifth(i, group));
        tile.quants[8 * group + 8 + i] = _mm512_or_si512(high(packed), fifth(i, group + 1));
    };
    for (i, packed) in first[8..].iter().enumerate() {
        put(i, *packed);
    }
    ahead.lines(lines);
    // SAFETY: a block has 176 bytes; the last that is read is 112 + 63.
    let (second, third) = unsafe { (rows.columns(80), rows.columns(112)) };
    ahead.lines(lines);
    for (i, packed) in second.into_iter().enumerate() {
        put(8 + i, packed);
    }
    ahead.lines(lines);
    for (i, packed) in third[8..].iter().enumerate() {
        put(24 + i, *packed);
    }
}

/// Unpacks a block of Q6_K.
///
/// # Safety
/// All sixteen rows have a readable block of 210 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn q6_k(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // The block: 128 bytes of low nibbles, 64 of upper bit pairs, 16 scales, the unit.
    // SAFETY: a block has 210 bytes.
    let (scales, unit) = unsafe { (rows.four_columns(192), rows.halves(208)) };
    for (i, scales) in scales.into_iter().enumerate() {
        // Signed bytes: from the top of a word, with their sign.
        let signed = [
            _mm512_slli_epi32::<24>(scales),
            _mm512_slli_epi32::<16>(scales),
            _mm512_slli_epi32::<8>(scales),
            scales,
        ];
        for (j, signed) in signed.into_iter().enumerate() {
            let scale = _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(signed));
            tile.scales[4 * i + j] = _mm512_mul_ps(scale, unit);
        }
    }
    // SAFETY: a block has 210 bytes; 64 from 128 on are read.
    let upper = unsafe { rows.columns(128) };
    ahead.lines(lines);
    let with = |nibbles: __m512i, pairs: __m512i| {
        _mm512_or_si512(nibbles, _mm512_and_si512(pairs, _mm512_set1_epi32(0x3030_3030)))
    };
    for half in 0..2 {
        // SAFETY: a block has 210 bytes; the last that is read is 64 + 63.
        let nibbles = unsafe { rows.columns(64 * half) };
        ahead.lines(lines);
        for i in 0..8 {
            let (a, b, upper) = (nibbles[i], nibbles[8 + i], upper[8 * half + i]);
            let quants = &mut tile.quants[32 * half..][..32];
            quants[i] = with(low(a), _mm512_slli_epi32::<4>(upper));
            quants[8 + i] = with(low(b), _mm512_slli_epi32::<2>(upper));
            quants[16 + i] = with(high(a), upper);
            quants[24 + i] = with(high(b), _mm512_srli_epi32::<2>(upper));
        }
    }
}

/// Unpacks eight blocks of Q8_0.
///
/// # Safety
/// All sixteen rows have eight readable blocks, 272 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn q8_0(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // Each of the eight: a unit of two bytes, then 32 weights.
    for i in 0..4 {
        // Two of them are as many words as a square has columns.
        let mut words = [_mm512_setzero_si512(); LANES];
        for (row, words) in words.iter_mut().enumerate() {
            // SAFETY: eight blocks have 272 bytes.
            let half =
                |at: usize| unsafe { _mm256_loadu_si256(rows.row(row).add(68 * i + at).cast()) };
            let first = _mm512_castsi256_si512(half(2));
            *words = _mm512_inserti64x4::<1>(first, half(36));
        }
        ahead.lines(lines);
        for (at, words) in transposed(words).into_iter().enumerate() {
            // Signed bytes become unsigned ones around 128.
            tile.quants[16 * i + at] =
                _mm512_xor_si512(words, _mm512_set1_epi32(0x8080_8080u32 as i32));
        }
        // SAFETY: eight blocks have 272 bytes; the last that is read is 68 * 3 + 34 + 1.
        unsafe {
            tile.scales[2 * i] = rows.halves(68 * i);
            tile.scales[2 * i + 1] = rows.halves(68 * i + 34);
        }
    }
}

/// Values of nibbles, as bytes around 128, in each 128 bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn table(values: [i8; 16]) -> __m512i {
    // SAFETY: `values` is an array of sixteen bytes.
    let values = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
    let sign = _mm512_set1_epi32(0x8080_8080u32 as i32);
    _mm512_xor_si512(_mm512_broadcast_i32x4(values), sign)
}

/// Stores 32 weights of each row from register `at` on: those of the lower nibbles of four words,
/// then those of the upper ones, looked up in `values` if given.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn put_nibbles(packed: &[__m512i], values: Option<__m512i>, at: usize, tile: &mut Tile) {
    for (i, packed) in packed.iter().enumerate() {
        let (mut one, mut other) = (low(*packed), high(*packed));
        if let Some(values) = values {
            one = _mm512_shuffle_epi8(values, one);
            other = _mm512_shuffle_epi8(values, other);
        }
        tile.quants[at + i] = one;
        tile.quants[at + 4 + i] = other;
    }
}

/// Unpacks a block of IQ4_XS.
///
/// # Safety
/// All sixteen rows have a readable block of 136 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn iq4_xs(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // The block: the unit, two upper bits of each scale, four lower ones, 128 bytes of nibbles.
    // SAFETY: a block has 136 bytes.
    let [first, lower, ..] = unsafe { rows.four_columns(0) };
    let unit = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(first));
    let upper = _mm512_srli_epi32::<16>(first);
    let bits = |words: __m512i, at: usize, mask: i32| {
        let moved = _mm512_srl_epi32(words, _mm_cvtsi32_si128(at as i32));
        _mm512_and_si512(moved, _mm512_set1_epi32(mask))
    };
    for i in 0..8 {
        let upper = _mm512_slli_epi32::<4>(bits(upper, 2 * i, 3));
        let scale = _mm512_or_si512(bits(lower, 4 * i, 15), upper);
        let scale = _mm512_sub_epi32(scale, _mm512_set1_epi32(32));
        tile.scales[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(scale), unit);
    }
    let values = table(IQ4_VALUES);
    for half in 0..2 {
        // SAFETY: a block has 136 bytes; the last that is read is 8 + 64 + 63.
        let packed = unsafe { rows.columns(8 + 64 * half) };
        ahead.lines(lines);
        for (i, packed) in packed.as_chunks::<4>().0.iter().enumerate() {
            put_nibbles(packed, Some(values), 32 * half + 8 * i, tile);
        }
    }
}

/// Unpacks eight blocks of a format with sixteen bytes of nibbles after a scale: blocks of `BYTES`
/// bytes.
///
/// # Safety
/// All sixteen rows have eight readable blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn nibbles<const BYTES: usize>(
    rows: RowBlocks,
    values: Option<__m512i>,
    tile: &mut Tile,
    (ahead, lines): (&mut Prefetch, usize),
) {
    for i in 0..8 {
        // SAFETY: eight blocks have `8 * BYTES` bytes; the last sixteen of block `i` are read.
        let packed = unsafe { rows.four_columns(BYTES * i + BYTES - 16) };
        ahead.lines(lines);
        put_nibbles(&packed, values, 8 * i, tile);
    }
}

/// Unpacks eight blocks of Q5_0.
///
/// # Safety
/// All sixteen rows have eight readable blocks, 176 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn q5_0(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // SAFETY: eight blocks of a 16-bit float, 32 fifth bits and sixteen bytes.
    unsafe { nibbles::<22>(rows, None, tile, (ahead, lines)) };
    for i in 0..8 {
        // SAFETY: eight blocks have 176 bytes; of block `i` the first two, and sixteen from the
        // third on are read.
        let (scale, [fifth, ..]) = unsafe { (rows.halves(22 * i), rows.four_columns(22 * i + 2)) };
        tile.scales[i] = scale;
        add_fifth_bits(fifth, &mut tile.quants[8 * i..][..8]);
    }
}

/// Adds the fifth bits of 32 weights of each row, of which `fifth` has those of row `r` in lane
/// `r`: bit `n` is that of weight `n`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add_fifth_bits(fifth: __m512i, quants: &mut [__m512i]) {
    // In each byte of a word of 32 bits: the word's first byte.
    let first = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
    let sixteen = _mm512_set1_epi8(16);
    for (word, quants) in quants.iter_mut().enumerate() {
        // Four bits of a byte for each word.
        let byte = _mm512_add_epi8(first, _mm512_set1_epi8(word as i8 / 2));
        let bits = _mm512_set1_epi32(0x0804_0201 << (4 * (word % 2)));
        let set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(fifth, byte), bits);
        *quants = _mm512_mask_add_epi8(*quants, set, *quants, sixteen);
    }
}

/// 32 weights of sixteen rows: weight = scale * quant + min.
pub(super) struct MinUnit {
    /// Quants as in [`Tile::quants`].
    pub(super) quants: [__m512i; 8],
    pub(super) scale: __m512,
    pub(super) min: __m512,
}

impl MinUnit {
    /// Unpacks a block of Q4_1, five words, or of Q5_1, six: two 16-bit floats, the fifth bits of
    /// Q5_1, four words of nibbles.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn of<const WORDS: usize>(words: &[__m512i; WORDS]) -> Self {
        let mut quants = [_mm512_setzero_si512(); 8];
        for (i, packed) in words[WORDS - 4..].iter().enumerate() {
            quants[i] = low(*packed);
            quants[4 + i] = high(*packed);
        }
        if WORDS == Q5_1_WORDS {
            add_fifth_bits(words[1], &mut quants);
        }
        let scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words[0]));
        let min = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words[0])));
        Self { quants, scale, min }
    }
}

/// Words of a block of Q4_1.
pub(super) const Q4_1_WORDS: usize = 5;
/// Words of a block of Q5_1.
pub(super) const Q5_1_WORDS: usize = 6;

/// Unpacks eight blocks of Q5_1.
///
/// # Safety
/// All sixteen rows have eight readable blocks, 192 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn q5_1(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // SAFETY: eight blocks of six words.
    unsafe { units_with_mins::<Q5_1_WORDS>(rows, tile, (ahead, lines)) }
}

/// Unpacks eight blocks of Q4_1.
///
/// # Safety
/// All sixteen rows have eight readable blocks, 160 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn q4_1(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // SAFETY: eight blocks of five words.
    unsafe { units_with_mins::<Q4_1_WORDS>(rows, tile, (ahead, lines)) }
}

/// Unpacks eight blocks of `WORDS` words.
///
/// # Safety
/// All sixteen rows have eight readable blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn units_with_mins<const WORDS: usize>(
    rows: RowBlocks,
    tile: &mut Tile,
    (ahead, lines): (&mut Prefetch, usize),
) {
    let mut room = UnitWords::uninit();
    // SAFETY: the caller guarantees eight blocks.
    let words = unsafe { rows.unit_words::<WORDS>(FINE_UNITS, &mut room) };
    for (i, words) in words.iter().enumerate() {
        ahead.lines(lines);
        let unit = MinUnit::of(words);
        tile.quants[8 * i..][..8].copy_from_slice(&unit.quants);
        tile.scales[i] = unit.scale;
        tile.fine_mins[i] = unit.min;
    }
}

/// Unpacks eight blocks of Q4_0.
///
/// # Safety
/// All sixteen rows have eight readable blocks, 144 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn q4_0(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // SAFETY: eight blocks of a 16-bit float and sixteen bytes.
    unsafe {
        nibbles::<18>(rows, None, tile, (ahead, lines));
        for i in 0..8 {
            tile.scales[i] = rows.halves(18 * i);
        }
    }
}

/// Unpacks eight blocks of IQ4_NL.
///
/// # Safety
/// All sixteen rows have eight readable blocks, 144 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn iq4_nl(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // SAFETY: eight blocks of a 16-bit float and sixteen bytes, as in `q4_0`.
    unsafe {
        nibbles::<18>(rows, Some(table(IQ4_VALUES)), tile, (ahead, lines));
        for i in 0..8 {
            tile.scales[i] = rows.halves(18 * i);
        }
    }
}

/// Unpacks eight blocks of MXFP4.
///
/// # Safety
/// All sixteen rows have eight readable blocks, 136 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn mxfp4(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // SAFETY: eight blocks of an exponent and sixteen bytes.
    unsafe {
        nibbles::<17>(rows, Some(table(MXFP4_VALUES)), tile, (ahead, lines));
        for i in 0..8 {
            tile.scales[i] = half_powers(rows.bytes(17 * i));
        }
    }
}

/// Halves of two to the powers of `exponents`, which are those of 32-bit floats.
#[inline]
#[target_feature(enable = "avx512f")]
fn half_powers(exponents: __m512i) -> __m512 {
    let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
    // The halves of the two smallest are no normal numbers.
    let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponents);
    let is_small = _mm512_cmplt_epu32_mask(exponents, _mm512_set1_epi32(2));
    _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small))
}
