//! The scripts' own files, and changes that are planted in them.

/// The name of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScriptName {
    /// Renews a replica's lease, or ends it.
    Announce,
    /// Appends to a log.
    Append,
    /// Looks for an answer.
    Find,
    /// Reads a log.
    Read,
    /// Gives an answer back.
    Release,
    /// Stops an answer.
    Stop,
    /// Takes an answer over.
    Take,
    /// Stores an object.
    Put,
    /// Reads an object.
    Get,
    /// Takes an object over.
    Claim,
    /// Leaves an object to other replicas.
    Disown,
    /// Deletes an object.
    Remove,
    /// Raises the fence of an object.
    Fence,
    /// Reads what other replicas announce.
    Others,
}

/// All scripts, in the order of [`ScriptName`].
pub const SCRIPTS: [ScriptName; 14] = [
    ScriptName::Announce,
    ScriptName::Append,
    ScriptName::Find,
    ScriptName::Read,
    ScriptName::Release,
    ScriptName::Stop,
    ScriptName::Take,
    ScriptName::Put,
    ScriptName::Get,
    ScriptName::Claim,
    ScriptName::Disown,
    ScriptName::Remove,
    ScriptName::Fence,
    ScriptName::Others,
];

impl ScriptName {
    /// Returns the text of the script's file.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Announce => {
                include_str!("../../store/src/shared/scripts/announce.lua")
            }
            Self::Append => {
                include_str!("../../resumable/src/shared/scripts/append.lua")
            }
            Self::Find => include_str!("../../resumable/src/shared/scripts/find.lua"),
            Self::Read => include_str!("../../resumable/src/shared/scripts/read.lua"),
            Self::Release => {
                include_str!("../../resumable/src/shared/scripts/release.lua")
            }
            Self::Stop => include_str!("../../resumable/src/shared/scripts/stop.lua"),
            Self::Take => include_str!("../../resumable/src/shared/scripts/take.lua"),
            Self::Put => include_str!("../../store/src/shared/scripts/put.lua"),
            Self::Get => include_str!("../../store/src/shared/scripts/get.lua"),
            Self::Claim => include_str!("../../store/src/shared/scripts/claim.lua"),
            Self::Disown => include_str!("../../store/src/shared/scripts/disown.lua"),
            Self::Remove => include_str!("../../store/src/shared/scripts/remove.lua"),
            Self::Fence => include_str!("../../store/src/shared/scripts/fence.lua"),
            Self::Others => include_str!("../../store/src/shared/scripts/others.lua"),
        }
    }

    /// Returns the script's name without `.lua`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Announce => "announce",
            Self::Append => "append",
            Self::Find => "find",
            Self::Read => "read",
            Self::Release => "release",
            Self::Stop => "stop",
            Self::Take => "take",
            Self::Put => "put",
            Self::Get => "get",
            Self::Claim => "claim",
            Self::Disown => "disown",
            Self::Remove => "remove",
            Self::Fence => "fence",
            Self::Others => "others",
        }
    }
}

/// A change of a script's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptChange {
    /// The script that is changed.
    pub script: ScriptName,
    /// Text that the script has exactly once.
    pub from: &'static str,
    /// Text in its place.
    pub to: &'static str,
}

/// The texts of all scripts.
#[derive(Debug, Clone)]
pub struct ScriptTexts([String; 14]);

impl Default for ScriptTexts {
    fn default() -> Self {
        Self(SCRIPTS.map(|script| script.text().to_owned()))
    }
}

impl ScriptTexts {
    /// Plants `change`.
    ///
    /// # Panics
    /// When the script does not have the text exactly once: it was changed, and the planted change
    /// must follow.
    pub fn planted(mut self, change: &ScriptChange) -> Self {
        let text = &mut self.0[change.script as usize];
        let found = text.matches(change.from).count();
        let name = change.script.name();
        assert_eq!(found, 1, "{name}.lua has this text {found} times: {}", change.from);
        *text = text.replacen(change.from, change.to, 1);
        self
    }

    /// Returns the text of `script`.
    pub fn text(&self, script: ScriptName) -> &str {
        &self.0[script as usize]
    }
}
