//! `loquent list`: the models on this machine, including those of other tools.

use clap::Args;
use indicatif::HumanBytes;
use loquent_bench::print;
use serde_json::{Value, json};

use super::local::LocalModel;
use super::one_line::on_one_line;
use super::places::LocalFolders;
use super::{BUNDLED, ModelFolders};
use crate::bundled::{self, SUGGESTED};

const EXAMPLES: &str = "\
Examples:
  loquent list                          names, sizes, and which tool brought them
  loquent list --paths                  with their files
  loquent list --models-dir ~/models    with the files of a folder of your own
  loquent serve NAME                    serves one of them

Looks into the folder of --models-dir, the Hugging Face cache, Ollama's store (OLLAMA_MODELS), and
LM Studio's folder.";

/// Arguments of `loquent list`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ListArgs {
    /// Print the files of each model
    #[arg(long)]
    paths: bool,
    /// Print a JSON array for programs
    #[arg(long, conflicts_with = "paths")]
    json: bool,
    #[command(flatten)]
    places: ModelFolders,
}

/// Prints the models on stdout.
///
/// # Errors
/// If stdout cannot be written.
pub fn run(args: &ListArgs) -> anyhow::Result<()> {
    let places = args.places.here();
    let models = places.models();
    let text = match args.json {
        true => format!("{:#}\n", json_list(&models)),
        false => table(&models, args.paths),
    };
    print(text)?;
    // On stderr, so that a pipe gets the table alone.
    if !args.json {
        eprint!("{}", advice(&models, &places));
    }
    Ok(())
}

/// Returns the models as a JSON array, in the order of the table.
fn json_list(models: &[LocalModel]) -> Value {
    let bundled = json!({
        "name": BUNDLED,
        "place": "bundled",
        "size_bytes": bundled::size_bytes(),
        "complete": true,
        "files": [],
    });
    [bundled].into_iter().chain(models.iter().map(described)).collect()
}

fn described(model: &LocalModel) -> Value {
    json!({
        "name": model.name,
        "place": model.found_in().key(),
        "size_bytes": model.size_bytes(),
        "complete": model.is_complete,
        "files": model.paths.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
    })
}

/// Formats one line for each model, with aligned columns.
fn table(models: &[LocalModel], with_paths: bool) -> String {
    let mut rows = vec![["NAME".to_owned(), "SIZE".to_owned(), "WHERE".to_owned()]];
    let size = HumanBytes(bundled::size_bytes()).to_string();
    rows.push([BUNDLED.to_owned(), size, "in this program".to_owned()]);
    rows.extend(models.iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let (names, sizes) = (width(0).unwrap_or(0), width(1).unwrap_or(0));
    let mut text = String::new();
    // The heading and the bundled model have no files.
    let paths = [None, None].into_iter().chain(models.iter().map(Some));
    for ([name, size, place], model) in rows.iter().zip(paths) {
        text += &format!("{name:names$}  {size:>sizes$}  {place}\n");
        for path in model.iter().filter(|_| with_paths).flat_map(|model| &model.paths) {
            text += &format!("    {}\n", on_one_line(path.display()));
        }
    }
    text
}

fn row(model: &LocalModel) -> [String; 3] {
    let parts = match model.paths.len() {
        1 => String::new(),
        count => format!(", {count} files"),
    };
    let missing = if model.is_complete { "" } else { ", incomplete" };
    let place = format!("{}{parts}{missing}", model.found_in().label());
    [on_one_line(&model.name), HumanBytes(model.size_bytes()).to_string(), place]
}

/// Returns advice on the next step, with the searched places if nothing was found.
fn advice(models: &[LocalModel], places: &LocalFolders) -> String {
    if let Some(model) = models.iter().find(|model| model.is_complete) {
        return format!("Serve one: loquent serve {}\n", on_one_line(&model.name));
    }
    let mut text = "No other models are on this machine. I looked here:\n".to_owned();
    for (place, folder) in places.folders() {
        text += &format!("  {} ({})\n", on_one_line(folder.display()), place.label());
    }
    text + &format!("Download one: loquent pull {SUGGESTED}\n")
}
