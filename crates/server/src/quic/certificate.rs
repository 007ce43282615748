//! The certificate of the QUIC port: from files, or self-signed and renewed.
//!
//! Browsers accept a self-signed certificate by its hash if its key is P-256 and it is valid
//! for at most 14 days (`serverCertificateHashes`); native clients trust the hash that the
//! HTTP connection told them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::service::unix_time_s;

/// How long a self-signed certificate is valid, and since when before its making: clocks differ.
const VALID_S: i64 = 12 * 24 * 3600;
const BEFORE_S: i64 = 24 * 3600;

/// Where the certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSource {
    /// Made here, for these names and addresses.
    SelfSigned(Vec<String>),
    /// PEM files: the chain and its key.
    Files {
        /// Certificates, the server's first.
        chain: PathBuf,
        /// Its private key.
        key: PathBuf,
    },
}

/// A certificate to show.
pub struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// SHA-256 of a self-signed one.
    pub sha256: Option<[u8; 32]>,
}

impl CertificateSource {
    /// How often to look for another one.
    pub fn renewal(&self) -> Duration {
        match self {
            Self::SelfSigned(_) => Duration::from_secs(7 * 24 * 3600),
            Self::Files { .. } => Duration::from_secs(3600),
        }
    }

    /// Makes or reads the certificate.
    ///
    /// # Errors
    /// When the files cannot be read, or names are none.
    pub fn load(&self) -> anyhow::Result<Certificate> {
        match self {
            Self::SelfSigned(names) => self_signed(names, unix_time_s() as i64),
            Self::Files { chain, key } => {
                let named = || format!("cannot read certificates from {}", chain.display());
                let certificates = CertificateDer::pem_file_iter(chain).with_context(named)?;
                let chain = certificates.collect::<Result<Vec<_>, _>>().with_context(named)?;
                anyhow::ensure!(!chain.is_empty(), "{}: it has none", named());
                let named = || format!("cannot read a private key from {}", key.display());
                let key = PrivateKeyDer::from_pem_file(key).with_context(named)?;
                Ok(Certificate { chain, key, sha256: None })
            }
        }
    }
}

/// A fresh P-256 certificate, as of `now_s` (Unix time).
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
    /// TLS for a server that shows this certificate and speaks `alpn`. Early data is off: a
    /// request in it could be replayed (S-1.4).
    ///
    /// # Errors
    /// When the key does not fit the certificate.
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
        assert!(source.renewal().as_secs() as i64 <= VALID_S - 24 * 3600);
        let (one, two) = (source.load().unwrap(), source.load().unwrap());
        assert_ne!(one.sha256, two.sha256);
        assert!(one.tls(&[b"h3"]).is_ok());
    }

    #[test]
    fn missing_files_are_named() {
        let source = CertificateSource::Files { chain: "no.pem".into(), key: "no.key".into() };
        assert!(source.load().err().unwrap().to_string().contains("no.pem"));
    }
}
