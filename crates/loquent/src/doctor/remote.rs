//! Checks the path to a server: its name, TCP, its certificate, HTTP and the key, its clock, the
//! flow of streams, and QUIC. Each check needs the previous ones.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{Method, StatusCode, header};
use loquent_client::{Client, Config, Via};
use loquent_openai::HttpError;
use loquent_openai::api_key::warn_of_cleartext;
use loquent_openai::http::{HttpResponse, json_request};
use loquent_openai::tls::Trust;
use serde_json::Value;
use tokio::net::TcpStream;

use super::clock::ClockReading;
use super::diagnosis::Diagnosis;
use super::report::Sheet;
use super::{certificate, held_back, udp};

const CHECK: &str = "server";
/// Time limit for looking up the name, for connecting, and for each short request.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of a name's addresses to try.
const MAX_ADDRESSES: usize = 4;
/// Maximum size of a short response, in bytes.
const MAX_ANSWER_BYTES: usize = 256 << 10;

/// A server to check.
pub(super) struct RemoteServer {
    client: Client,
    trust: Trust,
    has_key: bool,
    /// Networks of this machine to check besides the one that the system chooses.
    via: Vec<Via>,
}

impl RemoteServer {
    /// # Errors
    /// A URL or key that cannot be used.
    pub(super) fn new(
        url: &str,
        api_key: Option<String>,
        trust: Trust,
        via: Vec<Via>,
    ) -> anyhow::Result<Self> {
        let has_key = api_key.is_some();
        let config = Config { api_key, trust: trust.clone(), ..Config::new(url) };
        Ok(Self { client: Client::new(config)?, trust, has_key, via })
    }

    /// Checks the whole path, as far as possible.
    pub(super) async fn diagnose(&self, sheet: &mut Sheet) {
        let base = self.client.http().base();
        if let Some(warning) = warn_of_cleartext(base, self.has_key) {
            let advice = "use https://, with a certificate on the server or on a proxy before it";
            sheet.note(Diagnosis::warning("key", warning, advice));
        }
        let address = match self.reach().await {
            Ok((address, found)) => {
                sheet.note(found);
                address
            }
            Err(found) => return sheet.note(found),
        };
        if base.is_https() {
            let found =
                certificate::diagnose_server(base.host().to_owned(), address, self.trust.clone())
                    .await;
            let is_refused = found.is_failure();
            sheet.note(found);
            if is_refused {
                let what = "not checked without a certificate that clients accept";
                return sheet.note(Diagnosis::skipped(CHECK, what));
            }
        }
        if self.answers(sheet).await {
            sheet.note(held_back::diagnose(self.client.http()).await);
            sheet.note(udp::diagnose(&self.client, address).await);
            for via in &self.via {
                sheet.note(udp::diagnose_via(&self.client, via).await);
            }
        }
    }

    /// Returns an address of the server that accepts connections.
    async fn reach(&self) -> Result<(SocketAddr, Diagnosis), Diagnosis> {
        let base = self.client.http().base();
        let (host, port) = (base.host(), base.port());
        let found = tokio::time::timeout(STEP_LIMIT, tokio::net::lookup_host((host, port))).await;
        let addresses: Vec<SocketAddr> = match found {
            Ok(Ok(addresses)) => addresses.take(MAX_ADDRESSES).collect(),
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        let mut last = None;
        for &address in &addresses {
            let started = Instant::now();
            let dialled = tokio::time::timeout(STEP_LIMIT / 2, TcpStream::connect(address)).await;
            match dialled {
                Ok(Ok(_)) => {
                    let ms = started.elapsed().as_secs_f64() * 1e3;
                    let what = format!("{host} takes TCP connections at {address}, in {ms:.0} ms");
                    return Ok((address, Diagnosis::fine(CHECK, what)));
                }
                Ok(Err(error)) => last = Some(unreachable(address, Some(&error))),
                Err(_) => last = Some(unreachable(address, None)),
            }
        }
        Err(last.unwrap_or_else(|| {
            let what = format!("the name {host} has no address here");
            Diagnosis::failure(CHECK, what, "check the URL, and the DNS of this network")
        }))
    }

    /// Returns true if HTTP works there, with this key.
    async fn answers(&self, sheet: &mut Sheet) -> bool {
        let before = SystemTime::now();
        let response = match self.get("/live").await {
            Ok(response) => response,
            Err(error) => {
                let advice = "whatever listens there does not speak HTTP as the URL says: compare \
                              http:// with https://, and the port";
                sheet.note(Diagnosis::failure(CHECK, error.to_string(), advice));
                return false;
            }
        };
        let between = [before, SystemTime::now()];
        let through = held_back::intermediary(&response);
        if let Some(date) = date(&response) {
            sheet.note(ClockReading { between, date }.diagnose());
        }
        if response.status().is_server_error() {
            sheet.note(down(response.status(), through.as_deref()));
            return false;
        }
        let (found, goes_on) = judge_models(self.models().await, through.as_deref());
        sheet.note(found);
        goes_on
    }

    async fn get(&self, path: &str) -> Result<HttpResponse, HttpError> {
        let sent = self.client.http().send(json_request(Method::GET, path, Bytes::new())?);
        tokio::time::timeout(STEP_LIMIT, sent).await.unwrap_or_else(|_| {
            let authority = self.client.http().base().authority().to_owned();
            Err(HttpError::Broken { authority, reason: "no answer within 10 s".into() })
        })
    }

    /// Returns the name of the served model.
    async fn models(&self) -> Result<Option<String>, HttpError> {
        let read = self.client.http().get("/v1/models", MAX_ANSWER_BYTES);
        let text = tokio::time::timeout(STEP_LIMIT, read).await.unwrap_or_else(|_| {
            let authority = self.client.http().base().authority().to_owned();
            Err(HttpError::Broken { authority, reason: "no answer within 10 s".into() })
        })?;
        let models: Value = serde_json::from_slice(&text).unwrap_or_default();
        Ok(models["data"][0]["id"].as_str().map(|name| name.chars().take(100).collect()))
    }
}

fn unreachable(address: SocketAddr, error: Option<&std::io::Error>) -> Diagnosis {
    use std::io::ErrorKind::ConnectionRefused;
    let (what, advice) = match error {
        Some(error) if error.kind() == ConnectionRefused => (
            format!("nothing listens on TCP {address}"),
            "start the server; it listens on 127.0.0.1 only unless --host says otherwise",
        ),
        Some(error) => (format!("TCP {address}: {error}"), "check the URL and this network"),
        None => (
            format!("TCP {address} does not answer"),
            "open the port in the server's firewall or its cloud's security group",
        ),
    };
    Diagnosis::failure(CHECK, what, advice)
}

fn down(status: StatusCode, through: Option<&str>) -> Diagnosis {
    let by = through.map(|name| format!(" from {name}")).unwrap_or_default();
    let what = format!("HTTP works, and the answer{by} is {status}");
    let advice = match status.as_u16() {
        502 | 504 => "a proxy answers, and does not reach the server behind it",
        _ => "the server is starting or has failed: see its log",
    };
    Diagnosis::failure(CHECK, what, advice)
}

fn judge_models(
    asked: Result<Option<String>, HttpError>,
    through: Option<&str>,
) -> (Diagnosis, bool) {
    let through = through.map(|name| format!(", through {name}")).unwrap_or_default();
    match asked {
        Ok(Some(model)) => (Diagnosis::fine(CHECK, format!("serves {model}{through}")), true),
        Ok(None) => (
            Diagnosis::failure(
                CHECK,
                format!("HTTP works{through}, and /v1/models names no model"),
                "this is no OpenAI-compatible server: check the URL and its path",
            ),
            false,
        ),
        Err(HttpError::Refused { status: 401 | 403, message, .. }) => (
            Diagnosis::failure(
                "key",
                format!("the key is missing or wrong: {message}"),
                "give the server's key: --api-key-file FILE",
            ),
            true,
        ),
        Err(HttpError::Refused { status: 503, message, .. }) => (
            Diagnosis::warning(
                CHECK,
                format!("HTTP works{through}, and the server is not ready: {message}"),
                "wait until its model is loaded; its log says how far it is",
            ),
            true,
        ),
        Err(error) => (
            Diagnosis::failure(
                CHECK,
                format!("HTTP works{through}, and /v1/models does not: {error}"),
                "this may be no OpenAI-compatible server: check the URL and its path",
            ),
            false,
        ),
    }
}

/// Returns the time at which the server wrote the response, unless a cache stored it.
fn date(response: &HttpResponse) -> Option<SystemTime> {
    let headers = response.headers();
    let text = headers.get(header::DATE)?.to_str().ok()?;
    (!headers.contains_key(header::AGE)).then(|| httpdate::parse_http_date(text).ok())?
}

#[cfg(test)]
mod tests {
    use super::super::diagnosis::Severity;
    use super::*;

    #[test]
    fn answers_of_servers_are_told_apart() {
        let refused =
            |status| Err(HttpError::Refused { status, retry_after_s: None, message: "no".into() });
        for (answer, severity, goes_on) in [
            (Ok(Some("m".into())), Severity::Fine, true),
            (Ok(None), Severity::Failure, false),
            (refused(401), Severity::Failure, true),
            (refused(503), Severity::Warning, true),
            (refused(404), Severity::Failure, false),
        ] {
            let (found, on) = judge_models(answer, Some("nginx"));
            assert_eq!((found.severity, on), (severity, goes_on), "{found:?}");
        }
        let gateway = down(StatusCode::BAD_GATEWAY, None);
        assert!(gateway.advice.unwrap().contains("does not reach"));
    }
}
