//! KV cells, each held by the slots that share it.

use loquent_infer::token::TokenId;

/// Index of a cell.
type Cell = u32;

/// The contents of a slot: a token and its cell for each position.
#[derive(Debug, Clone, Default)]
struct SlotContents {
    tokens: Vec<TokenId>,
    cells: Vec<Cell>,
}

/// All cells of a cache and the slots that hold them. Tracked cell by cell, unlike the scheduler's
/// runs, so that an error in either shows.
#[derive(Debug)]
pub(super) struct Cells {
    free: Vec<Cell>,
    /// Number of slots that hold each cell.
    holders: Vec<u16>,
    slots: Vec<SlotContents>,
}

impl Cells {
    pub(super) fn new(cells: u32, slots: u16) -> Self {
        Self {
            free: (0..cells).rev().collect(),
            holders: vec![0; cells as usize],
            slots: vec![SlotContents::default(); slots.into()],
        }
    }

    /// Number of cells held by no slot.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Tokens of `slot`.
    pub(super) fn tokens(&self, slot: usize) -> &[TokenId] {
        &self.slots[slot].tokens
    }

    /// Appends tokens to `slot`; enough cells must be free.
    pub(super) fn append(&mut self, slot: usize, tokens: &[TokenId]) {
        for &token in tokens {
            let cell = self.free.pop().expect("the caller counted the free cells");
            self.holders[cell as usize] = 1;
            self.slots[slot].tokens.push(token);
            self.slots[slot].cells.push(cell);
        }
    }

    /// Makes the empty slot `to` share the first `len` positions of `from`.
    pub(super) fn share(&mut self, from: usize, to: usize, len: usize) {
        assert!(self.slots[to].tokens.is_empty(), "fork into slot {to}, which is not empty");
        let have = self.slots[from].tokens.len();
        assert!(len <= have, "fork of {len} positions from slot {from}, which has {have}");
        let tokens = self.slots[from].tokens[..len].to_vec();
        let cells = self.slots[from].cells[..len].to_vec();
        cells.iter().for_each(|&cell| self.holders[cell as usize] += 1);
        self.slots[to] = SlotContents { tokens, cells };
    }

    /// Drops the positions of `slot` from `len` on.
    pub(super) fn cut(&mut self, slot: usize, len: usize) {
        let held = &mut self.slots[slot];
        held.tokens.truncate(len);
        // A cut beyond the end has no effect, as in llama.cpp.
        let from = len.min(held.cells.len());
        for cell in held.cells.drain(from..) {
            let holders = &mut self.holders[cell as usize];
            *holders -= 1;
            if *holders == 0 {
                self.free.push(cell);
            }
        }
    }
}
