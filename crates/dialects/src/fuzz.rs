//! Fuzz targets of this crate: records of upstream servers, and what a store may hold.

use std::time::Duration;

use bytes::Bytes;
use loquent_serving::clock::Clock;
use loquent_serving::error::ApiError;
use loquent_serving::event_writer::{EventWriter, write_records};
use loquent_store::object::{ListPage, Progress, StoredObject};
use serde_json::json;

use crate::batches::batch::RequestBatch;
use crate::batches::file::StoredFile;
use crate::infill::events::InfillEvents;
use crate::infill::object::ShownRequest;
use crate::messages::events::MessageEvents;
use crate::messages::object::ThinkingDisplay;
use crate::ollama::events::OllamaLines;
use crate::ollama::object::Shape;
use crate::responses::events::{EventRange, ResponseEvents};
use crate::responses::object::ResponseTemplate;
use crate::stored_chats::object::{messages, with_metadata};
use crate::stored_chats::request::ListFilter;
use crate::ui_stream::events::UiWriter;

#[path = "../../../fuzz/target.rs"]
mod target;
pub use target::Target;

/// Fuzz targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "answer_events", run: answer_events, base_kib: 64, per_byte: 4096 },
    Target { name: "stored_object", run: stored_object, base_kib: 16, per_byte: 600 },
];

/// Each API writes any records, whose JSON may be an upstream server's, or refuses them.
fn answer_events(input: &[u8]) {
    let Some((&choice, records)) = input.split_first() else { return };
    let (clock, arrived) = (Clock::start(), Duration::ZERO);
    let is_odd = choice & 0x80 != 0;
    let shape = if is_odd { Shape::Generate } else { Shape::Chat };
    let thinking = if is_odd { ThinkingDisplay::Omitted } else { ThinkingDisplay::Shown };
    let template = ResponseTemplate { object: json!({"id": "resp_1"}), background: is_odd };
    match choice % 5 {
        0 => put(records, OllamaLines::new(shape, "m".into(), clock, arrived)),
        1 => put(records, MessageEvents::new(7, thinking)),
        2 => put(records, InfillEvents::new(ShownRequest::default(), clock, arrived)),
        3 => put(records, UiWriter::new(is_odd, u64::from(is_odd))),
        _ => {
            let mut events = ResponseEvents::new(template, EventRange::From(0));
            let _ = write_records(records, 0, &mut events, &mut Vec::new());
            assert!(events.object().is_object());
        }
    }
}

fn put(records: &[u8], mut writer: impl EventWriter) {
    let mut out = Vec::new();
    if write_records(records, 0, &mut writer, &mut out).is_err() {
        writer.write_error(&ApiError::internal("broken"), &mut out);
    }
    assert!(std::str::from_utf8(&out).is_ok(), "events are text");
}

/// Every stored chat, batch or file that can be read can be shown.
fn stored_object(input: &[u8]) {
    let json = Bytes::copy_from_slice(input);
    let (id, progress) = ("chatcmpl-1".to_owned(), Progress::Ended);
    let stored = StoredObject { id, created_s: 7, progress, json: json.clone() };
    if let Ok(changed) = with_metadata(&stored, json!({"a": "b"})) {
        let filter = ListFilter { model: None, metadata: vec![("a".into(), "b".into())] };
        // One without a model is in no list that has a filter.
        let _ = filter.accepts(&changed);
    }
    let page = ListPage { after: None, limit: 20, newest_first: true };
    let _ = messages(&stored, &page);
    if let Some(batch) = RequestBatch::decode(input) {
        assert!(RequestBatch::decode(batch.json().as_bytes()).is_some());
    }
    if let Some(file) = StoredFile::decode(&json) {
        assert!(file.object().is_object());
        assert_eq!(StoredFile::decode(&file.encode()).map(|it| it.content), Some(file.content));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora() {
        target::run_corpora(TARGETS);
    }
}
