//! Way of prefixes between the engine and the store on disk.
//!
//! The engine thread only copies keys and values, a block of tokens at a time. One thread reads
//! blocks for prompts that have got a place, another writes those of sequences that have ended;
//! both have bounded queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use loquent_infer::request::{RestoreId, RestoreOrder, Work};
use loquent_infer::runner::{Runner, SavedSpan, Slot};
use loquent_infer::scheduler::{RestoreError, Scheduler, StoreTraffic};
use loquent_infer::tenant::CacheDomain;
use loquent_infer::token::TokenId;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{self, error::TryRecvError};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::prefix_store::block::{BLOCK_TOKENS, BlockKey, block_keys};
use crate::prefix_store::{BlockUse, PrefixStore};

/// Minimum tokens of a sequence for it to be saved: shorter ones are computed in no time.
const MIN_SAVED_TOKENS: usize = 256;
/// Blocks that wait to be written. A block has some megabytes.
const BLOCKS_TO_WRITE: usize = 4;
/// Blocks that were read and wait for the engine.
const BLOCKS_READ: usize = 4;
/// Time without a sign of the reading thread after which prompts are computed instead: the folder
/// may be on a network volume whose server is gone.
const READ_LIMIT: Duration = Duration::from_secs(2);
/// Time limit for saving when the engine ends, and for the last writes after it.
const END_LIMIT: Duration = Duration::from_secs(4);

/// Makes the engine look for what its threads have done.
pub(super) type Wake = Arc<dyn Fn() + Send + Sync>;

/// Store of an engine's prefixes.
#[derive(Debug, Clone)]
pub struct EnginePrefixes {
    /// The store, which all engines share.
    pub store: Arc<PrefixStore>,
    /// Name of everything that keys and values depend on besides the tokens: only engines with the
    /// same name share prefixes.
    pub fingerprint: String,
}

/// A block of a prompt.
struct NumberedKey {
    index: u32,
    key: BlockKey,
}

/// Work of the reading thread.
enum ReadOrder {
    /// Read the blocks of a prompt, unless it has been ended meanwhile.
    Blocks { id: RestoreId, blocks: Vec<NumberedKey>, is_ended: Arc<AtomicBool> },
    /// List the folder, if nobody did lately.
    List,
}

/// Result of reading.
enum ReadEvent {
    Block(RestoreId, BlockKey, SavedSpan),
    /// There are no more blocks.
    End(RestoreId),
}

/// Orders that the reading thread has, and its last sign.
#[derive(Default)]
struct Awaited {
    /// Orders that are not ended. The flags tell the thread to skip what it has not read.
    orders: Vec<(RestoreId, Arc<AtomicBool>)>,
    /// When the thread last delivered anything, or got an order while it had none.
    last_sign: Duration,
    /// True from [`READ_LIMIT`] without a sign until the next sign: nothing is ordered.
    is_late: bool,
}

/// A block to be written.
struct BlockToWrite {
    key: BlockKey,
    used: BlockUse,
    state: Vec<u8>,
}

/// Blocks of a kept sequence that are being saved.
struct Saving {
    slot: Slot,
    domain: CacheDomain,
    tokens: Vec<TokenId>,
    began: SystemTime,
    /// Blocks that are not saved yet.
    left: VecDeque<NumberedKey>,
}

/// The engine's side of the store.
pub(super) struct PrefixDesk {
    prefixes: EnginePrefixes,
    metrics: Arc<Metrics>,
    clock: Clock,
    reads: mpsc::UnboundedSender<ReadOrder>,
    read: mpsc::Receiver<ReadEvent>,
    awaited: Awaited,
    writes: mpsc::Sender<BlockToWrite>,
    /// Closed when the writing thread has ended.
    written: oneshot::Receiver<()>,
    saving: Option<Saving>,
}

impl PrefixDesk {
    /// Starts the threads. They call `wake` when a block was read or written.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub(super) fn start(
        prefixes: EnginePrefixes,
        metrics: Arc<Metrics>,
        clock: Clock,
        wake: Wake,
    ) -> std::io::Result<Self> {
        let (reads, read_orders) = mpsc::unbounded_channel();
        let (events, read) = mpsc::channel(BLOCKS_READ);
        let (writes, blocks) = mpsc::channel(BLOCKS_TO_WRITE);
        let (ended, written) = oneshot::channel();
        let (store, woken) = (prefixes.store.clone(), wake.clone());
        let reader = move || read_blocks(&store, read_orders, &events, &woken);
        thread::Builder::new().name("prefix-reader".into()).spawn(reader)?;
        let (store, counted) = (prefixes.store.clone(), metrics.clone());
        let writer = move || {
            write_blocks(&store, blocks, &counted, &wake);
            drop(ended);
        };
        thread::Builder::new().name("prefix-writer".into()).spawn(writer)?;
        let awaited = Awaited::default();
        Ok(Self { prefixes, metrics, clock, reads, read, awaited, writes, written, saving: None })
    }

    /// Returns the number of tokens at the beginning of the prompt that the store has.
    pub(super) fn stored_tokens(&self, work: &Work) -> u32 {
        let EnginePrefixes { store, fingerprint } = &self.prefixes;
        if work.prompt.len() < BLOCK_TOKENS as usize || self.awaited.is_late {
            return 0;
        }
        if store.is_stale(SystemTime::now()) {
            // For later prompts; this one does not wait.
            let _ = self.reads.send(ReadOrder::List);
        }
        let keys = block_keys(fingerprint, work.cache_domain, &work.prompt);
        keys.take_while(|key| store.has(key)).count() as u32 * BLOCK_TOKENS
    }

    /// Has the blocks of `order` read. Returns false if the reading thread has ended or is late.
    pub(super) fn order(&mut self, order: RestoreOrder) -> bool {
        if self.awaited.is_late {
            return false;
        }
        let RestoreOrder { id, domain, tokens, cached } = order;
        let keys = block_keys(&self.prefixes.fingerprint, domain, &tokens);
        let blocks = (0..).zip(keys).map(|(index, key)| NumberedKey { index, key });
        let blocks = blocks.skip((cached / BLOCK_TOKENS) as usize).collect();
        let is_ended = self.awaited.begin(id, self.clock.now());
        self.reads.send(ReadOrder::Blocks { id, blocks, is_ended }).is_ok()
    }

    /// Copies a block that was read into the cache. Returns false if there is none.
    pub(super) fn restore_next(
        &mut self,
        scheduler: &mut Scheduler,
        runner: &mut dyn Runner,
    ) -> bool {
        let mut traffic = StoreTraffic::of(scheduler);
        let event = match self.read.try_recv() {
            Ok(event) => event,
            Err(TryRecvError::Empty) => {
                self.give_up_late(&mut traffic);
                return false;
            }
            Err(TryRecvError::Disconnected) => {
                // The thread has panicked: all prompts are computed.
                self.awaited.end_all();
                traffic.end_all();
                return false;
            }
        };
        self.awaited.note_sign(self.clock.now());
        match event {
            ReadEvent::Block(id, key, span) => match traffic.restore(runner, id, &span) {
                Ok(tokens) => self.metrics.on_prefix_restored(tokens),
                Err(why) => {
                    if let RestoreError::Unusable(_) = why {
                        self.prefixes.store.discard(&key, &why);
                    }
                    traffic.end(id);
                }
            },
            ReadEvent::End(id) => traffic.end(id),
        }
        true
    }

    /// Has nothing more read for sequences that have left, or need no more.
    pub(super) fn skip_ended(&mut self, scheduler: &mut Scheduler) {
        let traffic = StoreTraffic::of(scheduler);
        self.awaited.end_unless(|id| traffic.awaits(id));
    }

    /// When to stop waiting for the reading thread; `None` if nothing is awaited.
    pub(super) fn deadline(&self) -> Option<Duration> {
        (!self.awaited.orders.is_empty()).then_some(self.awaited.last_sign + READ_LIMIT)
    }

    /// Ends all orders if the reading thread is late.
    fn give_up_late(&mut self, traffic: &mut StoreTraffic<'_>) {
        if self.deadline().is_none_or(|deadline| self.clock.now() < deadline) {
            return;
        }
        tracing::warn!(
            "the folder of cached prefixes has not answered for {} s: prompts are computed until \
             it does",
            READ_LIMIT.as_secs()
        );
        self.awaited.is_late = true;
        self.awaited.end_all();
        traffic.end_all();
    }

    /// Copies the next block of a kept sequence for the writer. Returns false if there is none, or
    /// no room for it.
    pub(super) fn save_next(&mut self, scheduler: &mut Scheduler, runner: &mut dyn Runner) -> bool {
        let Ok(room) = self.writes.try_reserve() else { return false };
        let mut traffic = StoreTraffic::of(scheduler);
        loop {
            let Some(saving) = &mut self.saving else {
                let Some(slot) = traffic.next_kept() else { return false };
                self.saving = saving_of(&self.prefixes, &traffic, slot);
                continue;
            };
            let Some(NumberedKey { index, key }) = saving.next(&self.prefixes.store, &traffic)
            else {
                self.saving = None;
                continue;
            };
            let positions = index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS;
            match runner.save(saving.slot, positions) {
                Ok(SavedSpan { state, .. }) => {
                    let used = BlockUse { at: saving.began, index };
                    room.send(BlockToWrite { key, used, state });
                    return true;
                }
                Err(why) => {
                    tracing::debug!(slot = saving.slot.0, "a prefix is not saved: {why}");
                    self.saving = None;
                }
            }
        }
    }

    /// Saves, before the engine ends, what is not saved yet, for [`END_LIMIT`] at most.
    pub(super) fn end(
        mut self,
        scheduler: &mut Scheduler,
        runner: &mut dyn Runner,
        timer: &Runtime,
    ) {
        let clock = self.clock;
        let until = clock.now() + END_LIMIT;
        let left = || until.saturating_sub(clock.now());
        // Room for a block first, so that `save_next` returns false only when all are saved.
        let has_room = |desk: &Self| {
            timer.block_on(async { timeout(left(), desk.writes.reserve()).await.is_ok() })
        };
        while !left().is_zero() && has_room(&self) && self.save_next(scheduler, runner) {}
        drop(self.writes);
        // What a disk that hangs leaves unwritten is lost.
        let _ = timer.block_on(async { timeout(END_LIMIT, self.written).await });
    }
}

impl Awaited {
    /// Adds an order; returns the flag that is set when it has ended.
    fn begin(&mut self, id: RestoreId, now: Duration) -> Arc<AtomicBool> {
        if self.orders.is_empty() {
            self.last_sign = now;
        }
        let is_ended = Arc::<AtomicBool>::default();
        self.orders.push((id, is_ended.clone()));
        is_ended
    }

    fn note_sign(&mut self, now: Duration) {
        self.last_sign = now;
        self.is_late = false;
    }

    /// Ends the orders that `are_awaited` no longer.
    fn end_unless(&mut self, are_awaited: impl Fn(RestoreId) -> bool) {
        self.orders.retain(|(id, is_ended)| {
            let awaited = are_awaited(*id);
            is_ended.store(!awaited, Ordering::Relaxed);
            awaited
        });
    }

    fn end_all(&mut self) {
        self.end_unless(|_| false);
    }
}

/// Returns the blocks of the sequence kept in `slot`; `None` if there is none worth saving.
fn saving_of(prefixes: &EnginePrefixes, traffic: &StoreTraffic<'_>, slot: Slot) -> Option<Saving> {
    let (domain, tokens) = traffic.kept(slot)?;
    if tokens.len() < MIN_SAVED_TOKENS {
        return None;
    }
    let keys = block_keys(&prefixes.fingerprint, domain, tokens);
    let left = (0..).zip(keys).map(|(index, key)| NumberedKey { index, key }).collect();
    Some(Saving { slot, domain, tokens: tokens.to_vec(), began: SystemTime::now(), left })
}

impl Saving {
    /// Returns the next block that the store lacks and the slot still has.
    fn next(&mut self, store: &PrefixStore, traffic: &StoreTraffic<'_>) -> Option<NumberedKey> {
        let (domain, tokens) = traffic.kept(self.slot)?;
        while let Some(block) = self.left.pop_front() {
            let end = ((block.index + 1) * BLOCK_TOKENS) as usize;
            // The slot may hold another sequence by now.
            if domain != self.domain || tokens.get(..end) != self.tokens.get(..end) {
                return None;
            }
            if !store.has(&block.key) {
                return Some(block);
            }
        }
        None
    }
}

/// Reads the blocks of each order until one is missing or nobody wants more, and ends the order.
fn read_blocks(
    store: &PrefixStore,
    mut orders: mpsc::UnboundedReceiver<ReadOrder>,
    events: &mpsc::Sender<ReadEvent>,
    wake: &Wake,
) {
    let send = |event| {
        let sent = events.blocking_send(event).is_ok();
        wake();
        sent
    };
    while let Some(order) = orders.blocking_recv() {
        let now = SystemTime::now();
        let ReadOrder::Blocks { id, blocks, is_ended } = order else {
            if store.is_stale(now) {
                // If it cannot be read, prompts are computed.
                let _ = store.list(now);
            }
            continue;
        };
        for NumberedKey { index, key } in blocks {
            if is_ended.load(Ordering::Relaxed) {
                break;
            }
            let used = BlockUse { at: now, index };
            let Some(state) = store.read(&key, used) else { break };
            let positions = index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS;
            if !send(ReadEvent::Block(id, key, SavedSpan { positions, state })) {
                return;
            }
        }
        if !send(ReadEvent::End(id)) {
            return;
        }
    }
}

/// Writes blocks until the engine has ended.
fn write_blocks(
    store: &PrefixStore,
    mut blocks: mpsc::Receiver<BlockToWrite>,
    metrics: &Metrics,
    wake: &Wake,
) {
    while let Some(BlockToWrite { key, used, state }) = blocks.blocking_recv() {
        if store.write(&key, &state, used, SystemTime::now()) {
            metrics.on_prefix_saved(BLOCK_TOKENS);
        }
        wake();
    }
}

#[cfg(test)]
mod tests;
