//! Attention of the graph, as every instruction set's kernels compute it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::graph_masks;
use super::query_runs::{MASK_LANES, MOST_RUN, MaskRow, QueryRun, VisibleCells, parts_len};
use super::sys;
use super::work_queue::WorkQueue;
use super::write_order::WriteOrder;

/// Head sizes that the kernels support: those of common models and of the bundled one.
pub(super) const HEAD_SIZES: [i64; 5] = [32, 64, 96, 128, 256];

/// Storage format of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KvFormat {
    /// 16-bit floats.
    Half,
    /// Bytes with a scale for every 32.
    Q8_0,
}

/// [`KvFormat::Half`] and [`KvFormat::Q8_0`] as numbers, for code that is compiled for each.
pub(super) const HALF: u8 = KvFormat::Half as u8;
pub(super) const Q8_0: u8 = KvFormat::Q8_0 as u8;

/// The sink of a model that has none.
pub(super) const NO_SINK: f32 = f32::NEG_INFINITY;

/// Minimum number of chunks for each thread, if there is that much to share: a thread that has none
/// left waits for at most one chunk of another. More would list the same cells more often.
const CHUNKS_PER_THREAD: usize = 4;

/// Number of elements and of bytes in a block of [`KvFormat::Q8_0`]: a scale of 16 bits, then the
/// elements.
const Q8_0_BLOCK: (usize, usize) = (32, 34);

impl KvFormat {
    fn of(tensor: &sys::ggml_tensor) -> Option<Self> {
        match (tensor.type_, tensor.nb[0]) {
            (sys::GGML_TYPE_F16, 2) => Some(Self::Half),
            (sys::GGML_TYPE_Q8_0, bytes) if bytes == Q8_0_BLOCK.1 => Some(Self::Q8_0),
            _ => None,
        }
    }
}

/// Bytes of `numbers` numbers, whole blocks, in the format `KV`.
#[inline]
pub(super) const fn kv_bytes<const KV: u8>(numbers: usize) -> usize {
    if KV == HALF { 2 * numbers } else { numbers / Q8_0_BLOCK.0 * Q8_0_BLOCK.1 }
}

/// Offsets of the scale and the byte of element `number` in a row of [`KvFormat::Q8_0`].
#[inline]
pub(super) const fn q8_0_places(number: usize) -> (usize, usize) {
    let scale = kv_bytes::<Q8_0>(number);
    (scale, scale + size_of::<u16>() + number % Q8_0_BLOCK.0)
}

/// A fused attention of the graph that the kernel can compute: f32 queries, keys and values in a
/// [`KvFormat`].
pub(super) struct Attention<'a> {
    pub(super) queries: &'a sys::ggml_tensor,
    pub(super) keys: &'a sys::ggml_tensor,
    pub(super) values: &'a sys::ggml_tensor,
    pub(super) mask: &'a sys::ggml_tensor,
    /// One score per head that counts like one more cell without a value.
    sinks: Option<&'a sys::ggml_tensor>,
    pub(super) output: &'a sys::ggml_tensor,
    pub(super) kv: KvFormat,
    pub(super) scale: f32,
    pub(super) cells: usize,
}

impl<'a> Attention<'a> {
    /// Returns `op` as attention, if the kernel can compute it.
    pub(super) fn of(op: &'a sys::ggml_tensor) -> Option<Self> {
        if op.op != sys::GGML_OP_FLASH_ATTN_EXT {
            return None;
        }
        // SAFETY: null, or operands that live as long as the operation.
        let [queries, keys, values, mask] = unsafe {
            [op.src[0].as_ref()?, op.src[1].as_ref()?, op.src[2].as_ref()?, op.src[3].as_ref()?]
        };
        // SAFETY: null, or an operand that lives as long as the operation.
        let sinks = unsafe { op.src[4].as_ref() };
        let kv = KvFormat::of(keys)?;
        let parameter = |i: usize| f32::from_bits(op.op_params[i] as u32);
        let (scale, max_bias, softcap) = (parameter(0), parameter(1), parameter(2));
        let head_size = queries.ne[0];
        // ALiBi, soft caps and other head sizes are left to ggml.
        let fits = queries.type_ == sys::GGML_TYPE_F32
            && KvFormat::of(values) == Some(kv)
            && KvFormat::of(mask) == Some(KvFormat::Half)
            && sinks.is_none_or(|s| s.type_ == sys::GGML_TYPE_F32 && s.ne[0] == queries.ne[2])
            && queries.nb[0] == 4
            && op.nb[0] == 4
            && HEAD_SIZES.contains(&head_size)
            && keys.ne[0] == head_size
            && values.ne[0] == head_size
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
        fits.then_some(Self { queries, keys, values, mask, sinks, output: op, kv, scale, cells })
    }

    /// Heads that share keys and values.
    fn together(&self) -> usize {
        (self.queries.ne[2] / self.keys.ne[2]) as usize
    }

    /// Queries of a chunk: as many as fill `most_rows` with the heads that share keys and values
    /// (grouped-query attention), so that each cell is read once for all of them.
    fn tile(&self, most_rows: usize) -> usize {
        let most = MOST_RUN.min(self.queries.ne[1] as usize);
        (most_rows / self.together()).min(most).max(1)
    }

    /// Rows for which a thread has scores.
    fn rows_at_once(&self, most_rows: usize) -> usize {
        most_rows.min(self.tile(most_rows) * self.together())
    }

    /// Bytes of one thread's lists: cells with their biases, and scores of the rows of a pass.
    fn thread_bytes(&self, most_rows: usize) -> usize {
        self.cells * (size_of::<u32>() + (1 + self.rows_at_once(most_rows)) * size_of::<f32>())
    }

    /// Work memory in bytes for passes of up to `most_rows` rows.
    pub(super) fn memory_bytes(&self, most_rows: usize, threads: usize) -> usize {
        self.parts_bytes() + threads * self.thread_bytes(most_rows) + 64
    }

    /// Number of masks: of all queries in all streams that do not share theirs.
    fn masks(&self) -> usize {
        (self.queries.ne[1] * self.mask.ne[3]) as usize
    }

    /// Bytes of the [`MaskRow::parts`] of all masks, whole cache lines.
    fn parts_bytes(&self) -> usize {
        (self.masks() * parts_len(self.cells) * size_of::<u64>()).next_multiple_of(64)
    }

    /// Returns a thread's lists in `memory`: the cells, and the scores of [`Self::rows_at_once`].
    ///
    /// # Safety
    /// The memory has [`Attention::memory_bytes`] for `most_rows` and more than `thread` threads,
    /// and no other call has `thread`.
    unsafe fn lists<'m>(
        &self,
        most_rows: usize,
        thread: usize,
        memory: *mut u8,
    ) -> (VisibleCells<'m>, &'m mut [f32]) {
        // SAFETY: a part of the memory for each thread, aligned; plain numbers, which any bytes
        // are.
        unsafe {
            // Floats first, then indices, each thread its own: nothing is shared but the queue.
            let lists = memory.add(memory.align_offset(64) + self.parts_bytes());
            let own = lists.add(thread * self.thread_bytes(most_rows));
            let floats = own.cast::<f32>();
            let part = |i: usize, parts| {
                std::slice::from_raw_parts_mut(floats.add(i * self.cells), parts * self.cells)
            };
            let rows = self.rows_at_once(most_rows);
            let indices = own.add((1 + rows) * self.cells * size_of::<f32>());
            let indices = std::slice::from_raw_parts_mut(indices.cast::<u32>(), self.cells);
            (VisibleCells { indices, biases: part(0, 1) }, part(1, rows))
        }
    }

    /// Computes one thread's share: runs of queries, as `run_of` finds them in their masks, some
    /// groups of heads, one at a time, by `attend`.
    ///
    /// # Safety
    /// All threads of `queue` call this with the same `memory` of [`Attention::memory_bytes`]; the
    /// tensors have their data.
    pub(super) unsafe fn compute_runs(
        &self,
        most_rows: usize,
        queue: &WorkQueue,
        memory: *mut u8,
        write_parts: impl Fn(&[u16], &mut [u64]),
        run_of: impl Fn(&[MaskRow<'_>], &mut VisibleCells<'_>) -> QueryRun,
        attend: impl Fn(&Heads, &QueryRun, &VisibleCells<'_>, &mut [f32]),
    ) {
        // SAFETY: the caller guarantees the size of `memory`; each thread of the queue has a
        // different number.
        let (mut cells, scores) = unsafe { self.lists(most_rows, queue.thread, memory) };
        let order = WriteOrder::of(self.keys, queue.pool);
        let masks = Masks::of(self, memory);
        if masks.kept.is_none() {
            // SAFETY: each thread of the queue has a different number.
            unsafe { masks.write_share(queue, write_parts) }
        }
        queue.begin();
        if masks.kept.is_none() && queue.thread == 0 {
            // SAFETY: all threads are past their shares.
            let parts = unsafe { masks.parts() };
            graph_masks::keep(self.mask, self.cells, parts, queue.pool);
        }
        let chunks = Chunks::of(self, most_rows, queue.threads);
        let together = chunks.together;
        while let Some(chunk) = queue.next(chunks.count()) {
            let Chunk { stream, queries, groups } = chunks.get(chunk);
            let (mut at, end) = (queries.start, queries.end);
            // Queries of different sequences see different cells, so a tile may be several runs.
            while at < end {
                // SAFETY: the queries and the stream exist; all threads are past their shares.
                let rows: [MaskRow<'_>; MOST_RUN] =
                    std::array::from_fn(|i| unsafe { masks.row((at + i).min(end - 1), stream) });
                let written = order.as_ref().map(|order| order.of_cells(self.keys, stream));
                let run = in_order(&rows[..end - at], written, &mut cells, &run_of);
                for group in groups.clone() {
                    let head = group * together;
                    let heads = Heads { query: at, head, together, group, stream };
                    attend(&heads, &run, &cells, scores);
                }
                at += run.queries;
            }
        }
    }
}

/// Shares of an [`Attention`], which threads take one at a time.
struct Chunks {
    queries: usize,
    /// Queries of a chunk, and the number of such tiles in a stream.
    tile: usize,
    tiles: usize,
    streams: usize,
    /// Groups of heads that share keys and values, and into how many parts they are divided.
    groups: usize,
    parts: usize,
    /// Heads of a group.
    together: usize,
}

struct Chunk {
    stream: usize,
    queries: Range<usize>,
    groups: Range<usize>,
}

impl Chunks {
    fn of(op: &Attention<'_>, most_rows: usize, threads: usize) -> Self {
        let [_, queries, _, streams] = op.queries.ne.map(|n| n as usize);
        let (groups, together) = (op.keys.ne[2] as usize, op.together());
        let tiles = queries.div_ceil(op.tile(most_rows));
        // All nearly alike: a short tile at the end would be slow for its few rows.
        let tile = queries.div_ceil(tiles.max(1));
        // Groups of one chunk share the lists of cells, which take a good part of a decode step.
        let parts = (CHUNKS_PER_THREAD * threads).div_ceil(streams * tiles).clamp(1, groups);
        Self { queries, tile, tiles, streams, groups, parts, together }
    }

    fn count(&self) -> usize {
        self.streams * self.tiles * self.parts
    }

    fn get(&self, number: usize) -> Chunk {
        let (rest, part) = (number / self.parts, number % self.parts);
        let (stream, first) = (rest / self.tiles, rest % self.tiles * self.tile);
        let of_part = |part: usize| part * self.groups / self.parts;
        Chunk {
            stream,
            queries: first..self.queries.min(first + self.tile),
            groups: of_part(part)..of_part(part + 1),
        }
    }
}

/// Returns the run at the beginning of `rows`; lists its cells in the order in which they were
/// `written`, if that is known.
fn in_order(
    rows: &[MaskRow<'_>],
    written: Option<&[AtomicU64]>,
    cells: &mut VisibleCells<'_>,
    run_of: impl Fn(&[MaskRow<'_>], &mut VisibleCells<'_>) -> QueryRun,
) -> QueryRun {
    let mut run = run_of(rows, cells);
    if let Some(written) = written {
        run.put_in_order(rows[run.queries - 1].lanes, cells, written);
    }
    run
}

/// Masks of all queries, with their parts.
struct Masks<'a> {
    op: &'a Attention<'a>,
    /// Parts that an earlier layer kept; else they are to be written to work memory.
    kept: Option<Arc<[u64]>>,
    own: *mut u64,
    /// Numbers of one mask's parts.
    parts_len: usize,
}

impl<'a> Masks<'a> {
    /// Returns the masks of `op`, whose parts have room in its work memory. All threads get the
    /// same if none has come to the queue's beginning.
    fn of(op: &'a Attention<'a>, memory: *mut u8) -> Self {
        let parts_len = parts_len(op.cells);
        let kept = graph_masks::parts_of(op.mask, op.cells, op.masks() * parts_len);
        let own = memory.wrapping_add(memory.align_offset(64)).cast();
        Self { op, kept, own, parts_len }
    }

    /// Returns the parts of all masks.
    ///
    /// # Safety
    /// They are kept, or all threads have written their shares.
    unsafe fn parts(&self) -> &[u64] {
        let count = self.op.masks() * self.parts_len;
        // SAFETY: by the caller; nobody writes them any more.
        let written = || unsafe { std::slice::from_raw_parts(self.own, count) };
        self.kept.as_deref().unwrap_or_else(written)
    }

    /// Writes the parts of this thread's share of the masks.
    ///
    /// # Safety
    /// The memory has [`Attention::memory_bytes`]; no other thread has this number, or reads parts
    /// before all threads have come to the queue's beginning.
    unsafe fn write_share(&self, queue: &WorkQueue, write_parts: impl Fn(&[u16], &mut [u64])) {
        let [queries, streams] = [self.op.queries.ne[1], self.op.mask.ne[3]].map(|n| n as usize);
        for index in (queue.thread..queries * streams).step_by(queue.threads) {
            // SAFETY: by the caller this thread alone uses these parts; the query and its stream
            // exist.
            unsafe {
                let parts = self.own.add(index * self.parts_len);
                let parts = std::slice::from_raw_parts_mut(parts, self.parts_len);
                write_parts(self.lanes(index % queries, index / queries), parts);
            }
        }
    }

    /// Returns the mask of `query` in `stream`.
    ///
    /// # Safety
    /// They exist; the parts are there ([`Masks::parts`]).
    unsafe fn row(&self, query: usize, stream: usize) -> MaskRow<'_> {
        // Streams of the cache may share masks.
        let stream = stream % self.op.mask.ne[3] as usize;
        let index = stream * self.op.queries.ne[1] as usize + query;
        // SAFETY: by the caller.
        unsafe {
            let parts = &self.parts()[index * self.parts_len..][..self.parts_len];
            MaskRow { lanes: self.lanes(query, stream), parts }
        }
    }

    /// Returns the numbers of the mask of `query` in the masks' own `stream`.
    ///
    /// # Safety
    /// They exist.
    unsafe fn lanes(&self, query: usize, stream: usize) -> &'a [u16] {
        let mask = self.op.mask;
        // SAFETY: the mask has this row, of at least `cells` numbers.
        unsafe {
            let start = mask.data.byte_add(query * mask.nb[1] + stream * mask.nb[3]);
            std::slice::from_raw_parts(start.cast::<u16>(), self.op.cells)
        }
    }
}

/// Rows of a run: the heads of one group, of the queries from `query` on.
pub(super) struct Heads {
    pub(super) query: usize,
    pub(super) head: usize,
    /// Heads of the group: rows per query.
    pub(super) together: usize,
    pub(super) group: usize,
    pub(super) stream: usize,
}

impl Heads {
    /// Returns the beginning of row `row` in `tensor`: the queries, or the output, in which heads
    /// and queries are swapped.
    pub(super) fn row(&self, tensor: &sys::ggml_tensor, row: usize, output: bool) -> *mut u8 {
        let (query, head) = (self.query + row / self.together, self.head + row % self.together);
        let (b, c) = if output { (head, query) } else { (query, head) };
        let start = tensor.data.cast::<u8>();
        start.wrapping_add(b * tensor.nb[1] + c * tensor.nb[2] + self.stream * tensor.nb[3])
    }

    /// Returns the sink of row `row`'s head.
    pub(super) fn sink(&self, op: &Attention<'_>, row: usize) -> f32 {
        let head = self.head + row % self.together;
        // SAFETY: a number for each head, without gaps; it has its data when it is asked for.
        op.sinks.map_or(NO_SINK, |sinks| unsafe { *sinks.data.cast::<f32>().add(head) })
    }

    /// Returns the group's keys or values.
    pub(super) fn matrix(&self, tensor: &sys::ggml_tensor) -> Matrix {
        let start = tensor.data.cast::<u8>();
        let start = start.wrapping_add(self.group * tensor.nb[2] + self.stream * tensor.nb[3]);
        Matrix { start, stride: tensor.nb[1] }
    }
}

/// Keys or values of one group of heads.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) start: *const u8,
    /// Bytes from one cell's numbers to the next's.
    pub(super) stride: usize,
}

impl Matrix {
    #[inline]
    pub(super) fn at(self, cell: u32) -> *const u8 {
        self.start.wrapping_add(cell as usize * self.stride)
    }
}
