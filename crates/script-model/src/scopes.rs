//! The scopes in which the scripts are explored as they are.

use crate::explore::ExploredScope;
use crate::world::FaultBudget;

/// Each fault once, `all` of them together.
const fn any(all: u8) -> FaultBudget {
    FaultBudget {
        all,
        deaths: 1,
        leaves: 1,
        pauses: 1,
        cuts: 1,
        store_pauses: 1,
        failovers: 1,
        lost_calls: 1,
        refusals: 1,
        moves: 1,
        stops: 0,
    }
}

const MOST_STEPS: usize = 1000;

/// The scopes that every test run explores.
pub const SCOPES: &[ExploredScope] = &[
    ExploredScope {
        name: "two replicas, one reader, one fault",
        replicas: 2,
        readers: 1,
        bytes: 3,
        budget: any(1),
        most_steps: MOST_STEPS,
    },
    ExploredScope {
        name: "two replicas, one reader, one fault, one stop",
        replicas: 2,
        readers: 1,
        bytes: 2,
        budget: FaultBudget { stops: 1, ..any(1) },
        most_steps: MOST_STEPS,
    },
    ExploredScope {
        name: "three replicas, one reader that moves, a death",
        replicas: 3,
        readers: 1,
        bytes: 2,
        budget: FaultBudget { deaths: 1, leaves: 1, moves: 1, all: 1, ..any(0) },
        most_steps: MOST_STEPS,
    },
];

/// The scopes of the long exploration.
pub fn deep_scopes() -> Vec<ExploredScope> {
    let scope = |name, replicas, readers, bytes, budget| {
        let most_steps = MOST_STEPS;
        ExploredScope { name, replicas, readers, bytes, budget, most_steps }
    };
    vec![
        scope("two replicas, one reader, two faults", 2, 1, 2, any(2)),
        scope(
            "two replicas, one reader, one fault, one stop",
            2,
            1,
            3,
            FaultBudget { stops: 1, ..any(1) },
        ),
        scope("two replicas, two readers, one fault", 2, 2, 2, any(1)),
        scope(
            "three replicas, one reader that moves twice, one fault",
            3,
            1,
            2,
            FaultBudget { moves: 2, ..any(1) },
        ),
        scope(
            "three replicas, two faults of a death, a failover, a pause",
            3,
            1,
            2,
            FaultBudget {
                leaves: 0,
                cuts: 0,
                store_pauses: 0,
                lost_calls: 0,
                refusals: 0,
                ..any(2)
            },
        ),
    ]
}
