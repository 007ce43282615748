//! Seams of an answer that another upstream server continued. Chat completions have an event at
//! each of them; other APIs name them where the answer ends.

use serde_json::{Map, Value, json};

/// Maximum seams of an answer that are told.
const MAX_SEAMS: usize = 8;
/// Maximum bytes of a model's name there.
const MAX_MODEL_BYTES: usize = 256;

/// The seams of one answer, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seams(Vec<Value>);

impl Seams {
    /// Notes the seam of which the members `json` of an event tell, if they do.
    pub fn note(&mut self, json: &str) {
        // Most members of others are not even read.
        if self.0.len() == MAX_SEAMS || !json.contains("\"continued\"") {
            return;
        }
        let members: Value = serde_json::from_str(json).unwrap_or_default();
        let seam = &members["continued"];
        let Some(after_tokens) = seam["after_tokens"].as_u64() else { return };
        let mut noted = json!({"after_tokens": after_tokens});
        if let Some(model) = seam["model"].as_str().filter(|name| name.len() <= MAX_MODEL_BYTES) {
            noted["model"] = model.into();
        }
        self.0.push(noted);
    }

    /// Adds them to the members of an event or object, as `continued`, if there are any.
    pub fn tell(&self, members: &mut Map<String, Value>) {
        if !self.0.is_empty() {
            members.insert("continued".into(), self.0.clone().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use loquent_proto::Delta;
    use loquent_serving::clock::Clock;
    use loquent_serving::event_writer::EventWriter;

    use super::*;
    use crate::messages::events::MessageEvents;
    use crate::messages::object::ThinkingDisplay;
    use crate::ollama::events::OllamaLines;
    use crate::ollama::object::Shape;
    use crate::responses::events::{EventRange, ResponseEvents};
    use crate::responses::object::ResponseTemplate;

    fn told(seams: &Seams) -> Value {
        let mut members = Map::new();
        seams.tell(&mut members);
        members.into()
    }

    #[test]
    fn the_end_of_an_answer_tells_of_its_seams_in_every_api() {
        let seam = r#"{"continued":{"after_tokens":1}}"#;
        let answer = [
            Delta::Open { meta: r#"{"id":"a","model":"m","created":5}"#.into() },
            Delta::text("One "),
            Delta::Other { choice: 0, json: seam.into() },
            Delta::text("two."),
            Delta::Finish { choice: 0, reason: "stop".into() },
            Delta::Done,
        ];
        let (shape, clock) = (Shape::Chat, Clock::start());
        let object = json!({"id": "resp_a", "object": "response"});
        let template = ResponseTemplate { object, background: false };
        let writers: [Box<dyn EventWriter>; 3] = [
            Box::new(MessageEvents::new(3, ThinkingDisplay::default())),
            Box::new(OllamaLines::new(shape, "m".into(), clock, Duration::ZERO)),
            Box::new(ResponseEvents::new(template, EventRange::From(0))),
        ];
        for mut writer in writers {
            let mut out = Vec::new();
            for delta in &answer {
                writer.write(None, delta, &mut out).unwrap();
            }
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.matches(r#""continued":[{"after_tokens":1}]"#).count(), 1, "{text}");
        }
    }

    #[test]
    fn seams_are_told_in_order_and_in_bounds() {
        let mut seams = Seams::default();
        for other in [r#"{"completed_at":7}"#, r#"{"continued":true}"#, r#"{"continued":"#, "1"] {
            seams.note(other);
        }
        assert_eq!(told(&seams), json!({}));
        seams.note(r#"{"continued":{"after_tokens":3,"more":[]}}"#);
        seams.note(r#"{"continued":{"after_tokens":9,"model":"small"}}"#);
        let expected = json!([{"after_tokens": 3}, {"after_tokens": 9, "model": "small"}]);
        assert_eq!(told(&seams)["continued"], expected);
        let long = json!({"continued": {"after_tokens": 10, "model": "x".repeat(300)}});
        (0..20).for_each(|_| seams.note(&long.to_string()));
        let all = told(&seams)["continued"].as_array().unwrap().clone();
        assert_eq!((all.len(), &all[2]), (MAX_SEAMS, &json!({"after_tokens": 10})));
    }
}
