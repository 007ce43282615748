//! The environment variables of flags: which of them count, and warnings of those that are no
//! flag's.

use std::ffi::{OsStr, OsString};

use clap::Command;
use loquent_proto::printable::printable;

use super::file::most_alike;

/// Beginning of the names of this program's variables.
const PREFIX: &str = "LOQUENT_";
/// Variables of flags that have a shorter name too.
const SHORT_NAMES: [(&str, &str); 2] =
    [("LOQUENT_LOG_LEVEL", "LOQUENT_LOG"), ("LOQUENT_MODELS_DIR", "LOQUENT_MODELS")];
/// Variables of no flag that this program, its installer, its build or its tests read, without
/// `LOQUENT_`. They may be set where a server is started.
const OF_NO_FLAG: [&str; 17] = [
    "BIN",
    "CLEAN_ROOT",
    "GLIBC",
    "INSTALL_DIR",
    "LINK_CLIENT",
    "LINK_SERVER",
    "PACKAGES",
    "PAGES",
    "PORTABLE",
    "PROFILES",
    "RELEASE_URL",
    "REQUIRE",
    "SESSIONS",
    "SOAK_S",
    "TESTS",
    "VOCAB_TESTS",
    "WORLD_SEED",
];
/// Endings of variables that control access to the server or its encryption.
const GUARDS: [&str; 8] =
    ["_KEY", "_KEYS", "_KEY_FILE", "_CERT", "_CA", "_ACME_DOMAIN", "_JWT_AUDIENCE", "_JWT_ISSUER"];

/// Returns `command` with those variables of its flags that count in this environment.
pub(super) fn with_variables(command: Command) -> Command {
    with_variables_of(command, &value_of)
}

fn value_of(name: &OsStr) -> Option<OsString> {
    std::env::var_os(name)
}

/// Returns `command` without variables whose `value` nobody meant, such as the empty ones of
/// compose files, and with the short name of a variable where that is set instead. Empty ones that
/// control access to the server or its encryption are kept: a missing key must be an error.
fn with_variables_of(command: Command, value: &impl Fn(&OsStr) -> Option<OsString>) -> Command {
    let is_set = |name: &OsStr| value(name).is_some_and(|value| is_meant(name, &value));
    let command = command.mut_args(|flag| {
        let Some(name) = flag.get_env().map(OsStr::to_os_string) else { return flag };
        let short = SHORT_NAMES.iter().find(|(long, _)| name == *long).map(|(_, short)| *short);
        let short = short.filter(|short| is_set(OsStr::new(short)));
        let is_kept = match value(&name) {
            None => short.is_none(),
            Some(text) => is_meant(&name, &text) || text.is_empty() && guards_access(&name),
        };
        if is_kept { flag } else { flag.env(short) }
    });
    command.mut_subcommands(|inner| with_variables_of(inner, value))
}

/// Returns true if somebody has set the variable `name` to `value` for this program.
fn is_meant(name: &OsStr, value: &OsStr) -> bool {
    !value.is_empty() && !is_service_link(&name.to_string_lossy(), &value.to_string_lossy())
}

/// Returns true if Kubernetes sets the variable, for a service whose name begins with "loquent":
/// `LOQUENT_SERVICE_HOST`, `LOQUENT_PORT=tcp://10.0.0.1:8080`, `LOQUENT_PORT_8080_TCP_ADDR`.
fn is_service_link(name: &str, value: &str) -> bool {
    let is_of_service = name.ends_with("_SERVICE_HOST") || name.contains("_SERVICE_PORT");
    let rest = name.split_once("_PORT_").map_or("", |(_, rest)| rest);
    let is_url = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    is_of_service
        || rest.starts_with(|first: char| first.is_ascii_digit())
        || name.ends_with("_PORT") && is_url
}

/// Returns true if nobody can have meant the variable's flag to be absent when its value is
/// missing: the server would be open, or its traffic readable.
fn guards_access(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    GUARDS.iter().any(|end| name.ends_with(end))
}

/// Warns of variables that are named like those of `program` and have no effect.
pub fn warn_of_unknown_variables(program: &Command) {
    let known = variables(program);
    for (name, value) in std::env::vars_os() {
        if let Some(warning) = unknown(&known, &name, &value) {
            tracing::warn!("{warning}");
        }
    }
}

/// The variable of a flag.
struct KnownVariable {
    name: String,
    /// The flag's name as its variable would have it, without `LOQUENT_`.
    flag: String,
}

/// Returns the variables of `command` and its subcommands.
fn variables(command: &Command) -> Vec<KnownVariable> {
    let own = command.get_arguments().filter_map(|flag| {
        let name = flag.get_env()?.to_str()?.to_owned();
        let flag = flag.get_long()?.replace('-', "_").to_uppercase();
        Some(KnownVariable { name, flag })
    });
    own.chain(command.get_subcommands().flat_map(variables)).collect()
}

/// Returns a warning about the variable `name`, unless it is known or another program's.
fn unknown(known: &[KnownVariable], name: &OsStr, value: &OsStr) -> Option<String> {
    let name = name.to_str().filter(|_| is_meant(name, value))?;
    let own = name.strip_prefix(PREFIX)?;
    let is_short = SHORT_NAMES.iter().any(|(_, short)| *short == name);
    let is_other = OF_NO_FLAG.contains(&own) || own.starts_with("TEST_");
    if is_short || is_other || known.iter().any(|one| one.name == name) {
        return None;
    }
    let alike = most_alike(known.iter().map(|one| one.flag.as_str()), own);
    let advice = match known.iter().find(|one| alike == Some(one.flag.as_str())) {
        Some(meant) => format!("did you mean {}?", meant.name),
        None => "`loquent serve --help` lists the variables".to_owned(),
    };
    Some(format!("there is no setting {}, and it has no effect; {advice}", printable(name)))
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    /// Returns the variable that counts for a flag whose own is `own` where the environment has
    /// `set`.
    fn counting(own: &'static str, set: &[(&str, &str)]) -> Option<String> {
        let serve = Command::new("serve").arg(Arg::new("flag").long("flag").env(own));
        let value = |name: &OsStr| {
            set.iter().find(|(it, _)| name == *it).map(|(_, value)| OsString::from(value))
        };
        let program = with_variables_of(Command::new("loquent").subcommand(serve), &value);
        let flag = program.find_subcommand("serve").unwrap().get_arguments().next().unwrap();
        flag.get_env().map(|name| name.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_variable_set_to_nothing_is_not_set_unless_it_guards_access() {
        let port = |set| counting("LOQUENT_PORT", set);
        assert_eq!(port(&[("LOQUENT_PORT", "")]), None);
        assert_eq!(port(&[("LOQUENT_PORT", "1")]).as_deref(), Some("LOQUENT_PORT"));
        assert_eq!(port(&[]).as_deref(), Some("LOQUENT_PORT"), "the help names it");
        for guard in [
            "LOQUENT_API_KEY",
            "LOQUENT_API_KEY_FILE",
            "LOQUENT_TLS_CERT",
            "LOQUENT_ACME_DOMAIN",
            "LOQUENT_JWT_KEYS",
            "LOQUENT_JWT_AUDIENCE",
            "LOQUENT_JWT_ISSUER",
        ] {
            assert_eq!(counting(guard, &[(guard, "")]).as_deref(), Some(guard));
        }
    }

    #[test]
    fn a_short_name_counts_where_the_long_one_is_not_set() {
        let (long, short) = ("LOQUENT_MODELS_DIR", "LOQUENT_MODELS");
        for (set, counts) in [
            (&[(short, "/a")][..], short),
            (&[(long, ""), (short, "/a")], short),
            (&[(long, "/b"), (short, "/a")], long),
            (&[(short, "")], long),
        ] {
            assert_eq!(counting(long, set).as_deref(), Some(counts), "{set:?}");
        }
    }

    #[test]
    fn links_of_kubernetes_are_no_settings() {
        let link = "tcp://10.0.0.1:8080";
        assert_eq!(counting("LOQUENT_PORT", &[("LOQUENT_PORT", link)]), None);
        for (name, value) in [
            ("LOQUENT_SERVICE_HOST", "10.0.0.1"),
            ("LOQUENT_SERVICE_PORT_HTTP", "8080"),
            ("LOQUENT_PORT_8080_TCP", link),
            ("LOQUENT_PORT_8080_TCP_ADDR", "10.0.0.1"),
            ("LOQUENT_STORE_PORT", link),
        ] {
            assert_eq!(unknown(&[], OsStr::new(name), OsStr::new(value)), None, "{name}");
        }
        assert!(unknown(&[], OsStr::new("LOQUENT_STORE_PORT"), OsStr::new("8080")).is_some());
    }

    #[test]
    fn a_variable_of_no_flag_is_named_with_the_one_that_was_meant() {
        let port = Arg::new("port").long("port").env("LOQUENT_PORT");
        let traces = Arg::new("traces").long("otlp-endpoint").env("OTEL_ENDPOINT");
        let program = Command::new("loquent").subcommand(Command::new("serve").arg(port));
        let known = variables(&program.arg(traces));
        let warning = |name: &str| unknown(&known, OsStr::new(name), OsStr::new("1"));
        for (name, advice) in [
            ("LOQUENT_PROT", "did you mean LOQUENT_PORT?"),
            ("LOQUENT_OTLP_ENDPOINT", "did you mean OTEL_ENDPOINT?"),
            ("LOQUENT_XYZZY", "--help"),
        ] {
            let warning = warning(name).unwrap();
            assert!(warning.contains(name) && warning.contains(advice), "{warning}");
        }
        for name in ["LOQUENT_PORT", "LOQUENT_LOG", "LOQUENT_BIN", "LOQUENT_TEST_MODEL", "PROT"] {
            assert_eq!(warning(name), None);
        }
        assert_eq!(unknown(&known, OsStr::new("LOQUENT_PROT"), OsStr::new("")), None);
    }
}
