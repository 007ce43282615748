//! The form that a request prescribes for the answer's text: JSON, a grammar, a regular expression
//! or one of several texts, under the names of OpenAI, llama-server and vLLM.

use loquent_formats::grammar::AnswerForm;
use serde_json::{Value, json};

use super::fields::{Fields, kind_of};
use super::tools::{check_schema, parse_format};
use crate::error::ApiError;

/// Maximum number of texts to choose from.
const MAX_TEXTS: usize = 1024;

/// The form prescribed for an answer, and the parameter that prescribes it.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestedForm {
    /// The form that the text must have.
    pub form: AnswerForm,
    /// Name of the parameter, for errors.
    pub param: &'static str,
}

/// Takes `response_format`; llama-server's `grammar` and `json_schema`; vLLM's `structured_outputs`
/// and its older names, `guided_json`, `guided_regex`, `guided_choice` and `guided_grammar`.
///
/// # Errors
/// 400 with the name of the wrong field, or of the second one if two are set.
pub fn parse_form(fields: &mut Fields) -> Result<Option<RequestedForm>, ApiError> {
    let mut found: Option<RequestedForm> = None;
    let mut take =
        |fields: &Fields, form: Option<AnswerForm>, param: &'static str| match (form, &found) {
            (None, _) => Ok(()),
            (Some(form), None) => {
                found = Some(RequestedForm { form, param });
                Ok(())
            }
            (Some(_), Some(other)) => {
                let other = other.param;
                Err(fields.error(param, format!("contradicts '{other}': set one of the two.")))
            }
        };
    let format = parse_format(fields)?.map(AnswerForm::Json);
    take(fields, format, "response_format")?;
    let schema = parse_schema(fields, "json_schema")?;
    take(fields, schema, "json_schema")?;
    // An empty grammar is none, as in llama-server.
    let gbnf = fields.string("grammar")?.filter(|text| !text.is_empty()).map(AnswerForm::Gbnf);
    take(fields, gbnf, "grammar")?;
    let names = ["guided_json", "guided_regex", "guided_choice", "guided_grammar"];
    for (kind, name) in ["json", "regex", "choice", "grammar"].into_iter().zip(names) {
        let form = parse_one(fields, kind, name)?;
        take(fields, form, name)?;
    }
    if let Some(mut outputs) = fields.object("structured_outputs")? {
        for kind in ["json", "regex", "choice", "grammar", "json_object"] {
            let form = parse_one(&mut outputs, kind, kind)?;
            take(&outputs, form, "structured_outputs")?;
        }
        if outputs.take("structural_tag").is_some() {
            return Err(outputs.error("structural_tag", "is not supported; use 'tools'."));
        }
        fields.ignore_rest(outputs);
    }
    Ok(found)
}

/// Takes the field `name`, which holds a form of one of vLLM's kinds.
fn parse_one(fields: &mut Fields, kind: &str, name: &str) -> Result<Option<AnswerForm>, ApiError> {
    match kind {
        "json" => parse_schema(fields, name),
        "regex" => Ok(fields.string(name)?.map(AnswerForm::Regex)),
        "choice" => parse_choice(fields, name),
        "grammar" => Ok(fields.string(name)?.map(grammar)),
        _ => {
            let wanted = fields.boolean(name)?.unwrap_or(false);
            Ok(wanted.then(|| AnswerForm::Json(json!({"type": "object"}))))
        }
    }
}

/// Reads a grammar in either language: only GBNF defines its rules with `::=`.
fn grammar(text: String) -> AnswerForm {
    if text.contains("::=") { AnswerForm::Gbnf(text) } else { AnswerForm::Lark(text) }
}

/// Reads a JSON schema, which vLLM's clients may also send as a string of JSON.
fn parse_schema(fields: &mut Fields, name: &str) -> Result<Option<AnswerForm>, ApiError> {
    let schema = match fields.take(name) {
        None => return Ok(None),
        Some(Value::String(text)) => serde_json::from_str(&text)
            .map_err(|error| fields.error(name, format!("is not JSON: {error}.")))?,
        Some(schema) => schema,
    };
    check_schema(fields, name, schema).map(|schema| Some(AnswerForm::Json(schema)))
}

fn parse_choice(fields: &mut Fields, name: &str) -> Result<Option<AnswerForm>, ApiError> {
    let Some(items) = fields.array(name)? else { return Ok(None) };
    if items.is_empty() || items.len() > MAX_TEXTS {
        return Err(fields.error(name, format!("must hold 1 to {MAX_TEXTS} texts.")));
    }
    let text = |item| match item {
        Value::String(text) if !text.is_empty() => Ok(text),
        Value::String(_) => Err(fields.error(name, "has an empty text.")),
        other => {
            let kind = kind_of(&other);
            Err(fields.error(name, format!("must hold texts; one entry is {kind}.")))
        }
    };
    let texts = items.into_iter().map(text).collect::<Result<_, ApiError>>()?;
    Ok(Some(AnswerForm::Choice(texts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(body: Value) -> Result<Option<RequestedForm>, ApiError> {
        parse_form(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn forms_come_under_the_names_of_three_servers() {
        let schema = || AnswerForm::Json(json!({"type": "array"}));
        let texts = || AnswerForm::Choice(vec!["a".into(), "b".into()]);
        let gbnf = || AnswerForm::Gbnf("root ::= \"a\"".into());
        let lark = || AnswerForm::Lark("start: \"a\"".into());
        for (body, wanted) in [
            (json!({"json_schema": {"type": "array"}}), schema()),
            (json!({"guided_json": "{\"type\": \"array\"}"}), schema()),
            (json!({"structured_outputs": {"json": {"type": "array"}}}), schema()),
            (json!({"guided_choice": ["a", "b"]}), texts()),
            (json!({"structured_outputs": {"choice": ["a", "b"]}}), texts()),
            (json!({"grammar": "root ::= \"a\""}), gbnf()),
            (json!({"guided_grammar": "root ::= \"a\""}), gbnf()),
            (json!({"structured_outputs": {"grammar": "start: \"a\""}}), lark()),
            (json!({"guided_regex": "a+"}), AnswerForm::Regex("a+".into())),
            (
                json!({"structured_outputs": {"json_object": true}}),
                AnswerForm::Json(json!({"type": "object"})),
            ),
        ] {
            assert_eq!(form(body.clone()).unwrap().unwrap().form, wanted, "{body}");
        }
        let none = json!({"grammar": "", "structured_outputs": {"json_object": false}});
        assert_eq!(form(none).unwrap(), None);
    }

    #[test]
    fn wrong_and_contradicting_forms_are_named() {
        let many: Vec<String> = (0..=MAX_TEXTS).map(|n| n.to_string()).collect();
        for (body, param) in [
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"guided_choice": [1]}), "guided_choice"),
            (json!({"guided_choice": many}), "guided_choice"),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"guided_json": 5}), "guided_json"),
            (json!({"grammar": 5}), "grammar"),
            (json!({"grammar": "a", "guided_regex": "b"}), "guided_regex"),
            (json!({"structured_outputs": {"regex": 1}}), "structured_outputs.regex"),
            (
                json!({"structured_outputs": {"structural_tag": {}, "json_object": false}}),
                "structured_outputs.structural_tag",
            ),
        ] {
            let error = form(body.clone()).unwrap_err().json();
            assert_eq!(error["error"]["param"], param, "{body}");
        }
        let two = form(json!({"structured_outputs": {"regex": "a", "grammar": "b"}}));
        assert_eq!(two.unwrap_err().status(), 400);
    }
}
