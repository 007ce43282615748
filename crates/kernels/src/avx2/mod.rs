//! Kernels for processors with AVX2, FMA and F16C, with and without AVX-VNNI.
//!
//! Eight 32-bit lanes hold eight groups of 32 numbers: quants are stored so that lane `g` of each
//! of a block's eight registers has bytes of group `g` ([`registers::turned`]). The products of a
//! block are therefore sums of whole registers, and scales of groups are whole registers too.
//! Activations are rounded to 8 bits with a scale for every 32, finer than llama.cpp's Q8_K.
//!
//! Sixteen registers do not hold sums for many rows beside a block of weights. The weights stay in
//! registers, and a row's sum is loaded and stored once per block. With one activation row nothing
//! is stored in between: each block is unpacked into registers and multiplied at once.

pub(super) mod attention;
pub(super) mod floats;
pub(super) mod matmul;
mod one_row;
mod pack;
mod products;
mod registers;
mod unpack;
mod unpack_grids;

use super::BLOCK;

/// Groups of 32 in a block: lanes of a register.
const GROUPS: usize = 8;
/// Weight rows processed together.
const ROWS_AT_ONCE: usize = 8;
/// Activation rows that are multiplied with a weight row before the next one, and stored side by
/// side.
const LANES: usize = 16;

/// Assignment of a block's numbers to registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrangement {
    /// Four of each group: lane `g` of register `r` has numbers `4 r` to `4 r + 3` of group `g`.
    Turned,
    /// Twice four of four groups: lanes `l` and `4 + l` of register `r < 4` have numbers `4 r` to
    /// `4 r + 3`, and the same of the second half, of the group with index `l` in this order; those
    /// of register `4 + r` of index `4 + l`. Scales and sums have this order too.
    Crossed([usize; GROUPS]),
}

/// One block of an activation row, rounded: element = `scale of its group * quant`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C, align(32))]
struct GroupedActivations {
    /// In one of the arrangements.
    quants: [i8; BLOCK],
    scales: [f32; GROUPS],
    /// Sum of each group's elements, for a format's minima: `[whole groups, unused]`, or `[first
    /// halves, second halves]` for formats with a scale for every sixteen.
    sums: [[f32; GROUPS]; 2],
}
