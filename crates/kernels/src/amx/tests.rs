//! Compares the model of the instructions with a processor that has them, and checks the state that
//! is left behind. On other processors tools/amx-emulated runs these tests.
use std::sync::atomic::AtomicUsize;

use super::*;

fn is_available() -> bool {
    loquent_needs::Need::Amx.is_met(is_usable(), "this processor lacks AMX")
}

/// Pseudo-random bytes, the same in every run; -128 and 127 are among them.
fn bytes(seed: u32, count: usize) -> Vec<i8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match state >> 29 {
            0 => i8::MIN,
            1 => i8::MAX,
            _ => (state >> 16) as i8,
        }
    };
    (0..count).map(|_| next()).collect()
}

/// Returns the sums of both sets of `unit`'s tiles, in memory that held something else before.
fn products(unit: &mut impl TileUnit, shape: TileShape, stride: usize) -> [[[i32; 16]; 16]; 2] {
    let mut sums = [TileSums([[0x5555_5555; TILE_ROWS]; TILE_ROWS]); 2];
    let seed = 64 * u32::from(shape.rows) + u32::from(shape.depth);
    let left = [bytes(seed, TILE_ROWS * stride), bytes(seed + 1, TILE_ROWS * stride)];
    let right = [bytes(seed + 2, TILE_ROWS * ROW_BYTES), bytes(seed + 3, TILE_ROWS * ROW_BYTES)];
    let [first, second] = &mut sums;
    let operands = |set: usize, sums| {
        let (left, right) = (left[set].as_ptr(), right[set].as_ptr());
        TileOperands { left, left_stride: stride, right, sums }
    };
    // SAFETY: the tests ask for the processor first; there are as many bytes as full tiles have.
    unsafe {
        unit.configure(shape);
        unit.product::<0>(operands(0, first));
        unit.product::<1>(operands(1, second));
    }
    sums.map(|sums| sums.0)
}

/// Bytes from one row to the next; the last is the stride of the kernels' rounded activations.
const STRIDES: [usize; 3] = [ROW_BYTES, 68, 352];

#[test]
fn the_processor_multiplies_as_its_model() {
    if !is_available() {
        return;
    }
    let (counted, mut amx) = (AtomicUsize::new(0), Amx::default());
    let mut soft = SoftTiles::new(&counted);
    for rows in 1..=TILE_ROWS as u8 {
        for depth in (4..=ROW_BYTES as u8).step_by(4) {
            let shape = TileShape { rows, depth };
            for stride in STRIDES {
                let found = products(&mut amx, shape, stride);
                assert_eq!(found, products(&mut soft, shape, stride), "{shape:?}, {stride}");
            }
        }
    }
    println!("{} products of tiles are the model's", counted.into_inner());
}

#[test]
fn a_thread_gets_its_configuration_back() {
    if !is_available() {
        return;
    }
    let small = TileShape { rows: 3, depth: 20 };
    // SAFETY: `is_available` returned true above, so the processor has AMX and this process may use
    // it.
    let now = || unsafe { stored() };
    assert_eq!(now(), TileConfig::NONE);
    let mut outer = Amx::default();
    products(&mut outer, small, ROW_BYTES);
    assert_eq!(now(), TileConfig::new(small));
    let mut inner = Amx::default();
    products(&mut inner, TileShape { rows: 16, depth: 64 }, ROW_BYTES);
    products(&mut inner, TileShape { rows: 9, depth: 32 }, ROW_BYTES);
    assert_eq!(now(), TileConfig::new(TileShape { rows: 9, depth: 32 }));
    drop(inner);
    assert_eq!(now(), TileConfig::new(small));
    for times in [0, 1, 100] {
        multiply_full_tiles(times);
        assert_eq!(now(), TileConfig::new(small));
    }
    drop(outer);
    assert_eq!(now(), TileConfig::NONE);
}

/// A trial that fails, in any way, leaves this process unchanged.
#[test]
fn an_instruction_that_is_not_there_ends_only_the_trial() {
    fn ends() -> bool {
        // SAFETY: ends the process, as an instruction does that the processor lacks.
        unsafe { asm!("ud2") }
        true
    }
    assert!(holds_in_child(|| true));
    assert!(!holds_in_child(|| false));
    assert!(!holds_in_child(ends));
}
