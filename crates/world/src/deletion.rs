//! Deletion of an answer, as the world knows of it.

/// Progress of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletionState {
    /// Nobody deletes the answer.
    Never,
    /// It is asked for at this time.
    Planned { at_ms: u64 },
    /// It was asked for.
    Asked { connection: u64, at_ms: u64 },
    /// It is confirmed.
    Confirmed { at_ms: u64 },
    /// There was no answer to delete.
    Unknown,
}

/// Deletion of one answer.
#[derive(Debug, Clone, Copy)]
pub struct AnswerDeletion {
    /// Its progress.
    pub state: DeletionState,
    /// True if a replica was asked for it: the answer may be gone.
    pub was_asked: bool,
    /// True if the store may have lost it.
    pub is_lost: bool,
}

impl AnswerDeletion {
    /// Creates the deletion that is planned for this time, if any.
    pub const fn planned(at_ms: Option<u64>) -> Self {
        let state = match at_ms {
            Some(at_ms) => DeletionState::Planned { at_ms },
            None => DeletionState::Never,
        };
        Self { state, was_asked: false, is_lost: false }
    }

    /// True if it is to be asked for at `now_ms`: for the first time, or again because there was no
    /// outcome within `patience_ms`.
    pub const fn is_due(&self, now_ms: u64, patience_ms: u64) -> bool {
        match self.state {
            DeletionState::Planned { at_ms } => at_ms <= now_ms,
            DeletionState::Asked { at_ms, .. } => at_ms + patience_ms <= now_ms,
            _ => false,
        }
    }

    /// Notes that it is asked for as `connection`.
    pub const fn ask(&mut self, connection: u64, at_ms: u64) {
        self.was_asked = true;
        self.state = DeletionState::Asked { connection, at_ms };
    }

    /// Notes that the store has lost something.
    pub const fn note_loss(&mut self) {
        self.is_lost |= self.was_asked;
    }

    /// True if the deletion was confirmed before `now_ms`, and holds.
    pub const fn holds(&self, now_ms: u64) -> bool {
        matches!(self.state, DeletionState::Confirmed { at_ms } if at_ms < now_ms) && !self.is_lost
    }
}
