//! The flags of the engine, the values that `loquent tune` found for them, and the limits that they
//! resolve to.

use std::num::NonZeroU16;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
#[cfg(feature = "llama")]
use loquent_engine::llama::{Isa, UnavailableIsa};
use loquent_engine::{GpuLayers, KvType, Pooling};
use loquent_infer::budget::ItlTarget;
use loquent_infer::scheduler::Limits;
use loquent_infer::speculation::Speculation;
use loquent_server::StatedSampling;

use super::chat_format::StatedChatFormat;
use super::source::SourceArgs;
use crate::logging;
use crate::profile::{self, Profile};
use crate::serve::staged::StagedArgs;

/// Default of `--prefill-max-tokens`: one full pass through the layers (`--micro-batch`).
pub(crate) const PREFILL_MAX_TOKENS: u32 = 512;

/// Settings of the engine.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Maximum number of sequences computed in one batch, at most 256 (4096 simulated)
    #[arg(long, alias = "parallel", env = "LOQUENT_MAX_BATCH_SIZE", default_value_t = 16, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) max_batch_size: u16,
    /// Maximum context length in tokens, prompt and answer together [default: the model's, up to
    /// 32768 and as far as half of the free memory holds its KV cache]
    #[arg(long, alias = "ctx-size", env = "LOQUENT_CONTEXT", value_name = "N")]
    pub(crate) context: Option<u32>,
    /// Size of the KV cache in tokens, shared by all sequences and cached prefixes [default: twice
    /// the context, at least 512 per sequence of the batch]
    #[arg(long, env = "LOQUENT_KV_CELLS", value_name = "N")]
    pub(crate) kv_cells: Option<u32>,
    /// Element type of the KV cache
    #[arg(long, env = "LOQUENT_KV_TYPE", default_value_t = KvType::F16, value_name = "TYPE",
          value_parser = kv_types())]
    pub(crate) kv_type: KvType,
    /// Maximum number of prompt tokens computed per step [default: the profile's, else 512]
    #[arg(long, env = "LOQUENT_PREFILL_MAX_TOKENS", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    prefill_max_tokens: Option<u32>,
    /// Inter-token latency that running answers keep while prompts are computed: milliseconds,
    /// "auto" (twice the time of a step without prompts, and at least 100) or "off"
    #[arg(long, env = "LOQUENT_ITL_TARGET_MS", default_value = "auto", value_name = "MS",
          value_parser = parse_itl_target)]
    itl_target_ms: ItlTarget,
    /// Maximum compute threads [default: the profile's, else the physical cores; 1 for small
    /// models]
    ///
    /// Fewer compute while other programs use the processors. A small model has less than 32 MiB.
    #[arg(long, env = "LOQUENT_THREADS", value_name = "N")]
    pub(crate) threads: Option<NonZeroU16>,
    /// Ignore the profile that `loquent tune` saved for this model on this machine
    #[arg(long, env = "LOQUENT_NO_PROFILE")]
    no_profile: bool,
    /// Disable the prefix cache, which keeps the KV of finished sequences for prompts with the
    /// same beginning
    #[arg(long, env = "LOQUENT_NO_PREFIX_CACHE")]
    no_prefix_cache: bool,
    /// Draft tokens verified per step: "auto", "off" or a number from 1 to 64
    ///
    /// Speculative decoding by prompt lookup: when the text repeats itself, the tokens that
    /// followed last time are drafted and verified in one step. The answer stays the same.
    /// "auto" drafts as many tokens as pay off by measured step times.
    #[arg(long, env = "LOQUENT_DRAFT_TOKENS", default_value = "auto", value_name = "N",
          value_parser = parse_draft_tokens)]
    draft_tokens: Speculation,
    /// Also serve /v1/embeddings with a model that generates text: how the vectors of an input's
    /// tokens become one, "mean", "cls" or "last" [default: off; an embedding model's file says
    /// how]
    ///
    /// Takes memory for the KV cache of one input beside that of the answers.
    #[arg(long, env = "LOQUENT_EMBEDDINGS", value_name = "POOLING", value_parser = poolings())]
    pub(crate) embeddings: Option<Pooling>,
    /// Layers computed on the GPU, in builds with GPU support: "auto" (as many as fit into its free
    /// memory), "all" or a number
    #[arg(long, alias = "n-gpu-layers", env = "LOQUENT_GPU_LAYERS", value_name = "N", default_value_t = GpuLayers::Auto)]
    pub(crate) gpu_layers: GpuLayers,
    /// How long a step of the engine may take, in seconds, before the engine counts as hung and
    /// the server ends with an error, or with --engine-process the engine is killed and started
    /// again; steps with prompts have more time for each token
    #[arg(long, env = "LOQUENT_ENGINE_TIMEOUT_S", default_value_t = 60.0, value_name = "S",
          hide_short_help = true, value_parser = parse_engine_timeout)]
    engine_timeout_s: f64,
    /// How long answers and new requests wait, in seconds, for stages or an engine process that
    /// were lost. When they are back, answers go on where they stopped; later they end with an
    /// error
    #[arg(long, env = "LOQUENT_ENGINE_OUTAGE_S", default_value_t = 60.0, value_name = "S",
          hide_short_help = true,
          value_parser = parse_engine_outage)]
    engine_outage_s: f64,
    /// Run the engine in a process of its own. When it crashes or hangs, no connection is lost:
    /// answers pause while it starts again, and go on where they stopped
    #[arg(long, env = "LOQUENT_ENGINE_PROCESS", hide_short_help = true)]
    pub(crate) engine_process: bool,
    /// Sampling parameters that the operator states for the model ([`SamplingArgs`], where the
    /// command has them).
    ///
    /// [`SamplingArgs`]: super::SamplingArgs
    #[arg(skip)]
    pub(crate) sampling: StatedSampling,
    /// The chat template and its variables, as far as the operator states them
    /// ([`ChatFormatArgs`], where the command has them).
    ///
    /// [`ChatFormatArgs`]: super::chat_format::ChatFormatArgs
    #[arg(skip)]
    pub(crate) chat_format: StatedChatFormat,
    /// True if keys and values must be possible to save, for `--prefix-cache-dir`.
    #[arg(skip)]
    pub(crate) saves_spans: bool,
    // Last, because their headings would cover the flags below them.
    #[command(flatten)]
    pub(crate) tuning: TuningArgs,
    #[command(flatten)]
    pub(crate) staged: StagedArgs,
}

/// The flags that `loquent tune` finds values for; each flag overrides the profile.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(next_help_heading = "Engine, tuned")]
pub(crate) struct TuningArgs {
    /// Polling level of idle compute threads, from 0 (sleep at once) to 100 (spin longest)
    /// [default: 0]
    #[arg(long, env = "LOQUENT_POLL", value_name = "LEVEL",
          value_parser = clap::value_parser!(u32).range(..=100))]
    pub(crate) poll: Option<u32>,
    /// Maximum number of tokens in one pass through the layers [default: 512]
    #[arg(long, env = "LOQUENT_MICRO_BATCH", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) micro_batch: Option<u32>,
    /// Layout of the KV cache [default: unified]
    #[arg(long, env = "LOQUENT_KV_LAYOUT", value_name = "LAYOUT")]
    pub(crate) kv_layout: Option<KvLayout>,
    /// Compute attention with the fused kernel [default: on where llama.cpp has it, off with
    /// --kv-type f32]
    #[arg(long, env = "LOQUENT_FLASH_ATTENTION", value_name = "ON|OFF")]
    pub(crate) flash_attention: Option<Switch>,
    /// CPU kernels for matrix products and attention [default: loquent, on processors with
    /// AVX2]
    #[arg(long, env = "LOQUENT_KERNELS", value_name = "KERNELS")]
    pub(crate) kernels: Option<Kernels>,
}

/// Layout of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum KvLayout {
    /// One buffer for all sequences, so that prompts can share prefixes
    Unified,
    /// One buffer per sequence
    Split,
}

/// Values of a flag that overrides a default in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// Implementation of the CPU kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kernels {
    /// Loquent's, for the fastest of the instruction sets below that the processor has: they read
    /// the weights as the file stores them
    Loquent,
    /// Loquent's for AMX with 8-bit integers, used for 8 rows and more; else as for AVX-512 VNNI,
    /// whose results are the same
    #[value(name = "loquent-amx")]
    LoquentAmx,
    /// Loquent's for AVX-512 VNNI
    #[value(name = "loquent-avx512")]
    LoquentAvx512,
    /// Loquent's for AVX2 with AVX-VNNI
    #[value(name = "loquent-avx-vnni")]
    LoquentAvxVnni,
    /// Loquent's for AVX2
    #[value(name = "loquent-avx2")]
    LoquentAvx2,
    /// llama.cpp's: they keep a second, reordered copy of some weights
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

impl TuningArgs {
    /// Returns true if Loquent's kernels may be used. A requested instruction set is used by them
    /// from now on.
    ///
    /// # Errors
    /// If this processor or this build lacks it.
    #[cfg(feature = "llama")]
    pub(crate) fn choose_kernels(&self) -> Result<bool, UnavailableIsa> {
        let isa = match self.kernels {
            Some(Kernels::LlamaCpp) => return Ok(false),
            None | Some(Kernels::Loquent) => return Ok(true),
            Some(Kernels::LoquentAmx) => Isa::Amx,
            Some(Kernels::LoquentAvx512) => Isa::Avx512Vnni,
            Some(Kernels::LoquentAvxVnni) => Isa::AvxVnni,
            Some(Kernels::LoquentAvx2) => Isa::Avx2,
        };
        isa.choose().map(|()| true)
    }
}

impl EngineArgs {
    /// Fills flags that are not set from the profile of the model, if there is one, and prints the
    /// values. A model that is still to be downloaded has no profile.
    ///
    /// # Errors
    /// If the profile cannot be read.
    pub(crate) fn adopt_profile(&mut self, source: &SourceArgs) -> anyhow::Result<()> {
        // A profile is one model's; each of several finds its own when it is loaded.
        let are_several = !source.file.several().is_empty() || source.file.folder().is_some();
        if self.no_profile || source.simulate.is_some() || are_several {
            return Ok(());
        }
        let folder = profile::folder(|name| std::env::var(name).ok());
        // A missing model is reported where it is loaded.
        let (Some(folder), Some(model)) = (folder, source.file.file_here()) else {
            return Ok(());
        };
        if let Some((profile, path)) = Profile::find(&model, &folder)? {
            self.adopt(&profile);
            let settings = &profile.settings;
            let path = path.display();
            logging::say(&format!("Tuned: {settings} ({path}; --no-profile ignores it)"));
        }
        Ok(())
    }

    /// Returns the engine of one of several models: flags that are not set take values from the
    /// model's own profile, if there is one. Also returns a line that describes them.
    ///
    /// # Errors
    /// If the profile cannot be read.
    pub(crate) fn tuned_for(&self, model: &Path) -> anyhow::Result<(Self, Option<String>)> {
        let folder = profile::folder(|name| std::env::var(name).ok());
        let Some(folder) = folder.filter(|_| !self.no_profile) else {
            return Ok((self.clone(), None));
        };
        let found = Profile::find(model, &folder)?;
        Ok(found.map_or((self.clone(), None), |(profile, path)| {
            let settings = &profile.settings;
            (self.beside_others(&profile), Some(format!("{settings} ({})", path.display())))
        }))
    }

    /// Returns the engine with the values of `profile` that can be used while other models are
    /// served too. Prompt tokens per step belong to the scheduler, and the kernels to the process,
    /// unless each model has its own process.
    fn beside_others(&self, profile: &Profile) -> Self {
        let mut engine = self.clone();
        engine.adopt(profile);
        engine.prefill_max_tokens = self.prefill_max_tokens;
        if !self.engine_process {
            engine.tuning.kernels = self.tuning.kernels;
        }
        engine
    }

    fn adopt(&mut self, profile: &Profile) {
        let tuned = profile.settings;
        let layout = if tuned.kv_unified { KvLayout::Unified } else { KvLayout::Split };
        let flash = if tuned.flash_attention { Switch::On } else { Switch::Off };
        let kernels = if tuned.loquent_kernels { Kernels::Loquent } else { Kernels::LlamaCpp };
        self.threads = self.threads.or(NonZeroU16::new(tuned.threads));
        self.prefill_max_tokens = self.prefill_max_tokens.or(profile.prefill_max_tokens);
        self.tuning.poll = self.tuning.poll.or(Some(tuned.poll));
        self.tuning.micro_batch = self.tuning.micro_batch.or(Some(tuned.pass_tokens));
        self.tuning.kv_layout = self.tuning.kv_layout.or(Some(layout));
        self.tuning.kernels = self.tuning.kernels.or(Some(kernels));
        // The profile was measured with f16. f32 is chosen for exactness, and flash attention
        // would cast an F32 cache to F16.
        if self.kv_type != KvType::F32 {
            self.tuning.flash_attention = self.tuning.flash_attention.or(Some(flash));
        }
    }

    /// Returns the maximum number of prompt tokens per step.
    pub(crate) fn prefill_max_tokens(&self) -> u32 {
        self.prefill_max_tokens.unwrap_or(PREFILL_MAX_TOKENS)
    }

    /// Returns the time limit of a step, after which the engine counts as hung.
    pub(crate) fn engine_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.engine_timeout_s)
    }

    /// Returns the maximum wait of answers for a lost engine.
    pub(super) fn engine_outage(&self) -> Duration {
        Duration::from_secs_f64(self.engine_outage_s)
    }

    /// Returns the scheduler's limits.
    pub(super) fn limits(&self, queue_timeout: Option<Duration>) -> Limits {
        Limits {
            max_batch_size: usize::from(self.max_batch_size),
            prefill_max_tokens: self.prefill_max_tokens(),
            itl_target: self.itl_target_ms,
            prefix_cache: !self.no_prefix_cache,
            speculation: self.draft_tokens,
            queue_timeout,
        }
    }

    /// Returns the flags that give a separate process the same engine, profile included.
    #[cfg(feature = "llama")]
    pub(crate) fn flags(&self) -> Vec<String> {
        let TuningArgs { poll, micro_batch, kv_layout, flash_attention, kernels } = &self.tuning;
        let given = [
            ("max-batch-size", Some(self.max_batch_size.to_string())),
            ("context", self.context.map(|tokens| tokens.to_string())),
            ("kv-cells", self.kv_cells.map(|cells| cells.to_string())),
            ("kv-type", Some(self.kv_type.to_string())),
            ("prefill-max-tokens", Some(self.prefill_max_tokens().to_string())),
            ("threads", self.threads.map(|threads| threads.to_string())),
            ("gpu-layers", Some(self.gpu_layers.to_string())),
            ("poll", poll.map(|level| level.to_string())),
            ("micro-batch", micro_batch.map(|tokens| tokens.to_string())),
            ("kv-layout", kv_layout.and_then(value_name)),
            ("flash-attention", flash_attention.and_then(value_name)),
            ("kernels", kernels.and_then(value_name)),
        ];
        let flag =
            |(name, value): (&str, Option<String>)| value.map(|value| format!("--{name}={value}"));
        // The profile's values are among them.
        let profile = ["--no-profile".to_owned()];
        profile.into_iter().chain(given.into_iter().filter_map(flag)).collect()
    }

    /// Returns the compute settings of a stage in this process.
    #[cfg(feature = "llama")]
    pub(crate) fn own_stage(&self) -> crate::stage_args::StageCompute {
        crate::stage_args::StageCompute {
            threads: self.threads,
            gpu_layers: self.gpu_layers,
            processors: self.staged.processors.clone(),
        }
    }
}

/// Returns the name of a flag's value.
#[cfg(feature = "llama")]
fn value_name(value: impl clap::ValueEnum) -> Option<String> {
    value.to_possible_value().map(|value| value.get_name().to_owned())
}

/// Returns a parser that lists the types in the help.
fn kv_types() -> impl TypedValueParser<Value = KvType> {
    PossibleValuesParser::new(KvType::ALL.map(KvType::name)).try_map(|name| name.parse::<KvType>())
}

/// Returns a parser that lists the pooling methods in the help.
fn poolings() -> impl TypedValueParser<Value = Pooling> {
    PossibleValuesParser::new(Pooling::ALL.map(Pooling::name))
        .try_map(|name| name.parse::<Pooling>())
}

fn parse_engine_timeout(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (1.0..=86_400.0).contains(s));
    seconds.ok_or_else(|| "use seconds from 1 to 86400".to_owned())
}

fn parse_engine_outage(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=86_400.0).contains(s));
    seconds.ok_or_else(|| "use seconds from 0 to 86400".to_owned())
}

/// Default of `--itl-target-ms`. Chosen by hand: prompts get half of the time, and running answers
/// half of their speed, as long as these are slower than ten tokens per second, which is faster
/// than people read.
const ITL_FACTOR: f64 = 2.0;
const ITL_AT_LEAST: Duration = Duration::from_millis(100);

fn parse_itl_target(text: &str) -> Result<ItlTarget, String> {
    match text {
        "auto" => Ok(ItlTarget::Relative { factor: ITL_FACTOR, at_least: ITL_AT_LEAST }),
        "off" => Ok(ItlTarget::Unbounded),
        number => match number.parse::<f64>() {
            Ok(ms) if ms.is_finite() && ms > 0.0 => {
                Ok(ItlTarget::Fixed(Duration::from_secs_f64(ms / 1e3)))
            }
            _ => Err("give milliseconds, \"auto\" or \"off\"".to_owned()),
        },
    }
}

fn parse_draft_tokens(text: &str) -> Result<Speculation, String> {
    match text {
        "auto" => Ok(Speculation::Auto),
        "off" => Ok(Speculation::Off),
        number => match number.parse() {
            Ok(most @ 1..=64) => Ok(Speculation::Fixed(most)),
            _ => Err("give \"auto\", \"off\" or a number from 1 to 64".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    //! Checks that flags override the profile, and the profile overrides the defaults.
    use clap::Parser;

    use super::*;
    use crate::profile::TunedSettings;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        engine: EngineArgs,
    }

    fn engine(flags: &[&str]) -> EngineArgs {
        Line::try_parse_from([&["loquent"], flags].concat()).unwrap().engine
    }

    fn profile() -> Profile {
        let settings = TunedSettings {
            threads: 3,
            poll: 50,
            kv_unified: false,
            flash_attention: true,
            loquent_kernels: false,
            pass_tokens: 128,
        };
        Profile { prefill_max_tokens: Some(256), ..Profile::new("m".into(), settings) }
    }

    #[cfg(feature = "llama")]
    #[test]
    fn a_process_of_its_own_gets_the_same_engine() {
        for flags in [
            &["--kv-type", "f32", "--context", "900", "--kernels", "llama.cpp"][..],
            &["--threads", "2", "--kv-cells", "4096", "--max-batch-size", "7", "--poll", "9"],
            &["--gpu-layers", "3", "--micro-batch", "64", "--kv-layout", "split"],
        ] {
            let mut original = engine(flags);
            original.adopt(&profile());
            let passed = original.flags();
            let copy = engine(&passed.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(copy.flags(), passed);
            assert_eq!(copy.tuning, original.tuning);
            assert_eq!((copy.context, copy.threads), (original.context, original.threads));
        }
    }

    #[test]
    fn the_profile_fills_what_no_flag_says() {
        let mut bare = engine(&[]);
        bare.adopt(&profile());
        assert_eq!((bare.threads, bare.prefill_max_tokens()), (NonZeroU16::new(3), 256));
        let tuned = TuningArgs {
            poll: Some(50),
            micro_batch: Some(128),
            kv_layout: Some(KvLayout::Split),
            flash_attention: Some(Switch::On),
            kernels: Some(Kernels::LlamaCpp),
        };
        assert_eq!(bare.tuning, tuned);
    }

    #[test]
    fn of_several_models_each_has_its_own_and_shares_what_the_process_has_once() {
        let shared = engine(&["--micro-batch=512"]);
        let beside = shared.beside_others(&profile());
        assert_eq!((beside.threads, beside.prefill_max_tokens()), (NonZeroU16::new(3), 512));
        assert_eq!((beside.tuning.poll, beside.tuning.micro_batch), (Some(50), Some(512)));
        assert_eq!(beside.tuning.kernels, None);
        let apart = engine(&["--engine-process"]).beside_others(&profile());
        assert_eq!(apart.tuning.kernels, Some(Kernels::LlamaCpp));
        assert_eq!((shared.threads, shared.tuning.poll), (None, None), "the next one has its own");
    }

    #[test]
    fn flags_win() {
        let mut flags = engine(&[
            "--threads=1",
            "--poll=0",
            "--micro-batch=512",
            "--kv-layout=unified",
            "--kernels=loquent",
            "--flash-attention=off",
            "--prefill-max-tokens=64",
        ]);
        let before = flags.tuning.clone();
        flags.adopt(&profile());
        assert_eq!((flags.threads, flags.prefill_max_tokens()), (NonZeroU16::new(1), 64));
        assert_eq!(flags.tuning, before);
        let mut exact = engine(&["--kv-type=f32"]);
        exact.adopt(&profile());
        assert_eq!(exact.tuning.flash_attention, None);
    }
}
