//! TLS setup: the certificates that a client accepts.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    SupportedProtocolVersion,
};
use rustls_platform_verifier::BuilderVerifierExt;
use sha2::{Digest, Sha256};

use crate::HttpError;

/// Server certificates that are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Certificates that chain to an authority of the operating system.
    System,
    /// Only the certificate whose DER encoding has this SHA-256 hash, regardless of its name and
    /// dates.
    Pinned([u8; 32]),
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
        Trust::Pinned(sha256) => {
            let verifier = Arc::new(PinnedVerifier { sha256, provider });
            builder.dangerous().with_custom_certificate_verifier(verifier)
        }
    };
    Ok(builder.with_no_client_auth())
}

/// Accepts exactly one certificate, by its hash. The hash is as trustworthy as the channel that
/// delivered it.
#[derive(Debug)]
struct PinnedVerifier {
    sha256: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if Sha256::digest(end_entity).as_slice() == self.sha256 {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    // The hash proves which certificate it is; these prove that the server holds its key.
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
