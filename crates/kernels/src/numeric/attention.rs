//! Attention: head sizes, groups of heads, lengths, streams and the masks of real models.

use std::time::Instant;

use half::f16;

use super::arena::{Arena, ArenaTensor, KernelSide};
use super::{Deviation, Isa, isas, noise, quantised, sys};
use crate::attention::HEAD_SIZES;
use crate::graph_masks;

/// Errors below this are ignored: keys and values are 16-bit floats, whose own rounding is ten
/// times as large.
const FLOOR: f64 = 4e-5;
/// Content of cells that no query sees: large enough to show if it gets in anywhere.
const UNSEEN: f32 = 3e4;

/// Each instruction set with each accepted head size among common ones, and each format of keys and
/// values.
fn cases() -> impl Iterator<Item = (Isa, usize, sys::ggml_type)> {
    let accepted = |head_size: &usize| {
        let arena = Arena::new();
        empty(&arena, (*head_size, 64), sys::GGML_TYPE_F16, (0.0, 0.0), false).is_ours()
    };
    let head_sizes: Vec<usize> = [16, 32, 40, 48, 64, 80, 96, 112, 128, 192, 256, 512]
        .into_iter()
        .filter(accepted)
        .collect();
    assert_eq!(head_sizes, HEAD_SIZES.map(|size| size as usize), "what is taken is listed");
    let kinds = [sys::GGML_TYPE_F16, sys::GGML_TYPE_Q8_0];
    isas().flat_map(move |isa| {
        let sizes = head_sizes.clone().into_iter();
        sizes.flat_map(move |size| kinds.map(|kv| (isa, size, kv)))
    })
}

/// Sizes of an attention.
#[derive(Debug, Clone, Copy)]
struct AttentionSizes {
    head_size: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    cells: usize,
    streams: usize,
    threads: usize,
    isa: Isa,
    kv: sys::ggml_type,
    sinks: bool,
}

impl AttentionSizes {
    /// Sink of each head, if any: some above all scores, some below.
    fn sinks(&self) -> Option<Vec<f32>> {
        let sinks = || noise(14, self.heads).iter().map(|sink| 8.0 * sink).collect();
        self.sinks.then(sinks)
    }
}

/// Cells that a query sees, as biases: minus infinity for all others.
type Mask = fn(&AttentionSizes, query: usize, cell: usize) -> f32;

const HIDDEN: f32 = f32::NEG_INFINITY;

/// Bias of a stream's query by `mask`: each stream sees other cells.
fn bias_in(stream: usize, mask: Mask, sizes: &AttentionSizes, query: usize, cell: usize) -> f32 {
    mask(sizes, query, (cell + 5 * stream) % sizes.cells)
}

fn visible(is_visible: bool) -> f32 {
    if is_visible { 0.0 } else { HIDDEN }
}

/// A prompt whose last token is some cells before the end of the cache.
fn causal(sizes: &AttentionSizes, query: usize, cell: usize) -> f32 {
    visible(cell + sizes.queries + 5 <= sizes.cells + query)
}

/// Four sequences whose cells alternate, and cells of no sequence.
fn interleaved(sizes: &AttentionSizes, query: usize, cell: usize) -> f32 {
    visible(cell % 5 == query % 4 && cell + 40 <= sizes.cells + query)
}

/// A prompt that sees only the last 48 cells, like a sliding window.
fn window(sizes: &AttentionSizes, query: usize, cell: usize) -> f32 {
    let last = (sizes.cells + query).saturating_sub(sizes.queries + 5);
    visible(cell <= last && cell + 48 > last)
}

/// A bias for each distance.
fn biased(sizes: &AttentionSizes, query: usize, cell: usize) -> f32 {
    causal(sizes, query, cell) - 0.125 * ((cell + query) % 16) as f32
}

const MASKS: [(&str, Mask); 4] =
    [("causal", causal), ("interleaved", interleaved), ("window", window), ("biased", biased)];

/// An attention with its operands as numbers.
struct AttentionCase<'a> {
    op: ArenaTensor<'a>,
    sizes: AttentionSizes,
    scale: f32,
    mask: Mask,
    queries: Vec<f32>,
    keys: KvNumbers,
    values: KvNumbers,
}

/// Keys or values: as stored, and as numbers.
struct KvNumbers {
    kind: sys::ggml_type,
    bytes: Vec<u8>,
    numbers: Vec<f32>,
}

impl KvNumbers {
    fn new(kind: sys::ggml_type, numbers: &[f32], head_size: usize) -> Self {
        if kind != sys::GGML_TYPE_F16 {
            let (bytes, numbers) = quantised(kind, numbers, head_size);
            return Self { kind, bytes, numbers };
        }
        let halves: Vec<f16> = numbers.iter().copied().map(f16::from_f32).collect();
        let numbers = halves.iter().map(|half| half.to_f32()).collect();
        Self { kind, bytes: half_bytes(&halves), numbers }
    }
}

impl<'a> AttentionCase<'a> {
    fn new(arena: &'a Arena, sizes: AttentionSizes, mask: Mask) -> Self {
        let AttentionSizes { head_size, heads, kv_heads, queries, cells, streams, .. } = sizes;
        let cache = |seed| {
            let row = kv_heads * head_size;
            let mut numbers = noise(seed, row * cells * streams);
            for (cell, numbers) in numbers.chunks_exact_mut(row).enumerate() {
                let (stream, cell) = (cell / cells, cell % cells);
                let hidden = |query| bias_in(stream, mask, &sizes, query, cell) == HIDDEN;
                if (0..queries).all(hidden) {
                    numbers.fill(UNSEEN);
                }
            }
            KvNumbers::new(sizes.kv, &numbers, head_size)
        };
        let (keys, values) = (cache(11), cache(12));
        // Large enough that some cells matter much more than others.
        let scale = 6.0 / (head_size as f32).sqrt();
        let queries = noise(13, head_size * heads * queries * streams);
        let op = operation(arena, &sizes, mask, scale, (&queries, &keys, &values));
        Self { op, sizes, scale, mask, queries, keys, values }
    }

    /// Result in double precision, in the order of the output: a row for each head of each query of
    /// each stream.
    fn exact(&self) -> Vec<f64> {
        let AttentionSizes { head_size, heads, queries, streams, .. } = self.sizes;
        let mut out = Vec::with_capacity(self.queries.len());
        for row in 0..streams * queries * heads {
            let (stream, query, head) = (row / heads / queries, row / heads % queries, row % heads);
            out.extend(self.exact_row(stream, query, head));
        }
        assert_eq!(out.len(), head_size * heads * queries * streams);
        out
    }

    fn exact_row(&self, stream: usize, query: usize, head: usize) -> Vec<f64> {
        let AttentionSizes { head_size, heads, kv_heads, queries, cells, .. } = self.sizes;
        let group = head / (heads / kv_heads);
        let numbers = |of: &KvNumbers, cell: usize| -> Vec<f64> {
            let start = ((stream * cells + cell) * kv_heads + group) * head_size;
            of.numbers[start..][..head_size].iter().map(|x| f64::from(*x)).collect()
        };
        let start = ((stream * queries + query) * heads + head) * head_size;
        let own = &self.queries[start..][..head_size];
        let mut scores: Vec<(usize, f64)> = Vec::new();
        for cell in 0..cells {
            // As the mask stores it.
            let bias = f16::from_f32(bias_in(stream, self.mask, &self.sizes, query, cell)).to_f32();
            if bias != HIDDEN {
                let key = numbers(&self.keys, cell);
                let product: f64 = own.iter().zip(&key).map(|(q, k)| f64::from(*q) * k).sum();
                scores.push((cell, product * f64::from(self.scale) + f64::from(bias)));
            }
        }
        let sink = self.sizes.sinks().map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
        let most = scores.iter().fold(sink, |most, (_, score)| most.max(*score));
        // The sink takes its share, and gives nothing for it.
        let share = if sink == f64::NEG_INFINITY { 0.0 } else { (sink - most).exp() };
        let (mut sum, mut out) = (share, vec![0.0; head_size]);
        for (cell, score) in scores {
            let weight = (score - most).exp();
            sum += weight;
            let value = numbers(&self.values, cell);
            out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
        }
        // Nothing to attend to gives nothing.
        out.iter().map(|x| if sum == 0.0 { 0.0 } else { x / sum }).collect()
    }
}

fn half_bytes(numbers: &[f16]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// The operation as in llama.cpp's graphs: heads of a token side by side in memory.
fn operation<'a>(
    arena: &'a Arena,
    sizes: &AttentionSizes,
    mask: Mask,
    scale: f32,
    (queries, keys, values): (&[f32], &KvNumbers, &KvNumbers),
) -> ArenaTensor<'a> {
    let AttentionSizes { head_size, heads, kv_heads, cells, streams, .. } = *sizes;
    let rows = |heads: usize, tokens: usize| {
        [head_size as i64, heads as i64, tokens as i64, streams as i64]
    };
    let cache = |cache: &KvNumbers| {
        arena.heads_first(arena.tensor(cache.kind, rows(kv_heads, cells), &cache.bytes))
    };
    let (keys, values) = (cache(keys), cache(values));
    let queries = arena.heads_first(arena.floats(rows(heads, sizes.queries), queries));
    let biases: Vec<f16> = (0..sizes.queries * cells * streams)
        .map(|i| {
            let (row, cell) = (i / cells, i % cells);
            let (stream, query) = (row / sizes.queries, row % sizes.queries);
            f16::from_f32(bias_in(stream, mask, sizes, query, cell))
        })
        .collect();
    let sinks = sizes.sinks();
    let sizes = [cells as i64, sizes.queries as i64, 1, streams as i64];
    let mask = arena.tensor(sys::GGML_TYPE_F16, sizes, &half_bytes(&biases));
    let [q, k, v, m] = [queries, keys, values, mask].map(ArenaTensor::as_ptr);
    // SAFETY: tensors of this context whose sizes fit.
    arena.make(|context| unsafe {
        let op = sys::ggml_flash_attn_ext(context, q, k, v, m, scale, 0.0, 0.0);
        if let Some(sinks) = &sinks {
            let sinks = arena.floats([sinks.len() as i64, 1, 1, 1], sinks);
            sys::ggml_flash_attn_ext_add_sinks(op, sinks.as_ptr());
        }
        op
    })
}

/// Measures a chunk of a prompt by one thread: `ISA` chooses the kernels, as in `numeric::speed`.
#[test]
#[ignore = "a measurement, by hand"]
fn prompts_beside_llama_cpps() {
    println!(
        "| head size | heads | of keys | kind | queries | cells | own ms | llama.cpp ms | ratio |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let wanted = std::env::var("ISA").unwrap_or_else(|_| Isa::Avx512Vnni.name().to_owned());
    let isa = isas().find(|isa| isa.name() == wanted).expect("known instructions");
    let shapes = [(64, 9, 3), (64, 12, 12), (128, 16, 8), (128, 32, 8), (256, 4, 1)];
    for ((head_size, heads, kv_heads), kv) in shapes
        .into_iter()
        .flat_map(|shape| [sys::GGML_TYPE_F16, sys::GGML_TYPE_Q8_0].map(|kv| (shape, kv)))
    {
        for (queries, cells) in [(1, 4096), (8, 4096), (32, 512), (32, 4096), (128, 4096)] {
            let (streams, threads, sinks) = (1, 1, false);
            let sizes = AttentionSizes {
                head_size,
                heads,
                kv_heads,
                queries,
                cells,
                streams,
                threads,
                isa,
                kv,
                sinks,
            };
            let arena = Arena::new();
            let case = AttentionCase::new(&arena, sizes, causal);
            let shortest = |side| {
                let time = |_| {
                    let began = Instant::now();
                    arena.compute(case.op, side, threads);
                    began.elapsed().as_secs_f64() * 1e3
                };
                (0..8).map(time).fold(f64::INFINITY, f64::min)
            };
            let (own, llama) = (shortest(KernelSide::Own(isa)), shortest(KernelSide::Llama));
            let ratio = llama / own;
            println!(
                "| {head_size} | {heads} | {kv_heads} | {kv} | {queries} | {cells} | {own:.2} | {llama:.2} | {ratio:.2} |"
            );
        }
    }
}

fn check(sizes: AttentionSizes, name: &str, mask: Mask) {
    let arena = Arena::new();
    let attention = AttentionCase::new(&arena, sizes, mask);
    let exact = attention.exact();
    let [own, llama] = [KernelSide::Own(sizes.isa), KernelSide::Llama]
        .map(|side| Deviation::of(&arena.compute(attention.op, side, sizes.threads), &exact));
    own.check(llama, FLOOR, &(name, sizes));
    // llama.cpp rounds queries to bytes for keys that are; ours does not, and so has no excuse.
    if sizes.kv != sys::GGML_TYPE_F16 {
        assert!(own.rms < FLOOR && own.largest < 10.0 * FLOOR, "{name} {sizes:?}: {own:?}");
    }
}

#[test]
fn every_group_of_heads_is_as_exact_as_llama_cpps() {
    for (isa, head_size, kv) in cases() {
        for (heads, kv_heads) in [
            (1_usize, 1),
            (2, 1),
            (3, 1),
            (4, 2),
            (6, 2),
            (5, 1),
            (12, 12),
            (16, 2),
            (11, 1),
            (16, 1),
        ] {
            for queries in [1, 2, 3, 8, 17] {
                // Threads wait for each other on a busy machine, so few groups are divided.
                let threads = if heads.is_multiple_of(3) { 2 + queries % 2 } else { 1 };
                let sizes = AttentionSizes {
                    head_size,
                    heads,
                    kv_heads,
                    queries,
                    cells: 96,
                    streams: 1,
                    threads,
                    isa,
                    kv,
                    sinks: queries % 2 == 0,
                };
                check(sizes, "causal", causal);
            }
        }
    }
}

#[test]
fn every_mask_is_as_exact_as_llama_cpps() {
    // Masks choose cells, of whatever size: two sizes are enough.
    for (isa, head_size, kv) in cases().filter(|(_, size, _)| [32, 128].contains(size)) {
        for (name, mask) in MASKS {
            for (queries, cells, streams) in
                [(1, 64, 1), (1, 544, 1), (4, 256, 3), (9, 256, 1), (33, 128, 2), (70, 320, 1)]
            {
                for (heads, kv_heads) in [(4, 4), (4, 1)] {
                    let threads = 1 + cells % 3;
                    let sizes = AttentionSizes {
                        head_size,
                        heads,
                        kv_heads,
                        queries,
                        cells,
                        streams,
                        threads,
                        isa,
                        kv,
                        sinks: heads == kv_heads,
                    };
                    check(sizes, name, mask);
                }
            }
        }
    }
}

#[test]
fn what_a_query_does_not_see_does_not_reach_it() {
    /// The even queries see every second cell, the odd ones nothing.
    fn mask(_: &AttentionSizes, query: usize, cell: usize) -> f32 {
        visible(query.is_multiple_of(2) && cell.is_multiple_of(2))
    }
    for (isa, head_size, kv) in cases() {
        let (heads, kv_heads, queries, cells) = (4, 2, 6, 64);
        let sizes = AttentionSizes {
            head_size,
            heads,
            kv_heads,
            queries,
            cells,
            streams: 1,
            threads: 2,
            isa,
            kv,
            sinks: false,
        };
        let arena = Arena::new();
        let mut attention = AttentionCase::new(&arena, sizes, mask);
        let exact = attention.exact();
        for cache in [&mut attention.keys, &mut attention.values] {
            let cell_bytes = cache.bytes.len() / cells;
            // NaN, wherever a 16-bit float is read.
            let unseen = cache.bytes.chunks_exact_mut(cell_bytes).skip(1).step_by(2);
            unseen.for_each(|cell| cell.fill(0x7f));
        }
        let operands = (&attention.queries[..], &attention.keys, &attention.values);
        let op = operation(&arena, &sizes, mask, attention.scale, operands);
        let found = arena.compute(op, KernelSide::Own(isa), 2);
        assert!(Deviation::of(&found, &exact).largest < FLOOR * 10.0, "head size {head_size}");
        let blind = found.chunks_exact(heads * head_size).skip(1).step_by(2);
        assert!(blind.flatten().all(|x| *x == 0.0), "a query that sees nothing gives zeros");
    }
}

#[test]
fn layers_share_what_the_first_finds_in_their_mask() {
    for isa in isas() {
        let sizes = AttentionSizes {
            head_size: 64,
            heads: 4,
            kv_heads: 2,
            queries: 3,
            cells: 96,
            streams: 2,
            threads: 2,
            isa,
            kv: sys::GGML_TYPE_F16,
            sinks: false,
        };
        let arena = Arena::new();
        let case = AttentionCase::new(&arena, sizes, causal);
        let side = KernelSide::Own(isa);
        let first = arena.compute_layer(case.op, side, 2);
        assert_eq!(arena.compute_layer(case.op, side, 2), first);
        // SAFETY: the mask is an operand, as old as the operation.
        let mask = unsafe { &*case.op.get().src[3] };
        graph_masks::keep(mask, sizes.cells, &[0; 3 * 2], std::ptr::null());
        let blind = arena.compute_layer(case.op, side, 2);
        assert!(blind.iter().all(|x| *x == 0.0), "by what was kept, no cell counts");
        graph_masks::forget_mask(mask);
        assert_eq!(arena.compute(case.op, side, 2), first, "a new graph reads its mask again");
    }
}

#[test]
fn what_the_kernel_does_not_compute_is_left_to_ggml() {
    let (f16, f32) = (sys::GGML_TYPE_F16, sys::GGML_TYPE_F32);
    let taken = |head_size, kind, max_bias, softcap, sinks| {
        let arena = Arena::new();
        empty(&arena, (head_size, 64), kind, (max_bias, softcap), sinks).is_ours()
    };
    assert!(taken(64, f16, 0.0, 0.0, false), "the plain one is taken");
    assert!(!taken(64, f16, 8.0, 0.0, false), "ALiBi");
    assert!(!taken(64, f16, 0.0, 30.0, false), "soft caps");
    assert!(taken(64, f16, 0.0, 0.0, true), "sinks");
    assert!(!taken(64, f32, 0.0, 0.0, false), "f32 caches");
    let arena = Arena::new();
    assert!(!empty(&arena, (64, 48), f16, (0.0, 0.0), false).is_ours(), "part of a register");
}

/// An attention without data, of four heads in two groups.
fn empty(
    arena: &Arena,
    (head_size, cells): (usize, usize),
    kind: sys::ggml_type,
    (max_bias, softcap): (f32, f32),
    sinks: bool,
) -> ArenaTensor<'_> {
    let (heads, kv_heads, queries) = (4, 2, 3);
    let tensor = |kind, heads: i64, tokens: usize| {
        let sizes = [head_size as i64, heads, tokens as i64, 1];
        // SAFETY: `sizes` has the four sizes that the call reads, and the context is the arena's.
        let new = |context| unsafe { sys::ggml_new_tensor(context, kind, 4, sizes.as_ptr()) };
        arena.heads_first(arena.make(new))
    };
    let operands = [
        tensor(sys::GGML_TYPE_F32, heads, queries),
        tensor(kind, kv_heads, cells),
        tensor(kind, kv_heads, cells),
        arena.tensor(
            sys::GGML_TYPE_F16,
            [cells as i64, queries as i64, 1, 1],
            &vec![0; 2 * cells * queries],
        ),
    ];
    let [q, k, v, mask] = operands.map(ArenaTensor::as_ptr);
    // SAFETY: tensors of this context whose sizes fit; one sink for each head.
    arena.make(|context| unsafe {
        let op = sys::ggml_flash_attn_ext(context, q, k, v, mask, 0.1, max_bias, softcap);
        if sinks {
            let sinks = arena.floats([heads, 1, 1, 1], &[0.0; 4]);
            sys::ggml_flash_attn_ext_add_sinks(op, sinks.as_ptr());
        }
        op
    })
}
