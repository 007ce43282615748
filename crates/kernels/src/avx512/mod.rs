//! Kernels for processors with AVX-512 VNNI.
//!
//! Products unpack a block of 32 weight rows and multiply it with all rows of activations, eight at
//! a time. Activations are rounded to 8 bits per 256 with one scale, as in llama.cpp's Q8_K, and
//! for weights with a scale for every 32 also per 32, as in its Q8_0. Products and sums within a
//! group of weights are exact integers; scales and the sum over a row are f32.

mod amx;
pub(super) mod attention;
mod few_rows;
mod fine_units;
pub(super) mod floats;
mod grid_products;
pub(super) mod matmul;
mod micro_kernel;
mod pack;
mod scaling;
mod super_blocks;
mod tile;

use super::BLOCK;

/// Groups of a block whose sums are kept separately: ggml's formats scale 16 or 32 weights.
const GROUPS: usize = 16;
/// Weight rows of a tile, one for each lane of a register.
const LANES: usize = 16;

/// One block of an activation row, rounded: element = `scale * quant`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(32))]
struct ActivationBlock {
    quants: [i8; BLOCK],
    /// Corrections for products of the quants, depending on the weights' format. With minima, four
    /// pairs of 16-bit integers: the sums of 32 quants, number 0 beside 2, 1 beside 3, and so on;
    /// with a minimum for every sixteen weights, eight pairs of the sums of sixteen.
    /// With a minimum for every 32 weights, the bits of a float: the sum of every 32 activations.
    /// Otherwise the initial value of a group's products: minus its sum, times the constant that is
    /// added to its weights.
    sums: [i32; GROUPS],
    /// One scale for every 32 quants; they differ if the weights have one for every 32.
    scales: [f32; 8],
}

/// Factors of a group of 32 activations.
#[derive(Debug, Clone, Copy, PartialEq)]
struct GroupFactors {
    scale: f32,
    /// Sum of the activations, for weights with a minimum for every 32.
    sum: f32,
}

impl ActivationBlock {
    const ZERO: Self = Self { quants: [0; BLOCK], sums: [0; GROUPS], scales: [0.0; 8] };

    /// Returns the factors of group `group` of 32, or, of weights with a scale for every sixteen,
    /// factors that are not used.
    #[inline]
    fn factors(&self, group: usize) -> GroupFactors {
        let sum = f32::from_bits(self.sums[group].cast_unsigned());
        GroupFactors { scale: self.scales[group % self.scales.len()], sum }
    }

    /// Returns the quants, four to a word.
    #[inline]
    fn words(&self) -> &[i32; BLOCK / 4] {
        // SAFETY: the 256 bytes form 64 integers, of which all bit patterns are valid, and the
        // block is aligned to 32 bytes.
        unsafe { &*self.quants.as_ptr().cast() }
    }
}

#[cfg(test)]
mod tests;
