//! The table `[upstreams]` of a settings file: each name with its servers and further settings of
//! that name, translated to the equivalent flags of `serve`.

use toml::de::{DeTable, DeValue};

use super::value::FileSetting;

/// Keys allowed in a section besides `urls`, with the flag and its id in clap.
const COMPANIONS: [(&str, &str, &str); 2] = [
    ("fallback", "upstream-fallback", "upstream_fallback"),
    ("api-key", "upstream-api-key", "upstream_api_key"),
];

/// Error message, and the byte offset of the error.
pub(super) type Misplaced = (usize, String);

/// Converts `table` to settings.
///
/// # Errors
/// Describes the first mistake.
pub(super) fn settings_of(table: &DeTable<'_>) -> Result<Vec<FileSetting>, Misplaced> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut upstreams = setting("upstream", false);
    let mut companions = COMPANIONS.map(|(name, _, id)| setting(id, name == "api-key"));
    for (key, value) in entries {
        let (at, name): (usize, &str) = (value.span().start, key.get_ref());
        match value.get_ref() {
            DeValue::Table(section) => {
                let urls = section.get("urls").ok_or((at, format!("{name}: 'urls' is missing")))?;
                add(&mut upstreams, "upstream", name, (at, urls.get_ref()))?;
                for (key, value) in section.iter().filter(|(key, _)| key.get_ref() != "urls") {
                    let place = companion(key.get_ref()).ok_or_else(|| {
                        let problem = "has 'urls', 'fallback' and 'api-key', and no";
                        (key.span().start, format!("{name} {problem} '{}'", key.get_ref()))
                    })?;
                    let value = (value.span().start, value.get_ref());
                    add(&mut companions[place], COMPANIONS[place].1, name, value)?;
                }
            }
            urls => add(&mut upstreams, "upstream", name, (at, urls))?,
        }
    }
    let all = std::iter::once(upstreams).chain(companions);
    Ok(all.filter(|setting| !setting.arguments.is_empty()).collect())
}

/// Returns the index of `key` among the companions.
fn companion(key: &str) -> Option<usize> {
    COMPANIONS.iter().position(|(known, ..)| *known == key)
}

fn setting(id: &str, is_secret: bool) -> FileSetting {
    FileSetting { id: id.to_owned(), arguments: Vec::new(), is_secret }
}

/// Adds `--flag=NAME=TEXT[,TEXT…]`.
fn add(
    setting: &mut FileSetting,
    flag: &str,
    name: &str,
    (at, value): (usize, &DeValue<'_>),
) -> Result<(), Misplaced> {
    let text = |value: &DeValue<'_>| match value {
        DeValue::String(text) if !text.contains([',', ';']) || flag == "upstream-api-key" => {
            Some(text.to_string())
        }
        _ => None,
    };
    let texts: Option<Vec<_>> = match value {
        DeValue::Array(values) => values.iter().map(|value| text(value.get_ref())).collect(),
        value => text(value).map(|text| vec![text]),
    };
    let texts = texts.filter(|texts| !texts.is_empty() && !name.contains(['=', ',', ';']));
    let Some(texts) = texts else {
        let problem = format!("{name}: expected a string in quotes, or a list of them");
        return Err((at, problem));
    };
    setting.arguments.push(format!("--{flag}={name}={}", texts.join(",")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<FileSetting>, Misplaced> {
        settings_of(DeTable::parse(text).unwrap().get_ref())
    }

    #[test]
    fn names_have_urls_and_what_belongs_to_them() {
        let text = "small = 'http://c:1'\n[big]\nurls = ['http://a:1', 'http://b:1']\n\
                    fallback = ['small', 'local']\napi-key = 'a,b'";
        let all = read(text).unwrap();
        let arguments: Vec<_> = all.iter().flat_map(|one| &one.arguments).collect();
        assert_eq!(
            arguments,
            [
                "--upstream=small=http://c:1",
                "--upstream=big=http://a:1,http://b:1",
                "--upstream-fallback=big=small,local",
                "--upstream-api-key=big=a,b"
            ]
        );
        let secrets: Vec<_> = all.iter().map(|one| one.is_secret).collect();
        assert_eq!(secrets, [false, false, true]);
        assert_eq!(read("").unwrap(), []);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, words) in [
            ("a = 1", "expected a string"),
            ("a = []", "expected a string"),
            ("a = 'http://a,http://b'", "expected a string"),
            ("'a=b' = 'http://a'", "expected a string"),
            ("[a]\nfallback = 'b'", "'urls' is missing"),
            ("[a]\nurls = 'http://a'\nkey = 'b'", "no 'key'"),
        ] {
            let (_, problem) = read(text).unwrap_err();
            assert!(problem.contains(words), "{text}: {problem}");
        }
    }
}
