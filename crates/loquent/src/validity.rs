//! Validity of certificates, as the verifier of rustls reads it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

/// Validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// First moment.
    pub from: SystemTime,
    /// Last moment.
    pub until: SystemTime,
}

impl Validity {
    /// Reads the dates of a certificate. The verifier reports them when it checks a time before all
    /// validity and one after.
    ///
    /// # Errors
    /// If it is no certificate that webpki reads.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, webpki::Error> {
        let certificate = EndEntityCert::try_from(certificate)?;
        let refused_at = |unix_s| {
            let time = UnixTime::since_unix_epoch(Duration::from_secs(unix_s));
            let usage = KeyUsage::server_auth();
            certificate.verify_for_usage(&[], &[], &[], time, usage, None, None).err()
        };
        // The year 9999 is the last that a certificate can name.
        match (refused_at(0), refused_at(253_402_300_799)) {
            (
                Some(webpki::Error::CertNotValidYet { not_before, .. }),
                Some(webpki::Error::CertExpired { not_after, .. }),
            ) => Ok(Self { from: time(not_before), until: time(not_after) }),
            (_, Some(error)) | (Some(error), None) => Err(error),
            (None, None) => Err(webpki::Error::BadDer),
        }
    }
}

/// Converts a time of the verifier.
pub fn time(of: UnixTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(of.as_secs())
}
