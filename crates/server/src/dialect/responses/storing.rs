//! Keeps a response's records while its reader gets the events, and stores them at the end.

use std::pin::Pin;

use loquent_proto::Delta;

use super::events::ResponseEvents;
use super::record_log::RecordLog;
use crate::event_writer::EventWriter;

/// A response being stored; resolves to whether that succeeded.
pub type Saving = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Stores a response's records.
pub type Save = Box<dyn FnOnce(RecordLog) -> Saving + Send>;

/// The records of a response with a single reader. The last one reports whether the response is
/// stored, and is not written before that is known.
pub struct KeptRecords {
    kept: Kept,
    last: Vec<Delta>,
}

enum Kept {
    /// The request does not ask for storage, or storing is in progress.
    Nothing,
    /// All records so far, and the function that stores them.
    Log(RecordLog, Save),
    /// The records exceed the store's limit.
    TooMuch,
}

impl KeptRecords {
    /// Keeps the records that follow those of `log`, if `save` is to store them.
    pub fn new(log: RecordLog, save: Option<Save>) -> Self {
        let kept = save.map_or(Kept::Nothing, |save| Kept::Log(log, save));
        Self { kept, last: Vec::new() }
    }

    /// Writes the events of `delta`, in the records to which the log splits it.
    pub fn put(&mut self, delta: Delta, events: &mut ResponseEvents, out: &mut Vec<u8>) {
        let Kept::Log(log, _) = &mut self.kept else { return self.write(delta, events, out) };
        let at = log.bytes().len();
        if log.push(&delta).is_err() {
            tracing::warn!(bytes = at, "a response is too long for the store");
            self.kept = Kept::TooMuch;
            return self.write(delta, events, out);
        }
        let last = &mut self.last;
        log.read(at, |delta| match delta.is_last() {
            true => last.push(delta),
            false => write(events, &delta, out),
        });
    }

    fn write(&mut self, delta: Delta, events: &mut ResponseEvents, out: &mut Vec<u8>) {
        match delta.is_last() {
            true => self.last.push(delta),
            false => write(events, &delta, out),
        }
    }

    /// Stores the response, which has ended. Resolves to true if the object's `store` member is
    /// correct: the response was stored, or was not meant to be.
    pub fn store(&mut self) -> Saving {
        match std::mem::replace(&mut self.kept, Kept::Nothing) {
            Kept::Log(log, save) => save(log),
            Kept::Nothing => Box::pin(std::future::ready(true)),
            Kept::TooMuch => Box::pin(std::future::ready(false)),
        }
    }

    /// Writes the last events; `stored` is the result of [`Self::store`].
    pub fn end(&mut self, stored: bool, events: &mut ResponseEvents, out: &mut Vec<u8>) {
        if !stored {
            events.not_stored();
        }
        for delta in self.last.drain(..) {
            write(events, &delta, out);
        }
    }
}

/// Writes the events of one record.
pub fn write(events: &mut ResponseEvents, delta: &Delta, out: &mut Vec<u8>) {
    events.write(None, delta, out).expect("no record is unwritable here");
}
