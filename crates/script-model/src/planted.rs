//! Faults that are planted in the scripts and in their callers, each with the law that it breaks:
//! they show that the model can fail. Some are what the scripts did before.

use crate::explore::ExploredScope;
use crate::model::CallerRules;
use crate::scripts::{ScriptChange, ScriptName, ScriptTexts};
use crate::world::FaultBudget;

/// A planted fault.
pub struct PlantedFault {
    /// A short name.
    pub name: &'static str,
    /// The changes of scripts.
    pub changes: &'static [ScriptChange],
    /// The change of the callers.
    pub callers: fn(&mut CallerRules),
    /// The smallest scope that is known to show it.
    pub scope: ExploredScope,
    /// A part of the law that it breaks.
    pub breaks: &'static str,
}

impl PlantedFault {
    /// Returns the scripts with the fault.
    ///
    /// # Panics
    /// When a script does not have the text that is changed.
    pub fn texts(&self) -> ScriptTexts {
        self.changes.iter().fold(ScriptTexts::default(), ScriptTexts::planted)
    }

    /// Returns the callers' rules with the fault.
    pub fn rules(&self) -> CallerRules {
        let mut rules = CallerRules::default();
        (self.callers)(&mut rules);
        rules
    }
}

/// No rare event at all.
const NONE: FaultBudget = FaultBudget {
    all: 0,
    deaths: 0,
    leaves: 0,
    pauses: 0,
    cuts: 0,
    store_pauses: 0,
    failovers: 0,
    lost_calls: 0,
    refusals: 0,
    moves: 0,
    stops: 0,
};
const DEATH: FaultBudget = FaultBudget { all: 1, deaths: 1, ..NONE };
const PAUSE: FaultBudget = FaultBudget { all: 1, pauses: 1, moves: 1, ..NONE };
const FAILOVER: FaultBudget = FaultBudget { all: 1, failovers: 1, moves: 1, ..NONE };
const LOST_CALL: FaultBudget = FaultBudget { all: 1, lost_calls: 1, moves: 1, ..NONE };

/// An answer of three bytes, two replicas, and one reader.
const fn pair(budget: FaultBudget) -> ExploredScope {
    let (replicas, readers, bytes, most_steps) = (2, 1, 3, 60);
    ExploredScope { name: "planted", replicas, readers, bytes, budget, most_steps }
}

const fn change(script: ScriptName, from: &'static str, to: &'static str) -> ScriptChange {
    ScriptChange { script, from, to }
}

const STALLS: &str = "a reader never gets the whole answer";
const NAMES: &str = "whose log is";

/// All planted faults.
pub const PLANTED: &[PlantedFault] = &[
    PlantedFault {
        name: "before epochs: a takeover begins none (finding 3)",
        changes: &[change(
            ScriptName::Take,
            "epochs = epochs .. (epochs == '' and '' or ',') .. \
             string.format('%d:%d', epoch, head)",
            "",
        )],
        callers: |_| {},
        scope: pair(DEATH),
        breaks: NAMES,
    },
    PlantedFault {
        name: "before leases waited for the store: silence is death (finding 4)",
        changes: &[change(ScriptName::Read, "and 'none' or 'silent'", "and 'none' or 'none'")],
        callers: |_| {},
        scope: pair(FaultBudget { all: 1, store_pauses: 1, moves: 1, ..NONE }),
        breaks: "counts as dead",
    },
    PlantedFault {
        name: "before a stop left a fence: it is forgotten with the answer (finding 18)",
        changes: &[change(
            ScriptName::Stop,
            "redis.call('SET', prefix .. 'x:' .. id, final_fence, 'PX', ARGV[4])",
            "",
        )],
        callers: |_| {},
        scope: pair(FaultBudget { stops: 1, ..PAUSE }),
        breaks: "that a client has stopped",
    },
    PlantedFault {
        name: "before this model: a stop leaves a fence only if the store has the answer",
        changes: &[
            change(
                ScriptName::Stop,
                "redis.call('SET', prefix .. 'x:' .. id, final_fence, 'PX', ARGV[4])",
                "",
            ),
            change(
                ScriptName::Stop,
                "return 1",
                "redis.call('SET', prefix .. 'x:' .. id, final_fence, 'PX', ARGV[4]) return 1",
            ),
        ],
        callers: |_| {},
        scope: pair(FaultBudget { stops: 1, ..LOST_CALL }),
        breaks: "that a client has stopped",
    },
    PlantedFault {
        name: "before this model: a takeover compares no epochs",
        changes: &[change(ScriptName::Take, " or epochs ~= ARGV[11]", "")],
        callers: |_| {},
        scope: pair(FaultBudget { all: 2, lost_calls: 1, pauses: 1, moves: 1, ..NONE }),
        breaks: STALLS,
    },
    PlantedFault {
        name: "before this model: an ended answer is not asked for",
        changes: &[],
        callers: |rules| rules.asks_after_the_end = false,
        scope: pair(FAILOVER),
        breaks: STALLS,
    },
    PlantedFault {
        name: "before this model: an answer is given back by one call",
        changes: &[],
        callers: |rules| rules.repeats_releases = false,
        scope: pair(FaultBudget {
            all: 2,
            pauses: 1,
            lost_calls: 1,
            refusals: 1,
            moves: 1,
            ..NONE
        }),
        breaks: STALLS,
    },
    PlantedFault {
        name: "before this model: an owner's stop is only written under its own fence",
        changes: &[],
        callers: |rules| rules.stops_for_all = false,
        scope: pair(FaultBudget { all: 1, cuts: 1, stops: 1, moves: 1, ..NONE }),
        breaks: "and it goes on",
    },
    PlantedFault {
        name: "before this model: a mirror refuses epochs that it has not heard of",
        changes: &[],
        callers: |rules| rules.waits_for_epochs = false,
        scope: ExploredScope {
            replicas: 3,
            bytes: 2,
            ..pair(FaultBudget { all: 1, leaves: 1, moves: 2, ..NONE })
        },
        breaks: "a reader's place is refused",
    },
    PlantedFault {
        name: "take: no lease is looked at",
        changes: &[change(
            ScriptName::Take,
            "local is_owned = owner ~= replica and \
             redis.call('EXISTS', prefix .. 'p:' .. (owner or '')) == 1",
            "local is_owned = false",
        )],
        callers: |_| {},
        scope: pair(PAUSE),
        breaks: "which has a lease",
    },
    PlantedFault {
        name: "take: a stopped answer can be had",
        changes: &[change(ScriptName::Take, "state ~= 'running' or is_owned", "is_owned")],
        callers: |_| {},
        scope: ExploredScope {
            replicas: 3,
            bytes: 2,
            ..pair(FaultBudget { stops: 1, moves: 1, ..DEATH })
        },
        breaks: "takes over an answer that a client has stopped",
    },
    PlantedFault {
        name: "take: the next epoch is always one higher",
        changes: &[],
        callers: |rules| rules.numbers_are_new = false,
        scope: ExploredScope {
            bytes: 2,
            replicas: 3,
            ..pair(FaultBudget { all: 3, failovers: 1, leaves: 2, moves: 1, ..NONE })
        },
        breaks: NAMES,
    },
    PlantedFault {
        name: "append: no fence is looked at",
        changes: &[change(
            ScriptName::Append,
            "elseif known_fence > tonumber(fence) then",
            "elseif false then",
        )],
        callers: |_| {},
        scope: pair(FaultBudget { stops: 1, ..PAUSE }),
        breaks: "that a client has stopped",
    },
    PlantedFault {
        name: "append: neither fence nor owner is looked at",
        changes: &[
            change(
                ScriptName::Append,
                "elseif known_fence > tonumber(fence) then",
                "elseif false then",
            ),
            change(ScriptName::Append, "elseif known[2] ~= replica then", "elseif false then"),
        ],
        callers: |_| {},
        scope: pair(PAUSE),
        breaks: "writes with fence 1 after one with 2",
    },
    PlantedFault {
        name: "append: bytes that are there are appended again",
        changes: &[change(ScriptName::Append, "string.sub(bytes, head - offset + 1)", "bytes")],
        callers: |_| {},
        scope: pair(LOST_CALL),
        breaks: NAMES,
    },
    PlantedFault {
        name: "append: a gap is no loss",
        changes: &[change(ScriptName::Append, "elseif head < offset then", "elseif false then")],
        callers: |_| {},
        scope: pair(FAILOVER),
        breaks: NAMES,
    },
    PlantedFault {
        name: "append: a running answer is kept no longer than an ended one",
        changes: &[change(
            ScriptName::Append,
            "local keep_ms = state == 'ended' and ended_ms or running_ms",
            "local keep_ms = ended_ms",
        )],
        callers: |_| {},
        scope: pair(PAUSE),
        breaks: "an answer that is generated expires",
    },
    PlantedFault {
        name: "release: the answer keeps its owner",
        changes: &[change(ScriptName::Release, "redis.call('HSET', answer, 'o', '')", "")],
        callers: |_| {},
        scope: pair(FaultBudget { all: 2, pauses: 1, refusals: 1, moves: 1, ..NONE }),
        breaks: STALLS,
    },
    PlantedFault {
        name: "read: no epochs are told",
        changes: &[change(ScriptName::Read, "string.sub(known[3] or '', 1, 8192)", "''")],
        callers: |_| {},
        scope: ExploredScope {
            replicas: 3,
            bytes: 2,
            ..pair(FaultBudget { all: 1, leaves: 1, moves: 2, ..NONE })
        },
        breaks: NAMES,
    },
    PlantedFault {
        name: "read: a replica's own answer counts as another's",
        changes: &[change(ScriptName::Read, " or owner == replica", "")],
        callers: |_| {},
        scope: pair(FaultBudget { all: 2, pauses: 1, lost_calls: 1, moves: 1, ..NONE }),
        breaks: STALLS,
    },
    PlantedFault {
        name: "find: only running answers are found",
        changes: &[change(
            ScriptName::Find,
            "if not known[1] then",
            "if not known[1] or known[2] ~= 'running' then",
        )],
        callers: |_| {},
        scope: pair(DEATH),
        breaks: "an answer that exists is not found",
    },
    PlantedFault {
        name: "callers: the dead are known at once",
        changes: &[],
        callers: |rules| rules.waits_for_the_store = false,
        scope: pair(FaultBudget { all: 1, store_pauses: 1, moves: 1, ..NONE }),
        breaks: "counts as dead",
    },
];
