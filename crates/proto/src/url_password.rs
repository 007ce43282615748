//! Hides passwords in URLs that are shown to people.

use alloc::borrow::Cow;
use alloc::format;

/// Placeholder for a secret.
pub const HIDDEN: &str = "(hidden)";

/// Returns `url` with the password before its `@` replaced by `(hidden)`. Text that only resembles
/// a URL with a password is treated as one: a password may itself contain `/`, `,` or `@`.
#[must_use]
pub fn without_password(url: &str) -> Cow<'_, str> {
    let hidden = || {
        let login = url.find("://")? + "://".len();
        let end = url.rfind('@').filter(|&end| end > login)?;
        let password = login + url[login..end].find(':')? + 1;
        Some(format!("{}{HIDDEN}{}", &url[..password], &url[end..]))
    };
    hidden().map_or(Cow::Borrowed(url), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("http://ann:secret@host:80/v1", "http://ann:(hidden)@host:80/v1"),
            ("redis://:secret@store", "redis://:(hidden)@store"),
            ("name=http://ann:secret@host", "name=http://ann:(hidden)@host"),
            ("http://ann:sec/secret@secret@host", "http://ann:(hidden)@host"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn other_text_stays() {
        for text in ["", "a@b", "a:b@c", "http://host:80/path", "http://ann@host", "://", "@://:"] {
            assert_eq!(without_password(text), text);
        }
    }
}
