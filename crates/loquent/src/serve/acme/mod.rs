//! Certificates by ACME (RFC 8555): ordered at the start, kept in a folder, and renewed while the
//! server runs. An order writes a file, which the server's ports read as any renewed certificate.

mod authority;
mod kept;
pub(super) mod name;
mod order;
mod plan;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use instant_acme::{Account, NewAccount};
use loquent_openai::tls::Trust;
use loquent_server::{CertificateSource, Challenges};
use tokio::time::{sleep, timeout};

use self::authority::AcmeAuthority;
use self::kept::KeptOrders;
use self::order::{IssuedCertificate, OrderFailure, order};
use self::plan::{RecentOrders, RenewalPlan};
use crate::validity::Validity;

/// Time limit for an order, from the account to the certificate. Chosen by hand: an authority that
/// works takes seconds.
const ORDER_LIMIT: Duration = Duration::from_secs(300);
/// Longest sleep before the wall clock is read again, which goes on while a computer sleeps.
const CLOCK_CHECK: Duration = Duration::from_secs(600);

/// Settings of certificates by ACME.
#[derive(Debug)]
pub(super) struct AcmeConfig {
    /// The names of the certificate, valid and in lower case.
    pub(super) names: Vec<String>,
    /// Address for the authority's messages.
    pub(super) email: Option<String>,
    /// URL of the authority's directory.
    pub(super) directory: String,
    /// Trust in the authority's own certificate.
    pub(super) trust: Trust,
    /// Folder with a folder for each authority.
    pub(super) folder: PathBuf,
}

/// Keeps a certificate by ACME current.
pub(crate) struct AcmeKeeper {
    config: AcmeConfig,
    authority: AcmeAuthority,
    kept: KeptOrders,
    challenges: Challenges,
    plan: RenewalPlan,
    /// Validity of the kept certificate.
    validity: Option<Validity>,
}

impl AcmeKeeper {
    /// Looks up what is kept from earlier orders.
    ///
    /// # Errors
    /// If the directory's URL cannot be used, the kept certificate is damaged, or none is usable
    /// and the folder cannot be written.
    pub(super) fn new(config: AcmeConfig, now: SystemTime) -> anyhow::Result<Self> {
        let authority = AcmeAuthority::new(&config.directory, config.trust.clone())?;
        let kept = KeptOrders::new(&config.folder, &config.directory, &config.names[0]);
        let held = kept.certificate()?;
        // One that is for other names or has expired is presented until the next one is there, but
        // that is ordered now.
        let usable = held.filter(|held| held.is_for(&config.names) && now < held.validity.until);
        let validity = usable.map(|held| held.validity);
        match (kept.prepare(), validity) {
            (Err(error), Some(validity)) => {
                let until = httpdate::fmt_http_date(validity.until);
                tracing::error!(
                    "the certificate is presented until {until}, and cannot be renewed: {error:#}"
                );
            }
            (prepared, _) => prepared?,
        }
        let plan = validity.map_or(RenewalPlan::Lacks, RenewalPlan::holding);
        Ok(Self { config, authority, kept, challenges: Challenges::default(), plan, validity })
    }

    /// Returns the source of the certificate for the server's ports.
    pub(super) fn source(&self) -> CertificateSource {
        CertificateSource::Ordered {
            file: self.kept.certificate_file(),
            names: self.config.names.clone(),
            challenges: self.challenges.clone(),
        }
    }

    /// Returns the certificate's line in the banner.
    pub(super) fn banner(&self) -> String {
        let (names, host) = (self.names(), self.authority.host());
        match self.validity {
            Some(validity) => {
                let until = httpdate::fmt_http_date(validity.until);
                format!("for {names}, of {host}, valid until {until}")
            }
            None => format!("for {names}, ordered from {host}; the log tells how that goes"),
        }
    }

    /// Orders certificates whenever one is due. `port` is the server's TCP port. Never resolves.
    pub(super) async fn run(mut self, port: u16) {
        loop {
            self.wait_until_due().await;
            let (names, host) = (self.names(), self.authority.host());
            tracing::info!(
                "ordering a certificate for {names} from {host}, which connects to port 443 of \
                 each name; it must lead to TCP port {port} here"
            );
            let outcome = self.order_in_time().await;
            // Also after a failure: an answer is good for one order only.
            self.challenges.clear();
            let now = SystemTime::now();
            match outcome {
                Ok(validity) => self.obtained(validity, now),
                Err(failure) => self.failed(&failure, now),
            }
        }
    }

    /// Returns when the plan and the bound on orders allow the next one.
    fn next_at(&self, now: SystemTime) -> SystemTime {
        self.kept.recent_orders().free_at(self.plan.due_at().max(now))
    }

    async fn wait_until_due(&self) {
        let now = SystemTime::now();
        let next = self.next_at(now);
        // After a restart; otherwise the log of the failure has told the time.
        if self.plan.due_at() <= now && next > now {
            let (names, at) = (self.names(), httpdate::fmt_http_date(next));
            let most = RecentOrders::MAX_PER_HOUR;
            tracing::warn!(
                "there were {most} orders for {names} within an hour, which is as many as Loquent \
                 places; the next one is at {at}"
            );
        }
        sleep_until(next).await;
    }

    async fn order_in_time(&self) -> Result<Validity, OrderFailure> {
        let late = || OrderFailure::late(ORDER_LIMIT);
        timeout(ORDER_LIMIT, self.order()).await.unwrap_or_else(|_| Err(late()))
    }

    /// Places one order and keeps its certificate.
    async fn order(&self) -> Result<Validity, OrderFailure> {
        // Noted first: an order that ends the process counts as well.
        self.kept.note_order(SystemTime::now())?;
        let mut issued = self.order_with(self.account().await?).await;
        if issued.as_ref().is_err_and(OrderFailure::is_of_a_lost_account) {
            self.kept.forget_account()?;
            issued = self.order_with(self.account().await?).await;
        }
        Ok(self.kept.keep(&issued?)?)
    }

    async fn order_with(&self, account: Account) -> Result<IssuedCertificate, OrderFailure> {
        order(&account, &self.config.names, &self.challenges).await
    }

    /// Returns the account that is kept, or makes one.
    async fn account(&self) -> Result<Account, OrderFailure> {
        let builder = Account::builder_with_http(Box::new(self.authority.clone()));
        if let Some(credentials) = self.kept.account()? {
            return Ok(builder.from_credentials(credentials).await?);
        }
        let contact = self.config.email.as_ref().map(|address| format!("mailto:{address}"));
        let new = NewAccount {
            contact: &contact.iter().map(String::as_str).collect::<Vec<_>>(),
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let directory = self.config.directory.clone();
        let (account, credentials) = builder.create(&new, directory, None).await?;
        self.kept.keep_account(&credentials)?;
        Ok(account)
    }

    fn obtained(&mut self, validity: Validity, now: SystemTime) {
        let (until, names) = (httpdate::fmt_http_date(validity.until), self.names());
        tracing::info!("the certificate for {names} is there, valid until {until}");
        (self.plan, self.validity) = (self.plan.obtained(now, validity), Some(validity));
        if let RenewalPlan::Failed { .. } = self.plan {
            let next = httpdate::fmt_http_date(self.next_at(now));
            tracing::error!(
                "by this machine's clock the new certificate is old already: set the clock right. \
                 The next order is at {next}"
            );
        }
    }

    fn failed(&mut self, failure: &OrderFailure, now: SystemTime) {
        self.plan = self.plan.failed(now, failure.wait());
        let next = httpdate::fmt_http_date(self.next_at(now));
        let names = self.names();
        match self.validity.filter(|validity| now < validity.until) {
            Some(validity) => {
                let until = httpdate::fmt_http_date(validity.until);
                tracing::warn!(
                    "no new certificate for {names}: {failure}. The present one is valid until \
                     {until}; the next try is at {next}"
                );
            }
            None => tracing::error!(
                "no certificate for {names}: {failure}. The next try is at {next}, or after a \
                 restart"
            ),
        }
    }

    fn names(&self) -> String {
        self.config.names.join(", ")
    }
}

/// Waits until the wall clock shows `at`.
async fn sleep_until(at: SystemTime) {
    while let Ok(left) = at.duration_since(SystemTime::now())
        && !left.is_zero()
    {
        // The clock of the sleep stops while the computer is asleep.
        sleep(left.min(CLOCK_CHECK)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const DIRECTORY: &str = "https://acme.example/dir";

    fn keeper(folder: &Path) -> anyhow::Result<AcmeKeeper> {
        let config = AcmeConfig {
            names: vec!["a.example".into()],
            email: None,
            directory: DIRECTORY.into(),
            trust: Trust::Pinned([0; 32]),
            folder: folder.to_owned(),
        };
        AcmeKeeper::new(config, SystemTime::now())
    }

    #[test]
    fn a_kept_certificate_is_presented_although_its_folder_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptOrders::new(folder.path(), DIRECTORY, "a.example");
        // Also for root, whom no mode keeps from writing.
        fs::create_dir_all(kept.certificate_file().with_extension("orders")).unwrap();
        let error = keeper(folder.path()).err().unwrap().to_string();
        assert!(error.contains("a.example.orders; see --tls-dir"), "{error}");
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let (chain_pem, key_pem) = (made.cert.pem(), made.signing_key.serialize_pem());
        let validity = kept.keep(&IssuedCertificate { chain_pem, key_pem }).unwrap();
        assert_eq!(keeper(folder.path()).unwrap().validity, Some(validity));
    }
}
