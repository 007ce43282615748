//! `owner/repo[@revision][:file-or-quant]`, parsed into a type that is safe to put into paths
//! and URLs.

use std::str::FromStr;

use super::error::HubError;

/// Specification of a model to fetch, parsed from `owner/repo[@revision][:file-or-quant]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubSpec {
    /// `owner/repo`.
    pub repo: String,
    /// Branch, tag or commit; `main` unless given.
    pub revision: String,
    /// Selects one of the repository's GGUF files.
    pub selector: Selector,
}

/// Selects one of a repository's GGUF files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// Not given: `Q4_K_M`, else `Q8_0`, else the only model of the repository.
    Default,
    /// A path in the repository (for a split model, the path of any part).
    File(String),
    /// A quantisation tag such as `Q4_K_M`, in any case.
    Quant(String),
}

impl FromStr for HubSpec {
    type Err = HubError;

    fn from_str(text: &str) -> Result<HubSpec, HubError> {
        let bad = |why| HubError::BadSpec { spec: text.to_owned(), why };
        let (place, selector) = match text.split_once(':') {
            Some((place, selector)) => (place, parse_selector(selector).map_err(bad)?),
            None => (text, Selector::Default),
        };
        let (repo, revision) = place.split_once('@').unwrap_or((place, "main"));
        let (owner, name) = repo.split_once('/').ok_or_else(|| bad("the form is owner/repo"))?;
        if !is_name(owner) || !is_name(name) {
            return Err(bad("owner and repo may contain letters, digits, '.', '_' and '-'"));
        }
        if !is_safe_path(revision) {
            return Err(bad("the revision is not a branch, tag or commit"));
        }
        Ok(HubSpec { repo: repo.to_owned(), revision: revision.to_owned(), selector })
    }
}

impl std::fmt::Display for HubSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.repo)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        match &self.selector {
            Selector::Default => Ok(()),
            Selector::File(name) | Selector::Quant(name) => write!(f, ":{name}"),
        }
    }
}

fn parse_selector(text: &str) -> Result<Selector, &'static str> {
    if text.is_empty() {
        return Err("a file name or a quantisation such as Q4_K_M must follow ':'");
    }
    if !is_safe_path(text) {
        return Err("the file name is not a path inside the repository");
    }
    if is_gguf(text) {
        return Ok(Selector::File(text.to_owned()));
    }
    if text.contains('/') {
        return Err("a file name must end in .gguf");
    }
    Ok(Selector::Quant(text.to_owned()))
}

pub(super) fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=96).contains(&text.len())
        && text.chars().all(plain)
        && !text.starts_with(['.', '-'])
        && !text.contains("..")
}

/// Returns true if the file name is that of a GGUF file.
pub(super) fn is_gguf(path: &str) -> bool {
    path.len() > 5 && path.to_ascii_lowercase().ends_with(".gguf")
}

/// Returns true if a path, which may come from a hostile server, stays inside the folder that it is
/// joined to.
pub(super) fn is_safe_path(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 1024
        && !path.contains(['\\', ':', '\0'])
        && !path.chars().any(|c| c.is_control() || turns_text(c))
        && path.split('/').all(|step| !step.is_empty() && step != "." && step != "..")
}

/// Returns true for the characters with which a name shows another ending than it has: Unicode's
/// embeddings, overrides and isolates (UAX #9, section 2).
fn turns_text(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_understood() {
        let spec: HubSpec = "own/re.po_1".parse().unwrap();
        assert_eq!((spec.repo.as_str(), spec.revision.as_str()), ("own/re.po_1", "main"));
        assert_eq!(spec.selector, Selector::Default);
        let spec: HubSpec = "a/b@v1.0:q4_k_m".parse().unwrap();
        assert_eq!(
            (spec.revision.as_str(), spec.to_string().as_str()),
            ("v1.0", "a/b@v1.0:q4_k_m")
        );
        assert_eq!(spec.selector, Selector::Quant("q4_k_m".into()));
        let spec: HubSpec = "a/b:sub/m.GGUF".parse().unwrap();
        assert_eq!(spec.selector, Selector::File("sub/m.GGUF".into()));
    }

    #[test]
    fn what_could_leave_the_cache_is_refused() {
        for bad in [
            "",
            "repo",
            "a/",
            "/b",
            "../b",
            "a/..",
            "a/b/c",
            "a/b:",
            "a/b:../x.gguf",
            "a/b:/x.gguf",
            "a/b:x/y",
            "a/b@../x",
            "a/b@",
            "a b/c",
            "a/b:c:\\x.gguf",
            "a/b:x-\u{202e}fugg.gguf",
        ] {
            assert!(bad.parse::<HubSpec>().is_err(), "{bad:?} was accepted");
        }
    }
}
