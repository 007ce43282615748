//! `loquent completions`: scripts that complete commands and flags in a shell.

use clap::{Args, Command};
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  loquent completions bash > ~/.local/share/bash-completion/completions/loquent
  loquent completions zsh > \"${fpath[1]}/_loquent\"
  loquent completions fish > ~/.config/fish/completions/loquent.fish";

/// Arguments of `loquent completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell that runs the script
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the script for `program` to stdout.
    ///
    /// # Errors
    /// If stdout cannot be written. A reader that has gone away is not an error.
    pub fn run(self, mut program: Command) -> anyhow::Result<()> {
        let name = program.get_name().to_owned();
        // clap's own writer panics where stdout is closed or full.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, name, &mut script);
        Ok(loquent_bench::print(script)?)
    }
}
