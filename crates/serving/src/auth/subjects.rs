//! Clients whom the tokens of an identity provider name, and the limits that hold for them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use loquent_infer::admission::TenantLimits;
use tokio::time::Instant;

use crate::budget::TokenBudgets;
use crate::identity::ApiKey;

/// Maximum subjects whose counts are remembered.
const MAX_SUBJECTS: usize = 10_000;
/// Beginning of their names in logs and metrics, which no name in the file of keys has.
const PREFIX: &str = "jwt:";

/// Weight, limits and rights of each subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SubjectTerms {
    pub weight: u32,
    pub limits: TenantLimits,
    pub budgets: TokenBudgets,
    pub may_set_priority: bool,
    /// The subjects that are admins.
    pub admins: BTreeSet<String>,
}

impl Default for SubjectTerms {
    fn default() -> Self {
        Self {
            weight: 1,
            limits: TenantLimits::default(),
            budgets: TokenBudgets::default(),
            may_set_priority: false,
            admins: BTreeSet::new(),
        }
    }
}

impl SubjectTerms {
    /// Returns the key of the client whom tokens name `subject`.
    fn key_of(&self, subject: &str) -> ApiKey {
        ApiKey {
            name: Some(format!("{PREFIX}{subject}")),
            digests: Vec::new(),
            weight: self.weight,
            limits: self.limits,
            budgets: self.budgets,
            may_set_priority: self.may_set_priority,
            is_admin: self.admins.contains(subject),
            expires_s: None,
            usage: Arc::default(),
        }
    }
}

/// The subjects that tokens have named, each with the time when it was named last.
#[derive(Default)]
pub(crate) struct Subjects {
    terms: SubjectTerms,
    seen: HashMap<String, (Arc<ApiKey>, Instant)>,
}

impl Subjects {
    /// Returns the client `name`, whom a valid token has named.
    pub fn named(&mut self, name: String) -> Arc<ApiKey> {
        // A provider may know more people than there is memory for.
        if self.seen.len() >= MAX_SUBJECTS && !self.seen.contains_key(&name) {
            self.forget_one();
        }
        let terms = &self.terms;
        let entry = self.seen.entry(name);
        let (key, seen) =
            entry.or_insert_with_key(|name| (Arc::new(terms.key_of(name)), Instant::now()));
        *seen = Instant::now();
        key.clone()
    }

    /// Returns the client of `key` with the present terms, if it is remembered.
    pub fn current(&self, key: &ApiKey) -> Option<Arc<ApiKey>> {
        let subject = key.name.as_deref()?.strip_prefix(PREFIX)?;
        self.seen.get(subject).map(|(key, _)| key.clone())
    }

    /// Returns all that are remembered.
    pub fn all(&self) -> Vec<Arc<ApiKey>> {
        self.seen.values().map(|(key, _)| key.clone()).collect()
    }

    /// Sets the terms of all subjects, who keep what they have used.
    pub fn adopt(&mut self, terms: SubjectTerms) {
        if terms == self.terms {
            return;
        }
        for (name, (key, _)) in &mut self.seen {
            *key = Arc::new(ApiKey { usage: key.usage.clone(), ..terms.key_of(name) });
        }
        self.terms = terms;
    }

    /// Removes the subject that was named longest ago.
    fn forget_one(&mut self) {
        let oldest = self.seen.iter().min_by_key(|(_, (_, seen))| *seen);
        let oldest = oldest.map(|(name, _)| name.clone());
        oldest.map(|name| self.seen.remove(&name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_terms_hold_for_whoever_is_known_and_for_whoever_comes() {
        let mut subjects = Subjects::default();
        let before = subjects.named("ann".to_owned());
        assert_eq!((before.weight, before.is_admin), (1, false));
        let admins = BTreeSet::from(["ann".to_owned()]);
        subjects.adopt(SubjectTerms { weight: 3, admins, ..SubjectTerms::default() });
        assert_eq!(subjects.current(&before).map(|ann| ann.weight), Some(3));
        let ann = subjects.named("ann".to_owned());
        assert_eq!((ann.weight, ann.is_admin), (3, true));
        assert!(Arc::ptr_eq(&ann.usage, &before.usage), "what was used stays used");
        assert_eq!(ann.tenant(), before.tenant());
        let bob = subjects.named("bob".to_owned());
        assert_eq!((bob.weight, bob.is_admin), (3, false));
        assert_eq!(subjects.all().len(), 2);
    }

    #[test]
    fn the_subject_named_longest_ago_is_forgotten_first() {
        let mut subjects = Subjects::default();
        for number in 0..MAX_SUBJECTS {
            subjects.named(number.to_string());
        }
        subjects.named("0".to_owned());
        subjects.named("new".to_owned());
        assert_eq!(subjects.seen.len(), MAX_SUBJECTS);
        assert!(subjects.seen.contains_key("0") && !subjects.seen.contains_key("1"));
    }
}
