//! One order: proves that the names lead here, and gets their certificate.

use std::fmt;
use std::time::Duration;

use anyhow::Context;
use instant_acme::{
    Account, AuthorizationHandle, AuthorizationStatus, ChallengeType, Error, Identifier, NewOrder,
    Order, OrderStatus, Problem, RetryPolicy,
};
use loquent_openai::causes;
use loquent_proto::printable::printable;
use loquent_server::Challenges;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};

use super::authority::AuthorityBusy;

/// How long the authority may take to check the names, and then to sign.
const PATIENCE: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));
/// Maximum characters of the authority's own words in an error.
const MAX_DETAIL_CHARS: usize = 400;
/// Beginning of all types of problems (RFC 8555 §6.7).
const PROBLEM_TYPE: &str = "urn:ietf:params:acme:error:";

/// A certificate that was ordered.
pub(super) struct IssuedCertificate {
    /// The chain in PEM, the server's own certificate first.
    pub(super) chain_pem: String,
    /// Its private key in PEM.
    pub(super) key_pem: String,
}

/// Orders a certificate for `names`, and has `challenges` show that they lead to this server.
///
/// # Errors
/// If the authority refuses, cannot be reached, or does not reach this server.
pub(super) async fn order(
    account: &Account,
    names: &[String],
    challenges: &Challenges,
) -> Result<IssuedCertificate, OrderFailure> {
    let identifiers: Vec<_> = names.iter().cloned().map(Identifier::Dns).collect();
    let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        prove(authorization?, challenges).await?;
    }
    match order.poll_ready(&PATIENCE).await {
        Ok(OrderStatus::Invalid) => return Err(refusal(&mut order, None).await),
        // Some authorities repeat the reason in the order, but not the name.
        Err(Error::Api(problem)) => return Err(refusal(&mut order, Some(problem)).await),
        other => other?,
    };
    let (key, request) = signing_request(names)?;
    order.finalize_csr(&request).await?;
    let chain_pem = order.poll_certificate(&PATIENCE).await?;
    Ok(IssuedCertificate { chain_pem, key_pem: key.serialize_pem() })
}

/// Prepares the answer to the challenge of one name, and says that it is ready.
async fn prove(
    mut authorization: AuthorizationHandle<'_>,
    challenges: &Challenges,
) -> Result<(), OrderFailure> {
    if authorization.status != AuthorizationStatus::Pending {
        // The authority remembers an earlier proof, or will say what is wrong with the order.
        return Ok(());
    }
    let challenge = authorization.challenge(ChallengeType::TlsAlpn01);
    let mut challenge = challenge.context("the authority offers no challenge TLS-ALPN-01")?;
    let digest = challenge.key_authorization().digest();
    let digest = digest.as_ref().try_into().context("a SHA-256 has 32 bytes")?;
    challenges.answer(&challenge.identifier().to_string(), digest)?;
    Ok(challenge.set_ready().await?)
}

/// Makes a new key, and the request to sign it, in DER.
fn signing_request(names: &[String]) -> anyhow::Result<(KeyPair, Vec<u8>)> {
    let mut params = CertificateParams::new(names)?;
    // Authorities take the names from the alternative names alone.
    params.distinguished_name = DistinguishedName::new();
    let key = KeyPair::generate()?;
    let request = params.serialize_request(&key)?;
    Ok((key, request.der().to_vec()))
}

/// Finds out which name the authority could not check, and why; otherwise `known` is the reason.
async fn refusal(order: &mut Order, known: Option<Problem>) -> OrderFailure {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else { break };
        let name = state.identifier().to_string();
        if let Some(problem) = state.challenges.iter().find_map(|it| it.error.clone()) {
            return OrderFailure::of_name(&name, &problem);
        }
    }
    match known {
        Some(problem) => OrderFailure::of_problem(&problem),
        None => OrderFailure::of_words("the authority refuses the order without a reason"),
    }
}

/// Reason why an order failed, for the log: what happened, then what to do.
#[derive(Debug)]
pub(super) struct OrderFailure {
    what: String,
    advice: &'static str,
    wait: Option<Duration>,
    is_of_a_lost_account: bool,
}

impl OrderFailure {
    /// Creates the failure of an order that took longer than `limit`.
    pub(super) fn late(limit: Duration) -> Self {
        anyhow::anyhow!("it took longer than {} s", limit.as_secs()).into()
    }

    /// Returns the time for which the authority wants no other order.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.wait
    }

    /// Returns true if the authority does not know the kept account.
    pub(super) fn is_of_a_lost_account(&self) -> bool {
        self.is_of_a_lost_account
    }

    fn of_name(name: &str, problem: &Problem) -> Self {
        let failure = Self::of_problem(problem);
        Self { what: format!("{name}: {}", failure.what), ..failure }
    }

    fn of_problem(problem: &Problem) -> Self {
        // Types without the prefix are the authority's own, and have no advice.
        let kind = problem.r#type.as_deref().unwrap_or_default();
        let kind = kind.strip_prefix(PROBLEM_TYPE).unwrap_or(kind);
        let details = problem.subproblems.iter().map(ToString::to_string);
        let all: Vec<_> = problem.detail.iter().cloned().chain(details).collect();
        let words = if all.is_empty() { kind.to_owned() } else { all.join("; ") };
        let is_of_a_lost_account = kind == "accountDoesNotExist";
        Self { advice: advice(kind), is_of_a_lost_account, ..Self::of_words(&words) }
    }

    /// Creates a failure in these words, which may be the authority's.
    fn of_words(words: &str) -> Self {
        let what = printable(words).replace('\n', " ").chars().take(MAX_DETAIL_CHARS).collect();
        Self { what, advice: "", wait: None, is_of_a_lost_account: false }
    }
}

/// Returns what to do about a problem of this type.
fn advice(kind: &str) -> &'static str {
    match kind {
        "connection" | "tls" | "unauthorized" | "incorrectResponse" => {
            "see that port 443 of the name leads to this server, past every proxy that ends TLS"
        }
        "dns" => "see that the name's A and AAAA records are this server's addresses",
        "caa" => "the name's CAA record must allow this authority",
        "rejectedIdentifier" => "the authority signs no certificate for this name",
        "rateLimited" => "try settings with the authority's directory for tests",
        "externalAccountRequired" => "choose an authority that needs no account made elsewhere",
        "invalidContact" | "unsupportedContact" => "see --acme-email",
        _ => "",
    }
}

impl fmt::Display for OrderFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.what.trim_end_matches('.'))?;
        match self.advice {
            "" => Ok(()),
            advice => write!(formatter, "; {advice}"),
        }
    }
}

impl From<Error> for OrderFailure {
    fn from(error: Error) -> Self {
        match error {
            Error::Api(problem) => Self::of_problem(&problem),
            Error::Other(other) => match other.downcast::<AuthorityBusy>() {
                Ok(busy) => Self { wait: Some(busy.wait), ..Self::of_problem(&busy.problem) },
                Err(other) => Self::of_words(&causes(&*other)),
            },
            other => Self::of_words(&causes(&other)),
        }
    }
}

impl From<anyhow::Error> for OrderFailure {
    fn from(error: anyhow::Error) -> Self {
        Self::of_words(&format!("{error:#}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(kind: &str, detail: &str) -> Problem {
        let json = serde_json::json!({"type": format!("{PROBLEM_TYPE}{kind}"), "detail": detail});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_failure_says_what_happened_and_what_to_do() {
        let refused = problem("connection", "192.0.2.1: Connection refused.");
        let failure = OrderFailure::of_name("llm.example", &refused);
        assert_eq!(
            failure.to_string(),
            "llm.example: 192.0.2.1: Connection refused; see that port 443 of the name leads to \
             this server, past every proxy that ends TLS"
        );
        assert_eq!(OrderFailure::from(Error::Api(problem("odd", "so"))).to_string(), "so");
        let silent = Problem { detail: None, ..problem("caa", "") };
        assert!(OrderFailure::of_problem(&silent).to_string().starts_with("caa; the name's CAA"));
    }

    #[test]
    fn the_authoritys_words_are_one_short_line() {
        let detail = format!("a\nLoquent serves\u{1b}[2J{}", "x".repeat(9999));
        let words = OrderFailure::of_problem(&problem("odd", &detail)).to_string();
        assert!(words.starts_with("a Loquent serves[2Jxx") && words.len() == MAX_DETAIL_CHARS);
    }

    #[test]
    fn a_busy_authority_and_a_lost_account_are_recognized() {
        let busy = AuthorityBusy {
            problem: problem("rateLimited", "too many orders"),
            wait: Duration::from_secs(90),
        };
        let failure = OrderFailure::from(Error::Other(Box::new(busy)));
        assert_eq!(failure.wait(), Some(Duration::from_secs(90)));
        assert!(failure.to_string().starts_with("too many orders; "), "{failure}");
        let lost = OrderFailure::from(Error::Api(problem("accountDoesNotExist", "who?")));
        assert!(lost.is_of_a_lost_account() && !failure.is_of_a_lost_account());
        assert_eq!(
            OrderFailure::late(Duration::from_secs(9)).to_string(),
            "it took longer than 9 s"
        );
    }
}
