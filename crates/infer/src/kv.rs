//! Accounts for the KV cells held by every slot, and finds prefixes that are already computed.
//!
//! Slots share cells after a fork. [`KvAccounting`] therefore keeps reference-counted runs of
//! cells: a slot is a list of runs, a fork shares them, and cells are free when the last owner
//! drops them. This mirrors a unified llama.cpp cache exactly.

use crate::runner::Slot;
use crate::tenant::CacheDomain;
use crate::token::TokenId;

/// Index of a run in [`KvAccounting::runs`].
type RunId = u32;

#[derive(Debug, Clone, Copy)]
struct CellRun {
    cells: u32,
    owners: u32,
}

#[derive(Debug, Clone, Default)]
struct SlotRuns {
    /// Tokens whose keys and values are computed, by position.
    tokens: Vec<TokenId>,
    /// Runs that hold those positions, in order; their cells add up to `tokens.len()`.
    runs: Vec<RunId>,
    /// Cache domain of the tokens.
    domain: CacheDomain,
}

/// A computed prefix, found by [`KvAccounting::longest_prefix`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Slot that holds the prefix.
    pub slot: Slot,
    /// Length in tokens.
    pub len: u32,
}

/// Usage of the cells of a KV cache, without the cells themselves.
#[derive(Debug)]
pub struct KvAccounting {
    capacity_cells: u32,
    used_cells: u32,
    /// Rows by slot.
    rows: Vec<SlotRuns>,
    runs: Vec<CellRun>,
    /// Free entries of `runs`.
    vacant: Vec<RunId>,
}

impl KvAccounting {
    /// Creates an empty cache of `cells` positions, shared by `slots` sequences.
    pub fn new(slots: u16, cells: u32) -> Self {
        Self {
            capacity_cells: cells,
            used_cells: 0,
            rows: vec![SlotRuns::default(); usize::from(slots)],
            runs: Vec::new(),
            vacant: Vec::new(),
        }
    }

    /// Cells in use; shared ones count once.
    pub fn used_cells(&self) -> u32 {
        self.used_cells
    }

    /// Cells that are still free.
    pub fn free_cells(&self) -> u32 {
        self.capacity_cells - self.used_cells
    }

    /// Computed positions of `slot`.
    pub fn len(&self, slot: Slot) -> u32 {
        self.rows[slot.index()].tokens.len() as u32
    }

    /// The tokens computed for `slot`, by position.
    pub fn tokens(&self, slot: Slot) -> &[TokenId] {
        &self.rows[slot.index()].tokens
    }

    /// Domain whose prompts may start from the contents of `slot`.
    pub fn domain(&self, slot: Slot) -> CacheDomain {
        self.rows[slot.index()].domain
    }

    /// Assigns the empty `slot` to `domain`.
    pub fn claim(&mut self, slot: Slot, domain: CacheDomain) {
        let row = &mut self.rows[slot.index()];
        assert!(row.tokens.is_empty(), "another domain's tokens would be found in this one");
        row.domain = domain;
    }

    /// Returns true if nothing is computed for any slot.
    pub fn is_empty(&self) -> bool {
        self.used_cells == 0
    }

    /// Records `tokens` as computed at the end of `slot`.
    ///
    /// # Panics
    /// If fewer cells are free: planning must have reserved them.
    pub fn append(&mut self, slot: Slot, tokens: &[TokenId]) {
        let cells = tokens.len() as u32;
        assert!(cells <= self.free_cells(), "the plan exceeded the KV cache");
        if cells == 0 {
            return;
        }
        self.used_cells += cells;
        self.rows[slot.index()].tokens.extend_from_slice(tokens);
        // A run that nobody shares can grow; behind a shared one a new run begins, since the
        // other owners do not hold these cells.
        match self.rows[slot.index()].runs.last() {
            Some(&last) if self.runs[last as usize].owners == 1 => {
                self.runs[last as usize].cells += cells;
            }
            _ => {
                let run = self.open_run(CellRun { cells, owners: 1 });
                self.rows[slot.index()].runs.push(run);
            }
        }
    }

    /// Makes the empty slot `to` share the first `len` positions of `from`. Takes no cells.
    pub fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        debug_assert!(self.rows[to.index()].tokens.is_empty(), "fork into a slot in use");
        let kept = self.split_at(from, len);
        let runs = self.rows[from.index()].runs[..kept].to_vec();
        for &run in &runs {
            self.runs[run as usize].owners += 1;
        }
        let tokens = self.rows[from.index()].tokens[..len as usize].to_vec();
        let domain = self.domain(from);
        self.rows[to.index()] = SlotRuns { tokens, runs, domain };
    }

    /// Drops the positions of `slot` from `len` on.
    pub fn truncate(&mut self, slot: Slot, len: u32) {
        let kept = self.split_at(slot, len);
        let dropped = self.rows[slot.index()].runs.split_off(kept);
        self.rows[slot.index()].tokens.truncate(len as usize);
        for id in dropped {
            let run = &mut self.runs[id as usize];
            run.owners -= 1;
            // The last owner frees the cells.
            if run.owners == 0 {
                self.used_cells -= run.cells;
                self.vacant.push(id);
            }
        }
    }

    /// Returns the longest prefix of `tokens` computed in `domain` for which `holds` returns true;
    /// among equals the lowest slot. Prefixes of other domains are never found: their length would
    /// reveal other prompts.
    pub fn longest_prefix(
        &self,
        tokens: &[TokenId],
        domain: CacheDomain,
        holds: impl Fn(Prefix) -> bool,
    ) -> Option<Prefix> {
        // A plain comparison with every slot: slots are few (llama.cpp allows 256) and most differ
        // in their first tokens, so that an index would cost more to keep than it saves.
        let mut best: Option<Prefix> = None;
        let own = |(_, row): &(usize, &SlotRuns)| row.domain == domain;
        for (index, row) in self.rows.iter().enumerate().filter(own) {
            let len = common_prefix(&row.tokens, tokens);
            let found = Prefix { slot: Slot(index as u16), len };
            if len > best.map_or(0, |found| found.len) && holds(found) {
                best = Some(found);
            }
        }
        best
    }

    /// Splits runs so that one of `slot` ends exactly at position `at`; returns the number of runs
    /// before it.
    fn split_at(&mut self, slot: Slot, at: u32) -> usize {
        let mut start = 0;
        for index in 0..self.rows[slot.index()].runs.len() {
            if start == at {
                return index;
            }
            let id = self.rows[slot.index()].runs[index];
            let end = start + self.runs[id as usize].cells;
            if at < end {
                self.split_run(id, at - start);
                return index + 1;
            }
            start = end;
        }
        assert_eq!(start, at, "a slot cannot be cut past its end");
        self.rows[slot.index()].runs.len()
    }

    /// Splits a run into two for all its owners.
    fn split_run(&mut self, id: RunId, head_cells: u32) {
        let whole = self.runs[id as usize];
        self.runs[id as usize].cells = head_cells;
        let tail = self.open_run(CellRun { cells: whole.cells - head_cells, owners: whole.owners });
        // Every owner has to see both halves. A run occurs once per slot at most, and slots are
        // few, so no list of owners is kept.
        for row in &mut self.rows {
            if let Some(at) = row.runs.iter().position(|&run| run == id) {
                row.runs.insert(at + 1, tail);
            }
        }
    }

    fn open_run(&mut self, run: CellRun) -> RunId {
        if let Some(id) = self.vacant.pop() {
            self.runs[id as usize] = run;
            return id;
        }
        self.runs.push(run);
        (self.runs.len() - 1) as RunId
    }
}

/// Tokens that [`common_prefix`] compares at once.
const BLOCK_TOKENS: usize = 64;

/// Number of leading tokens that two sequences share.
pub fn common_prefix(a: &[TokenId], b: &[TokenId]) -> u32 {
    // Whole blocks first: comparing memory is many times as fast as comparing token by token.
    let blocks = a.chunks_exact(BLOCK_TOKENS).zip(b.chunks_exact(BLOCK_TOKENS));
    let equal = blocks.take_while(|(x, y)| x == y).count() * BLOCK_TOKENS;
    let rest = a[equal..].iter().zip(&b[equal..]).take_while(|(x, y)| x == y).count();
    (equal + rest) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The obvious model: every position of every slot names its physical cell.
    #[derive(Default)]
    struct Cells {
        slots: Vec<Vec<(TokenId, u64)>>,
        next: u64,
    }

    impl Cells {
        fn used(&self) -> u32 {
            self.slots.iter().flatten().map(|&(_, cell)| cell).collect::<BTreeSet<_>>().len() as u32
        }
    }

    #[derive(Debug, Clone)]
    enum Op {
        Append(u16, Vec<TokenId>),
        Fork(u16, u16, u32),
        Truncate(u16, u32),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            (0..6u16, prop::collection::vec(0..3u32, 1..9)).prop_map(|(s, t)| Op::Append(s, t)),
            (0..6u16, 0..6u16, 0..40u32).prop_map(|(a, b, n)| Op::Fork(a, b, n)),
            (0..6u16, 0..40u32).prop_map(|(s, n)| Op::Truncate(s, n)),
        ];
        prop::collection::vec(op, 1..60)
    }

    proptest! {
        #[test]
        fn agrees_with_a_cell_by_cell_model(ops in ops()) {
            let mut kv = KvAccounting::new(6, 10_000);
            let mut cells = Cells { slots: vec![Vec::new(); 6], next: 0 };
            for op in ops {
                match op {
                    Op::Append(slot, tokens) => {
                        for &token in &tokens {
                            cells.slots[usize::from(slot)].push((token, cells.next));
                            cells.next += 1;
                        }
                        kv.append(Slot(slot), &tokens);
                    }
                    Op::Fork(from, to, len) if from != to => {
                        let len = len.min(kv.len(Slot(from)));
                        kv.truncate(Slot(to), 0);
                        kv.fork(Slot(from), Slot(to), len);
                        cells.slots[usize::from(to)] =
                            cells.slots[usize::from(from)][..len as usize].to_vec();
                    }
                    Op::Fork(..) => {}
                    Op::Truncate(slot, len) => {
                        let len = len.min(kv.len(Slot(slot)));
                        kv.truncate(Slot(slot), len);
                        cells.slots[usize::from(slot)].truncate(len as usize);
                    }
                }
                prop_assert_eq!(kv.used_cells(), cells.used());
                for (index, slot) in cells.slots.iter().enumerate() {
                    let tokens: Vec<_> = slot.iter().map(|&(token, _)| token).collect();
                    prop_assert_eq!(&kv.rows[index].tokens, &tokens);
                }
            }
        }
    }

    #[test]
    fn finds_the_longest_prefix() {
        let mut kv = KvAccounting::new(3, 100);
        kv.append(Slot(0), &[1, 2, 3]);
        kv.append(Slot(2), &[1, 2, 3, 4]);
        let all = |_| true;
        let found = |tokens: &[TokenId]| kv.longest_prefix(tokens, CacheDomain::default(), all);
        assert_eq!(found(&[1, 2, 3, 4, 5]), Some(Prefix { slot: Slot(2), len: 4 }));
        assert_eq!(found(&[1, 2, 9]), Some(Prefix { slot: Slot(0), len: 2 }));
        assert_eq!(found(&[9]), None);
        // The longest is of no use: the next is taken.
        let not_the_last = |found: Prefix| found.slot != Slot(2);
        let next = kv.longest_prefix(&[1, 2, 3, 4], CacheDomain::default(), not_the_last);
        assert_eq!(next, Some(Prefix { slot: Slot(0), len: 3 }));
    }

    #[test]
    fn a_prefix_is_found_in_its_own_domain_only() {
        let mut kv = KvAccounting::new(3, 100);
        let (mine, theirs) = (CacheDomain(1), CacheDomain(2));
        kv.claim(Slot(0), theirs);
        kv.append(Slot(0), &[1, 2, 3, 4]);
        kv.claim(Slot(1), mine);
        kv.append(Slot(1), &[1, 2]);
        let tokens = [1, 2, 3, 4, 5];
        assert_eq!(
            kv.longest_prefix(&tokens, mine, |_| true),
            Some(Prefix { slot: Slot(1), len: 2 })
        );
        kv.fork(Slot(0), Slot(2), 3);
        assert_eq!(kv.domain(Slot(2)), theirs, "a fork stays in the domain");
        assert_eq!(kv.longest_prefix(&tokens, CacheDomain(3), |_| true), None);
    }

    #[test]
    fn prefixes_are_counted_across_blocks() {
        let tokens: Vec<TokenId> = (0..200).collect();
        for differs in [0, 1, 63, 64, 65, 127, 128, 199] {
            let mut other = tokens.clone();
            other[differs] = 999;
            assert_eq!(common_prefix(&tokens, &other), differs as u32);
            assert_eq!(common_prefix(&tokens, &tokens[..differs]), differs as u32);
        }
    }
}
