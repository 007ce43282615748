//! Keeps another server's text from acting as a page of this one.

use http::header::{self, HeaderMap, HeaderValue};

/// Policy that gives an upstream's text no rights in a browser.
const SANDBOX: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";

/// Prevents an upstream's text from acting as a page or a script of this server's origin.
pub fn confine(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}
