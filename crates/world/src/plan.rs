//! The plan of a run: its questions, readers and faults, drawn from the seed.

use crate::dice::Dice;
use crate::service::RESPONSE_SEEDS;

/// Number of replicas.
pub const REPLICAS: usize = 3;
/// Time from which nothing fails any more.
pub const FAULTS_END_MS: u64 = 20_000;
/// Time of the first fault at the earliest.
const FAULTS_BEGIN_MS: u64 = 500;
/// Time of the last fault at the latest: answers are generated until then.
const LAST_FAULT_MS: u64 = 14_000;
/// Maximum duration of a fault.
const LONGEST_FAULT_MS: u64 = 8_000;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorldFault {
    /// A replica ends at once (SIGKILL), and is started again.
    Kill,
    /// A replica gives up its answers and ends (SIGTERM), and is started again.
    Term,
    /// A replica stands still (SIGSTOP), and all of its timers are late.
    Pause,
    /// A replica's connections to the store are closed, and new ones refused.
    Cut,
    /// Nothing passes between a replica and the store; it arrives later.
    Stall,
    /// The store stands still.
    StorePause,
    /// The store answers every call with an error.
    StoreRefuses,
    /// The store runs some calls and closes the connection in place of a reply.
    LostReplies,
    /// The store's replies are late.
    Slow,
    /// The store goes back to its state of a moment ago.
    Failover,
    /// The store's clock jumps ahead: leases are over, and what was kept is older.
    ClockJump,
    /// The store's clock goes back, as after a failover to a machine whose clock is behind: leases
    /// last longer.
    ClockBack,
    /// The store has no room, and evicts a key.
    Eviction,
}

impl WorldFault {
    /// All kinds.
    const ALL: [Self; 13] = [
        Self::Kill,
        Self::Term,
        Self::Pause,
        Self::Cut,
        Self::Stall,
        Self::StorePause,
        Self::StoreRefuses,
        Self::LostReplies,
        Self::Slow,
        Self::Failover,
        Self::ClockJump,
        Self::ClockBack,
        Self::Eviction,
    ];

    /// True if the fault hits one replica, and not the store.
    pub const fn hits_replica(self) -> bool {
        matches!(self, Self::Kill | Self::Term | Self::Pause | Self::Cut | Self::Stall)
    }
}

/// A fault of the plan.
#[derive(Debug, Clone, Copy)]
pub struct PlannedFault {
    /// Time when it begins.
    pub at_ms: u64,
    /// Time when it ends.
    pub until_ms: u64,
    /// The kind.
    pub kind: WorldFault,
    /// The replica, where it hits one.
    pub replica: usize,
}

/// A question of the plan. Its answer depends on `seed` alone.
#[derive(Debug, Clone, Copy)]
pub struct PlannedQuestion {
    /// Time when it is asked.
    pub at_ms: u64,
    /// The replica that is asked.
    pub replica: usize,
    /// Seed of the answer.
    pub seed: u64,
    /// Number of readers, the one who asks included.
    pub readers: usize,
    /// Time when a client deletes the answer.
    pub deleted_at_ms: Option<u64>,
}

/// A background response of the plan.
#[derive(Debug, Clone, Copy)]
pub struct PlannedResponse {
    /// Time when it is asked for.
    pub at_ms: u64,
    /// The replica that is asked.
    pub replica: usize,
    /// Seed of its answer.
    pub seed: u64,
    /// Number of clients that read it.
    pub clients: usize,
    /// Time when a client cancels it.
    pub cancelled_at_ms: Option<u64>,
    /// Time when a client deletes it.
    pub deleted_at_ms: Option<u64>,
}

/// An update of the replicas' version, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct RollingUpdate {
    /// True if the versions have different fingerprints. If not, only the texts differ.
    pub is_told: bool,
    /// Replicas that have the new version from the beginning; the others get it when they are
    /// started again.
    pub has_new: [bool; REPLICAS],
}

/// The plan of a run.
#[derive(Debug)]
pub struct WorldPlan {
    /// In the order of their times.
    pub questions: Vec<PlannedQuestion>,
    /// In the order of their times.
    pub responses: Vec<PlannedResponse>,
    /// In the order of their times.
    pub faults: Vec<PlannedFault>,
    /// The update, if there is one.
    pub update: Option<RollingUpdate>,
}

impl WorldPlan {
    /// Draws the plan of `seed`.
    pub fn draw(seed: u64) -> Self {
        let dice = Dice::new(seed, 1);
        let mut questions: Vec<_> = (0..dice.between(1, 4)).map(|_| question(&dice)).collect();
        questions.sort_by_key(|question| question.at_ms);
        // A run with few kinds of faults meets their combinations more often than one with all.
        let mut kinds: Vec<_> = (0..dice.between(1, 3))
            .map(|_| WorldFault::ALL[dice.index(WorldFault::ALL.len())])
            .collect();
        if dice.chance(50) {
            kinds.push(WorldFault::Kill);
        }
        let fault = |_| fault(&dice, kinds[dice.index(kinds.len())]);
        let mut faults: Vec<_> = (0..dice.between(1, 10)).map(fault).collect();
        faults.sort_by_key(|fault| (fault.at_ms, fault.kind, fault.replica));
        // Most runs have none: answers whose version is gone are excused, and test little else.
        let update = dice.chance(30).then(|| RollingUpdate {
            is_told: dice.chance(70),
            has_new: [(); REPLICAS].map(|()| dice.chance(30)),
        });
        let dice = Dice::new(seed, 8);
        let count = dice.between(0, 2);
        let mut responses: Vec<_> = (0..count).map(|_| response(&dice)).collect();
        responses.sort_by_key(|response| response.at_ms);
        Self { questions, responses, faults, update }
    }
}

fn question(dice: &Dice) -> PlannedQuestion {
    let at_ms = dice.between(100, 6_000);
    // Some are deleted when they have ended, and some when they have hardly begun.
    let deleted_at_ms = dice.chance(25).then(|| at_ms + dice.between(50, 10_000));
    PlannedQuestion {
        at_ms,
        deleted_at_ms,
        replica: dice.index(REPLICAS),
        seed: dice.between(1, u64::from(u32::MAX)),
        readers: dice.between(1, 3) as usize,
    }
}

fn response(dice: &Dice) -> PlannedResponse {
    let at_ms = dice.between(100, 6_000);
    let later = |percent| dice.chance(percent).then(|| at_ms + dice.between(50, 12_000));
    PlannedResponse {
        at_ms,
        replica: dice.index(REPLICAS),
        seed: RESPONSE_SEEDS + dice.between(1, u64::from(u32::MAX)),
        clients: dice.between(1, 3) as usize,
        cancelled_at_ms: later(25),
        deleted_at_ms: later(25),
    }
}

fn fault(dice: &Dice, kind: WorldFault) -> PlannedFault {
    let at_ms = dice.between(FAULTS_BEGIN_MS, LAST_FAULT_MS);
    // Most are short: a lease is three seconds.
    let longest = if dice.chance(50) { 1_500 } else { LONGEST_FAULT_MS };
    let until_ms = (at_ms + dice.between(50, longest)).min(FAULTS_END_MS);
    PlannedFault { at_ms, until_ms, kind, replica: dice.index(REPLICAS) }
}
