//! Items with the summary of a conversation.
//!
//! The summary stands in the item's `encrypted_content` as the model wrote it: the client has had
//! the conversation itself.

use serde_json::{Value, json};

/// Beginning of the content of this server's compactions, by which it knows them.
const MARK: &str = "loquent-summary:";
/// Beginning of the message that a summary becomes.
const RECALL: &str = "Summary of our conversation so far:";

/// Returns the item called `id` with `summary`.
pub fn item(id: &str, summary: &str) -> Value {
    let content = format!("{MARK}{summary}");
    json!({"id": id, "type": "compaction", "encrypted_content": content})
}

/// Returns the message that `item` becomes in later requests; `None` if the summary in it is
/// another server's.
pub fn recalled(item: &Value) -> Option<String> {
    let summary = item["encrypted_content"].as_str()?.strip_prefix(MARK)?;
    Some(format!("{RECALL}\n{summary}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_summaries_are_readable() {
        assert_eq!(recalled(&item("cmp_1", "They met.")).unwrap(), format!("{RECALL}\nThey met."));
        for foreign in
            [json!({"encrypted_content": "gAAAA"}), json!({"encrypted_content": 5}), json!({})]
        {
            assert_eq!(recalled(&foreign), None);
        }
    }
}
