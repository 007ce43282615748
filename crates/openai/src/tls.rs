//! TLS setup: the certificates that a client accepts.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme, SupportedProtocolVersion, WantsVerifier,
};
use rustls_platform_verifier::BuilderVerifierExt;
use sha2::{Digest, Sha256};

use crate::HttpError;

/// Maximum number of certificates read from a file.
const MAX_AUTHORITIES: usize = 1024;

/// Server certificates that are accepted.
#[derive(Debug, Clone, Default)]
pub enum Trust {
    /// Certificates that chain to an authority of the operating system.
    #[default]
    System,
    /// Certificates that chain to an authority of a file, and those in the file itself.
    Authorities(Arc<Authorities>),
    /// Only the certificate whose DER encoding has this SHA-256 hash, regardless of its name and
    /// dates.
    Pinned([u8; 32]),
}

/// Certificates of a file.
#[derive(Debug)]
pub struct Authorities {
    certificates: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
}

impl Authorities {
    /// Reads the certificates of `file`, in PEM.
    ///
    /// # Errors
    /// [`HttpError::Tls`] if the file cannot be read, or has no certificate that can be used.
    pub fn read(file: &Path) -> Result<Self, HttpError> {
        let unusable = |why: &dyn Display| HttpError::Tls(format!("{}: {why}", file.display()));
        let found = CertificateDer::pem_file_iter(file).map_err(|error| unusable(&error))?;
        let found: Result<Vec<_>, _> = found.take(MAX_AUTHORITIES).collect();
        let certificates = found.map_err(|error| unusable(&error))?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone()).map_err(|error| unusable(&error))?;
        }
        if certificates.is_empty() {
            return Err(unusable(&"it has no certificate"));
        }
        Ok(Self { certificates, roots: Arc::new(roots) })
    }
}

/// Creates a TLS client configuration for the given protocol `versions`, without a client
/// certificate.
///
/// # Errors
/// [`HttpError::Tls`] if the system's authorities cannot be used.
pub fn client_config(
    trust: Trust,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |error: Error| HttpError::Tls(error.to_string());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(unusable)?;
    let builder = match trust {
        Trust::System => builder.with_platform_verifier().map_err(unusable)?,
        Trust::Authorities(authorities) => {
            let roots = authorities.roots.clone();
            let chains = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
            let chains = chains.build().map_err(|error| HttpError::Tls(error.to_string()))?;
            dangerously(builder, Accepted::OfFile(authorities, chains), provider)
        }
        Trust::Pinned(sha256) => dangerously(builder, Accepted::Hash(sha256), provider),
    };
    Ok(builder.with_no_client_auth())
}

/// Has `builder` accept these certificates, whatever the system's authorities say.
fn dangerously(
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    accepted: Accepted,
    provider: Arc<CryptoProvider>,
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let verifier = Arc::new(OwnVerifier { accepted, provider });
    builder.dangerous().with_custom_certificate_verifier(verifier)
}

/// Certificates that an [`OwnVerifier`] accepts.
#[derive(Debug)]
enum Accepted {
    /// Certificates of a file, and those that chain to one of them.
    ///
    /// `openssl req -x509` marks the self-signed certificate of a server as an authority's, which
    /// webpki accepts for no server. As it is in the file, only its name is left to check.
    OfFile(Arc<Authorities>, Arc<WebPkiServerVerifier>),
    /// Exactly one, by its hash. The hash is as trustworthy as the channel that delivered it.
    Hash([u8; 32]),
}

/// Accepts certificates that the system's authorities have not signed.
#[derive(Debug)]
struct OwnVerifier {
    accepted: Accepted,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for OwnVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.accepted {
            Accepted::OfFile(authorities, _) if authorities.certificates.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
            }
            Accepted::OfFile(_, chains) => {
                return chains.verify_server_cert(end_entity, intermediates, name, ocsp, now);
            }
            Accepted::Hash(sha256) if Sha256::digest(end_entity).as_slice() == sha256 => {}
            Accepted::Hash(_) => {
                let refused = CertificateError::ApplicationVerificationFailure;
                return Err(Error::InvalidCertificate(refused));
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    // The certificate is accepted; these prove that the server holds its key.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
