//! Certificates of the QUIC port and of HTTPS: from files, by ACME, or self-signed. All are renewed
//! while the server runs.
//!
//! Browsers accept a self-signed certificate by its hash if its key is P-256 and it is valid for at
//! most 14 days (`serverCertificateHashes`); native clients trust the hash that `GET
//! /.well-known/loquent` reports. Files are read again when they change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use tokio::time::{Interval, interval};

use crate::challenges::Challenges;
use loquent_serving::clock::unix_time_s;

/// Validity of a self-signed certificate after its creation, and before it, since the clients'
/// clocks differ.
const VALID_S: i64 = 12 * 24 * 3600;
const BEFORE_S: i64 = 24 * 3600;
/// Age at which a self-signed certificate is replaced: early enough that a certificate stays valid
/// for days after a client has learned its hash.
const REMADE_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Interval between checks of the user's files for a new certificate.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// The same for a file that this process writes: while it is waited for, nobody can connect.
const CHECK_ORDERED_EVERY: Duration = Duration::from_secs(1);

/// Source of the certificate.
#[derive(Debug, Clone)]
pub enum CertificateSource {
    /// A self-signed certificate for these names and addresses.
    SelfSigned(Vec<String>),
    /// PEM files of the chain and its key.
    Files {
        /// The certificates, the server's own first.
        chain: PathBuf,
        /// The private key of the first certificate.
        key: PathBuf,
    },
    /// A PEM file of a chain and its key, which an ACME client replaces whole. While there is none,
    /// a self-signed certificate stands in for it: health checks then find the server, and so does
    /// a balancer that sends the ACME server's challenge only to where they succeed.
    Ordered {
        /// The file.
        file: PathBuf,
        /// The names that are ordered.
        names: Vec<String>,
        /// Answers to the challenges of the order under way.
        challenges: Challenges,
    },
}

/// A certificate chain with its private key.
pub struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// SHA-256 of a self-signed certificate in DER.
    pub sha256: Option<[u8; 32]>,
}

impl CertificateSource {
    /// Returns the stamp of the certificate that is there now, which changes when its files do.
    fn stamp(&self) -> Stamp {
        let of_file = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        match self {
            Self::SelfSigned(_) => [None; 2],
            Self::Files { chain, key } => [chain, key].map(of_file),
            Self::Ordered { file, .. } => [of_file(file), None],
        }
    }

    /// Returns the interval between checks for a new certificate.
    pub(crate) fn check_every(&self) -> Duration {
        match self {
            Self::SelfSigned(_) | Self::Files { .. } => CHECK_EVERY,
            Self::Ordered { .. } => CHECK_ORDERED_EVERY,
        }
    }

    /// Returns the answers that HTTPS gives to the ACME server.
    pub(crate) fn challenges(&self) -> Option<&Challenges> {
        match self {
            Self::Ordered { challenges, .. } => Some(challenges),
            Self::SelfSigned(_) | Self::Files { .. } => None,
        }
    }

    /// Makes or reads the certificate.
    ///
    /// # Errors
    /// When the files cannot be read, or a name is not a valid DNS name or address.
    pub fn load(&self) -> anyhow::Result<Certificate> {
        match self {
            Self::SelfSigned(names) => self_signed(names, unix_time_s() as i64),
            Self::Files { chain, key } => read(chain, key),
            Self::Ordered { file, .. } if file.exists() => read(file, file),
            Self::Ordered { names, .. } => self_signed(names, unix_time_s() as i64),
        }
    }
}

/// Reads a certificate from the PEM files of its chain and its key, which may be one file.
fn read(chain: &Path, key: &Path) -> anyhow::Result<Certificate> {
    let named = || format!("cannot read certificates from {}", chain.display());
    let certificates = CertificateDer::pem_file_iter(chain).with_context(named)?;
    let chain = certificates.collect::<Result<Vec<_>, _>>().with_context(named)?;
    anyhow::ensure!(!chain.is_empty(), "{}: it has none", named());
    let named = || format!("cannot read a private key from {}", key.display());
    let key = PrivateKeyDer::from_pem_file(key).with_context(named)?;
    Ok(Certificate { chain, key, sha256: None })
}

/// Modification times and lengths of a certificate's files; a self-signed one has none.
type Stamp = [Option<(SystemTime, u64)>; 2];

/// Detects when a source has a newer certificate than the one in use.
pub struct Renewal {
    source: CertificateSource,
    checks: Interval,
    /// Stamps of the certificate in use and of the newest one found.
    stamps: [Stamp; 2],
    made: Made,
}

/// Creation time of a certificate on both clocks: the monotonic clock stops while a computer
/// sleeps, but the certificate's validity follows the wall clock.
#[derive(Debug, Clone, Copy)]
struct Made {
    measured: Instant,
    unix_s: i64,
}

impl Made {
    fn now() -> Self {
        Self { measured: Instant::now(), unix_s: unix_time_s() as i64 }
    }

    /// Returns true if a self-signed certificate is due for renewal, `elapsed` after its creation
    /// and at `unix_s`. Also true if the wall clock was set back to before the certificate's
    /// validity.
    fn is_due(&self, elapsed: Duration, unix_s: i64) -> bool {
        elapsed >= REMADE_AFTER
            || unix_s >= self.unix_s + REMADE_AFTER.as_secs() as i64
            || unix_s <= self.unix_s - BEFORE_S
    }
}

impl Renewal {
    /// Watches `source`, whose certificate is about to be loaded, with a check every `every`.
    pub fn new(source: CertificateSource, every: Duration) -> Self {
        let stamps = [source.stamp(); 2];
        Self { source, checks: interval(every), stamps, made: Made::now() }
    }

    /// Resolves when there is a newer certificate, on each call until [`Self::renewed`]. Cancel
    /// safe.
    pub async fn due(&mut self) {
        loop {
            self.checks.tick().await;
            self.stamps[1] = self.source.stamp();
            if self.stamps[1] != self.stamps[0] || self.has_aged() {
                return;
            }
        }
    }

    /// Returns true if the certificate in use is self-signed and due for renewal.
    fn has_aged(&self) -> bool {
        let is_self_signed = self.stamps[0] == [None; 2];
        is_self_signed && self.made.is_due(self.made.measured.elapsed(), unix_time_s() as i64)
    }

    /// Records that the certificate found by [`Self::due`] is in use.
    pub fn renewed(&mut self) {
        (self.stamps[0], self.made) = (self.stamps[1], Made::now());
    }
}

/// Creates a self-signed P-256 certificate; `now_s` is the Unix time.
fn self_signed(names: &[String], now_s: i64) -> anyhow::Result<Certificate> {
    let mut params = CertificateParams::new(names)?;
    params.not_before = OffsetDateTime::from_unix_timestamp(now_s - BEFORE_S)?;
    params.not_after = OffsetDateTime::from_unix_timestamp(now_s + VALID_S)?;
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let certificate = params.self_signed(&key)?;
    let der = certificate.der().clone();
    let sha256 = Some(Sha256::digest(&der).into());
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    Ok(Certificate { chain: vec![der], key, sha256 })
}

impl Certificate {
    /// Builds the TLS configuration of a server with this certificate and the protocols `alpn`.
    /// Early data is off, because a request in it could be replayed (S-1.4).
    ///
    /// # Errors
    /// When the key does not match the certificate.
    pub fn tls(self, alpn: &[&[u8]]) -> anyhow::Result<rustls::ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(self.chain, self.key)?;
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_accept_its_validity() {
        const { assert!(VALID_S + BEFORE_S <= 14 * 24 * 3600) };
        let source = CertificateSource::SelfSigned(vec!["localhost".into(), "127.0.0.1".into()]);
        assert!(REMADE_AFTER.as_secs() as i64 <= VALID_S - 24 * 3600);
        let (one, two) = (source.load().unwrap(), source.load().unwrap());
        assert_ne!(one.sha256, two.sha256);
        assert!(one.tls(&[b"h3"]).is_ok());
    }

    #[test]
    fn a_certificate_is_renewed_after_a_long_sleep_and_when_the_clock_is_put_back() {
        const DAY_S: i64 = 24 * 3600;
        let made = Made { measured: Instant::now(), unix_s: 1_000_000_000 };
        let (awake, asleep) = (REMADE_AFTER, Duration::from_secs(60));
        for (elapsed, later_s, due) in [
            (asleep, 60, false),
            (awake, 7 * DAY_S, true),
            (asleep, 13 * DAY_S, true),
            (asleep, -DAY_S / 2, false),
            (asleep, -2 * DAY_S, true),
        ] {
            assert_eq!(made.is_due(elapsed, made.unix_s + later_s), due, "{later_s} s later");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_the_wall_clock_has_made_old_is_due_until_it_is_renewed() {
        let (names, challenges) = (vec!["localhost".to_owned()], Challenges::default());
        let standing_in =
            CertificateSource::Ordered { file: "no.pem".into(), names: names.clone(), challenges };
        for source in [CertificateSource::SelfSigned(names), standing_in] {
            let mut renewal = Renewal::new(source, CHECK_EVERY);
            let soon = CHECK_EVERY * 3;
            assert!(tokio::time::timeout(soon, renewal.due()).await.is_err(), "it is new");
            // The computer slept: the clock that measures has not moved.
            renewal.made.unix_s -= 13 * 24 * 3600;
            for _ in 0..2 {
                tokio::time::timeout(soon, renewal.due()).await.expect("it is due");
            }
            renewal.renewed();
            assert!(tokio::time::timeout(soon, renewal.due()).await.is_err(), "it is new again");
        }
    }

    #[tokio::test]
    async fn changed_files_are_due_until_they_are_shown() {
        let folder = std::env::temp_dir().join(format!("loquent-renewal-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
        std::fs::write(&chain, "one").unwrap();
        std::fs::write(&key, "one").unwrap();
        let source = CertificateSource::Files { chain, key: key.clone() };
        let mut renewal = Renewal::new(source, Duration::from_millis(1));
        let early = tokio::time::timeout(Duration::from_millis(50), renewal.due()).await;
        assert!(early.is_err(), "nothing has changed");
        std::fs::write(&key, "another").unwrap();
        renewal.due().await;
        renewal.due().await; // it was not loaded
        renewal.renewed();
        assert!(tokio::time::timeout(Duration::from_millis(50), renewal.due()).await.is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn missing_files_are_named() {
        let source = CertificateSource::Files { chain: "no.pem".into(), key: "no.key".into() };
        assert!(source.load().err().unwrap().to_string().contains("no.pem"));
    }
}
