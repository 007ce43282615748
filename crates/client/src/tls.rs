//! TLS for QUIC connections: trusts the system's authorities, or the one certificate whose hash the
//! server gave over HTTP (S-1.3).

use loquent_openai::tls::{Trust, client_config};
use quinn::crypto::rustls::QuicClientConfig;

use crate::ClientError;

/// ALPN protocol of native clients (S-1.1).
pub const ALPN: &[u8] = b"loquent/1";

/// Returns the TLS configuration of a QUIC connection. Trusts the certificate with the hash
/// `pinned`, or any certificate that an authority of the system signed. Never uses 0-RTT (S-1.4).
///
/// # Errors
/// [`ClientError::Tls`] if the system's certificates cannot be used.
pub(crate) fn quic_config(pinned: Option<[u8; 32]>) -> Result<QuicClientConfig, ClientError> {
    let trust = pinned.map_or(Trust::System, Trust::Pinned);
    let mut config = client_config(trust, &[&rustls::version::TLS13])?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.enable_early_data = false;
    QuicClientConfig::try_from(config).map_err(|error| ClientError::Tls(error.to_string()))
}
