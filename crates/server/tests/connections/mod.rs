//! TCP connections as attackers and unlucky clients use them: how long each may hold its place,
//! who gets a place, and which pages may use the server.

mod harness;
mod pages;
mod places;
mod time;
mod unread;
