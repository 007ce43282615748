//! Instruction sets for which Loquent has its own kernels, and the choice of the one in use.

use std::sync::atomic::{AtomicU8, Ordering};

/// Instruction set with kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Isa {
    /// AMX with 8-bit integers, beside AVX-512 VNNI: Intel servers since 2023.
    Amx,
    /// AVX-512 with byte products (VNNI): Intel since 2019 (servers), AMD since Zen 4.
    Avx512Vnni,
    /// AVX2 with byte products (AVX-VNNI): Intel since 2021, AMD since Zen 5.
    AvxVnni,
    /// AVX2, FMA and F16C: Intel since 2013, AMD since 2015.
    Avx2,
}

/// The processor or the build lacks a requested instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this processor, or this build, has no kernels for {}", .0.name())]
pub struct UnavailableIsa(pub Isa);

/// Index of the chosen one in [`Isa::ALL`], or [`NOT_CHOSEN`].
static CHOSEN: AtomicU8 = AtomicU8::new(NOT_CHOSEN);
const NOT_CHOSEN: u8 = u8::MAX;

impl Isa {
    /// All, the fastest first.
    pub const ALL: [Self; 4] = [Self::Amx, Self::Avx512Vnni, Self::AvxVnni, Self::Avx2];

    /// Instruction sets of this processor, fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Returns true if this processor has the instruction set and this build its kernels. For AMX
    /// this requests permission from Linux, which the process keeps from then on.
    #[cfg(own_kernels)]
    pub fn is_available(self) -> bool {
        match self {
            Self::Amx => Self::Avx512Vnni.is_available() && super::amx::is_usable(),
            Self::Avx512Vnni => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                    && is_x86_feature_detected!("f16c")
            }
            Self::AvxVnni => Self::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
        }
    }

    /// Returns false: this build has no kernels.
    #[cfg(not(own_kernels))]
    pub fn is_available(self) -> bool {
        false
    }

    /// Usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx => "AMX",
            Self::Avx512Vnni => "AVX-512 VNNI",
            Self::AvxVnni => "AVX2 with VNNI",
            Self::Avx2 => "AVX2",
        }
    }

    /// Instruction set that the kernels use: the chosen one, else the fastest of this processor.
    /// `None` if it has none.
    pub fn used() -> Option<Self> {
        let chosen = Self::ALL.get(usize::from(CHOSEN.load(Ordering::Relaxed))).copied();
        // The first operation decides, so that later ones need not ask the processor.
        chosen.or_else(|| Self::available().next().inspect(|isa| isa.store()))
    }

    /// Makes the kernels of this process use this instruction set: once, before a model is loaded.
    /// While a model computes, only tests may call it.
    ///
    /// # Errors
    /// If the processor lacks it.
    pub fn choose(self) -> Result<(), UnavailableIsa> {
        if !self.is_available() {
            return Err(UnavailableIsa(self));
        }
        self.store();
        Ok(())
    }

    fn store(self) {
        CHOSEN.store(self as u8, Ordering::Relaxed);
    }
}

#[cfg(all(test, own_kernels))]
impl Isa {
    /// Returns true if a test can try it; otherwise reports that, or fails.
    pub(super) fn is_here_for_a_test(self) -> bool {
        let need = match self {
            Self::Amx => loquent_needs::Need::Amx,
            Self::Avx512Vnni => loquent_needs::Need::Avx512,
            Self::AvxVnni => loquent_needs::Need::AvxVnni,
            Self::Avx2 => loquent_needs::Need::Avx2,
        };
        need.is_met(self.is_available(), format!("this processor lacks {}", self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_is_used_unasked_and_what_is_lacking_is_refused() {
        assert!(Isa::ALL.iter().enumerate().all(|(i, isa)| *isa as usize == i));
        let usual = Isa::ALL.into_iter().find(|isa| isa.is_available());
        assert_eq!(Isa::used(), usual);
        for isa in Isa::ALL {
            if !isa.is_available() {
                assert_eq!(isa.choose(), Err(UnavailableIsa(isa)));
            }
        }
        assert_eq!(Isa::used(), usual);
    }
}
