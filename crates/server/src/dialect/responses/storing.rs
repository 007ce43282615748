//! What becomes of a response's records beside the events that its reader gets: they are kept until
//! it ends, then stored.

use std::pin::Pin;

use loquent_proto::Delta;

use super::events::ResponseEvents;
use super::record_log::RecordLog;
use crate::dialect::EventWriter;

/// A response on its way into the store; whether it got there.
pub type Saving = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Stores what was generated.
pub type Save = Box<dyn FnOnce(RecordLog) -> Saving + Send>;

/// The records of a response that one reader waits for. The last of them says whether the response
/// is stored, and is not written before that is known.
pub struct KeptRecords {
    kept: Kept,
    last: Vec<Delta>,
}

enum Kept {
    /// The request asks for no storing, or that is under way.
    Nothing,
    /// All records so far, and what stores them.
    Log(RecordLog, Save),
    /// There were more than the store takes.
    TooMuch,
}

impl KeptRecords {
    /// Keeps what comes after the records of `log`, if `save` is to store them.
    pub fn new(log: RecordLog, save: Option<Save>) -> Self {
        let kept = save.map_or(Kept::Nothing, |save| Kept::Log(log, save));
        Self { kept, last: Vec::new() }
    }

    /// Writes the events of the record, or records, that `delta` becomes in the log.
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

    /// Stores the response, which has ended; whether what it says of that is true.
    pub fn store(&mut self) -> Saving {
        match std::mem::replace(&mut self.kept, Kept::Nothing) {
            Kept::Log(log, save) => save(log),
            Kept::Nothing => Box::pin(std::future::ready(true)),
            Kept::TooMuch => Box::pin(std::future::ready(false)),
        }
    }

    /// Writes the end, of a response that is `stored` as it says.
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
