//! The certificate of HTTPS: presented to new connections and replaced while the server runs.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio_rustls::TlsAcceptor;

use crate::quic::{CertificateSource, Renewal};

/// Accepts TLS connections with the source's latest certificate.
pub struct Https {
    source: CertificateSource,
    acceptor: RwLock<TlsAcceptor>,
}

impl Https {
    /// Creates HTTPS with the current certificate of `source`.
    ///
    /// # Errors
    /// The errors of [`CertificateSource::load`].
    pub fn new(source: CertificateSource) -> anyhow::Result<Self> {
        let acceptor = RwLock::new(acceptor(&source)?);
        Ok(Self { source, acceptor })
    }

    /// Returns the acceptor for one new connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        // The acceptor is replaced in one assignment, so that a panic elsewhere cannot leave
        // half of it.
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks the source once per `every` and presents its certificate if it changed. Never
    /// resolves.
    pub async fn keep_current(&self, every: Duration) {
        let mut renewal = Renewal::new(self.source.clone(), every);
        loop {
            renewal.due().await;
            if self.renew() {
                renewal.renewed();
            }
        }
    }

    /// Loads the new certificate and presents it from now on. Returns false if it cannot be used
    /// yet.
    fn renew(&self) -> bool {
        match acceptor(&self.source) {
            Ok(fresh) => {
                *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = fresh;
                tracing::info!("HTTPS presents the renewed certificate");
                true
            }
            // Perhaps only one of the two files is written yet: the next check tries again.
            Err(error) => {
                tracing::error!(
                    "HTTPS keeps its old certificate, as the new one cannot be used: {error:#}"
                );
                false
            }
        }
    }
}

fn acceptor(source: &CertificateSource) -> anyhow::Result<TlsAcceptor> {
    let config = source.load()?.tls(&[b"h2", b"http/1.1"])?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};
    use tokio_rustls::TlsConnector;

    use super::*;

    /// Writes a new certificate for `localhost`; returns it.
    fn write(chain: &std::path::Path, key: &std::path::Path) -> CertificateDer<'static> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(key, made.signing_key.serialize_pem()).unwrap();
        std::fs::write(chain, made.cert.pem()).unwrap();
        CertificateDer::from_pem_slice(made.cert.pem().as_bytes()).unwrap()
    }

    /// Returns true if a client that trusts only `certificate` gets a connection.
    async fn is_shown(https: &Https, certificate: &CertificateDer<'static>) -> bool {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (near, far) = tokio::io::duplex(1 << 16);
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from("localhost").unwrap();
        let (client, _) = tokio::join!(connector.connect(name, near), https.acceptor().accept(far));
        client.is_ok()
    }

    #[tokio::test]
    async fn a_renewed_certificate_is_shown_without_a_restart() {
        let folder = std::env::temp_dir().join(format!("loquent-https-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
        let before = write(&chain, &key);
        let source = CertificateSource::Files { chain: chain.clone(), key: key.clone() };
        let https = Https::new(source).unwrap();
        assert!(is_shown(&https, &before).await);
        // Half a renewal changes nothing.
        std::fs::write(&chain, "half").unwrap();
        assert!(!https.renew() && is_shown(&https, &before).await);
        let renewed = async {
            // The watch begins first: it looks for what has changed since.
            tokio::task::yield_now().await;
            let after = write(&chain, &key);
            while !is_shown(&https, &after).await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(!is_shown(&https, &before).await);
        };
        let limit = tokio::time::timeout(Duration::from_secs(30), renewed);
        tokio::select! {
            done = limit => done.expect("the new certificate is shown"),
            () = https.keep_current(Duration::from_millis(2)) => unreachable!("it never ends"),
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
