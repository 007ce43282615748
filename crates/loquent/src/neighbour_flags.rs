//! Flags of llama-server that are written with one hyphen and several letters, for commands copied
//! from its documentation. Its long flags are aliases of this program's own.

use std::ffi::{OsStr, OsString};

/// llama-server's flags, and the same here.
const FLAGS: [(&str, &str); 4] =
    [("-ngl", "--gpu-layers"), ("-np", "--max-batch-size"), ("-hf", "--hf"), ("-hfr", "--hf")];

/// Commands that take them.
const COMMANDS: [&str; 2] = ["serve", "run"];

/// Returns the arguments `typed`, which start with the program's name, with llama-server's flags
/// replaced. For clap, `-np 4` would be the flags `-n` and `-p`.
pub fn translated(typed: Vec<OsString>) -> Vec<OsString> {
    let is_command = |argument: &OsString| COMMANDS.iter().any(|name| argument == name);
    let Some(at) = typed.iter().position(is_command) else { return typed };
    // What follows `--` is text.
    let end = typed.iter().position(|argument| argument == "--").unwrap_or(typed.len());
    let replaced = |(index, argument): (usize, OsString)| {
        let known = FLAGS.iter().find(|(theirs, _)| argument == OsStr::new(theirs));
        match known.filter(|_| index > at && index < end) {
            Some((_, ours)) => OsString::from(ours),
            None => argument,
        }
    };
    typed.into_iter().enumerate().map(replaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translate(line: &str) -> String {
        let typed = line.split(' ').map(OsString::from).collect();
        translated(typed).join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn flags_of_llama_server_are_replaced_where_a_model_is_loaded() {
        for (typed, expected) in [
            (
                "loquent serve -ngl 99 -np 4 -hf a/b -c 8",
                "loquent serve --gpu-layers 99 --max-batch-size 4 --hf a/b -c 8",
            ),
            ("loquent --log-level warn run -hfr a/b", "loquent --log-level warn run --hf a/b"),
            ("loquent run a.gguf -- -ngl", "loquent run a.gguf -- -ngl"),
            ("loquent chat -np serve", "loquent chat -np serve"),
            ("loquent serve -nglx 9", "loquent serve -nglx 9"),
            ("loquent", "loquent"),
        ] {
            assert_eq!(translate(typed), expected, "{typed}");
        }
    }
}
