//! Closes the objects of JSON schemas: one that lists its `properties` and says nothing of others
//! has no others. JSON Schema allows them, but the libraries that write schemas mean none, and a
//! model that may invent members goes on inventing. llama-server reads schemas in the same way.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Members that hold one schema.
const ONE: &[&str] = &["items", "additionalProperties", "contains", "not", "if", "then", "else"];
/// Members that hold an array of schemas.
const SEVERAL: &[&str] = &["anyOf", "oneOf", "allOf", "prefixItems", "items"];
/// Members that hold schemas by name.
const NAMED: &[&str] = &["properties", "$defs", "definitions", "dependentSchemas"];
/// Members whose schemas hold for the same object as the schema that has them.
const COMBINING: &[&str] = &["allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"];
/// Members by which a schema says what other properties an object has.
const ABOUT_OTHERS: &[&str] =
    &["additionalProperties", "unevaluatedProperties", "patternProperties"];

/// Closes each object of `schema` that lists its properties, unless it says otherwise or is
/// combined with other schemas. With `is_strict`, an object that allows any others is closed too.
pub fn close_objects(schema: &mut Value, is_strict: bool) {
    let mut open = HashSet::new();
    find_combined(schema, false, &mut open);
    close(schema, ClosingRules { is_strict, is_combined: false }, "#", &open);
}

/// Collects the `$ref`s to schemas that are combined with others: closing one of these would
/// forbid the properties that the others list.
fn find_combined(schema: &Value, is_combined: bool, open: &mut HashSet<String>) {
    let Value::Object(members) = schema else { return };
    let combines = is_combined || is_composite(members);
    if let Some(target) = members.get("$ref").and_then(Value::as_str).filter(|_| combines) {
        open.insert(target.to_owned());
    }
    for (name, child) in members {
        let is_combined = combines && COMBINING.contains(&name.as_str());
        for_each_schema(name, child, |schema, _| find_combined(schema, is_combined, open));
    }
}

/// Returns true if several of the schema's parts describe the same object.
fn is_composite(members: &Map<String, Value>) -> bool {
    let branches = |name: &str| members.get(name).and_then(Value::as_array).map_or(0, Vec::len);
    let parts = [
        usize::from(members.contains_key("properties")),
        usize::from(members.contains_key("$ref")),
        branches("allOf"),
        // Only one of these branches holds, or is enough.
        branches("anyOf").min(1),
        branches("oneOf").min(1),
        usize::from(members.contains_key("if") || members.contains_key("dependentSchemas")),
    ];
    parts.iter().sum::<usize>() > 1
}

/// Calls `visit` with each schema in the member `name`, whose value is `child`, and its path below
/// the member.
fn for_each_schema(name: &str, child: &Value, mut visit: impl FnMut(&Value, &str)) {
    match child {
        Value::Object(children) if NAMED.contains(&name) => {
            children.iter().for_each(|(key, child)| visit(child, key));
        }
        Value::Array(children) if SEVERAL.contains(&name) => {
            children.iter().for_each(|child| visit(child, ""));
        }
        Value::Object(_) if ONE.contains(&name) => visit(child, ""),
        _ => {}
    }
}

/// Rules by which a schema is closed.
#[derive(Clone, Copy)]
struct ClosingRules {
    is_strict: bool,
    /// True if other schemas describe the same object.
    is_combined: bool,
}

fn close(schema: &mut Value, rules: ClosingRules, path: &str, open: &HashSet<String>) {
    let Value::Object(members) = schema else { return };
    let combines = rules.is_combined || is_composite(members);
    for (name, child) in members.iter_mut() {
        let is_combined = combines && COMBINING.contains(&name.as_str());
        close_in(name, child, ClosingRules { is_combined, ..rules }, path, open);
    }
    if combines || open.contains(path) || !members.contains_key("properties") {
        return;
    }
    let allows_any = members.get("additionalProperties") == Some(&Value::Bool(true));
    let says_nothing = !ABOUT_OTHERS.iter().any(|name| members.contains_key(*name));
    if says_nothing || (rules.is_strict && allows_any) {
        members.insert("additionalProperties".into(), false.into());
    }
}

/// Closes the schemas in the member `name` of the schema at `path`.
fn close_in(
    name: &str,
    child: &mut Value,
    rules: ClosingRules,
    path: &str,
    open: &HashSet<String>,
) {
    match child {
        Value::Object(children) if NAMED.contains(&name) => {
            for (key, child) in children.iter_mut() {
                // Only definitions are referred to by path.
                let path = match name {
                    "$defs" | "definitions" => format!("{path}/{name}/{key}"),
                    _ => String::new(),
                };
                close(child, rules, &path, open);
            }
        }
        Value::Array(children) if SEVERAL.contains(&name) => {
            children.iter_mut().for_each(|child| close(child, rules, "", open));
        }
        Value::Object(_) if ONE.contains(&name) => close(child, rules, "", open),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn closed(mut schema: Value) -> Value {
        close_objects(&mut schema, false);
        schema
    }

    #[test]
    fn an_object_that_lists_its_properties_has_no_others() {
        let person = |more: Value| {
            let mut schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
            schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            schema
        };
        let shut = person(json!({"additionalProperties": false}));
        assert_eq!(closed(person(json!({}))), shut);
        assert_eq!(closed(json!({"items": person(json!({}))})), json!({"items": shut}));
        let optional = json!({"anyOf": [person(json!({})), {"type": "null"}]});
        assert_eq!(closed(optional), json!({"anyOf": [shut, {"type": "null"}]}));
        let named = json!({"$defs": {"P": person(json!({}))}, "$ref": "#/$defs/P"});
        assert_eq!(closed(named), json!({"$defs": {"P": shut}, "$ref": "#/$defs/P"}));
        for said in [
            json!({"additionalProperties": true}),
            json!({"additionalProperties": {"type": "integer"}}),
            json!({"unevaluatedProperties": {}}),
            json!({"patternProperties": {"^x": {}}}),
        ] {
            assert_eq!(closed(person(said.clone())), person(said));
        }
        let mut strict = person(json!({"additionalProperties": true}));
        close_objects(&mut strict, true);
        assert_eq!(strict, shut);
    }

    #[test]
    fn what_lists_no_properties_stays_open() {
        for schema in [
            json!({"type": "object"}),
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"enum": [{"properties": {}}]}),
            json!(true),
        ] {
            assert_eq!(closed(schema.clone()), schema);
        }
    }

    #[test]
    fn parts_of_one_object_forbid_each_other_nothing() {
        let part = |name: &str| json!({"properties": {name: {"type": "string"}}});
        for schema in [
            json!({"allOf": [part("a"), part("b")]}),
            json!({"properties": {"a": {}}, "anyOf": [part("b"), part("c")]}),
            json!({"properties": {"a": {}}, "if": part("a"), "then": part("b")}),
            json!({"allOf": [{"$ref": "#/$defs/A"}, part("b")], "$defs": {"A": part("a")}}),
            json!({"$ref": "#/definitions/A", "properties": {"b": {}}, "definitions": {"A": part("a")}}),
        ] {
            assert_eq!(closed(schema.clone()), schema);
        }
        // Inside such a part, an object of its own is closed.
        let deep = json!({"allOf": [part("a"), {"properties": {"b": part("c")}}]});
        let deep = closed(deep);
        assert_eq!(deep["allOf"][1]["properties"]["b"]["additionalProperties"], false);
        assert_eq!(deep["allOf"][1].get("additionalProperties"), None);
        // One part alone is the object.
        let alone = closed(json!({"allOf": [part("a")]}));
        assert_eq!(alone["allOf"][0]["additionalProperties"], false);
    }
}
