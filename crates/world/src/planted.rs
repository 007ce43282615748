//! Planted faults, so that it is seen that the world finds them: in the scripts, in how replicas
//! call the product, and on the way to the store.

use script_model::{ScriptChange, ScriptName, ScriptTexts};

use crate::glue::{GlueFault, WireFault, WorldPlanting};
use crate::world::run;

/// Worlds in which a planted fault is looked for.
const WORLDS: u64 = 500;

/// A planted fault.
pub struct PlantedChange {
    /// The fault in a few words.
    pub name: &'static str,
    /// The change.
    cause: PlantedCause,
    /// A part of the laws that may break first.
    pub breaks: &'static [&'static str],
    /// Seed with which to begin: the worlds before it are known not to show the fault.
    first_seed: u64,
}

impl PlantedChange {
    /// Returns the same fault, looked for from the seed `first` on.
    const fn beginning_at(self, first: u64) -> Self {
        Self { first_seed: first, ..self }
    }

    /// Looks for a world that shows the fault; returns its seed, and the law that is broken there.
    pub fn search(&self) -> Option<(u64, String)> {
        let planting = self.planting();
        let mut seeds = self.first_seed..self.first_seed + WORLDS;
        seeds.find_map(|seed| Some((seed, run(seed, &planting).broken?)))
    }

    /// Returns a run's planting with the fault.
    fn planting(&self) -> WorldPlanting {
        let none = WorldPlanting::default();
        match self.cause {
            PlantedCause::Scripts(changes) => {
                let texts = changes.iter().fold(ScriptTexts::default(), ScriptTexts::planted);
                WorldPlanting { texts, ..none }
            }
            PlantedCause::Glue(fault) => WorldPlanting { glue: Some(fault), ..none },
            PlantedCause::Wire(fault) => WorldPlanting { wire: Some(fault), ..none },
        }
    }
}

/// Cause of a planted fault.
enum PlantedCause {
    /// The scripts' texts.
    Scripts(&'static [ScriptChange]),
    /// How replicas call the product.
    Glue(GlueFault),
    /// The way to the store.
    Wire(WireFault),
}

const fn scripts(
    name: &'static str,
    changes: &'static [ScriptChange],
    breaks: &'static [&'static str],
) -> PlantedChange {
    PlantedChange { name, cause: PlantedCause::Scripts(changes), breaks, first_seed: 0 }
}

const fn glue(
    name: &'static str,
    fault: GlueFault,
    breaks: &'static [&'static str],
) -> PlantedChange {
    PlantedChange { name, cause: PlantedCause::Glue(fault), breaks, first_seed: 0 }
}

const fn wire(
    name: &'static str,
    fault: WireFault,
    breaks: &'static [&'static str],
) -> PlantedChange {
    PlantedChange { name, cause: PlantedCause::Wire(fault), breaks, first_seed: 0 }
}

const fn change(script: ScriptName, from: &'static str, to: &'static str) -> ScriptChange {
    ScriptChange { script, from, to }
}

/// All planted faults.
pub const PLANTED: &[PlantedChange] = &[
    scripts(
        "read: that somebody reads is never forgotten",
        &[change(ScriptName::Read, "id, 1, 'PX', reading_ms)", "id, 1)")],
        &["is left of"],
    ),
    scripts(
        "read: a silent owner is dead at once",
        &[change(ScriptName::Read, "and 'none' or 'silent'", "and 'none' or 'none'")],
        &["which lives"],
    ),
    scripts(
        "read: no epochs are told",
        &[change(ScriptName::Read, "string.sub(known[3] or '', 1, 8192)", "''")],
        &["two bytes", "refuses", "never gets", "something else"],
    ),
    scripts(
        "find: only running answers are found",
        &[change(
            ScriptName::Find,
            "if not known[1] then",
            "if not known[1] or known[2] ~= 'running' then",
        )],
        &["refuses", "never gets"],
    ),
    scripts(
        "append: bytes that are there are appended again",
        &[change(ScriptName::Append, "string.sub(bytes, head - offset + 1)", "bytes")],
        &["two bytes", "something else"],
    ),
    scripts(
        "append: a gap is no loss",
        &[change(ScriptName::Append, "elseif head < offset then", "elseif false then")],
        &["refuses", "two bytes", "cannot be read", "is left", "something else"],
    ),
    scripts(
        "append: neither fence nor owner is looked at",
        &[
            change(
                ScriptName::Append,
                "elseif known_fence > tonumber(fence) then",
                "elseif false then",
            ),
            change(ScriptName::Append, "elseif known[2] ~= replica then", "elseif false then"),
        ],
        &["is left", "two", "something else", "refuses", "deleted", "waits at"],
    ),
    scripts(
        "append: an ended answer is kept as long as a running one",
        &[change(ScriptName::Append, "state == 'ended' and ended_ms or running_ms", "running_ms")],
        &["is left of"],
    ),
    scripts(
        "take: the epoch is not stored",
        &[change(
            ScriptName::Take,
            "redis.call('HSET', answer, 'o', replica, 'e', epochs)",
            "redis.call('HSET', answer, 'o', replica)",
        )],
        &["two", "something else", "refuses"],
    ),
    scripts(
        "announce: no lease is renewed",
        &[change(ScriptName::Announce, "redis.call('SET', key, notice, 'PX', ARGV[3])", "")],
        &["which lives"],
    ),
    scripts(
        "stop: the answer stays as it is",
        &[
            change(
                ScriptName::Stop,
                "redis.call('HSET', prefix .. 'a:' .. id, 's', 'stopped')",
                "",
            ),
            change(ScriptName::Stop, "redis.call('DEL', prefix .. 'g:' .. id)", ""),
        ],
        &["deleted"],
    ),
    scripts(
        "append: a stopped answer is written",
        &[
            change(ScriptName::Append, "if known[3] == 'stopped' then", "if false then"),
            change(
                ScriptName::Append,
                "elseif known_fence > tonumber(fence) then",
                "elseif false then",
            ),
        ],
        &["deleted"],
    ),
    glue(
        "takeover: versions are not compared (finding 9)",
        GlueFault::SettingsUnchecked,
        &["ends with an error", "shows something else", "never gets"],
    ),
    glue("takeover: the key is forgotten (finding 6)", GlueFault::AskerForgotten, &["not its key"]),
    glue(
        "takeover: the seed is forgotten",
        GlueFault::SeedForgotten,
        &["ends with an error", "shows something else", "never gets"],
    ),
    glue(
        "SIGTERM: the engine stops first (finding 2)",
        GlueFault::EngineStopsFirst,
        &["ends with an error"],
    ),
    glue(
        "start: a replica has the name that it had before",
        GlueFault::NameKept,
        &["never gets", "two", "refuses", "is left", "something else"],
    ),
    glue(
        "reader: its epoch is ignored (finding 3)",
        GlueFault::EpochForgotten,
        &["refuses", "two", "something else", "it has"],
    ),
    glue("limits: a place is never returned", GlueFault::PlaceKept, &["is left", "its place"]),
    glue("token: an id is enough", GlueFault::TokenIgnored, &["without the token"]),
    glue("deletion: nobody is told", GlueFault::StopUntold, &["deleted"]),
    glue("deletion: the store is not waited for", GlueFault::StopWithoutStore, &["deleted"]),
    glue("deletion: one replica forgets the answer", GlueFault::StopHereOnly, &["deleted"]),
    scripts(
        "put: no fence is looked at",
        &[change(ScriptName::Put, "fence < newest or", "")],
        &["after it was deleted", "shows something else", "two events", "is deleted", "never"],
    ),
    scripts(
        "claim: the fence stays as it is",
        &[change(ScriptName::Claim, "or '1') + 1", "or '1')")],
        &["two events", "shows something else", "cancelled, is", "as if it ran", "never learns"],
    )
    .beginning_at(170),
    scripts(
        "get: every replica lives",
        &[change(
            ScriptName::Get,
            "if replica == '' or replica == ARGV[7] or lives == 'silent' and has_ended then",
            "if false then",
        )],
        &["never learns"],
    )
    .beginning_at(520),
    scripts(
        "get: a silent replica has ended",
        &[change(ScriptName::Get, "local lives = 'silent'", "local lives = 'none'")],
        &["which lives"],
    ),
    glue("reader: it waits for those that trickle", GlueFault::ReadersInTurn, &["waits at"]),
    glue(
        "response: its end is stored once (finding 5)",
        GlueFault::EndTriedOnce,
        &["its end was told"],
    ),
    glue(
        "response: a cancellation does not wait for the store",
        GlueFault::CancelWithoutStore,
        &["cancelled, is"],
    )
    .beginning_at(320),
    glue(
        "response: an event's number is not compared",
        GlueFault::NumberUnchecked,
        &["streamed differently", "a stream", "two events"],
    ),
    scripts(
        "put: a chat that is stored is stored again",
        &[change(ScriptName::Put, "or mode == 'complete' and member then", "then")],
        &["lost its annotation"],
    )
    .beginning_at(980),
    glue(
        "chat: the end does not wait for the store",
        GlueFault::EndBeforeChat,
        &["its chat is not stored"],
    ),
    glue(
        "chat: a takeover forgets that it is stored",
        GlueFault::ChatForgotten,
        &["its chat is not stored"],
    ),
    glue(
        "chat: an annotation stores what was deleted",
        GlueFault::AnnotationRevives,
        &["after it was deleted", "is deleted"],
    )
    .beginning_at(180),
    wire(
        "put: an object that was not stored is confirmed",
        WireFault::PutUnsaid,
        &["never learns", "is gone", "cancelled, is", "its chat is not stored", "never stored"],
    ),
    wire("announce: leases are too short", WireFault::LeaseIsShort, &["which lives"]),
    wire(
        "append: a call that was not run is confirmed",
        WireFault::AppendUnsaid,
        &["waits at", "deleted", "never gets", "is left", "refuses", "two"],
    )
    .beginning_at(60),
    wire("stop: a call that was not run is confirmed", WireFault::StopUnsaid, &["deleted"]),
    wire(
        "read: the store of a second ago answers",
        WireFault::ReadsAreOld,
        &["refuses", "never gets", "two", "deleted"],
    ),
    wire("append: no request is stored", WireFault::RequestLost, &["never gets"]),
    wire(
        "read: a byte is lost",
        WireFault::ByteLost,
        &["cannot be read", "two", "something else", "half", "never gets", "is left", "waits at"],
    ),
    wire("read: every owner lives", WireFault::OwnersLive, &["never gets"]),
    wire("append: everybody is read (finding 1)", WireFault::AlwaysRead, &["is left"]),
    wire("take: the fence is the old one", WireFault::FenceIsOld, &["never gets", "two"]),
];
