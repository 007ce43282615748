//! `loquent man`: manual pages, generated from the definitions that `--help` prints.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};

const EXAMPLES: &str = "\
Examples:
  loquent man ~/.local/share/man/man1
  loquent man . && man ./loquent-serve.1";

/// Arguments of `loquent man`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ManArgs {
    /// Folder to write into; it is made if it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl ManArgs {
    /// Writes `loquent.1` and one page for each of the program's commands.
    ///
    /// # Errors
    /// If the folder cannot be created or a page cannot be written.
    pub fn run(self, program: Command) -> anyhow::Result<()> {
        let folder = self.folder;
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        // `loquent help serve` needs no page of its own.
        let program = program.disable_help_subcommand(true);
        clap_mangen::generate_to(program, &folder)
            .with_context(|| format!("cannot write the manual pages to {}", folder.display()))
    }
}
