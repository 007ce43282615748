//! The files that are kept of orders: the account, the certificate with its key, and the times of
//! the latest orders. Only their owner reads them. Each authority has a folder.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use instant_acme::AccountCredentials;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use webpki::EndEntityCert;

use super::order::IssuedCertificate;
use super::plan::RecentOrders;
use crate::serve::kept_certificate::write;
use crate::validity::Validity;

/// Maximum certificates read from a chain.
const MAX_CHAIN: usize = 32;

/// The kept files of one certificate and of the account at its authority.
#[derive(Debug)]
pub(super) struct KeptOrders {
    folder: PathBuf,
    /// File of the certificate and its key. They are one file, because it is replaced whole.
    certificate: PathBuf,
}

/// A certificate that is kept.
#[derive(Debug)]
pub(super) struct HeldCertificate {
    names: Vec<String>,
    pub(super) validity: Validity,
}

impl HeldCertificate {
    /// Returns true if it has exactly these names.
    pub(super) fn is_for(&self, names: &[String]) -> bool {
        self.names.len() == names.len() && names.iter().all(|name| self.names.contains(name))
    }

    /// Reads the chain and the key in `pem`.
    ///
    /// # Errors
    /// If one is missing or cannot be used, or the key is another certificate's.
    fn of(pem: &str) -> anyhow::Result<Self> {
        let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).take(MAX_CHAIN);
        let chain = chain.collect::<Result<Vec<_>, _>>().context("its chain cannot be read")?;
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).context("it has no key")?;
        let first = chain.first().context("it has no certificate")?;
        let parsed = EndEntityCert::try_from(first).context("its certificate cannot be read")?;
        let names = parsed.valid_dns_names().map(str::to_ascii_lowercase).collect();
        let validity = Validity::of(first).context("its certificate has no dates")?;
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(chain, key, &provider).context("its key cannot be used")?;
        Ok(Self { names, validity })
    }
}

impl KeptOrders {
    /// Describes the files in `folder` for the authority at `directory` and a certificate whose
    /// first name is `name`.
    pub(super) fn new(folder: &Path, directory: &str, name: &str) -> Self {
        // Two authorities on one host differ in the path of their directories.
        let directory = directory.trim_start_matches("https://").trim_end_matches('/');
        let is_plain = |it: char| it.is_ascii_alphanumeric() || it == '.' || it == '-';
        let plain = |it: char| if is_plain(it) { it } else { '-' };
        let folder = folder.join("acme").join(directory.chars().map(plain).collect::<String>());
        Self { certificate: folder.join(format!("{name}.pem")), folder }
    }

    /// Makes the folder, and sees that files can be written in it.
    ///
    /// # Errors
    /// If they cannot.
    pub(super) fn prepare(&self) -> anyhow::Result<()> {
        self.write(&self.orders_file(), &self.recent_orders().text())
    }

    /// Returns the file of the certificate and its key.
    pub(super) fn certificate_file(&self) -> PathBuf {
        self.certificate.clone()
    }

    /// Reads the certificate, if one is kept.
    ///
    /// # Errors
    /// If its file is damaged; the message says what to do.
    pub(super) fn certificate(&self) -> anyhow::Result<Option<HeldCertificate>> {
        let shown = self.certificate.display();
        let Some(pem) = read(&self.certificate)? else { return Ok(None) };
        let advice = || format!("{shown} is damaged; delete it to have a new one ordered");
        HeldCertificate::of(&pem).with_context(advice).map(Some)
    }

    /// Keeps a certificate that an authority issued; the one before it stays if this one cannot be
    /// used.
    ///
    /// # Errors
    /// If it cannot be used, or the folder cannot be written.
    pub(super) fn keep(&self, issued: &IssuedCertificate) -> anyhow::Result<Validity> {
        // Checked before it is written: what is in the file is presented a moment later.
        let pem = format!("{}\n{}", issued.chain_pem.trim_end(), issued.key_pem);
        let held = HeldCertificate::of(&pem).context("the authority's answer cannot be used")?;
        self.write(&self.certificate, &pem)?;
        Ok(held.validity)
    }

    /// Reads the account, if there is one.
    ///
    /// # Errors
    /// If its file is damaged; the message says what to do.
    pub(super) fn account(&self) -> anyhow::Result<Option<AccountCredentials>> {
        let file = self.account_file();
        let Some(json) = read(&file)? else { return Ok(None) };
        let advice = || format!("{} is damaged; delete it to have a new account", file.display());
        serde_json::from_str(&json).with_context(advice).map(Some)
    }

    /// Keeps the account.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub(super) fn keep_account(&self, account: &AccountCredentials) -> anyhow::Result<()> {
        self.write(&self.account_file(), &serde_json::to_string(account)?)
    }

    /// Deletes the account, so that the next order makes another.
    ///
    /// # Errors
    /// If its file cannot be deleted.
    pub(super) fn forget_account(&self) -> anyhow::Result<()> {
        let file = self.account_file();
        fs::remove_file(&file).with_context(|| format!("cannot delete {}", file.display()))
    }

    /// Returns the times of the latest orders.
    pub(super) fn recent_orders(&self) -> RecentOrders {
        let text = read(&self.orders_file()).ok().flatten().unwrap_or_default();
        RecentOrders::parse(&text)
    }

    /// Notes an order.
    ///
    /// # Errors
    /// If the folder cannot be written. A certificate could not be kept either, so that nothing is
    /// ordered then.
    pub(super) fn note_order(&self, now: SystemTime) -> anyhow::Result<()> {
        // Read again each time: another process may have been started with this folder.
        let mut orders = self.recent_orders();
        orders.note(now);
        self.write(&self.orders_file(), &orders.text())
    }

    fn account_file(&self) -> PathBuf {
        self.folder.join("account.json")
    }

    fn orders_file(&self) -> PathBuf {
        self.certificate.with_extension("orders")
    }

    fn write(&self, file: &Path, text: &str) -> anyhow::Result<()> {
        let written = fs::create_dir_all(&self.folder).and_then(|()| write(file, text));
        let advice = || format!("cannot write {}; see --tls-dir", file.display());
        written.with_context(advice)
    }
}

/// Reads a file that may not exist.
fn read(file: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DIRECTORY: &str = "https://acme.example:14000/dir";

    fn issued(names: &[&str]) -> IssuedCertificate {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        IssuedCertificate { chain_pem: made.cert.pem(), key_pem: made.signing_key.serialize_pem() }
    }

    #[test]
    fn a_certificate_is_kept_whole_with_its_key_and_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptOrders::new(folder.path(), DIRECTORY, "a.example");
        assert!(kept.certificate().unwrap().is_none());
        let validity = kept.keep(&issued(&["a.example", "b.example"])).unwrap();
        let held = kept.certificate().unwrap().unwrap();
        assert_eq!(held.validity, validity);
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert!(held.is_for(&names(&["b.example", "a.example"])));
        assert!(!held.is_for(&names(&["a.example"])), "a name was dropped");
        assert!(!held.is_for(&names(&["a.example", "c.example"])), "a name was added");
        let file = folder.path().join("acme/acme.example-14000-dir/a.example.pem");
        assert_eq!(kept.certificate_file(), file);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn an_answer_that_cannot_be_used_leaves_the_kept_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptOrders::new(folder.path(), DIRECTORY, "a.example");
        kept.keep(&issued(&["a.example"])).unwrap();
        let before = fs::read_to_string(kept.certificate_file()).unwrap();
        let [one, other] = [issued(&["a.example"]), issued(&["a.example"])];
        for chain_pem in ["", "<html>", "-----BEGIN CERTIFICATE-----", &other.chain_pem] {
            let answer =
                IssuedCertificate { chain_pem: chain_pem.into(), key_pem: one.key_pem.clone() };
            assert!(kept.keep(&answer).is_err(), "{chain_pem}");
            assert_eq!(fs::read_to_string(kept.certificate_file()).unwrap(), before);
        }
    }

    #[test]
    fn damaged_files_are_named_with_advice() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptOrders::new(folder.path(), DIRECTORY, "a.example");
        kept.keep(&issued(&["a.example"])).unwrap();
        fs::write(kept.certificate_file(), "half").unwrap();
        let error = kept.certificate().unwrap_err();
        assert!(error.to_string().contains("a.example.pem is damaged; delete it"), "{error:#}");
        fs::write(kept.account_file(), "{}").unwrap();
        let error = kept.account().err().unwrap();
        assert!(error.to_string().contains("account.json is damaged; delete it"), "{error:#}");
        kept.forget_account().unwrap();
        assert!(kept.account().unwrap().is_none());
    }

    #[test]
    fn the_times_of_orders_outlive_the_process_and_belong_to_a_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let kept = || KeptOrders::new(folder.path(), DIRECTORY, "a.example");
        // A file has whole seconds.
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        for _ in 0..RecentOrders::MAX_PER_HOUR {
            assert_eq!(kept().recent_orders().free_at(now), now);
            kept().note_order(now).unwrap();
        }
        assert!(kept().recent_orders().free_at(now) > now);
        let other = KeptOrders::new(folder.path(), DIRECTORY, "b.example");
        assert_eq!(other.recent_orders().free_at(now), now);
    }
}
