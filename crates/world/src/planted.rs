//! Faults that are planted in the scripts, so that it is seen that the world finds them.

use script_model::{ScriptChange, ScriptName, ScriptTexts};

/// A fault in a script.
pub struct PlantedChange {
    /// The fault in a few words.
    pub name: &'static str,
    /// The changes of scripts' texts.
    pub changes: &'static [ScriptChange],
    /// A part of the laws that may break first.
    pub breaks: &'static [&'static str],
}

impl PlantedChange {
    /// Returns the scripts with the fault.
    pub fn texts(&self) -> ScriptTexts {
        self.changes.iter().fold(ScriptTexts::default(), ScriptTexts::planted)
    }
}

const fn change(script: ScriptName, from: &'static str, to: &'static str) -> ScriptChange {
    ScriptChange { script, from, to }
}

/// All planted faults.
pub const PLANTED: &[PlantedChange] = &[
    PlantedChange {
        name: "read: that somebody reads is never forgotten",
        changes: &[change(ScriptName::Read, "id, 1, 'PX', reading_ms)", "id, 1)")],
        breaks: &["is left of"],
    },
    PlantedChange {
        name: "read: a silent owner is dead at once",
        changes: &[change(ScriptName::Read, "and 'none' or 'silent'", "and 'none' or 'none'")],
        breaks: &["which lives"],
    },
    PlantedChange {
        name: "read: no epochs are told",
        changes: &[change(ScriptName::Read, "string.sub(known[3] or '', 1, 8192)", "''")],
        breaks: &["two bytes", "refuses", "never gets", "something else"],
    },
    PlantedChange {
        name: "find: only running answers are found",
        changes: &[change(
            ScriptName::Find,
            "if not known[1] then",
            "if not known[1] or known[2] ~= 'running' then",
        )],
        breaks: &["refuses", "never gets"],
    },
    PlantedChange {
        name: "append: bytes that are there are appended again",
        changes: &[change(ScriptName::Append, "string.sub(bytes, head - offset + 1)", "bytes")],
        breaks: &["two bytes", "something else"],
    },
    PlantedChange {
        name: "append: a gap is no loss",
        changes: &[change(ScriptName::Append, "elseif head < offset then", "elseif false then")],
        breaks: &["two bytes", "cannot be read", "something else"],
    },
    PlantedChange {
        name: "append: neither fence nor owner is looked at",
        changes: &[
            change(
                ScriptName::Append,
                "elseif known_fence > tonumber(fence) then",
                "elseif false then",
            ),
            change(ScriptName::Append, "elseif known[2] ~= replica then", "elseif false then"),
        ],
        breaks: &["two", "something else"],
    },
    PlantedChange {
        name: "append: an ended answer is kept as long as a running one",
        changes: &[change(
            ScriptName::Append,
            "state == 'ended' and ended_ms or running_ms",
            "running_ms",
        )],
        breaks: &["is left of"],
    },
    PlantedChange {
        name: "take: the epoch is not stored",
        changes: &[change(
            ScriptName::Take,
            "redis.call('HSET', answer, 'o', replica, 'e', epochs)",
            "redis.call('HSET', answer, 'o', replica)",
        )],
        breaks: &["two", "something else"],
    },
    PlantedChange {
        name: "announce: no lease is renewed",
        changes: &[change(ScriptName::Announce, "redis.call('SET', key, 1, 'PX', ARGV[3])", "")],
        breaks: &["which lives"],
    },
];
