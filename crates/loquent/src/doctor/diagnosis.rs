//! What one check found, and what to do about it.

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// As it should be.
    Fine,
    /// It could not be checked, or there is nothing to check.
    Skipped,
    /// Loquent runs, and something is worse than it could be.
    Warning,
    /// Something does not work.
    Failure,
}

impl Severity {
    /// The word for it, on the terminal and in JSON.
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
    /// The check's name: one word, which programs may rely on.
    pub(super) check: &'static str,
    pub(super) severity: Severity,
    /// What was found.
    pub(super) what: String,
    /// What to do about it.
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

    /// Something worse than it could be. What to do is not optional.
    pub(super) fn warning(
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let advice = Some(advice.into());
        Self { severity: Severity::Warning, advice, ..Self::fine(check, what) }
    }

    /// Something that does not work. What to do is not optional.
    pub(super) fn failure(
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Failure, ..Self::warning(check, what, advice) }
    }
}
