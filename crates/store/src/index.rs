//! The keys and sizes of a store's objects, without their bytes: decides their order and which to
//! evict. The time is an argument.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use crate::object::{Kind, ListPage, MAX_ID_BYTES, Progress, StoreError, StoreLimits};
use loquent_serving::identity::Owner;

/// Bytes charged for an object besides its JSON: about the size of its index entries.
pub const OBJECT_BYTES: usize = 512;
/// Inverse of the part of all objects that one sweep removes at most.
const SWEPT_PART: usize = 64;
/// Number of objects that one sweep may always remove.
const LEAST_SWEPT: usize = 16;
/// Maximum objects of a list read at once.
pub const PART_OBJECTS: usize = 32;

/// Returns the maximum bytes of an object's JSON within `limits`.
pub fn most_json_bytes(limits: &StoreLimits) -> usize {
    limits.bytes_per_owner.min(limits.bytes).saturating_sub(OBJECT_BYTES)
}

/// Checks that an object with `json_bytes` can fit within `limits`.
///
/// # Errors
/// [`StoreError::TooLarge`].
pub fn check_size(limits: &StoreLimits, json_bytes: usize) -> Result<(), StoreError> {
    let limit = limits.bytes_per_owner.min(limits.bytes);
    let bytes = json_bytes.saturating_add(OBJECT_BYTES);
    if bytes > limit { Err(StoreError::TooLarge { bytes, limit }) } else { Ok(()) }
}

/// The key of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectKey {
    /// Kind of the object.
    pub kind: Kind,
    /// Owner of the object.
    pub owner: Owner,
    /// Id, unique within the kind and owner.
    pub id: Arc<str>,
}

impl ObjectKey {
    /// Returns the key of the object `id`.
    ///
    /// # Errors
    /// When the id is too long.
    pub fn new(kind: Kind, owner: Owner, id: &str) -> Result<Self, StoreError> {
        if id.len() > MAX_ID_BYTES {
            // Longer ones would cost more than what an object is charged for its entries.
            return Err(StoreError::LongId);
        }
        Ok(Self { kind, owner, id: id.into() })
    }
}

/// An object's position, from oldest to newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectOrder {
    /// Creation time, Unix time in seconds.
    pub created_s: u64,
    /// Distinguishes objects made in the same second.
    pub number: u64,
}

const FIRST: ObjectOrder = ObjectOrder { created_s: 0, number: 0 };
const LAST: ObjectOrder = ObjectOrder { created_s: u64::MAX, number: u64::MAX };

/// The objects of one kind and owner, in one order, as of a point in time.
#[derive(Debug, Clone, Copy)]
pub struct List {
    /// Kind of the objects.
    pub kind: Kind,
    /// Owner of the objects.
    pub owner: Owner,
    /// True to list the newest object first.
    pub newest_first: bool,
    /// The point in time, Unix time in seconds.
    pub now_s: u64,
}

/// The index entry of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Position among the objects.
    pub position: ObjectOrder,
    /// Bytes charged for the object.
    pub bytes: usize,
    /// Progress of the object's answer.
    pub progress: Progress,
}

/// Error: the key or position is taken, or the position is invalid.
#[derive(Debug)]
pub struct DuplicatePosition;

/// See the module's documentation.
#[derive(Debug)]
pub struct Index {
    limits: StoreLimits,
    entries: HashMap<ObjectKey, Entry>,
    by_owner: BTreeMap<(Owner, ObjectOrder), ObjectKey>,
    by_age: BTreeMap<ObjectOrder, ObjectKey>,
    bytes_of: HashMap<Owner, usize>,
    /// Owners by their bytes, to find the one with the most.
    heaviest: BTreeSet<(usize, Owner)>,
    bytes: usize,
    next_number: u64,
}

impl Index {
    /// Creates an empty index.
    pub fn new(limits: StoreLimits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            by_owner: BTreeMap::new(),
            by_age: BTreeMap::new(),
            bytes_of: HashMap::new(),
            heaviest: BTreeSet::new(),
            bytes: 0,
            next_number: 0,
        }
    }

    /// Returns the bytes of all objects.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Checks that an object with `json_bytes` can fit at all.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`].
    pub fn check(&self, json_bytes: usize) -> Result<(), StoreError> {
        check_size(&self.limits, json_bytes)
    }

    /// Adds an object made at `created_s`. An object that is already present keeps its position,
    /// unless it has expired at `now_s`: it then counts as new.
    pub fn put(
        &mut self,
        key: &ObjectKey,
        created_s: u64,
        json_bytes: usize,
        progress: Progress,
        now_s: u64,
    ) -> Entry {
        let position = match self.remove(key) {
            // A page behind it must not show it a second time.
            Some(before) if !self.is_expired(before.position, now_s) => before.position,
            _ => ObjectOrder { created_s, number: self.next_number },
        };
        let entry = Entry { position, bytes: json_bytes + OBJECT_BYTES, progress };
        self.restore(key.clone(), entry).expect("no two entries have one place");
        entry
    }

    /// Adds an object that already has a position.
    ///
    /// # Errors
    /// When the key or position is taken, or the position is invalid.
    pub fn restore(&mut self, key: ObjectKey, entry: Entry) -> Result<(), DuplicatePosition> {
        // The numbers of a file may be anything.
        let next = entry.position.number.checked_add(1).ok_or(DuplicatePosition)?;
        if self.entries.contains_key(&key) || self.by_age.contains_key(&entry.position) {
            return Err(DuplicatePosition);
        }
        self.next_number = self.next_number.max(next);
        self.weigh(key.owner, |bytes| bytes.saturating_add(entry.bytes));
        self.by_owner.insert((key.owner, entry.position), key.clone());
        self.by_age.insert(entry.position, key.clone());
        self.entries.insert(key, entry);
        Ok(())
    }

    /// Removes an object and returns its entry.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.by_owner.remove(&(key.owner, entry.position));
        self.by_age.remove(&entry.position);
        self.weigh(key.owner, |bytes| bytes - entry.bytes);
        Some(entry)
    }

    /// Removes objects until the bounds hold: those that have expired at `now_s`, then the oldest
    /// ones except `fresh`, which has just been put. Returns their keys.
    pub fn make_room(&mut self, fresh: Option<&ObjectKey>, now_s: u64) -> Vec<ObjectKey> {
        let mut gone = Vec::new();
        while let Some(key) = self.next_to_go(fresh, now_s).cloned() {
            self.remove(&key).expect("what goes was there");
            gone.push(key);
        }
        gone
    }

    /// Removes objects that have expired at `now_s`; returns their keys. Removes no more at a time
    /// than a small part of all objects: a clock that is wrong for a moment costs only that part.
    /// The others are hidden as long as it is wrong.
    pub fn sweep(&mut self, now_s: u64) -> Vec<ObjectKey> {
        let most = (self.len() / SWEPT_PART).max(LEAST_SWEPT);
        let mut gone = Vec::new();
        while gone.len() < most
            && let Some(key) = self.oldest_expired(now_s).cloned()
        {
            self.remove(&key).expect("what goes was there");
            gone.push(key);
        }
        gone
    }

    /// True if an object has expired at `now_s` or the bounds are exceeded.
    pub fn has_to_sweep(&self, now_s: u64) -> bool {
        self.oldest_expired(now_s).is_some() || self.next_to_go(None, now_s).is_some()
    }

    fn oldest_expired(&self, now_s: u64) -> Option<&ObjectKey> {
        let (at, key) = self.by_age.first_key_value()?;
        self.is_expired(*at, now_s).then_some(key)
    }

    fn next_to_go(&self, fresh: Option<&ObjectKey>, now_s: u64) -> Option<&ObjectKey> {
        let &(most, _) = self.heaviest.last()?;
        if self.bytes <= self.limits.bytes && most <= self.limits.bytes_per_owner {
            return None;
        }
        // Other owners' objects make no room within one owner's bound.
        let expired = self.oldest_expired(now_s).filter(|_| self.bytes > self.limits.bytes);
        // Whoever has the most pays for what is too much, so that a flood from one client leaves
        // the others their objects.
        let mut owners = self.heaviest.iter().rev();
        expired.or_else(|| owners.find_map(|&(_, owner)| self.oldest_of(owner, fresh)))
    }

    /// Returns the oldest object of `owner` other than `fresh`.
    fn oldest_of(&self, owner: Owner, fresh: Option<&ObjectKey>) -> Option<&ObjectKey> {
        let mut of_owner = self.by_owner.range((owner, FIRST)..=(owner, LAST)).map(|(_, key)| key);
        of_owner.find(|key| Some(*key) != fresh)
    }

    fn is_expired(&self, at: ObjectOrder, now_s: u64) -> bool {
        // The clock may be set back: what then comes from the future is not old.
        now_s.saturating_sub(at.created_s) > self.limits.age.as_secs()
    }

    /// Returns the entry of an object that has not expired at `now_s`.
    pub fn find(&self, key: &ObjectKey, now_s: u64) -> Option<Entry> {
        let entry = self.entries.get(key).copied();
        entry.filter(|entry| !self.is_expired(entry.position, now_s))
    }

    /// Returns the position after which `page` of a list begins; `None` for the first page.
    ///
    /// # Errors
    /// [`StoreError::UnknownAfter`].
    pub fn start(&self, list: List, page: &ListPage) -> Result<Option<ObjectOrder>, StoreError> {
        let Some(after) = &page.after else { return Ok(None) };
        // Another owner's object is as unknown as none: nobody learns that it exists.
        let key = ObjectKey::new(list.kind, list.owner, after).ok();
        let found = key.and_then(|key| self.find(&key, list.now_s));
        found.map(|entry| Some(entry.position)).ok_or(StoreError::UnknownAfter)
    }

    /// Returns the objects of a list after `from`, in list order.
    pub fn behind(
        &self,
        list: List,
        from: Option<ObjectOrder>,
    ) -> impl Iterator<Item = (ObjectOrder, &ObjectKey, Entry)> {
        let List { kind, owner, newest_first, now_s } = list;
        let (from, to) = match (from, newest_first) {
            (None, _) => (Bound::Included(FIRST), Bound::Included(LAST)),
            (Some(from), false) => (Bound::Excluded(from), Bound::Included(LAST)),
            (Some(from), true) => (Bound::Included(FIRST), Bound::Excluded(from)),
        };
        let with_owner = |bound: Bound<ObjectOrder>| bound.map(|position| (owner, position));
        let mut range = self.by_owner.range((with_owner(from), with_owner(to)));
        // One range for both orders: its other end is as near.
        let next = move || if newest_first { range.next_back() } else { range.next() };
        std::iter::from_fn(next)
            // All kinds of an owner are in one order, because they share its bound.
            .filter(move |((_, at), key)| key.kind == kind && !self.is_expired(*at, now_s))
            .map(|((_, at), key)| (*at, key, self.entries[key]))
    }

    /// Returns the number of objects whose answers were being generated.
    pub fn running(&self) -> usize {
        self.entries.values().filter(|entry| entry.progress == Progress::Running).count()
    }

    fn weigh(&mut self, owner: Owner, change: impl FnOnce(usize) -> usize) {
        let before = self.bytes_of.remove(&owner).unwrap_or(0);
        // By the weight before, which is a part of its key there.
        self.heaviest.remove(&(before, owner));
        let now = change(before);
        self.bytes = (self.bytes - before).saturating_add(now);
        // An owner without objects leaves nothing behind.
        if now > 0 {
            self.bytes_of.insert(owner, now);
            self.heaviest.insert((now, owner));
        }
    }
}
