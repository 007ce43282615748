//! Answers to the challenges of an ACME server, by which it sees that a name leads to this server
//! (TLS-ALPN-01, RFC 8737). They are given on the port of HTTPS, in the handshake itself.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// ALPN of a connection that asks for an answer, and for nothing else (RFC 8737 §4).
pub(crate) const ACME_ALPN: &[u8] = b"acme-tls/1";

/// Answers to the challenges of an order under way, by name. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Challenges(Arc<RwLock<HashMap<String, Arc<CertifiedKey>>>>);

impl Challenges {
    /// Answers connections to `name` with `digest`, the SHA-256 of the key authorization, until
    /// [`Self::clear`].
    ///
    /// # Errors
    /// If `name` is not a DNS name.
    pub fn answer(&self, name: &str, digest: &[u8; 32]) -> anyhow::Result<()> {
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let pair = KeyPair::generate()?;
        let certificate = params.self_signed(&pair)?.der().clone();
        let key = PrivateKeyDer::try_from(pair.serialize_der()).map_err(anyhow::Error::msg)?;
        let provider = rustls::crypto::ring::default_provider();
        // Not `from_der`, which reads the certificate: its critical extension means nothing to it.
        let key = provider.key_provider.load_private_key(key)?;
        let answer = Arc::new(CertifiedKey::new(vec![certificate], key));
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.to_ascii_lowercase(), answer);
        Ok(())
    }

    /// Forgets all answers.
    pub fn clear(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn find(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let answers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        answers.get(&name.to_ascii_lowercase()).cloned()
    }

    /// Makes `config` answer challenges; all other connections get its certificate as before.
    pub(crate) fn join(&self, config: &mut ServerConfig) {
        let own = config.cert_resolver.clone();
        config.cert_resolver = Arc::new(ChallengeResolver { own, challenges: self.clone() });
        // Last, so that a client that offers it among others gets one of the others.
        config.alpn_protocols.push(ACME_ALPN.to_vec());
    }
}

/// Chooses the certificate of a connection: the answer to a challenge, or the server's own.
#[derive(Debug)]
struct ChallengeResolver {
    own: Arc<dyn ResolvesServerCert>,
    challenges: Challenges,
}

impl ResolvesServerCert for ChallengeResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asks = hello.alpn().is_some_and(|protocols| protocols.eq([ACME_ALPN]));
        match asks {
            true => self.challenges.find(hello.server_name()?),
            false => self.own.resolve(hello),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use rustls::server::Acceptor;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;
    use crate::certificate::CertificateSource;

    /// Returns the certificate that a client of these `protocols` gets for `name`.
    fn shown(config: &ServerConfig, name: &str, protocols: &[&[u8]]) -> Option<Arc<CertifiedKey>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider);
        let mut client = client
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        client.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut hello = Vec::new();
        ClientConnection::new(Arc::new(client), name).unwrap().write_tls(&mut hello).unwrap();
        let mut acceptor = Acceptor::default();
        acceptor.read_tls(&mut hello.as_slice()).unwrap();
        let accepted = acceptor.accept().ok().flatten().expect("the hello is whole");
        config.cert_resolver.resolve(accepted.client_hello())
    }

    #[test]
    fn only_an_acme_server_gets_answers_and_only_while_an_order_is_under_way() {
        const HTTP: &[u8] = b"h2";
        let own = CertificateSource::SelfSigned(vec!["llm.example".into()]);
        let mut config = own.load().unwrap().tls(&[HTTP]).unwrap();
        let challenges = Challenges::default();
        challenges.join(&mut config);
        let own = shown(&config, "llm.example", &[HTTP]).unwrap();
        let asks = |name| shown(&config, name, &[ACME_ALPN]);
        assert!(asks("llm.example").is_none(), "there is no order");

        challenges.answer("LLM.example", &[7; 32]).unwrap();
        let answer = asks("llm.example").expect("the name is ordered");
        assert!(answer.cert[0] != own.cert[0] && asks("other.example").is_none());
        // The extension's number (RFC 8737 §3), critical, and the digest in it.
        let identifier = [6, 8, 43, 6, 1, 5, 5, 7, 1, 31, 1, 1, 255, 4, 34, 4, 32, 7, 7, 7];
        assert!(answer.cert[0].windows(identifier.len()).any(|bytes| bytes == identifier));
        for protocols in [&[][..], &[HTTP], &[HTTP, ACME_ALPN], &[ACME_ALPN, HTTP]] {
            let seen = shown(&config, "llm.example", protocols).unwrap();
            assert_eq!(seen.cert, own.cert, "{protocols:?}");
        }

        challenges.clear();
        assert!(asks("llm.example").is_none(), "the order has ended");
    }
}
