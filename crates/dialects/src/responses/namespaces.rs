//! Namespaces of functions, in which Codex sends the tools of MCP servers. A model knows functions
//! by one name, made of the namespace and the function; a call names both to the client again.

use serde_json::Value;

/// Maximum length of a function's name in bytes, as in chat completions.
const MAX_NAME_BYTES: usize = 64;
/// Between a namespace and a function.
const BETWEEN: &str = "__";

/// A function in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespacedName<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The function's name in it.
    pub name: &'a str,
}

impl<'a> NamespacedName<'a> {
    /// Returns the name by which the model knows the function. One that is too long ends in a hash
    /// instead.
    pub fn flat(self) -> String {
        let Self { namespace, name } = self;
        let between = if namespace.ends_with(BETWEEN) { "" } else { BETWEEN };
        let whole = format!("{namespace}{between}{name}");
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let flat: String = whole.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
        if flat.len() <= MAX_NAME_BYTES && flat == whole {
            return flat;
        }
        let hash = format!("_{:08x}", fnv1a(&whole));
        format!("{}{hash}", &flat[..flat.len().min(MAX_NAME_BYTES - hash.len())])
    }

    /// Returns the function that the model knows as `flat`, according to the `tools` of a
    /// response's object; `None` for a function without a namespace.
    pub fn find(tools: &'a Value, flat: &str) -> Option<Self> {
        let tools = tools.as_array()?;
        if tools.iter().any(|tool| tool["type"] == "function" && tool["name"] == flat) {
            return None;
        }
        tools.iter().filter(|tool| tool["type"] == "namespace").find_map(|tool| {
            let namespace = tool["name"].as_str()?;
            let names = tool["tools"].as_array()?.iter().filter_map(|it| it["name"].as_str());
            let mut functions = names.map(|name| Self { namespace, name });
            functions.find(|function| function.flat() == flat)
        })
    }
}

/// FNV-1a, 32 bits.
fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn flat(namespace: &str, name: &str) -> String {
        NamespacedName { namespace, name }.flat()
    }

    #[test]
    fn a_function_of_a_namespace_has_one_name() {
        assert_eq!(flat("mcp__adder", "add"), "mcp__adder__add");
        assert_eq!(flat("mcp__adder__", "add"), "mcp__adder__add");
        let long = "x".repeat(70);
        let names = [flat(&long, "a"), flat(&long, "b"), flat("a b", "c"), flat("a_b", "c")];
        assert!(names.iter().all(|name| name.len() <= MAX_NAME_BYTES), "{names:?}");
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert!(names.iter().all(|name| name.chars().all(allowed)), "{names:?}");
        assert!(names[0] != names[1] && names[2] != names[3], "{names:?}");
    }

    #[test]
    fn the_name_leads_back_to_the_function() {
        let function = |name: &str| json!({"type": "function", "name": name});
        let tools = json!([
            function("plain__f"),
            {"type": "namespace", "name": "plain", "tools": [function("f")]},
            {"type": "namespace", "name": "n", "tools": [function("f"), function("g")]},
        ]);
        let find = |flat: &str| NamespacedName::find(&tools, flat);
        assert_eq!(find("n__g"), Some(NamespacedName { namespace: "n", name: "g" }));
        assert_eq!(find("plain__f"), None, "the function of that name goes first");
        assert_eq!((find("g"), find("n__h")), (None, None));
    }
}
