//! `loquent rm`: removes models from this machine, after confirmation.

use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use clap::Args;
use indicatif::HumanBytes;

use super::local::{FoundIn, LocalModel, Origin};
use super::one_line::on_one_line;
use super::places::LocalFolders;
use super::{ModelFolders, is_bundled, resolve_here, unknown};

const EXAMPLES: &str = "\
Examples:
  loquent rm Qwen/Qwen3-0.6B-GGUF:Q8_0          asks first
  loquent rm --yes Qwen/Qwen3-0.6B-GGUF:Q8_0    does not ask, for scripts

Names are those that `serve` takes; `loquent list` shows them. \
Ollama's models are Ollama's to remove: `ollama rm NAME`.";

/// Arguments of `loquent rm`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RmArgs {
    /// Models to remove: names as `loquent serve` takes them, or files
    #[arg(required = true, value_name = "MODEL")]
    names: Vec<String>,
    /// Remove without asking
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    places: ModelFolders,
}

/// Removes the models whose removal the user confirms.
///
/// # Errors
/// If a name does not match exactly one model, the model belongs to Ollama, there is no terminal to
/// ask on, or a file cannot be removed.
pub fn run(args: &RmArgs) -> anyhow::Result<()> {
    let places = args.places.here();
    let models = places.models();
    // All names first: an error in one must not come after others are gone.
    let chosen = args.names.iter().map(|name| choose(&models, name, &args.places));
    let chosen = chosen.collect::<anyhow::Result<Vec<_>>>()?;
    for model in chosen {
        if args.yes || confirmed(model)? {
            let freed = remove(model, &places)?;
            let name = on_one_line(&model.name);
            eprintln!("Removed {name}: {} are free again.", HumanBytes(freed));
        } else {
            eprintln!("Kept {}.", on_one_line(&model.name));
        }
    }
    Ok(())
}

/// Returns the single model called `name` that may be removed.
fn choose<'a>(
    models: &'a [LocalModel],
    name: &str,
    places: &ModelFolders,
) -> anyhow::Result<&'a LocalModel> {
    let mut called: Vec<_> = models.iter().filter(|model| model.is_called(name)).collect();
    if called.is_empty() {
        called.push(found_by_file(models, name, places)?);
    }
    match called[..] {
        [model] if model.found_in() == FoundIn::Ollama => {
            bail!("{0} belongs to Ollama; remove it with: ollama rm {0}", on_one_line(&model.name))
        }
        [model] => Ok(model),
        _ => {
            let files = called.iter().map(|model| on_one_line(model.path().display()));
            let files: Vec<_> = files.map(|file| format!("\n  {file}")).collect();
            bail!(
                "{name:?} is the name of several models; delete the file you mean:{}",
                files.concat()
            )
        }
    }
}

/// Returns the model whose file `name` leads to, as `loquent serve` would find it: a path, a short
/// name such as `qwen3:0.6b`, or a name on the hub without its quantisation.
fn found_by_file<'a>(
    models: &'a [LocalModel],
    name: &str,
    places: &ModelFolders,
) -> anyhow::Result<&'a LocalModel> {
    ensure!(!is_bundled(Path::new(name)), "{name} is inside this program and cannot be removed");
    let found = resolve_here(Path::new(name), places).ok().flatten();
    let Some(path) = found else { bail!(unknown(name, models)) };
    let has = |model: &&LocalModel, is_it: &dyn Fn(&Path) -> bool| {
        model.paths.iter().any(|path| is_it(path))
    };
    let real = fs::canonicalize(&path).ok();
    let same = |other: &Path| real.is_some() && fs::canonicalize(other).ok() == real;
    let named = models.iter().find(|model| has(model, &|other| other == path));
    named.or_else(|| models.iter().find(|model| has(model, &same))).with_context(|| {
        format!(
            "{} is in no folder that `loquent list` shows; delete the file itself",
            on_one_line(path.display())
        )
    })
}

/// Asks whether to remove a model.
fn confirmed(model: &LocalModel) -> anyhow::Result<bool> {
    ensure!(io::stdin().is_terminal(), "nobody can be asked here; --yes removes without asking");
    let also = match model.found_in() {
        FoundIn::HuggingFace => " Other tools that use the Hugging Face cache lose it too.",
        FoundIn::LmStudio => " LM Studio loses it too.",
        FoundIn::Folder | FoundIn::Ollama => "",
    };
    let (name, path) = (on_one_line(&model.name), on_one_line(model.path().display()));
    let size = HumanBytes(model.size_bytes());
    eprint!("Remove {name} ({size}, {path})?{also} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    // The end of the input is no answer, and so a no.
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Removes a model's files and returns the number of bytes freed.
fn remove(model: &LocalModel, places: &LocalFolders) -> anyhow::Result<u64> {
    match &model.origin {
        Origin::Cached(cached) => {
            let hub = places.hub().context("the Hugging Face cache is not known")?;
            Ok(hub.remove(cached)?)
        }
        Origin::Other(_) => {
            let size_bytes = model.size_bytes();
            for path in &model.paths {
                let told = || format!("cannot remove {}", path.display());
                fs::remove_file(path).with_context(told)?;
            }
            Ok(size_bytes)
        }
    }
}
