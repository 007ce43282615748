//! Matrix products of the graph, for the kernels of all instruction sets: with one matrix of
//! weights, or with those of the experts that a router chose for each row.

use std::ops::Range;

use super::weight_format::WeightFormat;
use super::{BLOCK, sys};

/// Minimum weight rows of an expert: those of a tile. Smaller experts are left to ggml.
const LEAST_EXPERT_ROWS: usize = 16;

/// A matrix product of the graph whose operands the kernels can read.
pub(super) struct MatMul<'a> {
    pub(super) format: WeightFormat,
    pub(super) weights: &'a sys::ggml_tensor,
    activations: &'a sys::ggml_tensor,
    output: &'a sys::ggml_tensor,
    /// For each row of activations, the matrix of weights to multiply it with, if there are
    /// several.
    choices: Option<&'a sys::ggml_tensor>,
    /// Elements of a row of weights or of activations.
    elements: usize,
    /// Blocks of a row, of which the last may be incomplete.
    pub(super) blocks: usize,
    /// Bytes of a row of weights.
    pub(super) row_bytes: usize,
    /// Rows of a matrix of weights: values per row of output.
    pub(super) weight_rows: usize,
    /// Rows of output, each the product with one row of activations.
    pub(super) rows: usize,
}

impl<'a> MatMul<'a> {
    /// Returns `op` as a product, if the kernels can compute it.
    pub(super) fn of(op: &'a sys::ggml_tensor) -> Option<Self> {
        let has_choices = match op.op {
            sys::GGML_OP_MUL_MAT => false,
            sys::GGML_OP_MUL_MAT_ID => true,
            _ => return None,
        };
        // SAFETY: a matrix product has two operands that live as long as it does, and a third if
        // there are choices.
        let (weights, activations) = unsafe { (op.src[0].as_ref()?, op.src[1].as_ref()?) };
        // SAFETY: null, or an operand that lives as long as the operation.
        let choices = unsafe { op.src[2].as_ref() }.filter(|_| has_choices);
        let format = WeightFormat::of(weights.type_)?;
        let elements = usize::try_from(weights.ne[0]).ok()?;
        let row_bytes = elements / format.unit() * format.unit_bytes();
        // Anything else (batched products, views with gaps, other types) is left to ggml.
        let fits = weights.extra.is_null() // otherwise in another back end's own layout
            && elements.is_multiple_of(format.unit())
            && weights.nb[0] == format.unit_bytes()
            && weights.nb[1] == row_bytes
            && activations.type_ == sys::GGML_TYPE_F32
            && op.type_ == sys::GGML_TYPE_F32
            && activations.nb[0] == size_of::<f32>()
            && op.nb[0] == size_of::<f32>();
        let product = Self {
            format,
            weights,
            activations,
            output: op,
            choices,
            elements,
            blocks: elements.div_ceil(BLOCK),
            row_bytes,
            weight_rows: usize::try_from(weights.ne[1]).ok()?,
            rows: usize::try_from(op.ne[1] * op.ne[2]).ok()?,
        };
        let has_fitting_rows = match choices {
            _ if has_choices != choices.is_some() => false,
            // Recurrent models have a matrix of activations for each sequence.
            None => [weights.ne[2], weights.ne[3], activations.ne[3], op.ne[3]] == [1; 4],
            Some(choices) => product.has_fitting_choices(choices),
        };
        (fits && has_fitting_rows).then_some(product)
    }

    /// Returns true if rows and choices fit each other: `choices` has, for each token, the numbers
    /// of its experts; the token's activations are one row for all of them, or a row for each.
    fn has_fitting_choices(&self, choices: &sys::ggml_tensor) -> bool {
        let Self { weights, activations, output, .. } = self;
        choices.type_ == sys::GGML_TYPE_I32
            && choices.nb[0] == size_of::<i32>()
            && [choices.ne[0], choices.ne[1]] == [output.ne[1], output.ne[2]]
            && choices.ne[2] == 1
            && [weights, activations, output].iter().all(|t| t.ne[3] == 1)
            && activations.ne[2] == output.ne[2]
            && (activations.ne[1] == 1 || activations.ne[1] == output.ne[1])
            && self.weight_rows >= LEAST_EXPERT_ROWS
    }

    /// Groups the rows of output by their matrix of weights.
    ///
    /// # Safety
    /// The choices have been computed.
    pub(super) unsafe fn routes(&self) -> ExpertRoutes {
        let Some(choices) = self.choices else {
            let all = MatrixRows { matrix: 0, first: 0, rows: self.rows };
            return ExpertRoutes { order: Vec::new(), parts: vec![all] };
        };
        let used = self.output.ne[1] as usize;
        // SAFETY: rows and choices fit each other; by the caller, they are there.
        let matrix = |row: usize| unsafe {
            let token = choices.data.byte_add(row / used * choices.nb[1]);
            *token.cast::<i32>().add(row % used) as usize
        };
        ExpertRoutes::new(self.weights.ne[2] as usize, (0..self.rows).map(matrix))
    }

    /// Returns the start of row `row` in `tensor`, the activations or the output.
    #[inline]
    fn row(&self, tensor: &sys::ggml_tensor, row: usize) -> *mut u8 {
        let start = tensor.data.cast::<u8>();
        if self.choices.is_none() && tensor.ne[2] == 1 {
            return start.wrapping_add(row * tensor.nb[1]);
        }
        let used = self.output.ne[1] as usize;
        // Without choices: the sequence, and the row among its rows.
        let (token, choice) = (row / used, row % used);
        // All experts of a token may read the same row.
        let choice = if tensor.ne[1] == 1 { 0 } else { choice };
        start.wrapping_add(token * tensor.nb[2] + choice * tensor.nb[1])
    }

    /// Returns the activations of block `block` for row `row` of the output. An incomplete block is
    /// copied to `room` and padded with zeros.
    ///
    /// # Safety
    /// Row and block exist, and have been computed.
    pub(super) unsafe fn activations<'r>(
        &'r self,
        row: usize,
        block: usize,
        room: &'r mut [f32; BLOCK],
    ) -> &'r [f32; BLOCK] {
        let start = self.row(self.activations, row).cast::<f32>().wrapping_add(block * BLOCK);
        let left = self.elements - block * BLOCK;
        // SAFETY: by the caller; no more than what is left is read.
        unsafe {
            if left >= BLOCK {
                return &*start.cast::<[f32; BLOCK]>();
            }
            room[left..].fill(0.0);
            room[..left].copy_from_slice(std::slice::from_raw_parts(start, left));
        }
        room
    }

    /// Returns the address in the output of row `weights` of a matrix times the activations of row
    /// `row`.
    ///
    /// # Safety
    /// Both rows exist.
    pub(super) unsafe fn output(&self, weights: usize, row: usize) -> *mut f32 {
        // SAFETY: by the caller both rows exist, so the number is within the output's row.
        unsafe { self.row(self.output, row).cast::<f32>().add(weights) }
    }

    /// Returns the start of row `row` of matrix `matrix`; possibly just beyond the last.
    pub(super) fn weight_row(&self, matrix: usize, row: usize) -> *const u8 {
        let matrix = matrix * self.weights.nb[2];
        self.weights.data.cast::<u8>().wrapping_add(matrix + row * self.row_bytes)
    }

    /// Returns the bytes of these blocks of a row of weights, as far as the row has them.
    ///
    /// # Safety
    /// The row exists, and has the first of these blocks.
    pub(super) unsafe fn weight_blocks(
        &self,
        (matrix, row): (usize, usize),
        blocks: Range<usize>,
    ) -> &[u8] {
        let block = self.format.block_bytes();
        let (start, end) = (blocks.start * block, self.row_bytes.min(blocks.end * block));
        // SAFETY: by the caller; rows are whole blocks, one after the other.
        unsafe { std::slice::from_raw_parts(self.weight_row(matrix, row).add(start), end - start) }
    }

    /// Bytes of a row's last block, which may be incomplete.
    pub(super) fn last_block_bytes(&self) -> usize {
        self.row_bytes - (self.blocks - 1) * self.format.block_bytes()
    }
}

/// Rows of activations that are multiplied with the same matrix of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MatrixRows {
    pub(super) matrix: usize,
    /// Number of rows in the parts before it.
    pub(super) first: usize,
    pub(super) rows: usize,
}

/// Rows of a product, ordered by the matrices of weights that they are multiplied with. Each thread
/// computes its own copy, which takes less time than waiting for another's.
pub(super) struct ExpertRoutes {
    /// Rows of the output, part after part; empty if they are in natural order.
    order: Vec<u32>,
    pub(super) parts: Vec<MatrixRows>,
}

impl ExpertRoutes {
    /// Computes the routes of rows to matrices below `count`.
    fn new(count: usize, matrices: impl ExactSizeIterator<Item = usize> + Clone) -> Self {
        let mut ends = vec![0u32; count];
        for matrix in matrices.clone() {
            assert!(matrix < count, "a router chooses among the experts that there are");
            ends[matrix] += 1;
        }
        let mut parts = Vec::new();
        let mut first = 0;
        for (matrix, end) in ends.iter_mut().enumerate() {
            let rows = *end as usize;
            if rows > 0 {
                parts.push(MatrixRows { matrix, first, rows });
            }
            // From here on where the matrix's next row goes.
            *end = first as u32;
            first += rows;
        }
        let mut order = vec![0; matrices.len()];
        for (row, matrix) in matrices.enumerate() {
            order[ends[matrix] as usize] = row as u32;
            ends[matrix] += 1;
        }
        Self { order, parts }
    }

    /// Returns the row of the output at `index` in the parts' order.
    pub(super) fn row(&self, index: usize) -> usize {
        self.order.get(index).map_or(index, |row| *row as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_grouped_by_their_matrix_in_their_order() {
        let routes = ExpertRoutes::new(5, [3, 1, 3, 0, 1, 3].into_iter());
        let part = |matrix, first, rows| MatrixRows { matrix, first, rows };
        assert_eq!(routes.parts, [part(0, 0, 1), part(1, 1, 2), part(3, 3, 3)]);
        let order: Vec<usize> = (0..6).map(|index| routes.row(index)).collect();
        assert_eq!(order, [3, 1, 4, 0, 2, 5]);
    }
}
