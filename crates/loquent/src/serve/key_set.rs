//! The place of an identity provider's public keys: a file, or a URL that is fetched.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use loquent_server::{KeySetSource, MAX_KEY_SET_BYTES};
use ureq::http::Uri;

use crate::hub::system_tls;

/// Time limit for fetching a key set: the server starts only with one.
const FETCH_LIMIT: Duration = Duration::from_secs(10);

/// Returns the source at `place`, a URL or the path of a file.
///
/// # Errors
/// If the URL names another machine without TLS: anyone on the path could replace the keys, and
/// sign tokens.
pub fn key_set_source(place: &str) -> anyhow::Result<KeySetSource> {
    if !place.contains("://") {
        return Ok(KeySetSource::File(place.into()));
    }
    let url: Uri = place.parse().with_context(|| format!("{place} is no URL"))?;
    let is_local = matches!(url.host(), Some("localhost" | "127.0.0.1" | "[::1]"));
    let is_safe = match url.scheme_str() {
        Some("https") => true,
        Some("http") => is_local,
        _ => false,
    };
    ensure!(is_safe, "{place}: use https; anyone who can change these keys can sign tokens");
    Ok(KeySetSource::Url(place.to_owned(), Arc::new(fetch)))
}

fn fetch(url: &str) -> anyhow::Result<String> {
    let agent = ureq::Agent::config_builder()
        .tls_config(system_tls())
        .timeout_global(Some(FETCH_LIMIT))
        // Where a redirect leads is not what was checked.
        .max_redirects(0)
        .user_agent(concat!("loquent/", env!("CARGO_PKG_VERSION")))
        .build()
        .new_agent();
    let mut response = agent.get(url).call()?;
    let limited = response.body_mut().with_config().limit(MAX_KEY_SET_BYTES as u64);
    Ok(limited.read_to_string()?)
}
