//! The certificate of HTTPS: presented to new connections and replaced while the server runs.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::certificate::{CertificateSource, Renewal};
use crate::challenges::ACME_ALPN;

/// Accepts TLS connections with the source's latest certificate.
pub struct Https {
    source: CertificateSource,
    acceptor: RwLock<TlsAcceptor>,
    /// Held by the one call of [`Https::keep_current`] that runs.
    renewal: Mutex<Renewal>,
}

impl Https {
    /// Creates HTTPS with the current certificate of `source`, which is checked once per `every`.
    ///
    /// # Errors
    /// The errors of [`CertificateSource::load`].
    pub fn new(source: CertificateSource, every: Duration) -> anyhow::Result<Self> {
        // Before the certificate is loaded: one that comes meanwhile then counts as newer.
        let renewal = Mutex::new(Renewal::new(source.clone(), every));
        let acceptor = RwLock::new(acceptor(&source)?);
        Ok(Self { source, acceptor, renewal })
    }

    /// Returns the acceptor for one new connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        // The acceptor is replaced in one assignment, so that a panic elsewhere cannot leave
        // half of it.
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Presents the source's certificate whenever it has changed. Never resolves; a later call goes
    /// on where a dropped one has stopped.
    pub async fn keep_current(&self) {
        let mut renewal = self.renewal.lock().await;
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
    let mut config = source.load()?.tls(&[b"h2", b"http/1.1"])?;
    if let Some(challenges) = source.challenges() {
        challenges.join(&mut config);
    }
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Performs the handshake of a connection that is to bring requests.
///
/// # Errors
/// If the handshake fails, or was an ACME server's, which has its answer and sends no requests.
pub async fn accept<S>(acceptor: TlsAcceptor, stream: S) -> io::Result<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let accepted = acceptor.accept(stream).await?;
    match accepted.get_ref().1.alpn_protocol() == Some(ACME_ALPN) {
        true => Err(io::Error::other("an ACME server has the answer to its challenge")),
        false => Ok(accepted),
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::challenges::Challenges;

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
    async fn an_ordered_certificate_takes_the_place_of_the_one_that_stands_in_for_it() {
        let folder = std::env::temp_dir().join(format!("loquent-ordered-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (file, key) = (folder.join("chain-and-key.pem"), folder.join("key.pem"));
        let (names, challenges) = (vec!["localhost".to_owned()], Challenges::default());
        let source = CertificateSource::Ordered { file: file.clone(), names, challenges };
        let https = Https::new(source.clone(), Duration::from_millis(2)).unwrap();
        let certificate = write(&file, &key);
        assert!(!is_shown(&https, &certificate).await, "the stand-in's key is another");
        // The server listens a second time once its model is loaded: no change gets lost between.
        for _ in 0..2 {
            let limit = Duration::from_millis(20);
            tokio::time::timeout(limit, https.keep_current()).await.expect_err("it never ends");
        }
        assert!(source.load().is_err(), "the key is not in the file yet");
        let text = [&file, &key].map(|part| std::fs::read_to_string(part).unwrap()).concat();
        std::fs::write(&file, text).unwrap();
        let shown = async {
            while !is_shown(&https, &certificate).await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            done = tokio::time::timeout(Duration::from_secs(30), shown) => done.expect("it is shown"),
            () = https.keep_current() => unreachable!("it never ends"),
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn a_renewed_certificate_is_shown_without_a_restart() {
        let folder = std::env::temp_dir().join(format!("loquent-https-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
        let before = write(&chain, &key);
        let source = CertificateSource::Files { chain: chain.clone(), key: key.clone() };
        let https = Https::new(source, Duration::from_millis(2)).unwrap();
        assert!(is_shown(&https, &before).await);
        // Half a renewal changes nothing.
        std::fs::write(&chain, "half").unwrap();
        assert!(!https.renew() && is_shown(&https, &before).await);
        // Before the watch begins: it looks for what has changed since the certificate was loaded.
        let after = write(&chain, &key);
        let renewed = async {
            while !is_shown(&https, &after).await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(!is_shown(&https, &before).await);
        };
        let limit = tokio::time::timeout(Duration::from_secs(30), renewed);
        tokio::select! {
            done = limit => done.expect("the new certificate is shown"),
            () = https.keep_current() => unreachable!("it never ends"),
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
