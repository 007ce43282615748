//! Compares the instruction sets of this processor with those that llama.cpp was compiled to use.
//!
//! Loquent's kernels are chosen at run time. llama.cpp's own operations are not: its instruction
//! sets are fixed when it is built, and on a processor that lacks one the process would die of an
//! illegal instruction, without a message. Therefore they are compared before the library starts.

use super::sys;

/// Instruction set that llama.cpp can be built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstructionSet {
    /// Usual name, for example `AVX2`.
    pub name: &'static str,
    /// True if this build of llama.cpp uses it.
    pub built_in: bool,
    /// True if this processor has it.
    pub available: bool,
}

/// Instruction sets that this build needs and this processor lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this processor lacks {}, which this build of Loquent needs to compute a model; build Loquent \
     on this machine (docs/building.md), or compute elsewhere with --upstream",
    .0.join(", ")
)]
pub struct UnsupportedProcessor(Vec<&'static str>);

/// All instruction sets that matter to llama.cpp on this architecture; none on architectures where
/// they are not checked.
pub fn instruction_sets() -> Vec<InstructionSet> {
    let set = |(name, built_in, available): (&'static str, i32, bool)| InstructionSet {
        name,
        built_in: built_in != 0,
        available,
    };
    rows().into_iter().map(set).collect()
}

/// Checks that this processor has all instruction sets that llama.cpp was built with.
///
/// # Errors
/// The missing instruction sets.
pub fn check_processor() -> Result<(), UnsupportedProcessor> {
    check(&instruction_sets())
}

fn check(sets: &[InstructionSet]) -> Result<(), UnsupportedProcessor> {
    let lacking = sets.iter().filter(|set| set.built_in && !set.available).map(|set| set.name);
    let lacking: Vec<_> = lacking.collect();
    if lacking.is_empty() { Ok(()) } else { Err(UnsupportedProcessor(lacking)) }
}

/// Name, whether llama.cpp was compiled with it, and whether the processor has it. llama.cpp's
/// answers are constants, which need none of these instructions themselves.
#[cfg(target_arch = "x86_64")]
fn rows() -> Vec<(&'static str, i32, bool)> {
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw");
    // SAFETY: functions without arguments or state.
    unsafe {
        vec![
            ("SSSE3", sys::ggml_cpu_has_ssse3(), is_x86_feature_detected!("ssse3")),
            ("AVX", sys::ggml_cpu_has_avx(), is_x86_feature_detected!("avx")),
            ("AVX2", sys::ggml_cpu_has_avx2(), is_x86_feature_detected!("avx2")),
            ("BMI2", sys::ggml_cpu_has_bmi2(), is_x86_feature_detected!("bmi2")),
            ("FMA", sys::ggml_cpu_has_fma(), is_x86_feature_detected!("fma")),
            ("F16C", sys::ggml_cpu_has_f16c(), is_x86_feature_detected!("f16c")),
            ("AVX-VNNI", sys::ggml_cpu_has_avx_vnni(), is_x86_feature_detected!("avxvnni")),
            ("AVX-512", sys::ggml_cpu_has_avx512(), avx512),
            (
                "AVX-512 VBMI",
                sys::ggml_cpu_has_avx512_vbmi(),
                is_x86_feature_detected!("avx512vbmi"),
            ),
            (
                "AVX-512 VNNI",
                sys::ggml_cpu_has_avx512_vnni(),
                is_x86_feature_detected!("avx512vnni"),
            ),
            (
                "AVX-512 BF16",
                sys::ggml_cpu_has_avx512_bf16(),
                is_x86_feature_detected!("avx512bf16"),
            ),
        ]
    }
}

#[cfg(target_arch = "aarch64")]
fn rows() -> Vec<(&'static str, i32, bool)> {
    use std::arch::is_aarch64_feature_detected as has;
    // SAFETY: functions without arguments or state.
    unsafe {
        vec![
            ("NEON", sys::ggml_cpu_has_neon(), has!("neon")),
            ("FP16", sys::ggml_cpu_has_fp16_va(), has!("fp16")),
            ("DOTPROD", sys::ggml_cpu_has_dotprod(), has!("dotprod")),
            ("I8MM", sys::ggml_cpu_has_matmul_int8(), has!("i8mm")),
            ("SVE", sys::ggml_cpu_has_sve(), has!("sve")),
        ]
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn rows() -> Vec<(&'static str, i32, bool)> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_named() {
        let set = |name, built_in, available| InstructionSet { name, built_in, available };
        let sets = [set("A", true, false), set("B", false, false), set("C", true, true)];
        assert_eq!(check(&sets), Err(UnsupportedProcessor(vec!["A"])));
        assert_eq!(check(&sets[1..]), Ok(()));
        let message = UnsupportedProcessor(vec!["AVX2", "FMA"]).to_string();
        assert!(message.contains("lacks AVX2, FMA,"), "{message}");
    }

    #[test]
    fn this_machine_runs_what_was_built_on_it() {
        assert_eq!(check_processor(), Ok(()));
        if cfg!(target_arch = "x86_64") {
            // llama.cpp's crate asks for it unless it is told otherwise, as this table says.
            let sets = instruction_sets();
            let avx2 = sets.iter().find(|set| set.name == "AVX2").unwrap();
            assert!(avx2.built_in || !avx2.available);
        }
    }
}
