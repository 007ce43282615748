//! The certificate of `--tls-self-signed`: made once and kept, so that its fingerprint, which
//! people have compared and clients have been given, stays the same.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use loquent_server::CertificateSource;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};

use crate::trust::Fingerprint;
use crate::user_folder::user_folder;
use crate::validity::Validity;

/// Validity of a new certificate: Apple's devices refuse one that is longer (825 days).
const VALID: Duration = Duration::from_secs(800 * 86_400);
/// Validity before the creation, since clients' clocks differ.
const BEFORE: Duration = Duration::from_secs(86_400);
/// Time before its expiry at which a certificate is replaced.
const RENEWED_BEFORE: Duration = Duration::from_secs(30 * 86_400);

/// Returns the default folder of the certificate: `loquent/tls` in the user's folder for data.
///
/// # Errors
/// If the environment names no such folder.
pub(super) fn default_folder() -> anyhow::Result<PathBuf> {
    let data = user_folder("XDG_DATA_HOME", ".local/share");
    let data = data.context("the user has no home folder; name a folder with --tls-dir")?;
    Ok(data.join("loquent/tls"))
}

/// Returns the certificate kept in `folder`, or makes one for `names`, if there is none or it is
/// about to expire.
///
/// # Errors
/// If the folder cannot be written, or a file in it is damaged: its fingerprint may be known to
/// clients, so it is not replaced.
pub(super) fn keep(
    folder: &Path,
    names: Vec<String>,
    now: SystemTime,
) -> anyhow::Result<CertificateSource> {
    let (chain, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let is_kept = chain.exists() || key.exists();
    if !is_kept || lasts_until(&chain)? < now + RENEWED_BEFORE {
        make(folder, &chain, &key, names, now)
            .with_context(|| format!("cannot keep a certificate in {}", folder.display()))?;
    }
    Ok(CertificateSource::Files { chain, key })
}

/// Returns the fingerprint of the kept certificate in the file `chain`.
///
/// # Errors
/// If the file is damaged.
pub(super) fn fingerprint(chain: &Path) -> anyhow::Result<Fingerprint> {
    Ok(Fingerprint(Sha256::digest(read(chain)?).into()))
}

fn read(chain: &Path) -> anyhow::Result<CertificateDer<'static>> {
    CertificateDer::from_pem_file(chain).with_context(|| damaged(chain))
}

fn lasts_until(chain: &Path) -> anyhow::Result<SystemTime> {
    Validity::of(&read(chain)?).map(|validity| validity.until).with_context(|| damaged(chain))
}

fn damaged(chain: &Path) -> String {
    let shown = chain.display();
    format!("{shown} is no certificate; delete it and its key to have new ones made")
}

fn make(
    folder: &Path,
    chain: &Path,
    key: &Path,
    names: Vec<String>,
    now: SystemTime,
) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "Loquent");
    params.not_before = (now - BEFORE).into();
    params.not_after = (now + VALID).into();
    let pair = KeyPair::generate()?;
    let certificate = params.self_signed(&pair)?;
    // The key first: a certificate without its key would be taken for a kept one.
    write(key, &pair.serialize_pem())?;
    write(chain, &certificate.pem())?;
    Ok(())
}

/// Writes a file that only its owner reads, whole or not at all.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn keep_at(folder: &Path, now: SystemTime) -> anyhow::Result<Fingerprint> {
        keep(folder, vec!["localhost".into()], now)?;
        fingerprint(&folder.join("cert.pem"))
    }

    #[test]
    fn a_certificate_is_kept_until_it_is_about_to_expire() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("deep/tls");
        let now = SystemTime::now();
        let first = keep_at(&folder, now).unwrap();
        assert_eq!(keep_at(&folder, now + 700 * DAY).unwrap(), first);
        let second = keep_at(&folder, now + 780 * DAY).unwrap();
        assert_ne!(second, first);
        assert_eq!(keep_at(&folder, now + 800 * DAY).unwrap(), second);
        let kept = keep(&folder, Vec::new(), now + 800 * DAY).unwrap();
        kept.load().expect("the server can use it");
    }

    #[cfg(unix)]
    #[test]
    fn others_do_not_read_the_key() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        keep_at(folder.path(), SystemTime::now()).unwrap();
        let mode = fs::metadata(folder.path().join("key.pem")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_file_is_named_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cert.pem"), "half").unwrap();
        let error = keep_at(folder.path(), SystemTime::now()).unwrap_err();
        assert!(format!("{error:#}").contains("delete it"), "{error:#}");
        assert_eq!(fs::read_to_string(folder.path().join("cert.pem")).unwrap(), "half");
    }
}
