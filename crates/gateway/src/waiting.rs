//! Decides which waiting request gets the next place at an upstream whose servers are at their
//! limit: that of the tenant with the least service by weight, in order of arrival within a tenant.
//!
//! As in the engine's own batch (`infer/scheduler/shares.rs`), service is counted in tokens, and
//! each place that a tenant holds counts in advance for the tokens it will serve. A new tenant
//! starts level with the least served of the competing tenants: being idle earns no credit.

use std::collections::{BTreeMap, HashMap, VecDeque};

use loquent_infer::tenant::{Tenant, TenantId};

/// Tokens charged for a place before it has served any.
const PLACE_TOKENS: u64 = 64;
/// Service of one token at weight 1, so that a token at any weight is a whole number.
const TOKEN: u64 = 1 << 20;

/// Maximum number of idle tenants whose lead is remembered.
const MAX_REMEMBERED: usize = 1024;

/// Handle of a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Current places, past service and waiting requests of one tenant.
#[derive(Debug, Default)]
struct TenantLine {
    weight: u64,
    /// Tokens served, each divided by the weight, in units of [`TOKEN`].
    served: u64,
    /// Completions in progress.
    places: u64,
    waiting: VecDeque<Ticket>,
}

impl TenantLine {
    fn standing(&self) -> u64 {
        self.served + self.places * PLACE_TOKENS * TOKEN / self.weight.max(1)
    }

    fn is_idle(&self) -> bool {
        self.places == 0 && self.waiting.is_empty()
    }
}

/// Waiting requests and the service of their tenants. `W` is the data stored with each waiting
/// request.
#[derive(Debug)]
pub struct WaitingRoom<W> {
    lines: HashMap<TenantId, TenantLine>,
    waiting: BTreeMap<Ticket, (TenantId, W)>,
    next: u64,
}

impl<W> Default for WaitingRoom<W> {
    fn default() -> Self {
        Self { lines: HashMap::new(), waiting: BTreeMap::new(), next: 0 }
    }
}

impl<W> WaitingRoom<W> {
    /// Returns true if no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a waiting request of `tenant`.
    pub fn join(&mut self, tenant: Tenant, waiter: W) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.line(tenant).waiting.push_back(ticket);
        self.waiting.insert(ticket, (tenant.id, waiter));
        ticket
    }

    /// Removes a waiting request, served or not. Returns its data if it was still waiting.
    pub fn leave(&mut self, ticket: Ticket) -> Option<W> {
        let (tenant, waiter) = self.waiting.remove(&ticket)?;
        if let Some(line) = self.lines.get_mut(&tenant) {
            line.waiting.retain(|waiting| *waiting != ticket);
        }
        self.forget_if_idle(tenant);
        Some(waiter)
    }

    /// Returns the first waiting request of each tenant, least served tenant first. The next
    /// request of a tenant follows once its first has a place.
    pub fn due(&self) -> Vec<Ticket> {
        let first =
            |line: &TenantLine| line.waiting.front().map(|&ticket| (line.standing(), ticket));
        let mut due: Vec<_> = self.lines.values().filter_map(first).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, ticket)| ticket).collect()
    }

    /// Returns the data of a waiting request.
    pub fn waiter(&self, ticket: Ticket) -> Option<&W> {
        self.waiting.get(&ticket).map(|(_, waiter)| waiter)
    }

    /// Records that a tenant takes places for `completions`.
    pub fn take_places(&mut self, tenant: Tenant, completions: u64) {
        self.line(tenant).places += completions;
    }

    /// Records that a tenant returns places, after `tokens` were computed for it.
    pub fn give_places(&mut self, tenant: Tenant, completions: u64, tokens: u64) {
        let line = self.line(tenant);
        line.places = line.places.saturating_sub(completions);
        line.served = line.served.saturating_add(tokens.saturating_mul(TOKEN) / line.weight);
        self.forget_if_idle(tenant.id);
    }

    fn line(&mut self, tenant: Tenant) -> &mut TenantLine {
        self.forget_one();
        let floor = self.lines.values().map(|line| line.served).min().unwrap_or(0);
        let line = self
            .lines
            .entry(tenant.id)
            .or_insert(TenantLine { served: floor, ..TenantLine::default() });
        line.weight = u64::from(tenant.weight).clamp(1, TOKEN);
        line
    }

    /// Forgets the idle tenant with the smallest lead if too many are remembered.
    fn forget_one(&mut self) {
        if self.lines.len() >= MAX_REMEMBERED {
            let idle = self.lines.iter().filter(|(_, line)| line.is_idle());
            let least = idle.min_by_key(|(_, line)| line.served).map(|(id, _)| *id);
            least.into_iter().for_each(|id| drop(self.lines.remove(&id)));
        }
    }

    /// Forgets an idle tenant unless it has a lead over tenants that still compete.
    fn forget_if_idle(&mut self, tenant: TenantId) {
        if self.lines.get(&tenant).is_some_and(TenantLine::is_idle) {
            let others = self.lines.iter().filter(|(id, line)| **id != tenant && !line.is_idle());
            let least = others.map(|(_, line)| line.served).min();
            // With a lead it is remembered, as long as somebody competes.
            if least.is_none_or(|least| self.lines[&tenant].served <= least) {
                self.lines.remove(&tenant);
            }
            if least.is_none() {
                self.lines.retain(|_, line| !line.is_idle());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(id: u64, weight: u32) -> Tenant {
        Tenant { id: TenantId(id), weight, is_spare: false }
    }

    /// Serves requests of 100 tokens, `places` at once, and counts those of each tenant among the
    /// first `served`. Each of `tenants` always has ten waiting requests.
    fn serve(tenants: &[Tenant], places: usize, served: usize) -> Vec<usize> {
        let (mut room, mut running) = (WaitingRoom::default(), VecDeque::new());
        for tenant in tenants {
            for _ in 0..10 {
                room.join(*tenant, *tenant);
            }
        }
        let mut counts = vec![0; tenants.len()];
        for _ in 0..served {
            if running.len() == places {
                let done: Tenant = running.pop_front().unwrap();
                room.give_places(done, 1, 100);
            }
            let tenant = room.leave(room.due()[0]).unwrap();
            room.take_places(tenant, 1);
            room.join(tenant, tenant);
            running.push_back(tenant);
            counts[tenants.iter().position(|one| *one == tenant).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn tenants_are_served_by_weight() {
        let counts = serve(&[tenant(1, 1), tenant(2, 1), tenant(3, 2)], 4, 400);
        assert!((95..=105).contains(&counts[0]) && (95..=105).contains(&counts[1]), "{counts:?}");
        assert!((195..=205).contains(&counts[2]), "{counts:?}");
    }

    #[test]
    fn a_newcomer_is_next_and_a_greedy_one_waits() {
        let mut room = WaitingRoom::default();
        let (greedy, other) = (tenant(1, 1), tenant(2, 1));
        room.take_places(greedy, 8);
        let waiting: Vec<Ticket> = (0..5).map(|_| room.join(greedy, ())).collect();
        let newcomer = room.join(other, ());
        assert_eq!(room.due(), [newcomer, waiting[0]]);
        assert!(room.leave(newcomer).is_some() && room.leave(newcomer).is_none());
        assert_eq!(room.due(), [waiting[0]], "one tenant's requests keep their order");
        assert!(room.leave(waiting[0]).is_some());
        assert_eq!(room.due(), [waiting[1]]);
        assert_eq!(room.len(), 4);
    }

    #[test]
    fn being_idle_earns_nothing_and_nothing_is_kept_of_those_who_left() {
        let mut room: WaitingRoom<()> = WaitingRoom::default();
        let (one, other) = (tenant(1, 1), tenant(2, 1));
        room.take_places(one, 1);
        room.give_places(one, 1, 1_000_000);
        assert!(room.lines.is_empty(), "nobody competed");
        room.take_places(one, 2);
        room.give_places(one, 1, 1000);
        room.take_places(other, 1);
        assert_eq!(room.lines[&other.id].served, room.lines[&one.id].served);
        room.give_places(one, 1, 0);
        room.give_places(other, 1, 0);
        assert!(room.lines.is_empty());
    }
}
