//! Names that an authority can sign a certificate for.

use std::net::IpAddr;

/// Maximum number of names in one certificate: Let's Encrypt's.
const MAX_NAMES: usize = 100;
/// Maximum length of a name and of each of its labels (RFC 1035 §2.3.4).
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// Reason why no certificate can be ordered for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameError {
    #[error("it is an address, and certificates are ordered for names; see --tls-self-signed")]
    Address,
    #[error("a wildcard needs a challenge by DNS, which Loquent does not answer; list the names")]
    Wildcard,
    #[error("authorities sign public names only, such as llm.example.com; see --tls-self-signed")]
    NoDot,
    #[error("write it with ASCII letters (xn--…), digits, hyphens and dots, as DNS has it")]
    NotDns,
    #[error("a certificate has at most {MAX_NAMES} names")]
    TooMany,
}

/// Checks `names`, and returns them in lower case, each once.
///
/// # Errors
/// The first name that cannot be ordered, with the reason.
pub(crate) fn check(names: &[String]) -> Result<Vec<String>, (String, NameError)> {
    let mut checked: Vec<String> = Vec::new();
    for name in names {
        let lower = one(name).map_err(|error| (name.clone(), error))?;
        if !checked.contains(&lower) {
            checked.push(lower);
        }
        if checked.len() > MAX_NAMES {
            return Err((name.clone(), NameError::TooMany));
        }
    }
    Ok(checked)
}

fn one(name: &str) -> Result<String, NameError> {
    let bare = name.trim_matches(['[', ']']);
    if bare.parse::<IpAddr>().is_ok() {
        return Err(NameError::Address);
    }
    if name.contains('*') {
        return Err(NameError::Wildcard);
    }
    if name.len() > MAX_NAME_BYTES || !name.split('.').all(is_label) {
        return Err(NameError::NotDns);
    }
    if !name.contains('.') {
        return Err(NameError::NoDot);
    }
    Ok(name.to_ascii_lowercase())
}

/// Returns true if `label` is one of a host's name (RFC 1123 §2.1).
fn is_label(label: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=MAX_LABEL_BYTES).contains(&label.len())
        && label.bytes().all(is_letter)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_authority_signs_are_refused_with_the_reason() {
        let long = format!("{}.example", "a".repeat(64));
        let longer = "a.".repeat(130) + "example";
        for (name, error) in [
            ("192.0.2.1", NameError::Address),
            ("[2001:db8::1]", NameError::Address),
            ("*.example.com", NameError::Wildcard),
            ("localhost", NameError::NoDot),
            ("llm.example.com:443", NameError::NotDns),
            ("https://llm.example.com", NameError::NotDns),
            ("llm..example", NameError::NotDns),
            ("llm.example.", NameError::NotDns),
            ("-a.example", NameError::NotDns),
            ("a_b.example", NameError::NotDns),
            ("bücher.example", NameError::NotDns),
            (&long, NameError::NotDns),
            (&longer, NameError::NotDns),
        ] {
            assert_eq!(check(&[name.to_owned()]), Err((name.to_owned(), error)));
        }
    }

    #[test]
    fn names_are_in_lower_case_and_each_once() {
        let names = ["LLM.example.com", "xn--bcher-kva.example", "llm.example.com"];
        let checked = check(&names.map(str::to_owned)).unwrap();
        assert_eq!(checked, ["llm.example.com", "xn--bcher-kva.example"]);
    }

    #[test]
    fn their_number_is_bounded() {
        let names: Vec<String> = (0..=MAX_NAMES).map(|at| format!("a{at}.example")).collect();
        assert_eq!(check(&names[1..]).unwrap().len(), MAX_NAMES);
        assert_eq!(check(&names).unwrap_err().1, NameError::TooMany);
    }
}
