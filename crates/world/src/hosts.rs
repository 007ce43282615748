//! The hosts of the replicas: they start them, and their faults hit them.

use std::collections::BTreeSet;

use loquent_infer::tenant::TenantId;
use loquent_resumable::HeldShares;

use crate::dice::Dice;
use crate::glue::GlueFault;
use crate::history::WorldHistory;
use crate::news::ReaderNews;
use crate::plan::{PlannedFault, REPLICAS, RollingUpdate, WorldFault};
use crate::replica::SimulatedReplica;
use crate::service::{ServiceSettings, key_of};
use crate::store::{LinkState, SimulatedStore, name_of};

/// Time after a fault from which a replica counts as undisturbed: two leases.
const SETTLED_AFTER_MS: u64 = 6_000;

/// A host, with its replica if that runs.
#[derive(Default)]
struct ReplicaHost {
    replica: Option<SimulatedReplica>,
    starts: u64,
    fault: Option<PlannedFault>,
    /// Time of the last change.
    touched_ms: u64,
    /// Version of the replica.
    version: u64,
    /// Seeds of the questions that the replica was asked.
    asked: Vec<u64>,
}

/// All hosts.
pub struct ReplicaHosts {
    seed: u64,
    dice: Dice,
    hosts: [ReplicaHost; REPLICAS],
    update: Option<RollingUpdate>,
    glue: Option<GlueFault>,
    /// Names in the store of the replicas that have ended.
    pub dead: BTreeSet<String>,
}

impl ReplicaHosts {
    /// Creates hosts without replicas.
    pub fn new(seed: u64, update: Option<RollingUpdate>, glue: Option<GlueFault>) -> Self {
        let (dice, hosts) = (Dice::new(seed, 4), Default::default());
        Self { seed, dice, hosts, update, glue, dead: BTreeSet::new() }
    }

    /// Starts the replica of a host.
    pub fn start(&mut self, at: usize, now_ms: u64, store: &SimulatedStore) {
        let host = &mut self.hosts[at];
        host.starts += 1;
        host.touched_ms = now_ms;
        // Places of keys are the process's own.
        host.asked.clear();
        let is_new = |update: RollingUpdate| update.has_new[at] || host.starts > 1;
        host.version = u64::from(self.update.is_some_and(is_new));
        // Without a told update, takeovers are not refused: the texts themselves must differ.
        let is_told = self.update.is_some_and(|update| update.is_told);
        let settings = ServiceSettings {
            flush_tokens: self.dice.between(1, 4) as usize,
            version: host.version,
            told_version: if is_told { host.version } else { 0 },
        };
        // Another name and other ids than those of the replica before.
        let starts = if self.glue == Some(GlueFault::NameKept) { 1 } else { host.starts };
        let seed = self.seed ^ (at as u64 + 1) << 32 ^ starts << 40;
        let dialer = store.dialer(at);
        host.replica = Some(SimulatedReplica::start(now_ms, dialer, seed, settings, self.glue));
    }

    /// Notes that the replica of a host is asked a question; returns its version.
    pub fn note_question(&mut self, at: usize, seed: u64) -> u64 {
        let host = &mut self.hosts[at];
        host.asked.push(seed);
        host.version
    }

    /// Returns the number of questions that the replica of a host was asked by the key of `seed`.
    pub fn asked_by_key_of(&self, at: usize, seed: u64) -> usize {
        let asked = self.hosts[at].asked.iter();
        asked.filter(|other| key_of(**other) == key_of(seed)).count()
    }

    /// True if a replica of this version runs.
    pub fn has_version(&self, version: u64) -> bool {
        self.hosts.iter().any(|host| host.replica.is_some() && host.version == version)
    }

    /// Returns the requests begun again since the last call, each with its seed and key.
    pub fn take_taken(&self) -> Vec<(u64, TenantId)> {
        let replicas = self.hosts.iter().filter_map(|host| host.replica.as_ref());
        replicas.flat_map(SimulatedReplica::take_taken).collect()
    }

    /// Returns the replica of a host if it takes requests.
    pub fn ready(&self, at: usize) -> Option<&SimulatedReplica> {
        let host = &self.hosts[at];
        let is_leaving = host.fault.is_some_and(|fault| fault.kind == WorldFault::Term);
        host.replica.as_ref().filter(|replica| replica.is_ready() && !is_leaving)
    }

    /// True if a replica runs on the host.
    pub fn is_up(&self, at: usize) -> bool {
        self.hosts[at].replica.is_some()
    }

    /// Returns the host on which the replica with this name in the store runs.
    pub fn host_of(&self, name: &str) -> Option<usize> {
        let is_its = |host: &ReplicaHost| {
            host.replica.as_ref().is_some_and(|replica| replica.name() == Some(name))
        };
        self.hosts.iter().position(is_its)
    }

    /// True if nothing has happened to the host for long.
    pub fn is_settled(&self, at: usize, now_ms: u64) -> bool {
        let host = &self.hosts[at];
        host.fault.is_none() && now_ms >= host.touched_ms + SETTLED_AFTER_MS
    }

    /// Begins a fault, unless the host has one.
    pub fn begin(
        &mut self,
        fault: PlannedFault,
        store: &mut SimulatedStore,
        history: &mut WorldHistory,
    ) {
        let host = &mut self.hosts[fault.replica];
        if host.fault.is_some() {
            return;
        }
        (host.fault, host.touched_ms) = (Some(fault), fault.at_ms);
        history.tell(fault.at_ms, &format!("{}: {:?}", name_of(fault.replica), fault.kind));
        match fault.kind {
            WorldFault::Kill => self.end_replica(fault.replica),
            WorldFault::Term => {
                host.replica.iter().for_each(SimulatedReplica::leave);
            }
            WorldFault::Cut => store.set_link(fault.replica, LinkState::Cut),
            WorldFault::Stall => store.set_link(fault.replica, LinkState::Stalls),
            _ => {}
        }
    }

    /// Ends the faults that are over at `now_ms`.
    pub fn mend(&mut self, now_ms: u64, store: &mut SimulatedStore, history: &mut WorldHistory) {
        for at in 0..REPLICAS {
            let host = &mut self.hosts[at];
            let has_left = host.replica.as_ref().is_some_and(SimulatedReplica::has_left);
            if has_left {
                history.tell(now_ms, &format!("{} has left", name_of(at)));
                self.end_replica(at);
            }
            let Some(fault) = self.hosts[at].fault.filter(|fault| fault.until_ms <= now_ms) else {
                continue;
            };
            let is_gone = matches!(fault.kind, WorldFault::Kill | WorldFault::Term);
            if is_gone && self.hosts[at].replica.is_some() {
                // Whoever has not left in time is killed. Its readers see that it is gone before
                // another one is there.
                self.end_replica(at);
                continue;
            }
            history.tell(now_ms, &format!("{}: no {:?} any more", name_of(at), fault.kind));
            let host = &mut self.hosts[at];
            (host.fault, host.touched_ms) = (None, now_ms);
            match fault.kind {
                WorldFault::Kill | WorldFault::Term => self.start(at, now_ms, store),
                WorldFault::Cut | WorldFault::Stall => store.set_link(at, LinkState::Works),
                _ => {}
            }
        }
    }

    fn end_replica(&mut self, at: usize) {
        let Some(replica) = self.hosts[at].replica.take() else { return };
        self.dead.extend(replica.name().map(str::to_owned));
    }

    /// Lets time pass at all replicas that do not stand still.
    pub fn run_until(&mut self, now_ms: u64) {
        for host in &mut self.hosts {
            let stands = host.fault.is_some_and(|fault| fault.kind == WorldFault::Pause);
            if let Some(replica) = host.replica.as_mut().filter(|_| !stands) {
                replica.run_until(now_ms);
            }
        }
    }

    /// Returns the news of all readers.
    pub fn take_news(&self) -> Vec<(u64, ReaderNews)> {
        let replicas = self.hosts.iter().filter_map(|host| host.replica.as_ref());
        replicas.flat_map(SimulatedReplica::take_news).collect()
    }

    /// Returns the number of background responses that replicas generate, or have still to store.
    pub fn responses(&self) -> usize {
        let replicas = self.hosts.iter().filter_map(|host| host.replica.as_ref());
        replicas.map(SimulatedReplica::responses).sum()
    }

    /// Returns the name in the store of the replica of a host.
    pub fn name(&self, at: usize) -> Option<String> {
        self.hosts[at].replica.as_ref()?.name().map(str::to_owned)
    }

    /// Returns the version of the replica of a host.
    pub fn version(&self, at: usize) -> u64 {
        self.hosts[at].version
    }

    /// Returns what each replica holds of its limits.
    pub fn held(&self) -> Vec<HeldShares> {
        let replicas = self.hosts.iter().filter_map(|host| host.replica.as_ref());
        replicas.map(SimulatedReplica::held).collect()
    }
}
