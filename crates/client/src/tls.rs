//! TLS for QUIC connections: trusts the one certificate whose hash the server gave over HTTP
//! (S-1.3), or else the certificates that the client trusts over HTTPS.

use loquent_openai::tls::{Trust, client_config};
use quinn::crypto::rustls::QuicClientConfig;

use crate::ClientError;

/// ALPN protocol of native clients (S-1.1).
pub const ALPN: &[u8] = b"loquent/1";

/// Returns the TLS configuration of a QUIC connection with the given trust in certificates. Never
/// uses 0-RTT (S-1.4).
///
/// # Errors
/// [`ClientError::Tls`] if the system's certificates cannot be used.
pub(crate) fn quic_config(trust: Trust) -> Result<QuicClientConfig, ClientError> {
    let mut config = client_config(trust, &[&rustls::version::TLS13])?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.enable_early_data = false;
    QuicClientConfig::try_from(config).map_err(|error| ClientError::Tls(error.to_string()))
}
