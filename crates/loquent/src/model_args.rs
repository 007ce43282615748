//! The flags that select a model file, for `serve` and `tune`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgGroup, ArgMatches, Args, Command, FromArgMatches};
use sha2::{Digest, Sha256};

use crate::bundled;
use crate::config::ALTERNATIVE_MODELS;
use crate::hub::{self, HubSpec};
use crate::models::{self, ModelFolders};

/// The flags as typed. [`ModelArgs`] decides which of them counts.
#[derive(Debug, Args)]
struct ModelFlags {
    /// Model: a GGUF file, a name that `loquent list` shows, OWNER/REPO[:QUANT] on the Hugging
    /// Face hub, or a short name such as qwen3:0.6b [default: the bundled demonstration model]
    #[arg(value_name = "MODEL")]
    wanted: Option<PathBuf>,
    /// The same as MODEL; `serve` takes several
    ///
    /// NAME=MODEL gives the model a name of your choice in the API.
    #[arg(long, short, env = "LOQUENT_MODEL", value_name = "MODEL")]
    model: Vec<PathBuf>,
    /// Model on the Hugging Face hub, as OWNER/REPO[@REVISION][:FILE or quantisation]; looks for a
    /// newer version, which MODEL does not
    #[arg(long, alias = "hf-repo", env = "LOQUENT_HF", value_name = "REPO")]
    hf: Option<HubSpec>,
    /// SHA-256 that the model's file must have, in hex; checked before the file is used. For a
    /// model in several files, that of the first
    #[arg(
        long,
        env = "LOQUENT_MODEL_SHA256",
        value_name = "HEX",
        value_parser = parse_sha256,
        hide_short_help = true
    )]
    model_sha256: Option<String>,
    #[command(flatten)]
    places: ModelFolders,
}

/// Source of a model.
#[derive(Debug, Default)]
pub(crate) struct ModelArgs {
    choice: Choice,
    /// All models, if --model names several.
    several: Vec<NamedModel>,
    /// Folder of --models-dir, if given and no model is named.
    folder: Option<PathBuf>,
    /// True if the environment names the folder, perhaps for other commands.
    is_standing_folder: bool,
    /// Name of the model in the API, if --model sets one.
    api_name: Option<String>,
    /// Choice to use without `choice`.
    otherwise: Choice,
    sha256: Option<String>,
    places: ModelFolders,
}

/// A model as given with `--model`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedModel {
    /// Name in the API, if given.
    pub(crate) name: Option<String>,
    /// File, or any other name of the model.
    pub(crate) file: PathBuf,
}

impl NamedModel {
    /// Parses `NAME=MODEL` or `MODEL`. Text that exists as a file or has a folder before the sign
    /// is taken as a file.
    fn parse(text: &Path) -> Self {
        let whole = || Self { name: None, file: text.to_owned() };
        let Some((name, file)) = text.to_str().and_then(|text| text.split_once('=')) else {
            return whole();
        };
        if name.is_empty() || file.is_empty() || name.contains(['/', '\\']) || text.exists() {
            return whole();
        }
        Self { name: Some(name.to_owned()), file: file.into() }
    }
}

/// Choice of a model.
#[derive(Debug, Default)]
enum Choice {
    #[default]
    Bundled,
    Named(PathBuf),
    Hub(HubSpec),
}

impl Args for ModelArgs {
    fn augment_args(command: Command) -> Command {
        ModelFlags::augment_args(command).group(alternatives())
    }

    fn augment_args_for_update(command: Command) -> Command {
        ModelFlags::augment_args_for_update(command).group(alternatives())
    }
}

/// Returns the group of flags of which the one with the highest precedence counts: command line,
/// then environment, then settings file.
fn alternatives() -> ArgGroup {
    ArgGroup::new(ALTERNATIVE_MODELS).args(["wanted", "model", "hf"]).multiple(true)
}

impl FromArgMatches for ModelArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flags = ModelFlags::from_arg_matches(matches)?;
        let named: Vec<_> = flags.model.iter().map(|text| NamedModel::parse(text)).collect();
        let [choice, otherwise] = chosen(matches, &flags, named.first())?;
        let is_chosen = |one: &&NamedModel| matches!(&choice, Choice::Named(it) if *it == one.file);
        let api_name = named.first().filter(is_chosen).and_then(|one| one.name.clone());
        let is_first = named.first().is_some_and(|first| is_chosen(&first));
        let several = if named.len() > 1 && is_first { named } else { Vec::new() };
        let folder = flags.places.models_dir.clone();
        let folder = folder.filter(|_| matches!(choice, Choice::Bundled));
        let is_standing_folder =
            matches.value_source("models_dir") == Some(ValueSource::EnvVariable);
        let (sha256, places) = (flags.model_sha256, flags.places);
        Ok(Self {
            choice,
            several,
            folder,
            is_standing_folder,
            api_name,
            otherwise,
            sha256,
            places,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns the model of the command line, else that of the environment, else any other. A typed
/// model must override a variable that is always set. The second result is the choice without the
/// first.
fn chosen(
    matches: &ArgMatches,
    flags: &ModelFlags,
    first: Option<&NamedModel>,
) -> Result<[Choice; 2], clap::Error> {
    let named = |flag: Option<&PathBuf>| {
        // Compose files set a variable to nothing where it has no value.
        flag.filter(|name| !name.as_os_str().is_empty()).cloned().map(Choice::Named)
    };
    let all = [
        ("wanted", named(flags.wanted.as_ref())),
        ("model", named(first.map(|one| &one.file))),
        ("hf", flags.hf.clone().map(Choice::Hub)),
    ];
    let mut models: Vec<_> =
        all.into_iter().filter_map(|(id, choice)| Some((rank(matches, id), choice?))).collect();
    // In order of rank, and in that of the list where ranks are equal.
    models.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    if models.len() > 1 && models[0].0 == models[1].0 {
        let message = "several models are named; use one of MODEL, --model and --hf\n";
        return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
    }
    let mut choices = models.into_iter().map(|(_, choice)| choice);
    Ok([choices.next().unwrap_or_default(), choices.next().unwrap_or_default()])
}

/// Returns the precedence of the source of a flag's value.
fn rank(matches: &ArgMatches, id: &str) -> u8 {
    match matches.value_source(id) {
        Some(ValueSource::CommandLine) => 2,
        Some(ValueSource::EnvVariable) => 1,
        _ => 0,
    }
}

fn parse_sha256(text: &str) -> Result<String, String> {
    let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hash = is_hash.then(|| text.to_lowercase());
    hash.ok_or_else(|| "a SHA-256 has 64 hexadecimal digits".to_owned())
}

impl ModelArgs {
    /// Returns the model's name or path, if it has one.
    pub(crate) fn name(&self) -> Option<&Path> {
        match &self.choice {
            Choice::Named(name) => Some(name),
            Choice::Bundled | Choice::Hub(_) => None,
        }
    }

    /// Returns all models, if --model names several.
    pub(crate) fn several(&self) -> &[NamedModel] {
        &self.several
    }

    /// Returns the folder whose models `serve` serves, if no model is named.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns true if nothing but the environment asks for models, by naming their folder.
    pub(crate) fn has_standing_folder(&self) -> bool {
        self.folder.is_some() && self.is_standing_folder
    }

    /// Returns the model's name in the API, if --model sets one.
    pub(crate) fn api_name(&self) -> Option<&str> {
        self.api_name.as_deref()
    }

    /// Returns the places to look for models.
    pub(crate) fn places(&self) -> &ModelFolders {
        &self.places
    }

    /// Returns true if the file's hash is fixed.
    pub(crate) fn is_pinned(&self) -> bool {
        self.sha256.is_some()
    }

    /// Takes the words given as name if they are a sentence, which cannot be a model; the model of
    /// the environment or the bundled one is then used.
    pub(crate) fn take_sentence(&mut self) -> Option<String> {
        let words = self.name()?.to_str().filter(|name| name.trim().contains(char::is_whitespace));
        let sentence = words.filter(|name| !Path::new(name).exists())?.to_owned();
        self.choice = std::mem::take(&mut self.otherwise);
        Some(sentence)
    }

    /// Checks the model's name without the network; [`ModelArgs::fetch`] reports all else.
    ///
    /// # Errors
    /// If no model can have the name, or parts of it are missing.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.name().map_or(Ok(()), |name| models::check(name, &self.places))
    }

    /// Returns true if nothing selects a model.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.choice, Choice::Bundled)
    }

    /// Selects the model called `name`.
    pub(crate) fn select(&mut self, name: &str) {
        self.choice = Choice::Named(name.into());
    }

    /// Returns true if the bundled model is selected; `serve` takes those of the folder instead.
    pub(crate) fn is_bundled(&self) -> bool {
        match &self.choice {
            Choice::Bundled => true,
            Choice::Named(name) => self.several.is_empty() && models::is_bundled(name),
            Choice::Hub(_) => false,
        }
    }

    /// Returns the path of the model's file, if it has a name and is on this machine. Does not use
    /// the network; [`ModelArgs::fetch`] reports errors of the model.
    pub(crate) fn file_here(&self) -> Option<PathBuf> {
        models::resolve_here(self.name()?, &self.places).ok().flatten()
    }

    /// Returns the path of the model's file, after downloading or unpacking it if necessary.
    ///
    /// # Errors
    /// If no model has the name, the download fails, the bundled model cannot be written to disk,
    /// or the file does not match --model-sha256.
    pub(crate) fn fetch(&self) -> anyhow::Result<PathBuf> {
        ensure!(
            self.several.is_empty(),
            "several models are named with --model, which only `loquent serve` can use"
        );
        let path = match &self.choice {
            Choice::Named(name) => models::resolve(name, &self.places)?,
            Choice::Hub(spec) => self.places.hub()?.fetch(spec, &mut hub::progress_bar())?,
            Choice::Bundled => bundled::materialize()?,
        };
        if let Some(expected) = &self.sha256 {
            let actual =
                sha256(&path).with_context(|| format!("cannot read {}", path.display()))?;
            ensure!(
                actual == *expected,
                "{} is another model than --model-sha256 names: its SHA-256 is {actual}",
                path.display()
            );
        }
        Ok(path)
    }
}

/// Returns the hash of a file's content in lower-case hex.
fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut hash, mut chunk) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(len) => hash.update(&chunk[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        model: ModelArgs,
    }

    fn parse(flags: &[&str]) -> Result<ModelArgs, clap::Error> {
        Line::try_parse_from([&["loquent"], flags].concat()).map(|line| line.model)
    }

    #[test]
    fn a_pinned_hash_admits_one_file_only() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hello\n").unwrap();
        let hash = "5891B5B522D5DF086D0FF0B110FBD9D21BB4FC7163AF34D08286A2E846F6BE03";
        let path = file.path().to_owned();
        let args = parse(&["--model", path.to_str().unwrap(), "--model-sha256", hash]).unwrap();
        assert_eq!(args.fetch().unwrap(), path);
        std::fs::write(&path, "hello!\n").unwrap();
        let error = args.fetch().unwrap_err().to_string();
        assert!(error.contains("--model-sha256"), "{error}");
        for bad in ["", "abc", &"g".repeat(64)] {
            assert!(parse_sha256(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_sentence_is_no_model() {
        let mut args = parse(&["What is streaming?"]).unwrap();
        assert_eq!(args.take_sentence().as_deref(), Some("What is streaming?"));
        assert!(args.is_bundled());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("my model.gguf");
        std::fs::write(&file, "").unwrap();
        for name in ["qwen3:0.6b", file.to_str().unwrap()] {
            let mut args = parse(&[name]).unwrap();
            assert_eq!(args.take_sentence(), None);
            assert_eq!(args.name(), Some(Path::new(name)));
        }
    }

    #[test]
    fn a_model_may_have_a_name_before_it_and_a_path_an_equals_sign() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("x=y.gguf");
        std::fs::write(&odd, "").unwrap();
        let read = |text: &str| {
            let NamedModel { name, file } = NamedModel::parse(Path::new(text));
            (name, file.to_str().unwrap().to_owned())
        };
        let odd = odd.to_str().unwrap();
        for (text, name, file) in [
            ("a.gguf", None, "a.gguf"),
            ("small=a.gguf", Some("small"), "a.gguf"),
            ("qwen3:0.6b=dir/x=y.gguf", Some("qwen3:0.6b"), "dir/x=y.gguf"),
            ("./a=b/c.gguf", None, "./a=b/c.gguf"),
            (odd, None, odd),
            ("=a", None, "=a"),
            ("a=", None, "a="),
        ] {
            assert_eq!(read(text), (name.map(str::to_owned), file.to_owned()), "{text}");
        }
        let args = parse(&["-m", "a=1.gguf", "-m", "b=2.gguf"]).unwrap();
        assert_eq!(args.several().len(), 2);
        assert!(args.fetch().unwrap_err().to_string().contains("loquent serve"));
        let one = parse(&["-m", "a=1.gguf"]).unwrap();
        assert_eq!((one.api_name(), one.name()), (Some("a"), Some(Path::new("1.gguf"))));
        assert_eq!(parse(&["--models-dir", "d"]).unwrap().folder(), Some(Path::new("d")));
        assert_eq!(parse(&["x", "--models-dir", "d"]).unwrap().folder(), None);
    }

    #[test]
    fn one_model_is_named_in_one_of_three_ways() {
        let named = |flags: &[&str]| parse(flags).unwrap().name().map(Path::to_owned);
        assert_eq!(named(&["qwen3:0.6b"]), Some("qwen3:0.6b".into()));
        assert_eq!(named(&["-m", "a.gguf"]), Some("a.gguf".into()));
        assert!(matches!(parse(&["--hf", "a/b"]).unwrap().choice, Choice::Hub(_)));
        assert!(parse(&[]).unwrap().is_bundled() && parse(&["tiny"]).unwrap().is_bundled());
        for two in [&["x", "-m", "y"], &["x", "--hf", "a/b"]] {
            let error = parse(two).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{error}");
        }
    }
}
