//! Decides which models are in memory, and which is loaded or unloaded next.
//!
//! A state machine without threads, files or a clock: the time and the free memory are arguments,
//! and the caller carries out its decisions. It moves one model at a time, since two concurrent
//! loads delay each other and hide how much memory each takes.
//!
//! A requested model that does not fit waits until another is unloaded: the least recently used of
//! the unused models. No request loses its model. If all are in use, the model loaded longest ago
//! takes no new requests until it is free, so that each model gets its turn even under steady load;
//! those requests wait until it is loaded again.

use loquent_serving::keep_alive::KeepAlive;
use std::fmt;
use std::time::Duration;

/// Wait of a request for room before a model in use is closed to new requests. Chosen by hand: many
/// answers end within it by themselves.
const PATIENCE: Duration = Duration::from_secs(1);
/// Minimum stay of a model after loading, as a multiple of its load time: a machine that spends its
/// time loading serves nobody.
const STAY_FACTOR: u32 = 5;
/// Bounds of the minimum stay.
const STAY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Maximum time that a model stays closed to new requests to make room for another. It is open
/// again for as long: a client that reads an endless answer slowly must not close it to everybody.
const LEAVE_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of requests waiting for all models, as a multiple of those waiting for one: a
/// model that loads slowly leaves room for requests for others. Chosen by hand.
const WAITING_FACTOR: usize = 4;
/// Time before a model that failed to load is tried again.
const FAILURE_REST: Duration = Duration::from_secs(10);

/// Bounds on the models in memory.
#[derive(Debug, Clone, Copy)]
pub struct ResidencyLimits {
    /// Maximum number of models at once.
    pub max_loaded: usize,
    /// Maximum bytes of all models together.
    pub memory_bytes: u64,
    /// Time after which an unused model is unloaded; `None` keeps it until its memory is needed.
    pub idle: Option<Duration>,
}

/// Index of a model in the list of all models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub usize);

/// State of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Not in memory.
    Unloaded,
    /// Being loaded.
    Loading {
        /// Start of the load.
        since: Duration,
    },
    /// In memory.
    Ready {
        /// Time when it was loaded.
        since: Duration,
        /// End of the minimum stay, before which the model need not make room for others.
        stays: Duration,
    },
    /// Being unloaded.
    Unloading,
    /// Failed to load; not tried again before `until`.
    Failed {
        /// Earliest time of the next attempt.
        until: Duration,
    },
}

/// Next action of the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Load this model.
    Load(ModelId),
    /// Unload this model, which is not in use.
    Unload(ModelId),
}

/// Reason why a model is not loaded for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotLoaded {
    /// The model takes more memory than all models together may.
    TooLarge {
        /// Size of the model.
        bytes: u64,
        /// Limit for all models.
        most: u64,
    },
    /// The model failed to load recently, and is not tried again for this time.
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
    /// Returns the name of the state in the API: llama-server's word if it has one.
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
struct ResidencySlot {
    bytes: u64,
    presence: Presence,
    /// Requests using the model.
    uses: usize,
    /// Requests waiting for the model.
    waiting: usize,
    /// Arrival of the first waiting request.
    wanted_since: Duration,
    used_at: Duration,
    keep: Option<KeepAlive>,
    /// Set if the model takes no new requests, and is unloaded once it is free.
    leaves: Option<Leaving>,
}

/// Reason why a model takes no new requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// A client asked to unload it.
    Asked,
    /// Another model needs its memory. It stays if it is still in use at the deadline.
    ForAnother {
        /// Deadline.
        until: Duration,
    },
}

/// All models and their use.
#[derive(Debug)]
pub struct ModelResidency {
    limits: ResidencyLimits,
    slots: Vec<ResidencySlot>,
}

impl ResidencySlot {
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

    /// Returns true if the model takes memory.
    fn is_present(&self) -> bool {
        matches!(
            self.presence,
            Presence::Loading { .. } | Presence::Ready { .. } | Presence::Unloading
        )
    }

    fn is_moving(&self) -> bool {
        matches!(self.presence, Presence::Loading { .. } | Presence::Unloading)
    }

    /// Returns true if the model could be unloaded at once.
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

    /// Returns when the model is unloaded because nothing uses it.
    fn expires_at(&self, idle: Option<Duration>) -> Option<Duration> {
        let keep = match self.keep {
            Some(KeepAlive::For(keep)) => Some(keep),
            Some(KeepAlive::Forever) => None,
            None => idle,
        };
        keep.filter(|_| self.is_free()).map(|keep| self.used_at.saturating_add(keep))
    }
}

impl ModelResidency {
    /// Creates a residency of models of the given sizes, none of which is in memory.
    pub fn new(limits: ResidencyLimits, bytes: impl IntoIterator<Item = u64>) -> Self {
        Self { limits, slots: bytes.into_iter().map(ResidencySlot::new).collect() }
    }

    /// Adds a model that takes `bytes` of memory.
    pub fn add(&mut self, bytes: u64) {
        self.slots.push(ResidencySlot::new(bytes));
    }

    /// Returns the state of a model.
    pub fn presence(&self, id: ModelId) -> Presence {
        self.slots[id.0].presence
    }

    /// Returns the number of requests using a model.
    pub fn uses(&self, id: ModelId) -> usize {
        self.slots[id.0].uses
    }

    /// Returns the number of requests waiting for any model.
    pub fn waiting(&self) -> usize {
        self.slots.iter().map(|slot| slot.waiting).sum()
    }

    /// Returns true if no more requests may wait for `id`. At most `per_model` wait for each model.
    pub fn is_crowded(&self, id: ModelId, per_model: usize) -> bool {
        self.slots[id.0].waiting >= per_model
            || self.waiting() >= per_model.saturating_mul(WAITING_FACTOR)
    }

    /// Returns the bytes of the models in memory.
    pub fn present_bytes(&self) -> u64 {
        self.present().map(|slot| slot.bytes).sum()
    }

    /// Returns when a model is unloaded if it is not used again; `None` while it is used, or if it
    /// is kept forever.
    pub fn expires_at(&self, id: ModelId) -> Option<Duration> {
        self.slots[id.0].expires_at(self.limits.idle)
    }

    /// Returns the number of models that are to be loaded before `id`, whether or not a request
    /// waits for `id`.
    pub fn ahead_of(&self, id: ModelId) -> usize {
        let mine = self.slots[id.0].wanted_since;
        let is_ahead = |(at, slot): (usize, &ResidencySlot)| {
            at != id.0 && slot.waiting > 0 && !slot.is_ready() && slot.wanted_since < mine
        };
        self.slots.iter().enumerate().filter(|&one| is_ahead(one)).count()
    }

    /// Uses a model if it is ready and accepts requests. [`Self::end_use`] ends the use.
    pub fn try_use(&mut self, id: ModelId, now: Duration) -> bool {
        let slot = &mut self.slots[id.0];
        let is_open = slot.is_ready() && slot.leaves.is_none();
        if is_open {
            slot.uses += 1;
            slot.used_at = now;
        }
        is_open
    }

    /// Ends a use.
    pub fn end_use(&mut self, id: ModelId, now: Duration) {
        let slot = &mut self.slots[id.0];
        assert!(slot.uses > 0, "a use ends once");
        slot.uses -= 1;
        slot.used_at = now;
    }

    /// Checks that a model is in memory or can be loaded.
    ///
    /// # Errors
    /// When the model cannot be loaded, at least not now.
    pub fn check(&self, id: ModelId, now: Duration) -> Result<(), NotLoaded> {
        let (slot, most) = (&self.slots[id.0], self.limits.memory_bytes);
        match slot.presence {
            _ if slot.bytes > most => Err(NotLoaded::TooLarge { bytes: slot.bytes, most }),
            Presence::Failed { until } if until > now => Err(NotLoaded::Failed(until - now)),
            _ => Ok(()),
        }
    }

    /// Adds a request that waits for a model. [`Self::end_wait`] ends the wait.
    ///
    /// # Errors
    /// The errors of [`Self::check`].
    pub fn wait(&mut self, id: ModelId, now: Duration) -> Result<(), NotLoaded> {
        self.check(id, now)?;
        let slot = &mut self.slots[id.0];
        if slot.waiting == 0 {
            slot.wanted_since = now;
        }
        slot.waiting += 1;
        Ok(())
    }

    /// Removes a waiting request.
    pub fn end_wait(&mut self, id: ModelId) {
        let slot = &mut self.slots[id.0];
        assert!(slot.waiting > 0, "a wait ends once");
        slot.waiting -= 1;
    }

    /// Sets how long a model stays in memory after its last use, or after the next one if it is
    /// not there.
    pub fn keep(&mut self, id: ModelId, keep: KeepAlive) {
        let slot = &mut self.slots[id.0];
        // Clients unload a model by keeping it for no time: that is under way.
        if slot.presence != Presence::Unloading || keep != KeepAlive::For(Duration::ZERO) {
            slot.keep = Some(keep);
        }
    }

    /// Unloads a model once nothing uses it. Returns false if it is not in memory.
    pub fn ask_to_leave(&mut self, id: ModelId) -> bool {
        let slot = &mut self.slots[id.0];
        let is_ready = slot.is_ready();
        if is_ready {
            slot.leaves = Some(Leaving::Asked);
        }
        is_ready
    }

    /// Records that a model was loaded.
    pub fn loaded(&mut self, id: ModelId, now: Duration) {
        let slot = &mut self.slots[id.0];
        let Presence::Loading { since } = slot.presence else { panic!("it was not loading") };
        let stay = (now.saturating_sub(since) * STAY_FACTOR).clamp(STAY[0], STAY[1]);
        slot.presence = Presence::Ready { since: now, stays: now + stay };
        slot.used_at = now;
    }

    /// Records that a model failed to load.
    pub fn failed(&mut self, id: ModelId, now: Duration) {
        let slot = &mut self.slots[id.0];
        assert!(matches!(slot.presence, Presence::Loading { .. }));
        slot.presence = Presence::Failed { until: now + FAILURE_REST };
    }

    /// Records that a model's memory is free.
    pub fn unloaded(&mut self, id: ModelId) {
        let slot = &mut self.slots[id.0];
        assert_eq!(slot.presence, Presence::Unloading);
        (slot.presence, slot.leaves) = (Presence::Unloaded, None);
    }

    /// Returns the next action at `now`, with `free_bytes` of the machine's memory left; the caller
    /// carries it out.
    pub fn next_move(&mut self, now: Duration, free_bytes: Option<u64>) -> Option<Move> {
        if self.slots.iter().any(ResidencySlot::is_moving) {
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

    /// Returns when [`Self::next_move`] may have an action even if no other event occurs.
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

    fn present(&self) -> impl Iterator<Item = &ResidencySlot> {
        self.slots.iter().filter(|slot| slot.is_present())
    }

    fn ids(&self) -> impl Iterator<Item = ModelId> + use<> {
        (0..self.slots.len()).map(ModelId)
    }

    fn unload(&mut self, id: ModelId) -> Move {
        let slot = &mut self.slots[id.0];
        assert!(slot.is_free(), "nobody uses it");
        // Not once it is unloaded: whoever asks for it meanwhile may say how long it is kept.
        (slot.presence, slot.keep) = (Presence::Unloading, None);
        Move::Unload(id)
    }

    /// Returns a free model whose idle time has passed or that a client asked to unload.
    fn expired(&self, now: Duration) -> Option<ModelId> {
        let is_over = |slot: &ResidencySlot| {
            slot.leaves == Some(Leaving::Asked) && slot.is_free()
                || slot.expires_at(self.limits.idle).is_some_and(|at| at <= now)
        };
        self.ids().find(|id| is_over(&self.slots[id.0]))
    }

    /// Returns the model whose first request has waited longest.
    fn most_wanted(&self, now: Duration) -> Option<ModelId> {
        let waits = |id: &ModelId| {
            let slot = &self.slots[id.0];
            slot.waiting > 0 && slot.may_be_loaded(now)
        };
        self.ids().filter(waits).min_by_key(|id| self.slots[id.0].wanted_since)
    }

    /// Returns true if a model fits once the models in `gone` are unloaded.
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

    /// Returns the next model to unload to make room for `wanted`: the least recently used of the
    /// models that must be unloaded.
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

    /// Reopens the models that were to make room for another.
    fn stay_all(&mut self) {
        let is_leaving =
            |slot: &&mut ResidencySlot| matches!(slot.leaves, Some(Leaving::ForAnother { .. }));
        self.slots.iter_mut().filter(is_leaving).for_each(|slot| slot.leaves = None);
    }

    /// Reopens the models that were to make room and are still in use at their deadline.
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

    /// Closes the model that was loaded first to new requests, if `wanted` has waited long enough.
    fn ask_one_to_leave(&mut self, wanted: ModelId, now: Duration) {
        if now < self.slots[wanted.0].wanted_since + PATIENCE
            || self.slots.iter().any(|slot| slot.is_ready() && slot.leaves.is_some())
        {
            return;
        }
        let since = |slot: &ResidencySlot| match slot.presence {
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
