//! Conversations in roles that a template refuses, written in roles that most templates take.
//!
//! Agents put system messages anywhere: reminders in the middle of a conversation, instructions
//! after the first question. Some templates raise an exception for one that is not the first, some
//! for any, and some for two turns of the user in a row.

use super::ChatMessage;

/// Returns the conversation with at most one system message, at its beginning. Later ones become
/// turns of the user in their place, so that what stands before them stays in the prefix cache.
/// Neighbouring turns of the user become one.
pub(super) fn system_first(messages: &[ChatMessage]) -> Vec<ChatMessage> {
    let mut written: Vec<ChatMessage> = Vec::with_capacity(messages.len());
    for message in messages {
        let mut message = message.clone();
        let is_leading = written.iter().all(is_system);
        if is_system(&message) && !is_leading {
            let text = message.content.take().unwrap_or_default();
            message = ChatMessage::new("user", format!("<system>\n{text}\n</system>"));
        }
        match written.last_mut() {
            Some(last) if are_one_turn(last, &message) => append(last, &message),
            _ => written.push(message),
        }
    }
    written
}

/// Returns the conversation without system messages: the one at its beginning becomes the beginning
/// of the user's first turn, later ones as in [`system_first`].
pub(super) fn without_system(messages: &[ChatMessage]) -> Vec<ChatMessage> {
    let mut written = system_first(messages);
    if written.first().is_none_or(|first| !is_system(first)) {
        return written;
    }
    let system = written.remove(0);
    let mut user = ChatMessage { role: "user".to_owned(), ..system };
    match written.first_mut() {
        Some(first) if are_one_turn(&user, first) => {
            append(&mut user, first);
            *first = user;
        }
        _ => written.insert(0, user),
    }
    written
}

fn is_system(message: &ChatMessage) -> bool {
    matches!(message.role.as_str(), "system" | "developer")
}

/// Returns true if two neighbouring messages are read as one.
fn are_one_turn(one: &ChatMessage, next: &ChatMessage) -> bool {
    let are_users = one.role == "user" && next.role == "user";
    are_users || (is_system(one) && is_system(next))
}

fn append(to: &mut ChatMessage, next: &ChatMessage) {
    let texts = [&to.content, &next.content].into_iter().flatten();
    let texts: Vec<&str> = texts.map(String::as_str).filter(|text| !text.is_empty()).collect();
    to.content = Some(texts.join("\n\n"));
}
