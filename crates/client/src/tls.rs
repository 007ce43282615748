//! TLS for both ways to a server: HTTPS over rustls with the system's certificates, and
//! QUIC with those or with the one certificate whose hash HTTP told (S-1.3).

use std::io;
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_platform_verifier::BuilderVerifierExt;
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::ClientError;
use crate::http::{BoxFuture, Dial, Io};

/// The protocol of native clients (S-1.1).
pub const ALPN: &[u8] = b"loquent/1";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn unusable(error: impl std::fmt::Display) -> ClientError {
    ClientError::Tls(error.to_string())
}

/// Connects over TLS to servers that an authority of the system vouches for.
pub(crate) struct TlsDial {
    host: String,
    port: u16,
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl TlsDial {
    /// For the server at `host` (a name or an address).
    ///
    /// # Errors
    /// [`ClientError::Tls`] if the name is none or the system's certificates cannot be used.
    pub(crate) fn new(host: &str, port: u16) -> Result<TlsDial, ClientError> {
        let name = ServerName::try_from(host.to_owned()).map_err(unusable)?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_platform_verifier())
            .map_err(unusable)?
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        Ok(TlsDial { host: host.to_owned(), port, name, connector })
    }
}

impl Dial for TlsDial {
    fn dial(&self, _recv_buffer_bytes: Option<u32>) -> BoxFuture<'_, io::Result<Box<dyn Io>>> {
        Box::pin(async move {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            stream.set_nodelay(true)?;
            let stream = self.connector.connect(self.name.clone(), stream).await?;
            Ok(Box::new(stream) as Box<dyn Io>)
        })
    }
}

/// The cryptography of a QUIC connection: the certificate with the hash `pinned`, or any
/// that an authority of the system vouches for. Never 0-RTT (S-1.4).
///
/// # Errors
/// [`ClientError::Tls`] if the system's certificates cannot be used.
pub(crate) fn quic_config(pinned: Option<[u8; 32]>) -> Result<QuicClientConfig, ClientError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?;
    let builder = match pinned {
        Some(sha256) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned { sha256, provider: provider() })),
        None => builder.with_platform_verifier().map_err(unusable)?,
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.enable_early_data = false;
    QuicClientConfig::try_from(config).map_err(unusable)
}

/// Takes exactly one certificate, by its hash; whoever told the hash vouches for it.
#[derive(Debug)]
struct Pinned {
    sha256: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
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
