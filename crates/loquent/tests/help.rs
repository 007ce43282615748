//! The help that users see: two levels for `serve`, no test aids, units in the names of flags.

use std::process::Command;

const COMMANDS: [&str; 7] = ["serve", "connect", "stage", "split", "chat", "run", "tune"];
/// `serve -h` lists at most this many flags.
const SHORT_HELP_FLAGS: usize = 20;

fn help(command: &str, how: &str) -> String {
    let mut loquent = Command::new(env!("CARGO_BIN_EXE_loquent"));
    let output = loquent.args([command, how]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The lines that introduce a flag: `  -m, --model <FILE>  …`.
fn flags(help: &str) -> Vec<&str> {
    let lines = help.lines().map(str::trim_start);
    lines.filter(|line| line.starts_with("--") || is_short(line)).collect()
}

fn is_short(line: &str) -> bool {
    let mut characters = line.chars();
    characters.next() == Some('-')
        && characters.next().is_some_and(char::is_alphanumeric)
        && characters.as_str().starts_with(", --")
}

#[test]
fn the_short_help_of_serve_lists_the_flags_that_everybody_needs() {
    let (short, long) = (help("serve", "-h"), help("serve", "--help"));
    let (some, all) = (flags(&short), flags(&long));
    assert!(some.len() <= SHORT_HELP_FLAGS, "{} flags: {some:#?}", some.len());
    assert!(all.len() > 3 * some.len(), "--help lists all flags: {all:#?}");
    for flag in ["-m, --model", "-c, --context", "-p, --port", "--hf", "--api-key", "--stages"] {
        assert!(some.iter().any(|line| line.starts_with(flag)), "{flag} in {some:#?}");
    }
}

#[test]
fn test_aids_are_hidden() {
    let help = help("serve", "--help");
    assert!(!help.contains("--link-delay-ms") && !help.contains("--link-mbit"), "{help}");
}

/// What a flag is called and what its value stands for: `--heartbeat-s <S>`.
fn name_and_value(flag: &str) -> (&str, &str) {
    let name = flag.split_whitespace().find(|word| word.starts_with("--")).unwrap();
    let value = flag.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    (name, value.map_or("", |(value, _)| value))
}

#[test]
fn durations_name_their_unit() {
    const DURATIONS: [&str; 7] =
        ["timeout", "delay", "grace", "heartbeat", "time", "limit", "head-start"];
    for command in COMMANDS {
        let help = help(command, "--help");
        for flag in flags(&help) {
            let (name, value) = name_and_value(flag);
            let has_unit = name.ends_with("-s") || name.ends_with("-ms");
            let is_duration = DURATIONS.iter().any(|word| name.contains(word));
            let counts_time = value == "S" || value == "MS";
            assert!(has_unit || !(is_duration || counts_time), "{command} {name} <{value}>");
        }
    }
}

#[test]
fn one_flag_and_one_variable_name_the_server() {
    for command in ["connect", "chat"] {
        let help = help(command, "--help");
        assert!(help.contains("--url <URL>") && help.contains("[env: LOQUENT_URL="), "{help}");
    }
}
