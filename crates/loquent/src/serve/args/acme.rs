//! The flags for certificates by ACME.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::ensure;
use clap::Args;
use instant_acme::LetsEncrypt;
use loquent_openai::tls::{Authorities, Trust};

use crate::serve::acme::{AcmeConfig, AcmeKeeper, name};

/// The names, and the authority that signs their certificate.
#[derive(Debug, Args)]
#[command(next_help_heading = "Certificates by ACME")]
pub(super) struct AcmeArgs {
    /// Public name to get a certificate for, by ACME, for HTTPS and QUIC; repeat the flag, or write
    /// commas, for several. It means that you accept the authority's terms of service
    ///
    /// The certificate is ordered at the start, kept in --tls-dir, and renewed while the server
    /// runs. The authority connects to port 443 of each name, which must lead to --port of this
    /// server.
    #[arg(long, env = "LOQUENT_ACME_DOMAIN", value_name = "NAME", value_delimiter = ',',
          conflicts_with_all = ["tls_cert", "tls_self_signed"])]
    acme_domain: Vec<String>,
    /// Address for messages about the certificates, if the authority sends any
    #[arg(long, env = "LOQUENT_ACME_EMAIL", value_name = "ADDRESS")]
    acme_email: Option<String>,
    /// Directory of the authority
    ///
    /// Let's Encrypt's for tests is https://acme-staging-v02.api.letsencrypt.org/directory. Nobody
    /// trusts its certificates, and its limits are high.
    #[arg(long, env = "LOQUENT_ACME_DIRECTORY", value_name = "URL",
          default_value = LetsEncrypt::Production.url())]
    acme_directory: String,
    /// Trust the certificates in this PEM file, and those that they signed, for the directory,
    /// instead of the system's authorities
    #[arg(long, env = "LOQUENT_ACME_CA", value_name = "FILE")]
    acme_ca: Option<PathBuf>,
}

impl AcmeArgs {
    /// Returns true if certificates are ordered. An empty name counts too, and is an error then: a
    /// variable that lacks its value must not leave a server without encryption.
    pub(super) fn is_given(&self) -> bool {
        !self.acme_domain.is_empty()
    }

    /// Returns the keeper of the certificate, whose files are in `folder`.
    ///
    /// # Errors
    /// If a value or the folder cannot be used; the message names the flag.
    pub(super) fn keeper(&self, folder: &Path) -> anyhow::Result<AcmeKeeper> {
        let given: Vec<_> = self.acme_domain.iter().map(|name| name.trim().to_owned()).collect();
        let names = name::check(&given)
            .map_err(|(name, error)| anyhow::anyhow!("--acme-domain {name:?}: {error}"))?;
        let ca = self.acme_ca.as_deref().filter(|file| !file.as_os_str().is_empty());
        let trust = match ca {
            None => Trust::System,
            Some(file) => Trust::Authorities(Arc::new(Authorities::read(file)?)),
        };
        let (email, directory) = (self.email()?, self.acme_directory.trim().to_owned());
        let folder = folder.to_owned();
        let config = AcmeConfig { names, email, directory, trust, folder };
        AcmeKeeper::new(config, SystemTime::now())
    }

    fn email(&self) -> anyhow::Result<Option<String>> {
        let Some(address) = self.acme_email.as_deref().filter(|it| !it.is_empty()) else {
            return Ok(None);
        };
        // It goes into a URL (mailto:), where a comma or a question mark begins something else.
        let is_plain = |it: char| it.is_ascii_graphic() && !"<>,?&%".contains(it);
        let has_at = address.split('@').filter(|part| !part.is_empty()).count() == 2;
        ensure!(
            has_at && address.chars().all(is_plain),
            "--acme-email {address:?} is not an address such as admin@example.com"
        );
        Ok(Some(address.to_owned()))
    }
}
