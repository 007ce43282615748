//! Continuation of an answer at another server, when the one that began it has broken off: what
//! has arrived, and the request for the rest.
//!
//! The rest is requested as vLLM and SGLang have it: the text so far becomes the last message, of
//! the assistant, with `continue_final_message`. llama-server continues such a message by itself.
//! For `/v1/completions` the text so far is appended to the prompt.

use std::fmt;

use loquent_infer::stop::{Match, StopMatcher};
use loquent_proto::Delta;
use loquent_serving::api::request::{Endpoint, LIMIT_NAMES};
use loquent_serving::held_answer::HeldAnswer;
use serde_json::{Map, Value, json};

/// Maximum bytes of an answer that is kept to be continued.
const MAX_KEPT_BYTES: usize = 256 * 1024;
/// Members that prescribe the form of an answer, which a server can only enforce from its
/// beginning.
const FORMS: [&str; 8] = [
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "json_schema",
];
/// Maximum number of stop strings that are searched across the seam, and of bytes of each.
const MAX_STOPS: (usize, usize) = (64, 1024);

/// Parts of an answer that have arrived, kept as long as another server could continue it.
pub struct ArrivedAnswer {
    endpoint: Endpoint,
    text: String,
    reasoning: String,
    /// First reason why no server can continue the answer.
    obstacle: Option<Obstacle>,
    /// Charge of the kept text.
    held: HeldAnswer,
}

/// Request for the rest of an answer.
#[derive(Debug, PartialEq)]
pub enum Rest {
    /// The members of a request that is answered by the rest.
    Request(Map<String, Value>),
    /// Nothing is left: the answer has all tokens that its request allows.
    Nothing,
}

/// Reason why no server can continue an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// A tool call has begun, and its beginning has been sent.
    ToolCall,
    /// The answer had not got past its reasoning.
    Reasoning,
    /// The answer has a prescribed form.
    Form,
    /// The request asks for something that depends on where an answer begins.
    Request,
    /// The answer is too long, or there is no memory to keep it.
    TooLong,
    /// Too many servers have broken off already.
    TooOften,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::ToolCall => "a tool call had begun",
            Self::Reasoning => "it was still reasoning",
            Self::Form => "its form is prescribed",
            Self::Request => "its request has several completions, tokens as a prompt, or offsets",
            Self::TooLong => "it is too long to be kept",
            Self::TooOften => "too many servers broke off",
        })
    }
}

impl ArrivedAnswer {
    /// Returns the beginning of an answer to a request to `endpoint`, of which nothing has arrived.
    /// What arrives is charged to `held`.
    pub fn new(endpoint: Endpoint, held: HeldAnswer) -> Self {
        let (text, reasoning) = (String::new(), String::new());
        Self { endpoint, text, reasoning, obstacle: None, held }
    }

    /// Adds what has arrived.
    pub fn add(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            match delta {
                Delta::Text { text, .. } => self.keep(text, false),
                Delta::Reasoning { text, .. } => self.keep(text, true),
                Delta::ToolCall { .. } => self.give_up(Obstacle::ToolCall),
                _ => {}
            }
        }
    }

    fn keep(&mut self, text: &str, is_reasoning: bool) {
        if self.obstacle.is_some() {
            return;
        }
        let kept = self.text.len() + self.reasoning.len();
        if kept + text.len() > MAX_KEPT_BYTES || self.held.add_bytes(text.len()).is_err() {
            return self.give_up(Obstacle::TooLong);
        }
        if is_reasoning { &mut self.reasoning } else { &mut self.text }.push_str(text);
    }

    fn give_up(&mut self, obstacle: Obstacle) {
        self.obstacle.get_or_insert(obstacle);
        (self.text, self.reasoning) = (String::new(), String::new());
        self.held.give_back();
    }

    /// Returns the request for the rest of the answer to the request with the members `body`, of
    /// which `tokens` tokens have arrived.
    ///
    /// # Errors
    /// The reason why no server can continue it.
    pub fn rest(&self, body: &Map<String, Value>, tokens: u64) -> Result<Rest, Obstacle> {
        if let Some(obstacle) = self.obstacle {
            return Err(obstacle);
        }
        check(body)?;
        let mut rest = body.clone();
        match self.endpoint {
            Endpoint::Chat => self.put_message(&mut rest)?,
            Endpoint::Text => self.put_prompt(&mut rest)?,
        }
        for name in LIMIT_NAMES {
            if let Some(limit) = body.get(name).and_then(Value::as_u64) {
                if limit <= tokens {
                    return Ok(Rest::Nothing);
                }
                rest.insert(name.into(), (limit - tokens).into());
            }
        }
        if let Some(least) = body.get("min_tokens").and_then(Value::as_u64) {
            rest.insert("min_tokens".into(), least.saturating_sub(tokens).into());
        }
        Ok(Rest::Request(rest))
    }

    /// Returns the text so far without the space at its end: many templates drop it, and models are
    /// used to tokens that begin with a space. The rest begins with it again.
    fn spoken(&self) -> &str {
        self.text.trim_end()
    }

    /// Makes the text so far the last message.
    fn put_message(&self, body: &mut Map<String, Value>) -> Result<(), Obstacle> {
        if self.spoken().is_empty() {
            // The rest is the whole answer, unless there is reasoning before it.
            return if self.reasoning.is_empty() { Ok(()) } else { Err(Obstacle::Reasoning) };
        }
        let is_continued = body.get("continue_final_message") == Some(&Value::Bool(true));
        let messages = body.get_mut("messages").and_then(Value::as_array_mut);
        let messages = messages.ok_or(Obstacle::Request)?;
        match messages.last_mut().filter(|_| is_continued) {
            Some(last) => match last.get_mut("content") {
                Some(Value::String(content)) => content.push_str(self.spoken()),
                _ => return Err(Obstacle::Request),
            },
            None => messages.push(self.message()),
        }
        body.insert("continue_final_message".into(), true.into());
        body.insert("add_generation_prompt".into(), false.into());
        Ok(())
    }

    fn message(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.spoken()});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        message
    }

    /// Appends the text so far to the prompt.
    fn put_prompt(&self, body: &mut Map<String, Value>) -> Result<(), Obstacle> {
        let prompt = match body.get_mut("prompt") {
            Some(Value::Array(all)) if all.len() == 1 => all.first_mut(),
            other => other,
        };
        let Some(Value::String(prompt)) = prompt else { return Err(Obstacle::Request) };
        prompt.push_str(self.spoken());
        Ok(())
    }

    /// Returns the seam behind this text; `body` has the request's stop strings.
    pub fn seam(&self, body: &Map<String, Value>) -> Seam {
        let space = self.text[self.spoken().len()..].to_owned();
        Seam { space, stops: SeamStops::behind(&self.text, stops_in(body)) }
    }
}

/// Checks that the members of a request allow its answer to be continued.
fn check(body: &Map<String, Value>) -> Result<(), Obstacle> {
    let has = |name: &str| body.get(name).is_some_and(|value| !value.is_null());
    let is_plain_text = body.get("response_format").is_some_and(|form| form["type"] == "text");
    let forms = FORMS.iter().filter(|name| **name != "response_format" || !is_plain_text);
    let is_forced = match body.get("tool_choice") {
        Some(Value::String(choice)) => choice == "required",
        Some(choice) => choice.is_object(),
        None => false,
    };
    if is_forced || forms.into_iter().any(|name| has(name)) {
        return Err(Obstacle::Form);
    }
    let is_set = |name: &str| body.get(name) == Some(&Value::Bool(true));
    let has_offsets = has("prompt") && has("logprobs");
    if is_set("echo") || has("suffix") || has_offsets {
        return Err(Obstacle::Request);
    }
    Ok(())
}

/// Returns the stop strings of a request.
fn stops_in(body: &Map<String, Value>) -> Vec<String> {
    if body.get("include_stop_str_in_output") == Some(&Value::Bool(true)) {
        return Vec::new();
    }
    let all = match body.get("stop") {
        Some(Value::Array(all)) => all.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    let (most, bytes) = MAX_STOPS;
    let texts = all.iter().take(most).filter_map(Value::as_str);
    texts.filter(|stop| stop.len() <= bytes).map(str::to_owned).collect()
}

/// Place where an answer goes on at another server.
#[derive(Debug)]
pub struct Seam {
    /// Space that was sent before the seam, and that the rest may begin with again.
    space: String,
    stops: Option<SeamStops>,
}

impl Seam {
    /// Takes fresh text; leaves in it what may be sent. Returns true if a stop string has ended it.
    pub fn push(&mut self, fresh: &mut String) -> bool {
        let again = self.space.bytes().zip(fresh.bytes()).take_while(|(one, other)| one == other);
        let again = again.count();
        if again < self.space.len().min(fresh.len()) {
            self.space.clear(); // the rest begins otherwise
        } else {
            self.space.drain(..again);
        }
        fresh.drain(..again);
        self.stops.as_mut().is_some_and(|stops| stops.push(fresh))
    }

    /// Ends the text; leaves in `rest` what was held back.
    pub fn finish(&mut self, rest: &mut String) {
        if let Some(stops) = &mut self.stops {
            stops.finish(rest);
        }
    }

    /// Returns true while the text before the seam matters to that behind it.
    pub fn is_open(&self) -> bool {
        !self.space.is_empty() || self.stops.as_ref().is_some_and(SeamStops::is_open)
    }
}

/// Search for a stop string that begins before the seam of an answer, in text that was sent, and
/// ends behind it. The server that continues knows only what it generates itself.
#[derive(Debug)]
struct SeamStops {
    matcher: StopMatcher,
    /// Bytes at the beginning of the matcher's output that were sent already.
    sent: usize,
}

impl SeamStops {
    fn behind(text: &str, stops: Vec<String>) -> Option<Self> {
        let mut matcher = StopMatcher::new(stops);
        let mut before = String::new();
        let found = matcher.push(text, &mut before);
        let sent = text.len() - before.len();
        (found == Match::None && sent > 0).then_some(Self { matcher, sent })
    }

    /// Takes fresh text; leaves in it what may be sent. Returns true if a stop string has ended it.
    fn push(&mut self, fresh: &mut String) -> bool {
        let mut shown = String::new();
        let found = self.matcher.push(fresh, &mut shown);
        self.take_sent(shown, fresh);
        found == Match::Stopped
    }

    /// Ends the text; leaves in `rest` what was held back.
    fn finish(&mut self, rest: &mut String) {
        let mut shown = String::new();
        self.matcher.finish(&mut shown);
        self.take_sent(shown, rest);
    }

    /// Returns true while a stop string may still have begun before the seam.
    fn is_open(&self) -> bool {
        self.matcher.is_holding()
    }

    fn take_sent(&mut self, mut shown: String, fresh: &mut String) {
        let sent = self.sent.min(shown.len());
        self.sent -= sent;
        shown.drain(..sent);
        *fresh = shown;
    }
}

#[cfg(test)]
mod tests {
    use loquent_infer::tenant::TenantId;
    use loquent_serving::body::{BodyLimits, RequestBodies};

    use super::*;

    fn arrived(endpoint: Endpoint, text: &str) -> ArrivedAnswer {
        let bodies = RequestBodies::new(BodyLimits { max_bytes: 1 << 20, total_bytes: 16 << 20 });
        let mut arrived = ArrivedAnswer::new(endpoint, HeldAnswer::new(bodies, TenantId(1)));
        arrived.add(&[Delta::Text { choice: 0, tokens: 1, text: text.into() }]);
        arrived
    }

    fn members(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn rest(endpoint: Endpoint, body: Value) -> Result<Rest, Obstacle> {
        arrived(endpoint, "Once upon").rest(&members(body), 2)
    }

    fn request(rest: Result<Rest, Obstacle>) -> Value {
        match rest {
            Ok(Rest::Request(body)) => body.into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_text_so_far_becomes_the_last_message_and_the_limits_shrink() {
        let user = json!({"role": "user", "content": "A tale?"});
        let body = json!({"messages": [user], "max_tokens": 10, "min_tokens": 1, "seed": 4});
        let expected = json!({
            "messages": [user, {"role": "assistant", "content": "Once upon"}],
            "max_tokens": 8, "min_tokens": 0, "seed": 4,
            "continue_final_message": true, "add_generation_prompt": false,
        });
        assert_eq!(request(rest(Endpoint::Chat, body)), expected);
    }

    #[test]
    fn an_answer_that_continued_a_message_is_continued_in_it() {
        let begun = json!({"role": "assistant", "content": "So: "});
        let body = json!({"messages": [begun], "continue_final_message": true});
        let messages = request(rest(Endpoint::Chat, body))["messages"].take();
        assert_eq!(messages, json!([{"role": "assistant", "content": "So: Once upon"}]));
    }

    #[test]
    fn a_prompt_grows_by_the_text_so_far() {
        for prompt in [json!("> "), json!(["> "])] {
            let rest = request(rest(Endpoint::Text, json!({"prompt": prompt})));
            assert_eq!(rest["prompt"].to_string().replace(['[', ']'], ""), r#""> Once upon""#);
        }
    }

    #[test]
    fn an_answer_that_has_all_its_tokens_needs_no_server() {
        let body = json!({"messages": [], "max_completion_tokens": 2});
        assert_eq!(rest(Endpoint::Chat, body), Ok(Rest::Nothing));
    }

    #[test]
    fn what_depends_on_the_beginning_is_not_continued() {
        let chat = |more: Value| {
            let mut body = json!({"messages": []});
            body.as_object_mut().unwrap().extend(members(more));
            rest(Endpoint::Chat, body)
        };
        for form in [
            json!({"response_format": {"type": "json_object"}}),
            json!({"tool_choice": "required"}),
            json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}),
            json!({"grammar": "root ::= \"a\""}),
            json!({"guided_regex": "a+"}),
        ] {
            assert_eq!(chat(form.clone()), Err(Obstacle::Form), "{form}");
        }
        assert!(chat(json!({"response_format": {"type": "text"}, "grammar": null})).is_ok());
        for prompt in [
            json!({"prompt": [1, 2]}),
            json!({"prompt": ["a", "b"]}),
            json!({"prompt": "a", "echo": true}),
            json!({"prompt": "a", "suffix": "b"}),
            json!({"prompt": "a", "logprobs": 1}),
        ] {
            assert_eq!(rest(Endpoint::Text, prompt.clone()), Err(Obstacle::Request), "{prompt}");
        }
    }

    #[test]
    fn reasoning_goes_along_but_is_not_continued() {
        let body = members(json!({"messages": []}));
        let thought = Delta::Reasoning { choice: 0, tokens: 1, text: "hm".into() };
        let mut whole = arrived(Endpoint::Chat, "So");
        whole.add(std::slice::from_ref(&thought));
        let last = request(whole.rest(&body, 1))["messages"][0].take();
        assert_eq!(last, json!({"role": "assistant", "content": "So", "reasoning_content": "hm"}));
        let mut half = arrived(Endpoint::Chat, "");
        half.add(&[thought]);
        assert_eq!(half.rest(&body, 1), Err(Obstacle::Reasoning));
    }

    #[test]
    fn a_tool_call_and_a_long_answer_end_the_keeping_and_return_its_memory() {
        let call = Delta::ToolCall {
            choice: 0,
            index: 0,
            tokens: 1,
            id: "1".into(),
            name: "f".into(),
            arguments: String::new(),
        };
        let long = Delta::Text { choice: 0, tokens: 1, text: "a".repeat(MAX_KEPT_BYTES) };
        for (delta, obstacle) in [(call, Obstacle::ToolCall), (long, Obstacle::TooLong)] {
            let limits = BodyLimits { max_bytes: 1 << 20, total_bytes: 16 << 20 };
            let bodies = RequestBodies::new(limits);
            let free = bodies.memory().free_bytes();
            let held = HeldAnswer::new(bodies.clone(), TenantId(1));
            let mut arrived = ArrivedAnswer::new(Endpoint::Chat, held);
            arrived.add(&[Delta::Text { choice: 0, tokens: 1, text: "some".into() }]);
            assert!(bodies.memory().free_bytes() < free);
            arrived.add(&[delta]);
            arrived.add(&[Delta::Text { choice: 0, tokens: 1, text: "more".into() }]);
            assert_eq!(arrived.rest(&members(json!({"messages": []})), 1), Err(obstacle));
            assert_eq!(bodies.memory().free_bytes(), free);
        }
    }

    /// Sends `pieces` behind `text`; returns what is sent of them, and whether a stop string ended it.
    fn sent_behind(text: &str, stop: Value, pieces: &[&str]) -> (String, bool) {
        let body = members(json!({"stop": stop}));
        let (mut seam, mut sent) = (arrived(Endpoint::Chat, text).seam(&body), String::new());
        for piece in pieces {
            let mut fresh = (*piece).to_owned();
            let ends = seam.push(&mut fresh);
            sent.push_str(&fresh);
            if ends {
                return (sent, true);
            }
        }
        let mut rest = String::new();
        seam.finish(&mut rest);
        (sent + &rest, false)
    }

    #[test]
    fn a_stop_string_across_the_seam_is_found_and_nothing_else_is_held() {
        let sent = |text, pieces| sent_behind(text, json!(["END", "éx"]), pieces);
        assert_eq!(sent("so E", &["N", "D more"]), (String::new(), true));
        assert_eq!(sent("so E", &["N", "O more"]), ("NO more".into(), false));
        assert_eq!(sent("so EN", &[]), (String::new(), false));
        assert_eq!(sent("so é", &["x"]), (String::new(), true));
        assert_eq!(sent("so", &["a"]), ("a".into(), false));
        let body = members(json!({"stop": "END"}));
        assert!(!arrived(Endpoint::Chat, "so").seam(&body).is_open(), "nothing has begun");
    }

    #[test]
    fn space_before_the_seam_is_sent_once() {
        let sent = |text, pieces| sent_behind(text, json!(null), pieces).0;
        assert_eq!(sent("five ", &[" six"]), "six");
        assert_eq!(sent("five\n\n", &["\n", "\nsix"]), "six");
        assert_eq!(sent("five \n", &[" six"]), "six");
        assert_eq!(sent("five ", &["six"]), "six");
        assert_eq!(sent("five", &[" six"]), " six");
        let rest = arrived(Endpoint::Chat, "five ").rest(&members(json!({"messages": []})), 1);
        assert_eq!(request(rest)["messages"][0]["content"], "five");
        let nothing = arrived(Endpoint::Chat, " ").rest(&members(json!({"messages": []})), 1);
        assert_eq!(request(nothing), json!({"messages": []}), "the whole answer again");
    }

    proptest::proptest! {
        #[test]
        fn what_is_sent_around_a_seam_is_what_one_server_would_have_sent(
            text in "[abé]{0,12}",
            stop in "[abé]{1,4}",
            seam in 0..12usize,
        ) {
            let at = text.char_indices().map(|(at, _)| at).nth(seam).unwrap_or(text.len());
            let (before, behind) = text.split_at(at);
            // The first server has not found it.
            proptest::prop_assume!(!before.contains(&stop));
            let begins = text.find(&stop).filter(|begins| *begins < at);
            let (rest, ends) = sent_behind(before, json!(stop), &[behind]);
            match begins {
                // What of the stop string was sent before the seam cannot be taken back.
                Some(_) => proptest::prop_assert_eq!((rest.as_str(), ends), ("", true)),
                // One that begins behind the seam is the server's to find.
                None => proptest::prop_assert!(behind.starts_with(&rest)),
            }
        }
    }
}
