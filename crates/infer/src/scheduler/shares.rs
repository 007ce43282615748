//! Fair, weighted shares of the engine between tenants.
//!
//! Two resources are shared: *places* in the batch, each worth a token per step, and the prefill
//! budget of a step. Every tenant that competes gets its weighted part of both. Fractions of
//! places, or more tenants than places, are shared over time by counting the tokens that each
//! tenant was served, as deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) and the virtual
//! token counter (Sheng et al., OSDI 2024) do. A place that a tenant holds counts as
//! [`QUANTUM_TOKENS`]: a tenant that was served that many fewer is due for it.

use crate::tenant::{Tenant, TenantId};

/// Index of a tenant's account.
pub(super) type AccountId = usize;

/// Tokens of weight 1 by which the service of two tenants may differ before a place changes hands.
/// Chosen by hand: a few seconds of an answer. Fewer would make answers stutter if tenants
/// outnumber places, more would let them wait longer.
const QUANTUM_TOKENS: u64 = 64;
/// Service of one token at weight 1, so that a token at any weight is a whole number.
const TOKEN: u64 = 1 << 20;
/// Highest weight that still makes a difference.
const MAX_WEIGHT: u64 = TOKEN;
/// Maximum tenants without work whose service is remembered.
const MAX_REMEMBERED: usize = 1024;

/// Current places and past service of one tenant.
#[derive(Debug, Clone)]
struct Account {
    /// The tenant; `None` if the account is vacant.
    id: Option<TenantId>,
    weight: u64,
    /// True if the tenant takes only what others leave.
    is_spare: bool,
    /// Tokens computed for the tenant, each divided by its weight, in units of [`TOKEN`].
    served: u64,
    /// Number of the tenant's sequences in the batch.
    places: u64,
    /// Number of the tenant's sequences that have not ended.
    sequences: usize,
    /// Number of them that are not paused.
    competing: usize,
}

/// The accounts of all tenants with work.
#[derive(Debug, Default)]
pub(super) struct Shares {
    accounts: Vec<Account>,
    /// Indices of vacant `accounts`.
    vacant: Vec<AccountId>,
    /// Number of tenants with a sequence that is not paused.
    rivals: usize,
    /// Least service among those: a new tenant starts here, so that being idle earns nothing.
    floor: u64,
    /// Least weight among those.
    least_weight: u64,
}

impl Shares {
    /// Notes that a sequence of `tenant` was submitted.
    pub fn join(&mut self, tenant: Tenant) -> AccountId {
        let known = self.accounts.iter().position(|account| account.id == Some(tenant.id));
        let account = known.unwrap_or_else(|| self.open(tenant.id));
        self.accounts[account].weight = u64::from(tenant.weight).clamp(1, MAX_WEIGHT);
        self.accounts[account].is_spare = tenant.is_spare;
        self.accounts[account].sequences += 1;
        self.resume(account);
        account
    }

    /// Notes that a sequence has ended, and whether it was paused.
    pub fn leave(&mut self, account: AccountId, paused: bool) {
        self.accounts[account].sequences -= 1;
        if !paused {
            self.pause(account);
        }
        self.forget_if_settled(account);
    }

    /// Notes that a sequence no longer competes: its reader is behind.
    pub fn pause(&mut self, account: AccountId) {
        self.settle();
        self.accounts[account].competing -= 1;
        if self.accounts[account].competing > 0 {
            return;
        }
        self.rivals -= 1;
        if self.rivals == 0 {
            // Nobody waits for anybody: all accounts are even.
            self.floor = self.accounts.iter().map(|account| account.served).max().unwrap_or(0);
            (0..self.accounts.len()).for_each(|account| self.forget_if_settled(account));
        }
    }

    /// Notes that a sequence competes (again).
    pub fn resume(&mut self, account: AccountId) {
        self.settle();
        let floor = self.floor;
        let account = &mut self.accounts[account];
        account.competing += 1;
        if account.competing == 1 {
            account.served = account.served.max(floor);
            self.rivals += 1;
        }
    }

    /// Notes that a sequence got a place in the batch.
    pub fn take_place(&mut self, account: AccountId) {
        self.accounts[account].places += 1;
    }

    /// Notes that a sequence has left its place.
    pub fn give_place(&mut self, account: AccountId) {
        self.accounts[account].places -= 1;
    }

    /// Notes that `tokens` were computed.
    pub fn charge(&mut self, account: AccountId, tokens: u32) {
        let account = &mut self.accounts[account];
        account.served += u64::from(tokens) * TOKEN / account.weight;
    }

    /// Returns true if more than one tenant competes.
    pub fn contended(&self) -> bool {
        self.rivals > 1
    }

    /// Updates the least service after tokens were computed.
    pub fn settle(&mut self) {
        let competing = || self.accounts.iter().filter(|account| account.competing > 0);
        if let Some(least) = competing().map(|account| account.served).min() {
            self.floor = least.max(self.floor);
            self.least_weight = competing().map(|account| account.weight).min().unwrap_or(1);
        }
    }

    /// Service of the tenant if it had one more place.
    pub fn with_one_more(&self, account: AccountId) -> u64 {
        self.with_more(account, 1)
    }

    /// Service of the tenant if it had `places` more places.
    pub fn with_more(&self, account: AccountId, places: u64) -> u64 {
        self.standing(account, self.accounts[account].places + places)
    }

    /// Current service of the tenant, its places included; a tenant with more should give rather
    /// than get.
    pub fn now(&self, account: AccountId) -> u64 {
        self.standing(account, self.accounts[account].places)
    }

    /// Returns true if the tenant takes only what others leave.
    pub fn is_spare(&self, account: AccountId) -> bool {
        self.accounts[account].is_spare
    }

    /// Returns true if a place of `giver` belongs to `taker`: even after giving it, `giver` is
    /// served no less. A place of spare work belongs to everybody else. This never holds in both
    /// directions one after the other, so no place swings to and fro before a quantum was computed.
    pub fn owes(&self, giver: AccountId, taker: AccountId) -> bool {
        let places = self.accounts[giver].places;
        if giver == taker || places == 0 {
            return false;
        }
        match (self.is_spare(giver), self.is_spare(taker)) {
            (true, false) => true,
            (false, true) => false,
            _ => self.with_one_more(taker) <= self.standing(giver, places - 1),
        }
    }

    /// Returns true if any tenant owes `taker` a place.
    pub fn is_owed(&self, taker: AccountId) -> bool {
        self.contended() && (0..self.accounts.len()).any(|giver| self.owes(giver, taker))
    }

    /// Service ahead of the least served, plus the service of `places` in a quantum. A lead counts
    /// as one place at most: otherwise a long prompt, which is many tokens but little time, would
    /// cost a tenant its only place.
    fn standing(&self, account: AccountId, places: u64) -> u64 {
        let Account { served, weight, .. } = self.accounts[account];
        let lead = served.saturating_sub(self.floor);
        let place = QUANTUM_TOKENS * TOKEN;
        lead.min(place / self.least_weight.max(1)) + places * place / weight
    }

    /// Splits `budget` by weight between tenants that want the given numbers of tokens. The least
    /// served is rounded up, so that no tenant gets nothing forever.
    pub fn split(&self, budget: u32, wanted: &[(AccountId, u32)]) -> Vec<u32> {
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by_key(|&at| self.accounts[wanted[at].0].served);
        let weight = |at: usize| self.accounts[wanted[at].0].weight;
        let (mut left, mut weights) = (u64::from(budget), order.iter().map(|&at| weight(at)).sum());
        let mut parts = vec![0; wanted.len()];
        for &at in &order {
            let part: u64 = (left * weight(at)).div_ceil(weights);
            weights -= weight(at);
            parts[at] = part.min(left).min(u64::from(wanted[at].1)) as u32;
            left -= u64::from(parts[at]);
        }
        // What some do not want goes to those who do.
        for &at in &order {
            let more = left.min(u64::from(wanted[at].1 - parts[at]));
            parts[at] += more as u32;
            left -= more;
        }
        parts
    }

    fn open(&mut self, id: TenantId) -> AccountId {
        self.forget_old();
        let (id, served) = (Some(id), self.floor);
        let account = Account {
            id,
            weight: 1,
            is_spare: false,
            served,
            places: 0,
            sequences: 0,
            competing: 0,
        };
        if let Some(at) = self.vacant.pop() {
            self.accounts[at] = account;
            return at;
        }
        self.accounts.push(account);
        self.accounts.len() - 1
    }

    /// Forgets tenants without work whose lead the others have made up for; if too many are left,
    /// also the one with the least lead.
    fn forget_old(&mut self) {
        (0..self.accounts.len()).for_each(|account| self.forget_if_settled(account));
        let remembered = |account: &Account| account.id.is_some() && account.sequences == 0;
        let idle = || (0..self.accounts.len()).filter(|&at| remembered(&self.accounts[at]));
        if idle().count() >= MAX_REMEMBERED {
            let least = idle().min_by_key(|&at| self.accounts[at].served);
            least.into_iter().for_each(|account| self.forget(account));
        }
    }

    fn forget_if_settled(&mut self, account: AccountId) {
        let Account { id, sequences, served, .. } = self.accounts[account];
        if id.is_some() && sequences == 0 && served <= self.floor {
            self.forget(account);
        }
    }

    fn forget(&mut self, account: AccountId) {
        self.accounts[account].id = None;
        self.vacant.push(account);
    }
}
