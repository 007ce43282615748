//! A model of AMX, instruction by instruction, for processors without it.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{ROW_BYTES, TILE_ROWS, TileConfig, TileOperands, TileShape, TileUnit, tiles_of};

/// One tile's data.
type TileBytes = [[u8; ROW_BYTES]; TILE_ROWS];

/// Tiles as the processor's manual describes them: panics where the processor would fault.
pub(crate) struct SoftTiles<'a> {
    config: TileConfig,
    tiles: [TileBytes; 8],
    /// Counter of products.
    products: &'a AtomicUsize,
}

impl<'a> SoftTiles<'a> {
    pub(crate) fn new(products: &'a AtomicUsize) -> Self {
        let empty = [[0; ROW_BYTES]; TILE_ROWS];
        Self { config: TileConfig::NONE, tiles: [empty; 8], products }
    }

    /// Rows of a tile and bytes of a row.
    fn size(&self, tile: usize) -> (usize, usize) {
        (self.config.rows[tile].into(), self.config.row_bytes[tile].into())
    }

    /// # Safety
    /// As many rows as the tile has, `stride` bytes apart from `at` on, are readable.
    unsafe fn load(&mut self, tile: usize, at: *const u8, stride: usize) {
        let (rows, bytes) = self.size(tile);
        self.tiles[tile] = [[0; ROW_BYTES]; TILE_ROWS];
        for (row, to) in self.tiles[tile][..rows].iter_mut().enumerate() {
            // SAFETY: the caller guarantees `rows` readable rows of `bytes` bytes, `stride` bytes
            // apart from `at` on.
            let from = unsafe { std::slice::from_raw_parts(at.add(row * stride), bytes) };
            to[..bytes].copy_from_slice(from);
        }
    }

    /// # Safety
    /// As for `load`, but writable.
    unsafe fn store(&self, tile: usize, at: *mut u8, stride: usize) {
        let (rows, bytes) = self.size(tile);
        for (row, from) in self.tiles[tile][..rows].iter().enumerate() {
            // SAFETY: the caller guarantees `rows` writable rows of `bytes` bytes, `stride` bytes
            // apart from `at` on.
            unsafe { at.add(row * stride).copy_from_nonoverlapping(from.as_ptr(), bytes) }
        }
    }

    /// The instruction TDPBSSD.
    fn multiply(&mut self, [sums, left, right]: [usize; 3]) {
        let ((rows, columns), (left_rows, depth)) = (self.size(sums), self.size(left));
        assert_eq!(left_rows, rows, "as many rows of sums as of the left side");
        assert_eq!(self.size(right), (depth / 4, columns), "a right side that fits");
        assert!(rows * depth * columns > 0 && depth % 4 == 0 && columns % 4 == 0);
        for row in 0..rows {
            for column in (0..columns).step_by(4) {
                let product = |k: usize| {
                    let left = self.tiles[left][row][k] as i8;
                    let right = self.tiles[right][k / 4][column + k % 4] as i8;
                    i32::from(left) * i32::from(right)
                };
                let products: i32 = (0..depth).map(product).sum();
                let sum = self.tiles[sums][row][column..].first_chunk_mut().expect("four bytes");
                *sum = i32::from_le_bytes(*sum).wrapping_add(products).to_le_bytes();
            }
        }
    }
}

impl TileUnit for SoftTiles<'_> {
    unsafe fn configure(&mut self, shape: TileShape) {
        let TileConfig { palette, rows, row_bytes, .. } = TileConfig::new(shape);
        assert_eq!(palette, 1);
        assert!(rows.iter().all(|rows| usize::from(*rows) <= TILE_ROWS));
        assert!(row_bytes.iter().all(|bytes| usize::from(*bytes) <= ROW_BYTES));
        assert!(rows[8..] == [0; 8] && row_bytes[8..] == [0; 8], "there are eight tiles");
        *self = Self { config: TileConfig::new(shape), ..Self::new(self.products) };
    }

    unsafe fn product<const SET: usize>(&mut self, operands: TileOperands) {
        let TileOperands { left, left_stride, right, sums } = operands;
        let [c, a, b] = tiles_of(SET);
        self.tiles[c] = [[0; ROW_BYTES]; TILE_ROWS];
        // SAFETY: the caller guarantees (see `TileUnit::product`) that all operands have the rows
        // of the configured shape.
        unsafe {
            self.load(a, left.cast(), left_stride);
            self.load(b, right.cast(), ROW_BYTES);
            self.multiply([c, a, b]);
            self.store(c, sums.cast(), ROW_BYTES);
        }
        self.products.fetch_add(1, Ordering::Relaxed);
    }
}
