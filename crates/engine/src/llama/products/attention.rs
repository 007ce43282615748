//! Attention of few queries over a cache that many sequences share.
//!
//! llama.cpp's kernel looks, for each query and head, at every cell of a unified cache, those of
//! other sequences and of kept prefixes included, and asks the mask whether it counts. Here the
//! mask is read once per query and group of heads, many cells at a time, and the cells that count
//! are read once for all heads that share them. What a step costs depends on its own sequences,
//! not on what else the cache keeps; and a masked cell's numbers, NaN included, reach nobody.

use std::arch::x86_64::*;

use super::hook::Turns;
use super::sys;

/// Most queries of a stream: for more, llama.cpp's kernel multiplies tiles.
const MOST_QUERIES: i64 = 96;
/// Cells whose mask is read at once.
const MASK_LANES: usize = 32;
/// Negative infinity as a 16-bit float: a cell that does not count.
const MASKED: i16 = 0xfc00u16 as i16;

/// A cell that counts.
#[derive(Clone, Copy)]
#[repr(C)]
struct Cell {
    index: u32,
    /// Added to its score.
    bias: f32,
}

/// A fused attention of the graph, checked: f32 queries, f16 keys and values.
pub(super) struct Attention<'a> {
    queries: &'a sys::ggml_tensor,
    keys: &'a sys::ggml_tensor,
    values: &'a sys::ggml_tensor,
    mask: &'a sys::ggml_tensor,
    output: &'a sys::ggml_tensor,
    scale: f32,
    cells: usize,
}

/// Where one query's heads of one group, and what they attend to, begin.
struct Heads {
    queries: *const f32,
    /// Bytes from one head's query to the next's.
    query_stride: usize,
    keys: *const u8,
    values: *const u8,
    output: *mut f32,
}

impl<'a> Attention<'a> {
    /// The attention that `op` is, if the kernel computes it.
    pub(super) fn of(op: &'a sys::ggml_tensor) -> Option<Self> {
        if op.op != sys::GGML_OP_FLASH_ATTN_EXT || !op.src[4].is_null() {
            return None;
        }
        // SAFETY: null, or operands that live as long as the operation.
        let [queries, keys, values, mask] = unsafe {
            [op.src[0].as_ref()?, op.src[1].as_ref()?, op.src[2].as_ref()?, op.src[3].as_ref()?]
        };
        let parameter = |i: usize| f32::from_bits(op.op_params[i] as u32);
        let (scale, max_bias, softcap) = (parameter(0), parameter(1), parameter(2));
        let head_size = queries.ne[0];
        let fits = queries.type_ == sys::GGML_TYPE_F32
            && [keys, values, mask].iter().all(|t| t.type_ == sys::GGML_TYPE_F16 && t.nb[0] == 2)
            && queries.nb[0] == 4
            && op.nb[0] == 4
            && (head_size == 64 || head_size == 128)
            && keys.ne[0] == head_size
            && values.ne[0] == head_size
            && queries.ne[1] <= MOST_QUERIES
            && keys.ne[1] == values.ne[1]
            && keys.ne[1] % MASK_LANES as i64 == 0
            && mask.ne[0] >= keys.ne[1]
            && mask.ne[1] >= queries.ne[1]
            && mask.ne[2] == 1
            && queries.ne[3] % mask.ne[3] == 0
            && keys.ne[2] == values.ne[2]
            && queries.ne[2] % keys.ne[2] == 0
            && queries.ne[3] == keys.ne[3]
            && queries.ne[3] == values.ne[3]
            && max_bias == 0.0
            && softcap == 0.0;
        let cells = usize::try_from(keys.ne[1]).ok()?;
        fits.then_some(Self { queries, keys, values, mask, output: op, scale, cells })
    }

    /// Where keys and values are kept.
    pub(super) fn buffers(&self) -> [sys::ggml_backend_buffer_t; 2] {
        [self.keys.buffer, self.values.buffer]
    }

    /// Bytes of one thread's lists: cells, and scores of two heads.
    fn thread_bytes(&self) -> usize {
        (self.cells * (size_of::<Cell>() + 2 * size_of::<f32>())).next_multiple_of(64)
    }

    /// Work memory in bytes.
    pub(super) fn memory_bytes(&self, threads: usize) -> usize {
        threads * self.thread_bytes() + 64
    }

    /// One thread's part.
    ///
    /// # Safety
    /// The processor is [`super::supported`]; all threads of `turns` call this with the same
    /// `memory` of [`Attention::memory_bytes`]; the tensors have their data.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    pub(super) unsafe fn compute(&self, turns: &Turns, memory: *mut u8) {
        // SAFETY: a part of the memory for each thread, aligned; plain numbers, which any bytes
        // are.
        let (list, scores) = unsafe {
            let own = memory.add(memory.align_offset(64) + turns.thread * self.thread_bytes());
            let list = std::slice::from_raw_parts_mut(own.cast::<Cell>(), self.cells);
            let scores = own.add(self.cells * size_of::<Cell>()).cast::<f32>();
            (list, std::slice::from_raw_parts_mut(scores, 2 * self.cells))
        };
        turns.begin();
        let [_, queries, heads, streams] = self.queries.ne.map(|n| n as usize);
        let groups = self.keys.ne[2] as usize;
        let together = heads / groups;
        while let Some(turn) = turns.next(streams * queries * groups) {
            let (stream, rest) = (turn / (queries * groups), turn % (queries * groups));
            let (query, group) = (rest / groups, rest % groups);
            // SAFETY: the query and stream exist.
            let count = unsafe { self.cells_that_count(query, stream, list) };
            let cells = &list[..count];
            for first in (0..together).step_by(2) {
                let heads = self.heads(query, group * together + first, group, stream);
                let pair = together - first >= 2;
                // SAFETY: one or two heads from `first` exist; the scores of two have room.
                unsafe {
                    match (self.queries.ne[0], pair) {
                        (64, true) => self.attend::<4, 2>(&heads, cells, scores),
                        (64, false) => self.attend::<4, 1>(&heads, cells, scores),
                        (_, true) => self.attend::<8, 2>(&heads, cells, scores),
                        (_, false) => self.attend::<8, 1>(&heads, cells, scores),
                    }
                }
            }
        }
    }

    fn heads(&self, query: usize, head: usize, group: usize, stream: usize) -> Heads {
        let at = |t: &sys::ggml_tensor, [b, c, d]: [usize; 3]| {
            t.data.cast::<u8>().wrapping_add(b * t.nb[1] + c * t.nb[2] + d * t.nb[3])
        };
        Heads {
            queries: at(self.queries, [query, head, stream]).cast::<f32>(),
            query_stride: self.queries.nb[2],
            keys: at(self.keys, [0, group, stream]),
            values: at(self.values, [0, group, stream]),
            // Heads and queries have changed places there.
            output: at(self.output, [head, query, stream]).cast::<f32>(),
        }
    }

    /// Lists the cells that `query` of `stream` sees; returns how many.
    ///
    /// # Safety
    /// The query and the stream exist.
    #[target_feature(enable = "avx512f,avx512bw,f16c")]
    unsafe fn cells_that_count(&self, query: usize, stream: usize, list: &mut [Cell]) -> usize {
        let stream = stream % self.mask.ne[3] as usize;
        // SAFETY: the mask has this row, of at least `cells` numbers.
        let row = unsafe {
            let start = self.mask.data.byte_add(query * self.mask.nb[1] + stream * self.mask.nb[3]);
            std::slice::from_raw_parts(start.cast::<u16>(), self.cells)
        };
        let mut count = 0;
        for (i, lanes) in row.as_chunks::<MASK_LANES>().0.iter().enumerate() {
            // SAFETY: 32 numbers of 16 bits.
            let values = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
            let mut seen = _mm512_cmpneq_epi16_mask(values, _mm512_set1_epi16(MASKED));
            while seen != 0 {
                let lane = seen.trailing_zeros();
                seen &= seen - 1;
                let bits = _mm_cvtsi32_si128(i32::from(lanes[lane as usize]));
                let bias = _mm_cvtss_f32(_mm_cvtph_ps(bits));
                list[count] = Cell { index: (i * MASK_LANES) as u32 + lane, bias };
                count += 1;
            }
        }
        count
    }

    /// Attention of `H` heads of `16 N` numbers each.
    ///
    /// # Safety
    /// `heads` and the cells are within the tensors; `scores` has room for `H` per cell of the
    /// cache.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    unsafe fn attend<const N: usize, const H: usize>(
        &self,
        heads: &Heads,
        cells: &[Cell],
        scores: &mut [f32],
    ) {
        let mut scores = scores.chunks_exact_mut(self.cells);
        let mut scores: [&mut [f32]; H] =
            std::array::from_fn(|_| scores.next().expect("room for each head"));
        // SAFETY: passed on.
        unsafe { self.score::<N, H>(heads, cells, &mut scores) }
        let padded = cells.len().next_multiple_of(16);
        let mut sums = [0.0; H];
        for (scores, sum) in scores.iter_mut().zip(&mut sums) {
            scores[cells.len()..padded].fill(f32::NEG_INFINITY);
            *sum = exponentials(&mut scores[..padded]);
        }
        let mut totals = [[_mm512_setzero_ps(); N]; H];
        for (i, cell) in cells.iter().enumerate() {
            // SAFETY: the cell's value has `16 N` numbers.
            let value = unsafe {
                load_half::<N>(heads.values.add(cell.index as usize * self.values.nb[1]))
            };
            for h in 0..H {
                let weight = _mm512_set1_ps(scores[h][i]);
                for j in 0..N {
                    totals[h][j] = _mm512_fmadd_ps(value[j], weight, totals[h][j]);
                }
            }
        }
        for h in 0..H {
            let share = _mm512_set1_ps(if sums[h] == 0.0 { 0.0 } else { 1.0 / sums[h] });
            // SAFETY: the output has this head, of `16 N` numbers.
            let to = unsafe { heads.output.byte_add(h * self.output.nb[1]) };
            for (j, total) in totals[h].iter().enumerate() {
                // SAFETY: as above.
                unsafe { _mm512_storeu_ps(to.add(16 * j), _mm512_mul_ps(*total, share)) }
            }
        }
    }

    /// Scaled products of the queries with the cells' keys.
    ///
    /// # Safety
    /// As for `attend`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    unsafe fn score<const N: usize, const H: usize>(
        &self,
        heads: &Heads,
        cells: &[Cell],
        scores: &mut [&mut [f32]; H],
    ) {
        let mut queries = [[_mm512_setzero_ps(); N]; H];
        for (h, query) in queries.iter_mut().enumerate() {
            for (j, part) in query.iter_mut().enumerate() {
                // SAFETY: the head's query has `16 N` numbers.
                *part = unsafe {
                    _mm512_loadu_ps(heads.queries.byte_add(h * heads.query_stride).add(16 * j))
                };
            }
        }
        for (i, cell) in cells.iter().enumerate() {
            // SAFETY: the cell's key has `16 N` numbers.
            let key =
                unsafe { load_half::<N>(heads.keys.add(cell.index as usize * self.keys.nb[1])) };
            for h in 0..H {
                let mut product = _mm512_mul_ps(queries[h][0], key[0]);
                for j in 1..N {
                    product = _mm512_fmadd_ps(queries[h][j], key[j], product);
                }
                scores[h][i] = _mm512_reduce_add_ps(product) * self.scale + cell.bias;
            }
        }
    }
}

/// `16 N` numbers of 16 bits.
///
/// # Safety
/// They are there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_half<const N: usize>(from: *const u8) -> [__m512; N] {
    // SAFETY: 32 bytes of each sixteen numbers.
    let part = |j: usize| unsafe { _mm256_loadu_si256(from.cast::<__m256i>().add(j)) };
    let mut values = [_mm512_setzero_ps(); N];
    for (j, value) in values.iter_mut().enumerate() {
        *value = _mm512_cvtph_ps(part(j));
    }
    values
}

/// Replaces scores by their exponentials relative to the greatest; returns the sum. NaN stays.
#[target_feature(enable = "avx512f,avx512dq")]
fn exponentials(scores: &mut [f32]) -> f32 {
    let (groups, rest) = scores.as_chunks_mut::<16>();
    assert!(rest.is_empty(), "padded");
    // SAFETY: sixteen floats.
    let load = |group: &[f32; 16]| unsafe { _mm512_loadu_ps(group.as_ptr()) };
    let lowest = _mm512_set1_ps(f32::NEG_INFINITY);
    // The second operand is what the instruction gives for NaN: such scores are passed over.
    let most = groups.iter().fold(lowest, |most, group| _mm512_max_ps(load(group), most));
    let most = _mm512_reduce_max_ps(most);
    // Without any cell that counts, all are 0.
    let most = _mm512_set1_ps(if most == f32::NEG_INFINITY { 0.0 } else { most });
    let mut sum = _mm512_setzero_ps();
    for group in groups {
        let power = exponential(_mm512_sub_ps(load(group), most));
        sum = _mm512_add_ps(sum, power);
        // SAFETY: sixteen floats.
        unsafe { _mm512_storeu_ps(group.as_mut_ptr(), power) };
    }
    _mm512_reduce_add_ps(sum)
}

/// `e` to the power `x` for `x <= 0`, 0 below -87: a power of two and a polynomial, within 2e-6
/// relatively near zero. NaN stays.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn exponential(x: __m512) -> __m512 {
    let power = _mm512_mul_ps(x, _mm512_set1_ps(std::f32::consts::LOG2_E));
    let whole = _mm512_roundscale_ps::<8>(power);
    let part = _mm512_sub_ps(power, whole);
    // 2^f = sum of (f ln 2)^k / k!
    let mut sum = _mm512_set1_ps(1.540_353e-4);
    for coefficient in [1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, 6.931_472e-1, 1.0]
    {
        sum = _mm512_fmadd_ps(sum, part, _mm512_set1_ps(coefficient));
    }
    let result = _mm512_scalef_ps(sum, whole);
    // Far below, and for minus infinity, whose parts are not numbers.
    let zero = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_set1_ps(-87.0));
    _mm512_mask_mov_ps(result, zero, _mm512_setzero_ps())
}

#[cfg(test)]
mod tests {
    //! The exponential against the library's.
    use super::*;
    use crate::llama::products::supported;

    #[test]
    fn exponentials_sum_to_one_and_show_nan() {
        if !supported() {
            return eprintln!("skipped: this processor lacks AVX-512 VNNI");
        }
        let scores: Vec<f32> = (0..32).map(|i| i as f32 * 0.37 - 6.0).collect();
        let mut found = scores.clone();
        found[31] = f32::NEG_INFINITY;
        // SAFETY: the processor has been asked.
        let sum = unsafe { exponentials(&mut found) };
        for (i, value) in found[..31].iter().enumerate() {
            let exact = f64::from(scores[i] - scores[30]).exp();
            assert!((f64::from(*value) - exact).abs() < 3e-6 * exact, "{i}: {value} for {exact}");
        }
        assert_eq!(found[31], 0.0);
        assert!((sum - found.iter().sum::<f32>()).abs() < 1e-5);
        found[5] = f32::NAN;
        // SAFETY: as above.
        assert!(unsafe { exponentials(&mut found) }.is_nan());
        let mut none = [f32::NEG_INFINITY; 16];
        // SAFETY: as above.
        assert_eq!(unsafe { exponentials(&mut none) }, 0.0, "nothing to attend to");
    }
}
