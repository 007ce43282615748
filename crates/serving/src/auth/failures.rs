//! Limits wrong API keys per client address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use loquent_infer::rate::MinuteBudget;

/// Number of wrong keys that an address may send at once, and within each minute.
const WRONG_KEYS_PER_MINUTE: u32 = 60;
/// Maximum number of addresses to remember. An attacker with more of them is not slowed down, but
/// cannot lock anybody else out.
const MAX_ADDRESSES: usize = 4096;

/// Budgets of addresses that recently sent wrong keys.
#[derive(Default)]
pub struct FailedAttempts(HashMap<IpAddr, MinuteBudget>);

impl FailedAttempts {
    /// Returns the time for which `address` should wait at `now` because it has sent too many wrong
    /// keys.
    pub fn wait_of(&self, address: IpAddr, now: Duration) -> Option<Duration> {
        let wait = self.0.get(&address)?.wait_for(1, now);
        (!wait.is_zero()).then_some(wait)
    }

    /// Records a wrong key from `address` at `now`. Returns the time for which the address should
    /// wait if it has sent too many.
    pub fn on_wrong_key(&mut self, address: IpAddr, now: Duration) -> Option<Duration> {
        if self.0.len() >= MAX_ADDRESSES && !self.0.contains_key(&address) {
            self.0.retain(|_, budget| !budget.wait_until_full(now).is_zero());
            if self.0.len() >= MAX_ADDRESSES {
                return None;
            }
        }
        let new = || MinuteBudget::new(WRONG_KEYS_PER_MINUTE, now);
        let budget = self.0.entry(address).or_insert_with(new);
        let wait = budget.wait_for(1, now);
        if !wait.is_zero() {
            return Some(wait);
        }
        budget.spend(1, now);
        if !budget.wait_for(1, now).is_zero() {
            tracing::warn!(%address, "many wrong API keys came from one address");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    //! Many wrong keys are refused by address, within bounded memory.
    use super::*;

    fn address(n: usize) -> IpAddr {
        IpAddr::from((n as u32).to_be_bytes())
    }

    #[test]
    fn an_address_waits_after_many_wrong_keys_and_others_do_not() {
        let mut failures = FailedAttempts::default();
        let all = WRONG_KEYS_PER_MINUTE as usize;
        assert_eq!(failures.wait_of(address(1), Duration::ZERO), None);
        assert!((0..all).all(|_| failures.on_wrong_key(address(1), Duration::ZERO).is_none()));
        let wait = failures.on_wrong_key(address(1), Duration::ZERO).unwrap();
        assert_eq!(failures.wait_of(address(1), Duration::ZERO), Some(wait));
        assert_eq!(failures.wait_of(address(1), wait), None);
        assert_eq!(failures.on_wrong_key(address(2), Duration::ZERO), None);
        assert_eq!(failures.on_wrong_key(address(1), wait), None);
    }

    #[test]
    fn addresses_are_forgotten_when_they_have_waited() {
        let mut failures = FailedAttempts::default();
        (0..2 * MAX_ADDRESSES).for_each(|n| {
            failures.on_wrong_key(address(n), Duration::ZERO);
        });
        assert_eq!(failures.0.len(), MAX_ADDRESSES);
        failures.on_wrong_key(address(2 * MAX_ADDRESSES), Duration::from_secs(60));
        assert_eq!(failures.0.len(), 1);
    }
}
