//! Saves and restores parts of a slot's keys and values.
//!
//! llama.cpp copies the state of a whole sequence only. A part goes through a spare sequence, which
//! shares the part's cells for the time of the call.
//!
//! Rows of a state are in the order of its cells, and attention adds what it restores in the order
//! of the rows. If the cells of a part are not in the order of its positions, the part is therefore
//! saved in pieces whose cells are: attention over a restored sequence is then the same to the last
//! bit (see `loquent_kernels`).

use std::ops::Range;

use loquent_infer::runner::{SavedSpan, Slot};

use super::context::Context;

/// Bytes of a state before its cells: magic, sequence, streams, number of cells.
const CELLS_AT: usize = 16;
/// Bytes of a cell: position, number of sequences, sequence.
const CELL_BYTES: usize = 12;
/// Bytes before a piece: its last position, exclusive, and the length of its state.
const PIECE_HEAD_BYTES: usize = 12;
/// Maximum pieces of a span; each costs a search of all cells. Chosen by hand: more only occur in a
/// cache full of holes.
const MAX_PIECES: usize = 16;

/// Number of the spare sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpareSlot(u16);

impl SpareSlot {
    /// Creates the spare sequence behind `slots` others, for which the context must have room.
    pub(super) fn behind(slots: u16) -> Self {
        Self(slots)
    }

    /// Saves `positions` of `slot`.
    ///
    /// # Errors
    /// The reason, such as positions that the slot does not have.
    pub(super) fn save(
        self,
        context: &mut Context,
        slot: Slot,
        positions: Range<u32>,
    ) -> Result<SavedSpan, String> {
        let whole = self.state_of(context, slot, positions.clone())?;
        let ends = piece_ends(&cell_positions(&whole, &positions)?);
        if ends.len() > MAX_PIECES {
            return Err(format!("its cells are in {} pieces", ends.len()));
        }
        let mut state = Vec::with_capacity(whole.len() + PIECE_HEAD_BYTES * ends.len());
        if ends.len() == 1 {
            push_piece(&mut state, positions.end, &whole);
            return Ok(SavedSpan { positions, state });
        }
        let mut start = positions.start;
        for end in ends {
            let piece = self.state_of(context, slot, start..end)?;
            push_piece(&mut state, end, &piece);
            start = end;
        }
        Ok(SavedSpan { positions, state })
    }

    /// Appends those of `span` to `slot` that are at `positions`.
    ///
    /// # Errors
    /// The reason, such as a damaged state; a part may be in the slot.
    pub(super) fn restore(
        self,
        context: &mut Context,
        slot: Slot,
        positions: Range<u32>,
        span: &SavedSpan,
    ) -> Result<(), String> {
        let (mut rest, mut start) = (&span.state[..], span.positions.start);
        while let Some((end, state, behind)) = take_piece(rest) {
            let wanted = start.max(positions.start)..end.min(positions.end);
            if !wanted.is_empty() {
                let restored = self.restore_piece(context, slot, start..end, wanted, state);
                context.remove(self.0, 0);
                restored?;
            }
            (rest, start) = (behind, end);
        }
        match rest.is_empty() && start == span.positions.end {
            true => Ok(()),
            false => Err("its pieces do not cover it".to_owned()),
        }
    }

    fn restore_piece(
        self,
        context: &mut Context,
        slot: Slot,
        piece: Range<u32>,
        wanted: Range<u32>,
        state: &[u8],
    ) -> Result<(), String> {
        context.set_state(self.0, state)?;
        if context.positions(self.0) != Some(piece) {
            return Err("it has other positions than it should have".to_owned());
        }
        context.copy_span(self.0, slot.0, wanted);
        Ok(())
    }

    fn state_of(
        self,
        context: &mut Context,
        slot: Slot,
        positions: Range<u32>,
    ) -> Result<Vec<u8>, String> {
        context.copy_span(slot.0, self.0, positions);
        let state = context.state(self.0);
        context.remove(self.0, 0);
        state
    }
}

fn push_piece(to: &mut Vec<u8>, end: u32, state: &[u8]) {
    to.extend_from_slice(&end.to_le_bytes());
    to.extend_from_slice(&(state.len() as u64).to_le_bytes());
    to.extend_from_slice(state);
}

/// Returns the end of the first piece, its state and the bytes behind it.
fn take_piece(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (end, rest) = bytes.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
    let (state, behind) = rest.split_at_checked(len)?;
    Some((u32::from_le_bytes(*end), state, behind))
}

/// Returns the position in each cell of a state that has `positions`, in the order of the cells.
///
/// # Errors
/// If it is not of that form: models with positions in several dimensions have more in a cell.
fn cell_positions(state: &[u8], positions: &Range<u32>) -> Result<Vec<u32>, String> {
    let count = positions.len();
    let word = |at: usize| {
        let bytes = state.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let unknown = || "llama.cpp's state has another form for this model".to_owned();
    if word(CELLS_AT - 4) != u32::try_from(count).ok() {
        return Err(unknown());
    }
    let cell = |index: usize| {
        let at = CELLS_AT + index * CELL_BYTES;
        let position = word(at).filter(|position| positions.contains(position))?;
        (word(at + 4)? == 1).then_some(position)
    };
    let cells: Vec<_> = (0..count).map_while(cell).collect();
    let mut sorted = cells.clone();
    sorted.sort_unstable();
    if sorted.iter().copied().eq(positions.clone()) { Ok(cells) } else { Err(unknown()) }
}

/// Returns the ends of the longest pieces of consecutive positions whose cells are in order.
/// `cells` has each position of a range once.
fn piece_ends(cells: &[u32]) -> Vec<u32> {
    let mut by_position: Vec<_> = cells.iter().copied().zip(0..).collect::<Vec<(u32, usize)>>();
    by_position.sort_unstable();
    let breaks = by_position.windows(2).filter(|pair| pair[1].1 < pair[0].1);
    let mut ends: Vec<_> = breaks.map(|pair| pair[1].0).collect();
    ends.extend(by_position.last().map(|(position, _)| position + 1));
    ends
}

#[cfg(test)]
mod tests {
    //! Cells out of order are cut into pieces that are in order.
    use super::*;

    #[test]
    fn pieces_are_the_longest_whose_cells_are_in_order() {
        assert_eq!(piece_ends(&[4, 5, 6, 7]), [8]);
        assert_eq!(piece_ends(&[6, 7, 4, 5]), [6, 8]);
        assert_eq!(piece_ends(&[4, 6, 5, 7]), [6, 8]);
        assert_eq!(piece_ends(&[7, 6, 5]), [6, 7, 8]);
    }

    #[test]
    fn damaged_pieces_are_found() {
        let mut bytes = Vec::new();
        push_piece(&mut bytes, 9, b"state");
        push_piece(&mut bytes, 12, b"");
        let (end, state, rest) = take_piece(&bytes).unwrap();
        assert_eq!((end, state), (9, &b"state"[..]));
        assert_eq!(take_piece(rest), Some((12, &b""[..], &b""[..])));
        for len in 0..PIECE_HEAD_BYTES + 5 {
            assert_eq!(take_piece(&bytes[..len]), None, "{len}");
        }
    }
}
