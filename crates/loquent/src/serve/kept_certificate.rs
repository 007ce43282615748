//! The certificate of `--tls-self-signed`: made once and kept, so that its fingerprint, which
//! people have compared and clients have been given, stays the same.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use loquent_client::{FileReaders, replace_file_safely};
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
    if is_due(&chain, now)? {
        make(folder, &chain, &key, names, now)
            .with_context(|| format!("cannot keep a certificate in {}", folder.display()))?;
    }
    Ok(CertificateSource::Files { chain, key })
}

/// Returns true if there is no certificate or it is about to expire. A key alone is of a process
/// that was killed before it wrote the certificate.
fn is_due(chain: &Path, now: SystemTime) -> anyhow::Result<bool> {
    Ok(!chain.exists() || lasts_until(chain)? < now + RENEWED_BEFORE)
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
    let lock = folder.join("lock");
    let lock = File::options().create(true).truncate(false).write(true).open(lock)?;
    // Two processes at once would leave the key of one and the certificate of the other. Where the
    // file system has no locks, that is a risk of the first start only.
    let _ = lock.lock();
    if !is_due(chain, now)? {
        return Ok(());
    }
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "Loquent");
    params.not_before = (now - BEFORE).into();
    params.not_after = (now + VALID).into();
    let pair = KeyPair::generate()?;
    let certificate = params.self_signed(&pair)?;
    // The key first: a certificate without its key would be taken for a kept one.
    write(key, &pair.serialize_pem())?;
    Ok(write(chain, &certificate.pem())?)
}

/// Writes a file that only its owner reads, whole or not at all.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    replace_file_safely(path, text.as_bytes(), FileReaders::Owner)
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::PrivateKeyDer;
    use rustls::sign::CertifiedKey;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn keep_at(folder: &Path, now: SystemTime) -> anyhow::Result<Fingerprint> {
        keep(folder, vec!["localhost".into()], now)?;
        fingerprint(&folder.join("cert.pem"))
    }

    fn assert_is_a_pair(folder: &Path) {
        let chain = vec![read(&folder.join("cert.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(chain, key, &provider).expect("the key is the certificate's");
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

    #[test]
    fn a_process_that_was_killed_before_it_wrote_the_certificate_stops_no_start() {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap().serialize_pem();
        fs::write(folder.path().join("key.pem"), key).unwrap();
        keep_at(folder.path(), SystemTime::now()).unwrap();
        assert_is_a_pair(folder.path());
    }

    #[test]
    fn starts_at_once_keep_one_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let barrier = std::sync::Barrier::new(8);
        let start = || {
            barrier.wait();
            keep_at(folder.path(), now).unwrap()
        };
        std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            let found: Vec<_> = starts.into_iter().map(|start| start.join().unwrap()).collect();
            assert_eq!(found, [found[0]; 8]);
        });
        assert_is_a_pair(folder.path());
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
