//! Discovers where a server accepts QUIC: `GET /.well-known/loquent` (S-1.3).

use loquent_proto::hex;
use serde::{Deserialize, Serialize};

use crate::ClientError;

/// The path of the discovery document.
pub const PATH: &str = "/.well-known/loquent";
/// Maximum size of a discovery document, in bytes.
pub const MAX_BYTES: usize = 16 * 1024;

/// A server's offer of QUIC: its port and certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryOffer {
    /// UDP port.
    pub port: u16,
    /// SHA-256 of the self-signed certificate in DER; `None` if an authority signed it.
    pub certificate_sha256: Option<[u8; 32]>,
}

#[derive(Serialize, Deserialize)]
struct Raw {
    version: u64,
    port: u16,
    certificate_sha256: Option<String>,
}

impl DeliveryOffer {
    /// Parses the JSON of the discovery document. Its top-level members describe version 1, the
    /// only one that this client supports, so `versions` is not needed (S-1.6). Unknown members are
    /// ignored.
    ///
    /// # Errors
    /// [`ClientError::Malformed`] for another version, port 0, or an invalid hash.
    pub fn parse(json: &[u8]) -> Result<DeliveryOffer, ClientError> {
        let wrong = |what: String| ClientError::Malformed(format!("{PATH}: {what}"));
        let raw: Raw = serde_json::from_slice(json).map_err(|error| wrong(error.to_string()))?;
        if raw.version != 1 {
            return Err(wrong(format!("version {} is not supported", raw.version)));
        }
        if raw.port == 0 {
            return Err(wrong("port 0 is not valid".into()));
        }
        let certificate_sha256 = match raw.certificate_sha256 {
            Some(digits) => Some(hex::decode(&digits).ok_or_else(|| {
                wrong("certificate_sha256 is not a SHA-256 in hexadecimal".into())
            })?),
            None => None,
        };
        Ok(DeliveryOffer { port: raw.port, certificate_sha256 })
    }

    /// Returns the JSON that [`DeliveryOffer::parse`] reads.
    pub fn to_json(self) -> serde_json::Value {
        let certificate_sha256 = self.certificate_sha256.map(|hash| hex::encode(&hash));
        serde_json::json!({ "version": 1, "port": self.port, "certificate_sha256": certificate_sha256 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn offers() {
        let hash = "ab".repeat(32);
        let json = format!(
            r#"{{"version":1,"port":8080,"certificate_sha256":"{hash}","path":"/loquent/1"}}"#
        );
        let offer = DeliveryOffer::parse(json.as_bytes()).unwrap();
        assert_eq!(offer, DeliveryOffer { port: 8080, certificate_sha256: Some([0xab; 32]) });
        assert_eq!(DeliveryOffer::parse(offer.to_json().to_string().as_bytes()).unwrap(), offer);
        let signed =
            DeliveryOffer::parse(br#"{"version":1,"port":1,"certificate_sha256":null}"#).unwrap();
        assert_eq!(signed.certificate_sha256, None);
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"version":2,"port":1,"certificate_sha256":null}"#,
            r#"{"version":1,"port":0,"certificate_sha256":null}"#,
            r#"{"version":1,"port":65536,"certificate_sha256":null}"#,
            r#"{"version":1,"port":1,"certificate_sha256":"ab"}"#,
        ] {
            assert!(DeliveryOffer::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn hostile_answers_do_not_panic(text in "\\PC{0,100}", bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = (DeliveryOffer::parse(text.as_bytes()), DeliveryOffer::parse(&bytes));
        }
    }
}
