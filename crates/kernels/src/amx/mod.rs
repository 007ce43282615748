//! AMX: tiles of bytes that one instruction multiplies, and the setup to use them.
//!
//! Linux saves tiles of 8 KiB for each thread that has used one, and only for processes that
//! requested it. Rust has no stable intrinsics for tiles, so all the instructions are written as
//! assembly here. No asm block leaves anything in a tile that a later one relies on, so the
//! compiler need not know of tiles.

#[cfg(test)]
mod soft;

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

#[cfg(test)]
pub(super) use soft::SoftTiles;

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 16;
/// Bytes of a tile's row.
const ROW_BYTES: usize = 64;

/// A tile of sums, the accumulator of a product of tiles.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct TileSums(pub(super) [[i32; TILE_ROWS]; TILE_ROWS]);

impl TileSums {
    pub(super) const ZERO: Self = Self([[0; TILE_ROWS]; TILE_ROWS]);
}

/// The sizes of a product of tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TileShape {
    /// Rows of the left side, up to sixteen.
    pub(super) rows: u8,
    /// Bytes of each left row, a multiple of four up to 64.
    pub(super) depth: u8,
}

/// Operands of a product of tiles, and the destination of its sums.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileOperands {
    /// First row of the left side.
    pub(super) left: *const i8,
    /// Bytes from one left row to the next.
    pub(super) left_stride: usize,
    /// Right side: 64 bytes for every four bytes of a left row, four for each of sixteen columns.
    pub(super) right: *const i8,
    /// The sums; as many rows are written as the left side has.
    pub(super) sums: *mut TileSums,
}

/// Unit that multiplies tiles: the processor, or in tests a model of it.
pub(super) trait TileUnit {
    /// Prepares products of this shape.
    ///
    /// # Safety
    /// [`is_usable`] has returned true.
    unsafe fn configure(&mut self, shape: TileShape);

    /// Multiplies rows with columns of signed bytes, exactly. Products with different `SET`
    /// numbers, 0 or 1, need not wait for each other.
    ///
    /// # Safety
    /// As for `configure`, which was called with the shape of these operands; `left` and `right`
    /// have the rows of that shape, and `sums` is writable.
    unsafe fn product<const SET: usize>(&mut self, operands: TileOperands);
}

/// Tiles of set number `SET`: for the sums, the left and the right side.
const fn tiles_of(set: usize) -> [usize; 3] {
    [3 * set, 3 * set + 1, 3 * set + 2]
}

/// Memory layout of a tile configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
struct TileConfig {
    /// 0 if no tile is in use.
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileConfig {
    const NONE: Self =
        Self { palette: 0, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };

    /// Eight tiles of full size.
    const FULL: Self = {
        let (mut full, mut tile) = (Self { palette: 1, ..Self::NONE }, 0);
        while tile < 8 {
            (full.rows[tile], full.row_bytes[tile]) = (TILE_ROWS as u8, ROW_BYTES as u16);
            tile += 1;
        }
        full
    };

    fn new(shape: TileShape) -> Self {
        let mut config = Self { palette: 1, ..Self::NONE };
        for set in [0, 1] {
            let [sums, left, right] = tiles_of(set);
            (config.rows[sums], config.row_bytes[sums]) = (shape.rows, ROW_BYTES as u16);
            (config.rows[left], config.row_bytes[left]) = (shape.rows, shape.depth.into());
            (config.rows[right], config.row_bytes[right]) = (shape.depth / 4, ROW_BYTES as u16);
        }
        config
    }
}

/// The processor's own tiles. Dropping this restores the thread's previous configuration: usually
/// none, which spares Linux the tiles when it switches threads.
#[derive(Debug, Default)]
pub(super) struct Amx {
    before: Option<TileConfig>,
    shape: Option<TileShape>,
    /// Tiles belong to a thread.
    of_thread: std::marker::PhantomData<*const ()>,
}

impl Amx {
    /// Configures this thread's tiles; the previous configuration is restored at the end.
    ///
    /// # Safety
    /// [`is_usable`] has returned true, and the processor accepts this configuration.
    unsafe fn load(&mut self, config: &TileConfig) {
        if self.before.is_none() {
            // SAFETY: the caller guarantees that `is_usable`, which is all that `stored` requires.
            self.before = Some(unsafe { stored() });
        }
        // SAFETY: the caller guarantees that `is_usable` and that the processor accepts `config`.
        unsafe { load(config) }
    }
}

impl TileUnit for Amx {
    unsafe fn configure(&mut self, shape: TileShape) {
        if self.shape != Some(shape) {
            // SAFETY: the caller guarantees that `is_usable`; `TileConfig::new` gives a valid
            // configuration for any shape within a tile.
            unsafe { self.load(&TileConfig::new(shape)) }
            self.shape = Some(shape);
        }
    }

    #[inline]
    unsafe fn product<const SET: usize>(&mut self, operands: TileOperands) {
        let TileOperands { left, left_stride, right, sums } = operands;
        // SAFETY: by the caller the tiles are configured, and the operands have their sizes.
        unsafe {
            asm!(
                "tilezero tmm{c}",
                "tileloadd tmm{a}, [{left} + {stride}]",
                "tileloadd tmm{b}, [{right} + {line}]",
                "tdpbssd tmm{c}, tmm{a}, tmm{b}",
                "tilestored [{sums} + {line}], tmm{c}",
                c = const tiles_of(SET)[0],
                a = const tiles_of(SET)[1],
                b = const tiles_of(SET)[2],
                left = in(reg) left,
                stride = in(reg) left_stride,
                right = in(reg) right,
                sums = in(reg) sums,
                line = in(reg) ROW_BYTES,
                out("tmm0") _,
                out("tmm1") _,
                out("tmm2") _,
                out("tmm3") _,
                out("tmm4") _,
                out("tmm5") _,
                options(nostack, preserves_flags),
            );
        }
    }
}

impl Drop for Amx {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: the processor itself stored this configuration on this thread, so AMX is
            // usable and it is valid.
            unsafe { load(before) }
        }
    }
}

/// Returns the configuration of this thread's tiles.
///
/// # Safety
/// [`is_usable`] has returned true.
unsafe fn stored() -> TileConfig {
    let mut config = TileConfig::NONE;
    // SAFETY: 64 bytes are written, the size of `config`; by the caller the processor has the
    // instruction.
    unsafe { asm!("sttilecfg [{}]", in(reg) &raw mut config, options(nostack, preserves_flags)) }
    config
}

/// Configures this thread's tiles, whose contents become zero, or releases them if none is in use.
///
/// # Safety
/// [`is_usable`] has returned true, and the processor accepts this configuration.
unsafe fn load(config: &TileConfig) {
    // SAFETY: 64 bytes are read, the size of `config`, which by the caller the processor accepts.
    unsafe {
        asm!(
            "ldtilecfg [{}]",
            in(reg) config,
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            out("tmm3") _,
            out("tmm4") _,
            out("tmm5") _,
            out("tmm6") _,
            out("tmm7") _,
            options(nostack, preserves_flags),
        );
    }
}

/// Returns true if this process may use AMX with 8-bit integers. Linux is asked once, for all
/// threads of the process. The instructions are then tried in a child process, since not every
/// emulator and hypervisor keeps the promise, and a missing instruction may end the process.
pub fn is_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| is_there() && ask() && holds_in_child(multiplies))
}

/// Returns true if the processor has AMX-INT8, by its CPUID bits; the standard library's detection
/// is not stable yet.
pub fn is_there() -> bool {
    const EXTENDED_FEATURES: u32 = 7;
    const TILE_AND_INT8: u32 = 0b11 << 24;
    __cpuid(0).eax >= EXTENDED_FEATURES
        && __cpuid_count(EXTENDED_FEATURES, 0).edx & TILE_AND_INT8 == TILE_AND_INT8
}

/// Requests permission from Linux. Linux refuses if it does not know AMX, if the processor's state
/// is not enabled, or if a thread's signal stack could not hold that state.
fn ask() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    // SAFETY: takes two numbers, and changes what the process may do.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

/// Returns true if `holds` is true in a forked copy of this process, which has its permissions.
/// `holds` must neither allocate nor lock: other threads of this process may have been in the
/// middle of that.
fn holds_in_child(holds: fn() -> bool) -> bool {
    // SAFETY: the child calls nothing but `holds` before it ends; the parent waits for it alone.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(if holds() { 0 } else { 1 });
        }
        let mut status = 1;
        while child > 0 && libc::waitpid(child, &raw mut status, 0) < 0 {
            if *libc::__errno_location() != libc::EINTR {
                return false;
            }
        }
        child > 0 && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

/// Number of products of two bytes in one product of full tiles.
pub const FULL_PRODUCTS: usize = TILE_ROWS * TILE_ROWS * ROW_BYTES;

/// Multiplies full tiles, `times` times four, as fast as the processor can.
///
/// # Panics
/// If AMX is not usable.
pub fn multiply_full_tiles(times: usize) {
    assert!(is_usable(), "the caller asks before");
    let mut unit = Amx::default();
    let numbers = [[3i8; ROW_BYTES]; TILE_ROWS];
    // SAFETY: `is_usable` was asserted above; each tile load reads the 16 rows of 64 bytes of
    // `numbers`.
    unsafe {
        unit.load(&TileConfig::FULL);
        asm!(
            "tileloadd tmm4, [{numbers} + {line}]",
            "tileloadd tmm5, [{numbers} + {line}]",
            "tileloadd tmm6, [{numbers} + {line}]",
            "tileloadd tmm7, [{numbers} + {line}]",
            "test {times}, {times}",
            "jz 3f",
            "2:",
            "tdpbssd tmm0, tmm4, tmm6",
            "tdpbssd tmm1, tmm4, tmm7",
            "tdpbssd tmm2, tmm5, tmm6",
            "tdpbssd tmm3, tmm5, tmm7",
            "dec {times}",
            "jnz 2b",
            "3:",
            numbers = in(reg) &raw const numbers,
            line = in(reg) ROW_BYTES,
            times = inout(reg) times => _,
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            out("tmm3") _,
            out("tmm4") _,
            out("tmm5") _,
            out("tmm6") _,
            out("tmm7") _,
            options(nostack, readonly),
        );
    }
}

/// Returns true if products with both sets of tiles are right.
fn multiplies() -> bool {
    let (rows, depth) = (11, 32);
    let left: [[i8; 32]; TILE_ROWS] =
        std::array::from_fn(|r| std::array::from_fn(|k| (r * 37 + k * 11) as u8 as i8));
    let right: [[i8; ROW_BYTES]; 8] =
        std::array::from_fn(|k| std::array::from_fn(|n| (k * 53 + n * 29) as u8 as i8));
    let exact = |row: usize, column: usize| -> i32 {
        let one = |k: usize| i32::from(left[row][k]) * i32::from(right[k / 4][4 * column + k % 4]);
        (0..usize::from(depth)).map(one).sum()
    };
    let mut unit = Amx::default();
    let mut found = [TileSums::ZERO; 2];
    let (left, left_stride) = (left.as_ptr().cast(), 32);
    let operands = |sums| TileOperands { left, left_stride, right: right.as_ptr().cast(), sums };
    // SAFETY: the processor has the instructions and the process the permission; both sides and
    // the sums have as many rows as the shape says.
    unsafe {
        unit.configure(TileShape { rows, depth });
        unit.product::<0>(operands(&raw mut found[0]));
        unit.product::<1>(operands(&raw mut found[1]));
    }
    found.iter().all(|TileSums(found)| {
        let is_right = |row: usize| (0..TILE_ROWS).all(|n| found[row][n] == exact(row, n));
        (0..rows.into()).all(is_right)
    })
}

#[cfg(test)]
mod tests;
