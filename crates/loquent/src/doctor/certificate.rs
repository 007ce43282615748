//! Checks certificates: those in the files that `serve` would use, and the one that a server
//! presents.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use loquent_openai::tls::{Trust, client_config};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{CertificateError, ClientConnection};

use super::clock::words;
use super::diagnosis::Diagnosis;
use crate::validity::{Validity, time};

const CHECK: &str = "certificate";
/// Time before its expiry at which a certificate should have been renewed. Let's Encrypt
/// certificates are renewed 30 days before.
const SOON: Duration = Duration::from_secs(14 * 86_400);
/// Time limit for connecting, and for each wait in a handshake.
const WAIT_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of certificates read from a chain.
const MAX_CHAIN: usize = 32;

impl Validity {
    fn diagnose(self, whose: &str, now: SystemTime) -> Diagnosis {
        let (from, until) =
            (httpdate::fmt_http_date(self.from), httpdate::fmt_http_date(self.until));
        if now < self.from {
            return Diagnosis::failure(
                CHECK,
                format!("{whose} is valid only from {from}"),
                "the clock of this machine is wrong, or the certificate is used too early",
            );
        }
        let Ok(left) = self.until.duration_since(now) else {
            let ago = words(now.duration_since(self.until).unwrap_or_default());
            return Diagnosis::failure(
                CHECK,
                format!("{whose} expired {ago} ago, on {until}"),
                "renew it; a running `loquent serve` takes the new files by itself",
            );
        };
        let what = format!("{whose} is valid for {} more, until {until}", words(left));
        match left < SOON {
            true => Diagnosis::warning(CHECK, what, "renew it, and see why that was not done yet"),
            false => Diagnosis::fine(CHECK, what),
        }
    }
}

/// Checks the certificate chain in `chain`, and that `key` is its key.
pub(super) fn diagnose_files(chain: &Path, key: Option<&Path>, now: SystemTime) -> Diagnosis {
    const ADVICE: &str = "give --tls-cert a chain in PEM, the server's own certificate first \
                          (fullchain.pem of Let's Encrypt), and --tls-key its private key";
    let unusable = |what: String| Diagnosis::failure(CHECK, what, ADVICE);
    let certificates = match read_chain(chain) {
        Ok(certificates) => certificates,
        Err(why) => return unusable(format!("{}: {why}", chain.display())),
    };
    if let Some(key) = key
        && let Err(why) = fits(&certificates, key)
    {
        return unusable(format!("{}: {why}", key.display()));
    }
    match Validity::of(&certificates[0]) {
        Ok(validity) => validity.diagnose(&chain.display().to_string(), now),
        Err(error) => unusable(format!("{}: {error}", chain.display())),
    }
}

/// Reads the certificates of a file; fails if there are none.
fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?;
    let found: Result<Vec<_>, _> = found.take(MAX_CHAIN).collect();
    let found = found.map_err(|error| error.to_string())?;
    if found.is_empty() { Err("it has no certificate".to_owned()) } else { Ok(found) }
}

fn fits(chain: &[CertificateDer<'static>], key: &Path) -> Result<(), String> {
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| error.to_string())?;
    let provider = rustls::crypto::ring::default_provider();
    match CertifiedKey::from_der(chain.to_vec(), key, &provider) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err("it is not the certificate's key".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Checks the certificate that the server called `host` presents at `address`, as clients see it.
pub(super) async fn diagnose_server(host: String, address: SocketAddr, trust: Trust) -> Diagnosis {
    let shaken = tokio::task::spawn_blocking(move || handshake(&host, address, trust));
    // A server that sends a byte now and then must not hold the check up for ever.
    let shaken = tokio::time::timeout(3 * WAIT_LIMIT, shaken).await;
    match shaken {
        Ok(Ok(Ok(certificate))) => match Validity::of(&certificate) {
            Ok(validity) => validity.diagnose("the server's certificate", SystemTime::now()),
            Err(error) => Diagnosis::skipped(CHECK, format!("accepted, but unreadable: {error}")),
        },
        Ok(Ok(Err(error))) => refused(&error),
        Ok(Err(_)) | Err(_) => Diagnosis::failure(
            CHECK,
            "the server does not finish a TLS handshake",
            "whatever listens there may not speak TLS: try an http:// URL",
        ),
    }
}

/// Performs a handshake as clients do; returns the server's own certificate.
fn handshake(host: &str, address: SocketAddr, trust: Trust) -> io::Result<CertificateDer<'static>> {
    let config = client_config(trust, &[&TLS13, &TLS12]).map_err(io::Error::other)?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let mut tls = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut stream = TcpStream::connect_timeout(&address, WAIT_LIMIT)?;
    stream.set_read_timeout(Some(WAIT_LIMIT))?;
    stream.set_write_timeout(Some(WAIT_LIMIT))?;
    while tls.is_handshaking() {
        tls.complete_io(&mut stream)?;
    }
    let chain = tls.peer_certificates().unwrap_or_default();
    let own = chain.first().ok_or_else(|| io::Error::other("the server has no certificate"))?;
    Ok(own.clone().into_owned())
}

/// Diagnoses a failed handshake, with advice.
fn refused(error: &io::Error) -> Diagnosis {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(certificate)) = tls else {
        let what = format!("the TLS handshake fails: {error}");
        let advice = "whatever listens there may not speak TLS: try an http:// URL";
        return Diagnosis::failure(CHECK, what, advice);
    };
    let (what, advice) = match certificate {
        CertificateError::ExpiredContext { not_after, .. } => (
            format!(
                "the server's certificate expired on {}",
                httpdate::fmt_http_date(time(*not_after))
            ),
            "renew it on the server; a running `loquent serve` takes the new files by itself",
        ),
        CertificateError::Expired => (
            "the server's certificate has expired".to_owned(),
            "renew it on the server; a running `loquent serve` takes the new files by itself",
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
            "the server's certificate is not valid yet".to_owned(),
            "the clock of this machine is probably wrong",
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
            "the server's certificate is for other names".to_owned(),
            "use a name that it bears in the URL, or get one for this name",
        ),
        CertificateError::UnknownIssuer => (
            "no authority that this machine knows vouches for the server's certificate".to_owned(),
            "serve the whole chain (fullchain.pem); for an authority of your own, or a self-signed \
             certificate, use --ca or --insecure-fingerprint",
        ),
        other => (format!("the server's certificate is refused: {other}"), "replace it"),
    };
    Diagnosis::failure(CHECK, what, advice)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use rcgen::{CertificateParams, KeyPair};
    use time::OffsetDateTime;

    use super::super::diagnosis::Severity;
    use super::*;

    /// Creates the chain and the key of a certificate that is valid between two Unix times.
    fn files(folder: &Path, from: i64, until: i64) -> [std::path::PathBuf; 2] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.not_before = OffsetDateTime::from_unix_timestamp(from).unwrap();
        params.not_after = OffsetDateTime::from_unix_timestamp(until).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let paths = ["cert.pem", "key.pem"].map(|name| folder.join(name));
        std::fs::write(&paths[0], certificate.pem()).unwrap();
        std::fs::write(&paths[1], key.serialize_pem()).unwrap();
        paths
    }

    #[test]
    fn dates_and_keys_are_checked() {
        const DAY: i64 = 86_400;
        let folder = tempfile::tempdir().unwrap();
        let [chain, key] = files(folder.path(), 1_700_000_000, 1_700_000_000 + 90 * DAY);
        let at = |day: i64| {
            let now = UNIX_EPOCH + Duration::from_secs((1_700_000_000 + day * DAY) as u64);
            diagnose_files(&chain, Some(&key), now)
        };
        assert_eq!(at(1).severity, Severity::Fine, "{:?}", at(1));
        assert_eq!(at(80).severity, Severity::Warning);
        assert_eq!(at(100).severity, Severity::Failure);
        assert!(at(100).what.contains("expired 10 days ago"), "{}", at(100).what);
        assert_eq!(at(-2).severity, Severity::Failure);
        let other = folder.path().join("other");
        std::fs::create_dir(&other).unwrap();
        let [_, stranger] = files(&other, 0, DAY);
        let found = diagnose_files(&chain, Some(&stranger), SystemTime::now());
        assert!(found.what.contains("not the certificate's key"), "{}", found.what);
    }

    #[test]
    fn files_that_are_no_certificates_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pem");
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for text in ["", "hello", broken] {
            std::fs::write(&path, text).unwrap();
            let found = diagnose_files(&path, None, SystemTime::now());
            assert_eq!(found.severity, Severity::Failure, "{text:?}");
        }
    }
}
