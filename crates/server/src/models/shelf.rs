//! Which models are in memory, and which comes or goes next.
//!
//! A state machine without threads, files or a clock: the time and the free memory are arguments,
//! and what it decides is for somebody else to do. One model moves at a time, since two that load
//! at once are both late and nobody knows what either of them takes.
//!
//! A model that is asked for and does not fit waits for another to go: the least recently used of
//! those that nobody uses. If all are in use, nobody is thrown out. The one that has been there
//! longest takes no new requests until it is free, so that even under steady load each gets its
//! turn; those requests wait for the next time that it is loaded.

use std::fmt;
use std::time::Duration;

/// How long a request waits for a model in use before that one takes no new requests. Chosen by
/// hand: many answers end within it by themselves.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a model stays at least while requests come for it, in parts of the time in which it was
/// loaded: a machine that only loads serves nobody.
const STAY_FACTOR: u32 = 5;
/// Bounds of that time.
const STAY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// How long a model takes no new requests while it is to make room for another. Then it takes them
/// again, for as long: one client that reads an endless answer slowly must not close it to all.
const LEAVE_LIMIT: Duration = Duration::from_secs(60);
/// How long a model that failed to load is not tried again.
const FAILURE_REST: Duration = Duration::from_secs(10);

/// Bounds on the models in memory.
#[derive(Debug, Clone, Copy)]
pub struct ShelfLimits {
    /// Most models at once.
    pub max_loaded: usize,
    /// Most bytes of all of them together.
    pub memory_bytes: u64,
    /// How long one may be unused before it goes; `None` keeps it until another needs its room.
    pub idle: Option<Duration>,
}

/// A model's place in the list of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub usize);

/// Where a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Not in memory.
    Unloaded,
    /// On its way into memory.
    Loading {
        /// When that began.
        since: Duration,
    },
    /// In memory.
    Ready {
        /// When it was loaded.
        since: Duration,
        /// It need not make room for others before then.
        stays: Duration,
    },
    /// On its way out.
    Unloading,
    /// It could not be loaded, and is not tried before then.
    Failed {
        /// When it may be tried again.
        until: Duration,
    },
}

/// How long a model stays after its last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// For so long; zero lets it go at once.
    For(Duration),
    /// Until another needs its room.
    Forever,
}

/// What has to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Load this model.
    Load(ModelId),
    /// Take this model out of memory. Nobody uses it.
    Unload(ModelId),
}

/// Why a model is not loaded for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotLoaded {
    /// It takes more memory than all models may.
    TooLarge {
        /// What it takes.
        bytes: u64,
        /// What all may take.
        most: u64,
    },
    /// It could not be loaded a moment ago, and is not tried again for so long.
    Failed(Duration),
}

impl fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes, most } => {
                let (bytes, most) = (bytes >> 20, most >> 20);
                write!(f, "it takes {bytes} MiB and all models together may take {most} MiB")
            }
            Self::Failed(_) => f.write_str("it could not be loaded; the server's log says why"),
        }
    }
}

impl Presence {
    /// The word for it in the API, which is llama-server's where that has one.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading { .. } => "loading",
            Self::Ready { .. } => "loaded",
            Self::Unloading => "unloading",
            Self::Failed { .. } => "failed",
        }
    }
}

#[derive(Debug)]
struct ShelfSlot {
    bytes: u64,
    presence: Presence,
    /// Requests that use it.
    uses: usize,
    /// Requests that wait for it.
    waiting: usize,
    /// When the first of those came.
    wanted_since: Duration,
    used_at: Duration,
    keep: Option<KeepAlive>,
    /// Takes no new requests, and goes when it is free.
    leaves: Option<Leaving>,
}

/// Why a model takes no new requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// Somebody said so.
    Asked,
    /// Another needs its room. It stays if it is still in use then.
    ForAnother {
        /// When that is.
        until: Duration,
    },
}

/// All models, and who uses them.
#[derive(Debug)]
pub struct ModelShelf {
    limits: ShelfLimits,
    slots: Vec<ShelfSlot>,
}

impl ShelfSlot {
    fn new(bytes: u64) -> Self {
        Self {
            bytes,
            presence: Presence::Unloaded,
            uses: 0,
            waiting: 0,
            wanted_since: Duration::ZERO,
            used_at: Duration::ZERO,
            keep: None,
            leaves: None,
        }
    }

    fn is_ready(&self) -> bool {
        matches!(self.presence, Presence::Ready { .. })
    }

    /// Whether it takes memory.
    fn is_present(&self) -> bool {
        matches!(
            self.presence,
            Presence::Loading { .. } | Presence::Ready { .. } | Presence::Unloading
        )
    }

    fn is_moving(&self) -> bool {
        matches!(self.presence, Presence::Loading { .. } | Presence::Unloading)
    }

    /// Whether it could go at once.
    fn is_free(&self) -> bool {
        self.is_ready() && self.uses == 0 && (self.waiting == 0 || self.leaves.is_some())
    }

    fn may_be_loaded(&self, now: Duration) -> bool {
        match self.presence {
            Presence::Unloaded => true,
            Presence::Failed { until } => until <= now,
            _ => false,
        }
    }

    /// When it goes because nobody uses it.
    fn expires_at(&self, idle: Option<Duration>) -> Option<Duration> {
        let keep = match self.keep {
            Some(KeepAlive::For(keep)) => Some(keep),
            Some(KeepAlive::Forever) => None,
            None => idle,
        };
        keep.filter(|_| self.is_free()).map(|keep| self.used_at.saturating_add(keep))
    }
}

impl ModelShelf {
    /// None of the models, which take `bytes` each, is in memory.
    pub fn new(limits: ShelfLimits, bytes: impl IntoIterator<Item = u64>) -> Self {
        Self { limits, slots: bytes.into_iter().map(ShelfSlot::new).collect() }
    }

    /// Where a model is.
    pub fn presence(&self, id: ModelId) -> Presence {
        self.slots[id.0].presence
    }

    /// Requests that use a model.
    pub fn uses(&self, id: ModelId) -> usize {
        self.slots[id.0].uses
    }

    /// Requests that wait for any model.
    pub fn waiting(&self) -> usize {
        self.slots.iter().map(|slot| slot.waiting).sum()
    }

    /// Bytes of the models in memory.
    pub fn present_bytes(&self) -> u64 {
        self.present().map(|slot| slot.bytes).sum()
    }

    /// When a model goes if nobody uses it again; `None` while it is used, or for ever.
    pub fn expires_at(&self, id: ModelId) -> Option<Duration> {
        self.slots[id.0].expires_at(self.limits.idle)
    }

    /// Models whose turn to be loaded is before that of `id`; that one need not be waited for.
    pub fn ahead_of(&self, id: ModelId) -> usize {
        let mine = self.slots[id.0].wanted_since;
        let is_ahead = |(at, slot): (usize, &ShelfSlot)| {
            at != id.0 && slot.waiting > 0 && !slot.is_ready() && slot.wanted_since < mine
        };
        self.slots.iter().enumerate().filter(|&one| is_ahead(one)).count()
    }

    /// Uses a model, if it is ready and takes requests. [`Self::end_use`] ends it.
    pub fn try_use(&mut self, id: ModelId, now: Duration) -> bool {
        let slot = &mut self.slots[id.0];
        let is_open = slot.is_ready() && slot.leaves.is_none();
        if is_open {
            slot.uses += 1;
            slot.used_at = now;
        }
        is_open
    }

    /// A use has ended.
    pub fn end_use(&mut self, id: ModelId, now: Duration) {
        let slot = &mut self.slots[id.0];
        assert!(slot.uses > 0, "a use ends once");
        slot.uses -= 1;
        slot.used_at = now;
    }

    /// Whether a model can be loaded, or is there.
    ///
    /// # Errors
    /// When it cannot be, at least not now.
    pub fn check(&self, id: ModelId, now: Duration) -> Result<(), NotLoaded> {
        let (slot, most) = (&self.slots[id.0], self.limits.memory_bytes);
        match slot.presence {
            _ if slot.bytes > most => Err(NotLoaded::TooLarge { bytes: slot.bytes, most }),
            Presence::Failed { until } if until > now => Err(NotLoaded::Failed(until - now)),
            _ => Ok(()),
        }
    }

    /// A request waits for a model from here on. [`Self::end_wait`] ends that.
    ///
    /// # Errors
    /// Those of [`Self::check`].
    pub fn wait(&mut self, id: ModelId, now: Duration) -> Result<(), NotLoaded> {
        self.check(id, now)?;
        let slot = &mut self.slots[id.0];
        if slot.waiting == 0 {
            slot.wanted_since = now;
        }
        slot.waiting += 1;
        Ok(())
    }

    /// A request waits no longer.
    pub fn end_wait(&mut self, id: ModelId) {
        let slot = &mut self.slots[id.0];
        assert!(slot.waiting > 0, "a wait ends once");
        slot.waiting -= 1;
    }

    /// How long a model stays after its last use, from here on.
    pub fn keep(&mut self, id: ModelId, keep: KeepAlive) {
        self.slots[id.0].keep = Some(keep);
    }

    /// Lets a model go as soon as nobody uses it; false if it is not there.
    pub fn ask_to_leave(&mut self, id: ModelId) -> bool {
        let slot = &mut self.slots[id.0];
        let is_ready = slot.is_ready();
        if is_ready {
            slot.leaves = Some(Leaving::Asked);
        }
        is_ready
    }

    /// A model was loaded.
    pub fn loaded(&mut self, id: ModelId, now: Duration) {
        let slot = &mut self.slots[id.0];
        let Presence::Loading { since } = slot.presence else { panic!("it was not loading") };
        let stay = (now.saturating_sub(since) * STAY_FACTOR).clamp(STAY[0], STAY[1]);
        slot.presence = Presence::Ready { since: now, stays: now + stay };
        slot.used_at = now;
    }

    /// A model could not be loaded.
    pub fn failed(&mut self, id: ModelId, now: Duration) {
        let slot = &mut self.slots[id.0];
        assert!(matches!(slot.presence, Presence::Loading { .. }));
        slot.presence = Presence::Failed { until: now + FAILURE_REST };
    }

    /// A model's memory is free.
    pub fn unloaded(&mut self, id: ModelId) {
        let slot = &mut self.slots[id.0];
        assert_eq!(slot.presence, Presence::Unloading);
        (slot.presence, slot.leaves, slot.keep) = (Presence::Unloaded, None, None);
    }

    /// What is to be done at `now`, when the machine has `free_bytes` left; the caller does it.
    pub fn next_move(&mut self, now: Duration, free_bytes: Option<u64>) -> Option<Move> {
        if self.slots.iter().any(ShelfSlot::is_moving) {
            return None;
        }
        if let Some(expired) = self.expired(now) {
            return Some(self.unload(expired));
        }
        let wanted = self.most_wanted(now);
        let Some(wanted) = wanted else {
            self.stay_all();
            return None;
        };
        if self.fits(wanted, free_bytes, &[]) {
            self.stay_all();
            self.slots[wanted.0].presence = Presence::Loading { since: now };
            return Some(Move::Load(wanted));
        }
        if let Some(free) = self.victim(wanted, free_bytes) {
            return Some(self.unload(free));
        }
        self.reopen(now);
        self.ask_one_to_leave(wanted, now);
        None
    }

    /// When [`Self::next_move`] may have something to do though nothing else has happened.
    pub fn next_time(&self, now: Duration) -> Option<Duration> {
        let idle = self.limits.idle;
        let expiries = self.slots.iter().filter_map(|slot| slot.expires_at(idle));
        let wanted = self.most_wanted(now).map(|id| self.slots[id.0].wanted_since + PATIENCE);
        let stays = self.slots.iter().filter_map(|slot| match slot.presence {
            Presence::Ready { stays, .. } if wanted.is_some() => Some(stays),
            _ => None,
        });
        let retries = self.slots.iter().filter_map(|slot| match slot.presence {
            Presence::Failed { until } if slot.waiting > 0 => Some(until),
            _ => None,
        });
        let reopened = self.slots.iter().filter_map(|slot| match slot.leaves {
            Some(Leaving::ForAnother { until }) => Some(until),
            _ => None,
        });
        let stays = stays.chain(reopened);
        expiries.chain(wanted).chain(stays).chain(retries).filter(|&at| at > now).min()
    }

    fn present(&self) -> impl Iterator<Item = &ShelfSlot> {
        self.slots.iter().filter(|slot| slot.is_present())
    }

    fn ids(&self) -> impl Iterator<Item = ModelId> + use<> {
        (0..self.slots.len()).map(ModelId)
    }

    fn unload(&mut self, id: ModelId) -> Move {
        assert!(self.slots[id.0].is_free(), "nobody uses it");
        self.slots[id.0].presence = Presence::Unloading;
        Move::Unload(id)
    }

    /// One that nobody uses any more, for so long or because it was asked to leave.
    fn expired(&self, now: Duration) -> Option<ModelId> {
        let is_over = |slot: &ShelfSlot| {
            slot.leaves == Some(Leaving::Asked) && slot.is_free()
                || slot.expires_at(self.limits.idle).is_some_and(|at| at <= now)
        };
        self.ids().find(|id| is_over(&self.slots[id.0]))
    }

    /// The one whose first request has waited longest.
    fn most_wanted(&self, now: Duration) -> Option<ModelId> {
        let waits = |id: &ModelId| {
            let slot = &self.slots[id.0];
            slot.waiting > 0 && slot.may_be_loaded(now)
        };
        self.ids().filter(waits).min_by_key(|id| self.slots[id.0].wanted_since)
    }

    /// Whether a model fits once those in `gone` are.
    fn fits(&self, id: ModelId, free_bytes: Option<u64>, gone: &[ModelId]) -> bool {
        let bytes = self.slots[id.0].bytes;
        let freed: u64 = gone.iter().map(|gone| self.slots[gone.0].bytes).sum();
        let stay = self.present().count() - gone.len();
        let stay_bytes = self.present_bytes().saturating_sub(freed);
        // Where nothing stays, nothing can make more room: whether it is enough shows when it is
        // loaded.
        stay == 0
            || stay < self.limits.max_loaded
                && stay_bytes.saturating_add(bytes) <= self.limits.memory_bytes
                && free_bytes.is_none_or(|free| bytes <= free.saturating_add(freed))
    }

    /// The one that goes next to make room for `wanted`: the least recently used of those that
    /// have to go.
    fn victim(&self, wanted: ModelId, free_bytes: Option<u64>) -> Option<ModelId> {
        let mut free: Vec<_> = self.ids().filter(|id| self.slots[id.0].is_free()).collect();
        free.sort_by_key(|id| self.slots[id.0].used_at);
        let enough = (1..=free.len()).find(|&count| self.fits(wanted, free_bytes, &free[..count]));
        free.truncate(enough.unwrap_or(free.len()));
        // A small one need not go if a larger one has to.
        let is_needed = |&at: &usize| {
            let others: Vec<_> = free.iter().copied().filter(|id| *id != free[at]).collect();
            !self.fits(wanted, free_bytes, &others)
        };
        (0..free.len()).find(is_needed).map(|at| free[at])
    }

    /// Those that were to make room for another may stay.
    fn stay_all(&mut self) {
        let is_leaving =
            |slot: &&mut ShelfSlot| matches!(slot.leaves, Some(Leaving::ForAnother { .. }));
        self.slots.iter_mut().filter(is_leaving).for_each(|slot| slot.leaves = None);
    }

    /// Lets those take requests again that were to make room and could not.
    fn reopen(&mut self, now: Duration) {
        for slot in &mut self.slots {
            if let (Some(Leaving::ForAnother { until }), Presence::Ready { stays, .. }) =
                (slot.leaves, &mut slot.presence)
                && until <= now
            {
                slot.leaves = None;
                *stays = now + LEAVE_LIMIT;
            }
        }
    }

    /// Has the one that was loaded first take no more requests, if `wanted` has waited for long.
    fn ask_one_to_leave(&mut self, wanted: ModelId, now: Duration) {
        if now < self.slots[wanted.0].wanted_since + PATIENCE
            || self.slots.iter().any(|slot| slot.is_ready() && slot.leaves.is_some())
        {
            return;
        }
        let since = |slot: &ShelfSlot| match slot.presence {
            Presence::Ready { since, stays } if stays <= now => Some(since),
            _ => None,
        };
        let oldest = self.slots.iter_mut().filter_map(|slot| Some((since(slot)?, slot)));
        if let Some((_, slot)) = oldest.min_by_key(|(since, _)| *since) {
            slot.leaves = Some(Leaving::ForAnother { until: now + LEAVE_LIMIT });
        }
    }
}

#[cfg(test)]
mod tests;
