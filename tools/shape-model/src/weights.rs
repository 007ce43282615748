//! Seeded random numbers, many and fast: the same seed gives the same file on every machine.

use std::io::{self, Write};

use half::f16;
use loquent_formats::gguf::TensorType;

/// Deviates in the table that weights are drawn from; an index is 16 random bits.
const TABLE_LEN: usize = 1 << 16;
/// Numbers written at a time.
const CHUNK: usize = 1 << 16;

/// How the numbers of a tensor are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fill {
    /// Normally distributed around 0.
    Normal {
        /// Their standard deviation.
        std: f32,
    },
    /// Every number is 1.
    Ones,
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): small, fast, and the same for ever, which a
/// library's generator need not be.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator of one stream of `seed`; streams of other names are independent of it.
    pub fn of_stream(seed: u64, name: &str) -> SplitMix64 {
        // FNV-1a over the name.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let stream = name.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        let mut generator = SplitMix64(seed);
        SplitMix64(generator.next_u64() ^ stream)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1].
    fn next_unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// Draws weights. A weight is one of 65,536 normal deviates, chosen by 16 random bits: four to a
/// random number, some ten times as fast as computing each.
pub struct RandomWeights {
    seed: u64,
    normal: Vec<f32>,
}

impl RandomWeights {
    /// Draws the table of deviates from `seed`.
    pub fn new(seed: u64) -> RandomWeights {
        let mut random = SplitMix64::of_stream(seed, "table of normal deviates");
        let mut deviate = || {
            // Box and Muller's transform, one of its two results.
            let radius = (-2.0 * random.next_unit().ln()).sqrt();
            (radius * (std::f64::consts::TAU * random.next_unit()).cos()) as f32
        };
        RandomWeights { seed, normal: (0..TABLE_LEN).map(|_| deviate()).collect() }
    }

    /// Writes `len` numbers of the tensor `name` as `kind`, which is `F16` or `F32`.
    ///
    /// # Errors
    /// Those of `out`.
    ///
    /// # Panics
    /// For another type.
    pub fn write(
        &self,
        name: &str,
        fill: Fill,
        kind: TensorType,
        len: u64,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let encode: fn(f32) -> ([u8; 4], usize) = match kind {
            TensorType::F16 => |x| {
                let [a, b] = f16::from_f32(x).to_le_bytes();
                ([a, b, 0, 0], 2)
            },
            TensorType::F32 => |x| (x.to_le_bytes(), 4),
            other => panic!("weights are drawn as F16 or F32, not as type {}", other.0),
        };
        let table: Vec<([u8; 4], usize)> = match fill {
            Fill::Normal { std } => self.normal.iter().map(|x| encode(x * std)).collect(),
            Fill::Ones => vec![encode(1.0); TABLE_LEN],
        };
        let item_bytes = table[0].1;
        let mut random = SplitMix64::of_stream(self.seed, name);
        let mut chunk = Vec::with_capacity((CHUNK + 4) * item_bytes);
        let mut left = len;
        while left > 0 {
            let items = left.min(CHUNK as u64) as usize;
            chunk.clear();
            while chunk.len() < items * item_bytes {
                let bits = random.next_u64();
                for shift in [0, 16, 32, 48] {
                    let index = usize::from((bits >> shift) as u16);
                    chunk.extend_from_slice(&table[index].0[..item_bytes]);
                }
            }
            out.write_all(&chunk[..items * item_bytes])?;
            left -= items as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(seed: u64, name: &str, len: u64) -> Vec<f32> {
        let mut bytes = Vec::new();
        let fill = Fill::Normal { std: 0.02 };
        RandomWeights::new(seed).write(name, fill, TensorType::F16, len, &mut bytes).unwrap();
        bytes.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
    }

    #[test]
    fn the_generator_is_the_published_one() {
        // The first outputs of the reference implementation for the seed 1234567.
        let mut random = SplitMix64(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn weights_are_normal_and_come_from_the_seed_and_the_name() {
        let weights = draw(1, "a", 100_001);
        assert_eq!(weights.len(), 100_001);
        let n = weights.len() as f32;
        let mean = weights.iter().sum::<f32>() / n;
        let std = (weights.iter().map(|w| w * w).sum::<f32>() / n).sqrt();
        assert!(mean.abs() < 5e-4 && (std - 0.02).abs() < 5e-4, "mean {mean}, std {std}");
        let within = weights.iter().filter(|w| w.abs() < 0.02).count() as f32 / n;
        assert!((within - 0.6827).abs() < 0.01, "{within} within one deviation");
        assert_eq!(weights, draw(1, "a", 100_001));
        assert_ne!(weights[..100], draw(2, "a", 100));
        assert_ne!(weights[..100], draw(1, "b", 100));
    }
}
