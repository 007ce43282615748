//! Reads a client's API key, and warns when others could read it in its file or on the network.

use std::io;
use std::path::Path;

use crate::BaseUrl;

/// Maximum bytes read from a key file.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// Returns the key that was `given`, or else the first non-empty line of `file`. An empty `given`
/// key counts as absent: compose files set a variable to an empty string if it has no value.
///
/// # Errors
/// If the file cannot be read or has no key. The message names the file.
pub fn api_key(given: Option<&str>, file: Option<&Path>) -> io::Result<Option<String>> {
    let given = given.map(str::trim).filter(|key| !key.is_empty());
    match (given, file) {
        (Some(key), _) => Ok(Some(key.to_owned())),
        (None, Some(file)) => read(file).map(Some),
        (None, None) => Ok(None),
    }
}

fn read(path: &Path) -> io::Result<String> {
    use std::io::Read;
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot read the key in {}: {error}", path.display()))
    };
    let file = std::fs::File::open(path).map_err(named)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if file.metadata().map_err(named)?.permissions().mode() & 0o077 != 0 {
            let file = path.display();
            tracing::warn!("other users may read the key in {file}; chmod 600 {file}");
        }
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(named)?;
    let key = text.lines().map(str::trim).find(|line| !line.is_empty());
    key.map(str::to_owned).ok_or_else(|| named(io::Error::other("it is empty")))
}

/// Returns a warning if a key would be sent to the server at `base` in clear text over a network.
pub fn warn_of_cleartext(base: &BaseUrl, has_key: bool) -> Option<String> {
    let host = base.host();
    let is_here = host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|address: std::net::IpAddr| address.to_canonical().is_loopback());
    (has_key && !base.is_https() && !is_here).then(|| {
        format!(
            "WARNING: the API key goes to {host} unencrypted, and whoever is on the way can read \
             it. Use an https:// URL."
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_files_too() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "\n sk-file \nsecond\n").unwrap();
        let path = Some(file.path());
        assert_eq!(api_key(None, path).unwrap().unwrap(), "sk-file");
        assert_eq!(api_key(Some(" "), path).unwrap().unwrap(), "sk-file");
        assert_eq!(api_key(Some("given"), path).unwrap().unwrap(), "given");
        assert_eq!(api_key(Some(""), None).unwrap(), None);
        std::fs::write(file.path(), "\n").unwrap();
        assert!(api_key(None, path).unwrap_err().to_string().contains("it is empty"));
        let missing = api_key(None, Some(Path::new("/no/such/file"))).unwrap_err();
        assert!(missing.to_string().contains("/no/such/file"), "{missing}");
    }

    #[test]
    fn a_key_in_the_clear_is_warned_of() {
        let warns = |url: &str| warn_of_cleartext(&BaseUrl::parse(url).unwrap(), true).is_some();
        for url in ["http://10.0.0.5:8080", "http://example.org", "http://localhost.example.org"] {
            assert!(warns(url), "{url}");
            assert_eq!(warn_of_cleartext(&BaseUrl::parse(url).unwrap(), false), None);
        }
        for url in ["https://example.org", "http://localhost:1", "http://127.0.0.9", "http://[::1]"]
        {
            assert!(!warns(url), "{url}");
        }
    }
}
