//! Flags of clients for servers whose certificate no authority of the system signed.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use loquent_openai::tls::{Authorities, Trust};
use loquent_proto::hex;

/// Advice for when a server's certificate is refused, for commands with [`TrustArgs`].
pub const ADVICE: &str = "If you know this server: --ca FILE trusts the certificates of a file, and \
                          --insecure-fingerprint trusts the one with the fingerprint that `loquent \
                          serve` prints.";

/// The same for all other commands.
pub const ADVICE_WITHOUT_FLAGS: &str =
    "If you know this server: SSL_CERT_FILE names a file with other authorities to trust.";

/// Trust in certificates beside the system's authorities.
#[derive(Debug, Clone, Default, Args)]
pub struct TrustArgs {
    /// Trust the certificates in this PEM file, and those that they signed, instead of the system's
    /// authorities
    #[arg(long, value_name = "FILE", env = "LOQUENT_CA", conflicts_with = "insecure_fingerprint")]
    pub ca: Option<PathBuf>,
    /// Trust only the certificate with this SHA-256, whatever its name and dates; `loquent serve
    /// --tls-self-signed` prints it
    #[arg(long, value_name = "SHA256", env = "LOQUENT_INSECURE_FINGERPRINT",
          value_parser = parse_fingerprint)]
    pub insecure_fingerprint: Option<Fingerprint>,
}

/// SHA-256 of a certificate in DER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl std::fmt::Display for Fingerprint {
    /// Writes pairs of digits with colons between them, as browsers and OpenSSL do.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pairs: Vec<String> = self.0.iter().map(|byte| format!("{byte:02X}")).collect();
        formatter.write_str(&pairs.join(":"))
    }
}

impl TrustArgs {
    /// Returns the trust that the flags describe.
    ///
    /// # Errors
    /// If the file of `--ca` has no usable certificate.
    pub fn trust(&self) -> anyhow::Result<Trust> {
        if let Some(Fingerprint(sha256)) = self.insecure_fingerprint {
            return Ok(Trust::Pinned(sha256));
        }
        // An environment variable set to nothing counts as not set.
        match self.ca.as_deref().filter(|file| !file.as_os_str().is_empty()) {
            None => Ok(Trust::System),
            Some(file) => Ok(Trust::Authorities(Arc::new(Authorities::read(file)?))),
        }
    }
}

fn parse_fingerprint(text: &str) -> Result<Fingerprint, String> {
    let digits: String = text.chars().filter(|it| !matches!(it, ':' | ' ')).collect();
    let bytes = hex::decode(&digits.to_ascii_lowercase());
    bytes.map(Fingerprint).ok_or_else(|| {
        "give the SHA-256 of a certificate: 64 hexadecimal digits, with or without colons".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_as_it_is_written() {
        let fingerprint = Fingerprint(std::array::from_fn(|at| at as u8 * 7));
        let text = fingerprint.to_string();
        assert!(text.starts_with("00:07:0E:"));
        for text in [text.clone(), text.replace(':', ""), text.to_lowercase()] {
            assert_eq!(parse_fingerprint(&text), Ok(fingerprint));
        }
        for wrong in ["", "00:07", &text[1..], &text.replace('7', "x")] {
            assert!(parse_fingerprint(wrong).is_err(), "{wrong}");
        }
    }
}
