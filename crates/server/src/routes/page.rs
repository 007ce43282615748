//! The pages embedded in the binary: chat, laboratory and dashboard, with their assets, and those
//! of the program around this crate.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Request, header};

use crate::app::{App, QuicAddress};
use crate::hosts::{is_loopback, requested_authority};
use crate::page_file::PageFile;
use loquent_serving::error::NOT_MODIFIED;

/// The files of `web/page`. build.rs generates the table; ARCHITECTURE.md describes how the folder
/// is built.
static FILES: &[PageFile] = include!(concat!(env!("OUT_DIR"), "/page_files.rs"));

/// Caching of names whose contents change with updates: revalidate, which costs a 304 at most.
const ASK_AGAIN: &str = "no-cache";
const FOREVER: &str = "public, max-age=31536000, immutable";

/// Browser features denied to all scripts, since the pages use none of them.
const PERMISSIONS: &str = "camera=(), microphone=(), geolocation=(), display-capture=(), usb=(), \
                           serial=(), hid=(), payment=(), midi=()";

/// Returns the routes of the pages' files and of `further` ones.
pub fn routes(further: &[PageFile]) -> Router<Arc<App>> {
    FILES.iter().chain(further).copied().fold(Router::new(), |router, file| {
        let serve = async move |State(app): State<Arc<App>>, request: Request<Body>| {
            let host = requested_authority(&request);
            let host = host.as_ref().map(Authority::host);
            let policy = policy(app.quic_address(), host, &app.config.page_sources);
            respond(&file, request.headers(), policy)
        };
        router.route(file.path, get(serve))
    })
}

fn respond(file: &PageFile, asked: &HeaderMap, policy: HeaderValue) -> Response {
    let text = HeaderValue::from_static;
    let headers = [
        (header::CONTENT_TYPE, text(file.content_type)),
        (header::CACHE_CONTROL, text(if file.is_immutable { FOREVER } else { ASK_AGAIN })),
        (header::ETAG, text(file.etag)),
        (header::VARY, text("accept-encoding")),
        (header::CONTENT_SECURITY_POLICY, policy),
        (HeaderName::from_static("cross-origin-opener-policy"), text("same-origin")),
        (HeaderName::from_static("permissions-policy"), text(PERMISSIONS)),
    ];
    if has(asked, file.etag) {
        return (NOT_MODIFIED, headers).into_response();
    }
    if takes_gzip(asked) {
        return (headers, [(header::CONTENT_ENCODING, text("gzip"))], file.gzip).into_response();
    }
    (headers, file.body).into_response()
}

/// Returns the comma-separated items of all header lines called `name`.
fn items(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// Returns true if the client already has the file with this tag (RFC 9110, 13.1.2).
fn has(asked: &HeaderMap, etag: &str) -> bool {
    let opaque = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).to_owned();
    items(asked, header::IF_NONE_MATCH).any(|tag| tag == "*" || opaque(tag) == opaque(etag))
}

/// Returns true if the client accepts gzip (RFC 9110, 12.5.3).
fn takes_gzip(asked: &HeaderMap) -> bool {
    items(asked, header::ACCEPT_ENCODING).any(|item| {
        let (coding, quality) = item.split_once(';').unwrap_or((item, ""));
        let quality = quality.trim().strip_prefix("q=").map(str::parse::<f32>);
        coding.trim().eq_ignore_ascii_case("gzip")
            && quality.is_none_or(|it| it.is_ok_and(|it| it > 0.0))
    })
}

/// Returns the page's content security policy: it may load only its own files. It may connect to
/// the HTTP port and the QUIC port of its own host, and to the program's own `sources`.
fn policy(quic: Option<QuicAddress>, host: Option<&str>, sources: &[String]) -> HeaderValue {
    let hosts = host.map(quic_hosts).unwrap_or_default();
    let quic = quic.map(|quic| quic.port);
    let quic: String = quic
        .into_iter()
        .flat_map(|port| hosts.iter().map(move |host| format!(" https://{host}:{port}")))
        .chain(sources.iter().map(|source| format!(" {source}")))
        .collect();
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'{quic}; \
         img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).expect("ASCII")
}

/// Returns the names under which the page may reach the QUIC port, as sources of a policy.
fn quic_hosts(host: &str) -> Vec<&str> {
    // `localhost` may mean ::1, from which browsers do not fall back to 127.0.0.1 by themselves.
    if is_loopback(host) {
        return vec!["localhost", "127.0.0.1"];
    }
    // Policies cannot name IPv6 addresses ('self' covers their HTTP port), and a name may hold
    // characters that would end the source.
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if host.bytes().all(is_name) { vec![host] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(host: Option<&str>) -> String {
        let quic = QuicAddress { port: 4433, certificate_sha256: None };
        let policy = policy(Some(quic), host, &[]).to_str().unwrap().to_owned();
        let (_, connect) = policy.split_once("connect-src ").unwrap();
        connect.split_once(';').unwrap().0.to_owned()
    }

    fn asked(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn every_page_and_everything_that_it_names_is_there() {
        let find = |path: &str| FILES.iter().find(|file| file.path == path);
        for page in ["/", "/lab", "/dashboard"] {
            let html = str::from_utf8(find(page).expect(page).body).unwrap();
            let named: Vec<&str> =
                html.split(['"']).filter(|it| it.starts_with("assets/")).collect();
            assert!(named.len() >= 3, "{page}: theme, style and script");
            for name in named {
                let file = find(&format!("/{name}")).expect(name);
                assert!(file.is_immutable, "{name}");
            }
        }
        assert!(!find("/").unwrap().is_immutable);
    }

    #[test]
    fn compression_is_for_those_who_read_it() {
        for yes in ["gzip", "br, gzip;q=0.5", "deflate,GZIP"] {
            assert!(takes_gzip(&asked(header::ACCEPT_ENCODING, yes)), "{yes}");
        }
        for no in ["", "br", "gzip;q=0", "gzip; q=0.0", "gzip;q=x", "xgzip"] {
            assert!(!takes_gzip(&asked(header::ACCEPT_ENCODING, no)), "{no}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }

    #[test]
    fn what_a_client_has_is_not_sent_again() {
        let tag = "W/\"1\"";
        for yes in ["W/\"1\"", "\"1\"", "\"0\", W/\"1\"", "*"] {
            assert!(has(&asked(header::IF_NONE_MATCH, yes), tag), "{yes}");
        }
        for no in ["", "\"2\"", "1"] {
            assert!(!has(&asked(header::IF_NONE_MATCH, no), tag), "{no}");
        }
    }

    #[test]
    fn the_program_may_name_further_sources() {
        let sources = ["http://127.77.0.1:8080".to_owned(), "https://127.77.0.2:8080".to_owned()];
        let policy = policy(None, Some("localhost"), &sources);
        let connect = "connect-src 'self' http://127.77.0.1:8080 https://127.77.0.2:8080;";
        assert!(policy.to_str().unwrap().contains(connect), "{policy:?}");
    }

    #[test]
    fn the_page_may_connect_to_its_own_host_alone() {
        assert_eq!(sources(Some("a.example")), "'self' https://a.example:4433");
        assert_eq!(sources(Some("10.0.0.1")), "'self' https://10.0.0.1:4433");
        let loopback = "'self' https://localhost:4433 https://127.0.0.1:4433";
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            assert_eq!(sources(Some(host)), loopback);
        }
        for host in [None, Some("[2001:db8::1]"), Some("a;script-src"), Some("a,b"), Some("*")] {
            assert_eq!(sources(host), "'self'", "{host:?}");
        }
    }
}
