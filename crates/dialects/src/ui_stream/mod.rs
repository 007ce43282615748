//! The AI SDK's UI message stream: `useChat` streams, resumes and stops at `/v1/ui/chat`, and its
//! workflow transport reconnects there, without an app server in between.

pub mod events;
mod message;
pub mod request;
