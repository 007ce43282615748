//! The results of `loquent tune`, as a file that `loquent serve` reads.
//!
//! One TOML file per model and machine, in `loquent/profiles` below the user's configuration
//! folder. Its name contains a hash of each, so a profile is never used for another model or
//! processor.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use anyhow::Context;
use loquent_client::{FileReaders, replace_file_safely};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Version of the file format; files of other versions are refused.
const VERSION: u32 = 1;
/// Number of bytes from the start of a model's file whose hash, together with the file's size,
/// identifies the model. In most models they cover the header and the names and shapes of all
/// tensors.
const HASHED_BYTES: u64 = 1 << 20;

/// The best settings for one model on one machine, with the measurements behind them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Version of the file format.
    pub version: u32,
    /// Description of the model, for human readers of the file.
    pub model: String,
    /// Description of the machine, for human readers of the file.
    pub machine: String,
    /// The best settings.
    pub settings: TunedSettings,
    /// Maximum number of prompt tokens per step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_max_tokens: Option<u32>,
    /// Step times by batch size, for the plot.
    #[serde(default)]
    pub steps: Vec<StepTime>,
}

/// The settings that `loquent tune` chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedSettings {
    /// Number of compute threads.
    pub threads: u16,
    /// Polling level of idle compute threads, from 0 (sleep at once) to 100 (spin longest).
    pub poll: u32,
    /// True if all sequences share one KV buffer, which sharing prefixes requires.
    pub kv_unified: bool,
    /// True if the fused kernel computes attention.
    pub flash_attention: bool,
    /// True to use Loquent's CPU kernels instead of llama.cpp's.
    pub loquent_kernels: bool,
    /// Maximum number of tokens in one pass through the layers (micro-batch).
    pub pass_tokens: u32,
}

impl fmt::Display for TunedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threads, poll, kv_unified, flash_attention, loquent_kernels, pass_tokens } =
            self;
        let words = |on: &bool, yes: &'static str, no: &'static str| if *on { yes } else { no };
        write!(
            f,
            "threads {threads}, poll {poll}, KV {}, flash attention {}, kernels {}, micro-batch {pass_tokens}",
            words(kv_unified, "unified", "per sequence"),
            words(flash_attention, "on", "off"),
            words(loquent_kernels, "loquent", "llama.cpp"),
        )
    }
}

/// One point of the curve of step time over batch size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    /// Sequences decoded in the step.
    pub rows: u16,
    /// Median time of a step in ms.
    pub ms: f64,
}

impl Profile {
    /// Creates a profile for this machine without measurements.
    pub fn new(model: String, settings: TunedSettings) -> Self {
        let machine = machine();
        let steps = Vec::new();
        Self { version: VERSION, model, machine, settings, prefill_max_tokens: None, steps }
    }

    /// Returns the profile of the model file `model` on this machine, with the profile's own path;
    /// `None` if the model was never tuned here.
    ///
    /// # Errors
    /// If the profile exists but cannot be used; the message names it and contains advice.
    pub fn find(model: &Path, folder: &Path) -> anyhow::Result<Option<(Self, PathBuf)>> {
        let path = folder.join(file_name(model)?);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            // Any other error ends the start: settings that are silently missing cost speed.
            Err(error) => return Err(error).with_context(|| unusable(&path)),
        };
        let profile = Self::parse(&text).with_context(|| unusable(&path))?;
        Ok(Some((profile, path)))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let profile: Self = toml::from_str(text)?;
        let TunedSettings { threads, poll, pass_tokens, .. } = profile.settings;
        anyhow::ensure!(
            profile.version == VERSION,
            "its version is {} and not {VERSION}",
            profile.version
        );
        anyhow::ensure!((1..=1024).contains(&threads), "threads is {threads}, not 1 to 1024");
        anyhow::ensure!(poll <= 100, "poll is {poll}, not 0 to 100");
        anyhow::ensure!(
            (1..=65_536).contains(&pass_tokens),
            "pass_tokens is {pass_tokens}, not 1 to 65536"
        );
        anyhow::ensure!(profile.prefill_max_tokens != Some(0), "prefill_max_tokens is 0");
        Ok(profile)
    }

    /// Writes the profile of the model file `model` into `folder` atomically.
    ///
    /// # Errors
    /// If the folder or the file cannot be written.
    pub fn save(&self, model: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
        let path = folder.join(file_name(model)?);
        // Whole: a server that starts meanwhile, or after a power failure, reads no half profile.
        let write = || -> anyhow::Result<()> {
            let text = format!("{HEADING}{}", toml::to_string(self)?);
            Ok(replace_file_safely(&path, text.as_bytes(), FileReaders::Usual)?)
        };
        write().with_context(|| format!("cannot write the profile {}", path.display()))?;
        Ok(path)
    }
}

const HEADING: &str = "# Written by `loquent tune`; `loquent serve` reads it. Flags override it.\n";

fn unusable(path: &Path) -> String {
    let path = path.display();
    format!(
        "the profile {path} cannot be used: delete it, run `loquent tune` again, or give --no-profile"
    )
}

/// Returns the folder of all profiles: `LOQUENT_PROFILES`, else below the user's configuration
/// folder.
pub fn folder(set: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let below = |dir: String| PathBuf::from(dir).join("loquent").join("profiles");
    set("LOQUENT_PROFILES")
        .map(PathBuf::from)
        .or_else(|| set("XDG_CONFIG_HOME").map(below))
        .or_else(|| set("HOME").map(|home| below(format!("{home}/.config"))))
}

/// Returns the file's name: a hash of the model's beginning and size, and one of the machine.
fn file_name(model: &Path) -> anyhow::Result<String> {
    use std::io::Read;
    let open = || -> std::io::Result<(Vec<u8>, u64)> {
        let file = fs::File::open(model)?;
        let len = file.metadata()?.len();
        let mut beginning = Vec::new();
        file.take(HASHED_BYTES).read_to_end(&mut beginning)?;
        Ok((beginning, len))
    };
    // Not a hash of the whole file: that would read gigabytes at every start of the server.
    let (beginning, len) =
        open().with_context(|| format!("cannot read model file {}", model.display()))?;
    let model = Sha256::new().chain_update(beginning).chain_update(len.to_le_bytes()).finalize();
    let machine = Sha256::digest(machine());
    let short =
        |hash: &[u8]| hash[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Ok(format!("{}-{}.toml", short(&model), short(&machine)))
}

/// Returns the processor's name and the number of cores that this process may use.
pub fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let name = named.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{} ({}), {cores} cores", name.unwrap_or(std::env::consts::OS), std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    //! Checks that profiles are read back as saved, and only for their own model.
    use super::*;

    pub(crate) fn settings() -> TunedSettings {
        TunedSettings {
            threads: 2,
            poll: 50,
            kv_unified: true,
            flash_attention: true,
            loquent_kernels: false,
            pass_tokens: 256,
        }
    }

    #[test]
    fn saved_profiles_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("a.gguf"), folder.path().join("b.gguf"));
        fs::write(&one, "GGUF one").unwrap();
        fs::write(&other, "GGUF other").unwrap();
        let mut profile = Profile::new("a model".into(), settings());
        profile.steps.push(StepTime { rows: 1, ms: 16.5 });
        profile.prefill_max_tokens = Some(128);
        let path = profile.save(&one, folder.path()).unwrap();
        assert_eq!(Profile::find(&one, folder.path()).unwrap(), Some((profile, path)));
        assert_eq!(Profile::find(&other, folder.path()).unwrap(), None);
    }

    #[test]
    fn a_profile_that_cannot_be_written_leaves_no_draft() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("a.gguf");
        fs::write(&model, "GGUF one").unwrap();
        let profiles = folder.path().join("profiles");
        let path = profiles.join(file_name(&model).unwrap());
        fs::create_dir_all(&path).unwrap();
        let profile = Profile::new("a model".into(), settings());
        let error = format!("{:#}", profile.save(&model, &profiles).unwrap_err());
        assert!(error.contains("cannot write the profile"), "{error}");
        assert_eq!(fs::read_dir(&profiles).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_profile_is_named_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("a.gguf");
        fs::write(&model, "GGUF one").unwrap();
        let whole = Profile::new("a model".into(), settings());
        let path = whole.save(&model, folder.path()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for damaged in [
            "",
            "not toml",
            &text[..text.len() / 2],
            &text.replace("threads = 2", "threads = 0"),
            &text.replace("version = 1", "version = 2"),
            &text.replace("poll = 50", "poll = 101"),
            &text.replace("poll = 50", "pole = 50"),
        ] {
            fs::write(&path, damaged).unwrap();
            let error = format!("{:#}", Profile::find(&model, folder.path()).unwrap_err());
            assert!(error.contains("--no-profile") && error.contains(".toml"), "{error}");
        }
    }

    #[test]
    fn the_folder_follows_the_environment() {
        let with = |pairs: &'static [(&str, &str)]| {
            folder(move |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
        };
        assert_eq!(with(&[("LOQUENT_PROFILES", "/p"), ("HOME", "/h")]), Some("/p".into()));
        assert_eq!(with(&[("HOME", "/h")]), Some("/h/.config/loquent/profiles".into()));
        assert_eq!(
            with(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]),
            Some("/x/loquent/profiles".into())
        );
        assert_eq!(with(&[]), None);
    }
}
