//! The result of one check, with advice.

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// Everything is in order.
    Fine,
    /// The check was not possible, or there is nothing to check.
    Skipped,
    /// Loquent runs, but something could be better.
    Warning,
    /// Something does not work.
    Failure,
}

impl Severity {
    /// Returns the word for it, on the terminal and in JSON.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Skipped => "skip",
            Self::Warning => "warn",
            Self::Failure => "fail",
        }
    }
}

/// The finding of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Diagnosis {
    /// Name of the check: one word, which programs may rely on.
    pub(super) check: &'static str,
    pub(super) severity: Severity,
    /// Description of the finding.
    pub(super) what: String,
    /// Advice for the user.
    pub(super) advice: Option<String>,
}

impl Diagnosis {
    pub(super) fn fine(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, severity: Severity::Fine, what: what.into(), advice: None }
    }

    pub(super) fn is_failure(&self) -> bool {
        self.severity == Severity::Failure
    }

    pub(super) fn skipped(check: &'static str, what: impl Into<String>) -> Self {
        Self { severity: Severity::Skipped, ..Self::fine(check, what) }
    }

    /// Creates a warning about something that could be better. Advice is mandatory.
    pub(super) fn warning(
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let advice = Some(advice.into());
        Self { severity: Severity::Warning, advice, ..Self::fine(check, what) }
    }

    /// Creates a failure of something that does not work. Advice is mandatory.
    pub(super) fn failure(
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Failure, ..Self::warning(check, what, advice) }
    }
}
