//! The environment variables of flags: which of them count.

use std::ffi::OsStr;

use clap::Command;

/// Endings of variables that control access to the server or its encryption.
const GUARDS: [&str; 8] =
    ["_KEY", "_KEYS", "_KEY_FILE", "_CERT", "_CA", "_ACME_DOMAIN", "_JWT_AUDIENCE", "_JWT_ISSUER"];

/// Returns `command` with those variables of its flags that count in this environment.
pub(super) fn with_variables(command: Command) -> Command {
    without_blank_variables(command, &is_blank)
}

/// Returns `command` without environment variables set to an empty string, as compose files do if
/// there is no value. Variables that control access to the server or its encryption are kept: a
/// missing key must be an error.
fn without_blank_variables(command: Command, is_blank: &impl Fn(&OsStr) -> bool) -> Command {
    let command = command.mut_args(|flag| match flag.get_env() {
        Some(name) if is_blank(name) && !guards_access(name) => flag.env(None::<&'static str>),
        _ => flag,
    });
    command.mut_subcommands(|inner| without_blank_variables(inner, is_blank))
}

fn is_blank(name: &OsStr) -> bool {
    std::env::var_os(name).is_some_and(|value| value.is_empty())
}

/// Returns true if nobody can have meant the variable's flag to be absent when its value is
/// missing: the server would be open, or its traffic readable.
fn guards_access(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    GUARDS.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn a_variable_set_to_nothing_is_not_set_unless_it_guards_access() {
        let flag = |id, name| Arg::new(id).long(id).env(name);
        let guards = ["BLANK_API_KEY", "BLANK_JWT_KEYS", "BLANK_JWT_AUDIENCE", "BLANK_ACME_DOMAIN"];
        let serve = Command::new("serve").arg(flag("model", "BLANK_MODEL"));
        let serve = serve.args(guards.map(|name| flag(name, name))).arg(flag("port", "SET_PORT"));
        let program = Command::new("loquent").arg(flag("config", "BLANK_CONFIG")).subcommand(serve);
        let is_blank = |name: &OsStr| name.to_string_lossy().starts_with("BLANK");
        let program = without_blank_variables(program, &is_blank);
        let serve = program.find_subcommand("serve").unwrap();
        let kept = |command: &Command, id: &str| {
            command.get_arguments().find(|flag| flag.get_id() == id).unwrap().get_env().is_some()
        };
        assert!(!kept(&program, "config") && !kept(serve, "model"));
        assert!(kept(serve, "port") && guards.iter().all(|name| kept(serve, name)));
    }
}
