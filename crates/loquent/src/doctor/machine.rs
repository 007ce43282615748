//! Checks the machine: the processor and the kernels that run on it, memory, open files.

use nix::sys::resource::{Resource, getrlimit};

use super::diagnosis::Diagnosis;
use crate::descriptors::OWN_DESCRIPTORS;

/// Default connection limit of `serve`.
const USUAL_CONNECTIONS: u64 = 4096;
/// Minimum number of descriptors for serving. Chosen by hand.
const MIN_DESCRIPTORS: u64 = 256;
/// Memory below which hardly any model runs, in bytes.
const LITTLE_MEMORY: u64 = 512 << 20;

/// The processor, and the kernels of this build.
pub(super) struct Processor {
    cores: usize,
    /// Instruction sets that llama.cpp's part of this build uses.
    #[cfg(feature = "llama")]
    built_with: Vec<&'static str>,
    /// The instruction set of Loquent's kernels, if there are any for this processor.
    #[cfg(feature = "llama")]
    own_kernels: Option<&'static str>,
    /// Description of the features it lacks to run this build at all.
    #[cfg(feature = "llama")]
    lacks: Option<String>,
}

#[cfg(feature = "llama")]
impl Processor {
    pub(super) fn of_machine() -> Self {
        use loquent_engine::llama::{Isa, check_processor, instruction_sets, physical_cores};
        let built_in = instruction_sets().into_iter().filter(|set| set.built_in);
        Self {
            cores: physical_cores().get().into(),
            built_with: built_in.map(|set| set.name).collect(),
            own_kernels: Isa::used().map(Isa::name),
            lacks: check_processor().err().map(|error| error.to_string()),
        }
    }

    pub(super) fn diagnose(&self) -> Diagnosis {
        if let Some(lacks) = &self.lacks {
            let advice = "use the portable binary, or build on this machine (docs/building.md)";
            return Diagnosis::failure("processor", lacks, advice);
        }
        let library = match self.built_with.is_empty() {
            true => "llama.cpp".to_owned(),
            false => format!("llama.cpp ({})", self.built_with.join(", ")),
        };
        let kernels = match self.own_kernels {
            Some(name) => {
                format!("Loquent's kernels ({name}) for quantised weights, else {library}")
            }
            // They are for this architecture alone.
            None if cfg!(target_arch = "x86_64") => {
                format!("{library}; Loquent's own kernels need AVX2")
            }
            None => library,
        };
        let (count, cores) = (self.cores, if self.cores == 1 { "core" } else { "cores" });
        Diagnosis::fine("processor", format!("{count} {cores}; can compute with {kernels}"))
    }
}

#[cfg(not(feature = "llama"))]
impl Processor {
    pub(super) fn of_machine() -> Self {
        Self { cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()) }
    }

    pub(super) fn diagnose(&self) -> Diagnosis {
        let what =
            format!("{} cores; this build has no engine and can --simulate only", self.cores);
        let advice = "build with the cargo feature llama, or use --upstream";
        Diagnosis::warning("processor", what, advice)
    }
}

/// Free memory, if the system reports it.
pub(super) struct FreeMemory(pub(super) Option<u64>);

impl FreeMemory {
    pub(super) fn of_machine() -> Self {
        #[cfg(feature = "llama")]
        return Self(loquent_engine::llama::available_bytes());
        #[cfg(not(feature = "llama"))]
        Self(None)
    }

    pub(super) fn diagnose(&self) -> Diagnosis {
        match self.0 {
            None => Diagnosis::skipped("memory", "this system does not report its free memory"),
            Some(free) if free < LITTLE_MEMORY => Diagnosis::warning(
                "memory",
                format!("{} free", size(free)),
                "end other programs, or raise the container's limit; the smallest useful models \
                 take about 1 GiB",
            ),
            Some(free) => Diagnosis::fine("memory", format!("{} free", size(free))),
        }
    }
}

/// Number of files that the process may open; every connection needs one.
pub(super) struct OpenFiles {
    /// Limit to which `serve` raises its own.
    pub(super) most: u64,
}

impl OpenFiles {
    pub(super) fn of_process() -> Option<Self> {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
        Some(Self { most })
    }

    pub(super) fn diagnose(&self) -> Diagnosis {
        const ADVICE: &str = "raise the limit: LimitNOFILE=65536 in a systemd unit, --ulimit \
                              nofile=65536 for a container, /etc/security/limits.conf for a login";
        let most = self.most;
        let connections = most.saturating_sub(OWN_DESCRIPTORS);
        if most < MIN_DESCRIPTORS {
            let what = format!("only {most} files may be open: too few for a server");
            Diagnosis::failure("descriptors", what, ADVICE)
        } else if connections < USUAL_CONNECTIONS {
            let what =
                format!("{most} files may be open, enough for {connections} connections at once");
            Diagnosis::warning("descriptors", what, ADVICE)
        } else if most >= 1 << 40 {
            Diagnosis::fine("descriptors", "any number of files may be open")
        } else {
            Diagnosis::fine("descriptors", format!("{most} files may be open"))
        }
    }
}

/// Formats `bytes` in the usual unit for memory.
pub(super) fn size(bytes: u64) -> String {
    let mib = bytes as f64 / (1 << 20) as f64;
    match mib {
        mib if mib >= 1024.0 => format!("{:.1} GiB", mib / 1024.0),
        mib => format!("{mib:.0} MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::diagnosis::Severity;
    use super::*;

    #[test]
    fn few_descriptors_are_found() {
        let severity = |most| OpenFiles { most }.diagnose().severity;
        assert_eq!(severity(64), Severity::Failure);
        assert_eq!(severity(1024), Severity::Warning);
        assert_eq!(severity(65_536), Severity::Fine);
        assert_eq!(severity(u64::MAX), Severity::Fine);
    }

    #[test]
    fn little_memory_is_found() {
        let severity = |free| FreeMemory(free).diagnose().severity;
        assert_eq!(severity(None), Severity::Skipped);
        assert_eq!(severity(Some(100 << 20)), Severity::Warning);
        assert_eq!(severity(Some(8 << 30)), Severity::Fine);
        assert_eq!((size(100 << 20), size(3 << 29)), ("100 MiB".into(), "1.5 GiB".into()));
    }

    #[cfg(feature = "llama")]
    #[test]
    fn a_processor_that_cannot_run_this_build_is_found() {
        let machine = Processor::of_machine();
        assert_eq!(machine.diagnose().severity, Severity::Fine);
        let old = Processor { lacks: Some("this processor lacks AVX2".into()), ..machine };
        assert_eq!(old.diagnose().severity, Severity::Failure);
    }
}
