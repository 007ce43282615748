//! Stored chat completions: those requested with `store: true`, to be listed, read, annotated and
//! deleted later.

mod object;
pub mod request;
mod routes;

use std::sync::Arc;

use loquent_infer::vocab::Vocab;
pub use routes::routes;

use self::object::StoredChat;
use self::request::ChatToStore;
use crate::active_request::ActiveRequest;
use crate::app::App;
use crate::store::Owner;
use crate::store::object::{AnswerFence, Kind};
use crate::store::recorder::{AnswerRecorder, StorePlace};

/// Arranges for the answer to `active` to be stored for `owner` when it is complete, if its request
/// asks for that.
pub fn record(
    app: &App,
    vocab: &Arc<dyn Vocab>,
    (owner, fence): (Owner, AnswerFence),
    chat: Option<Box<ChatToStore>>,
    active: &mut ActiveRequest,
) {
    let Some(chat) = chat else { return };
    let object = StoredChat { chat: *chat, vocab: vocab.clone() };
    let place = StorePlace { store: app.store.clone(), kind: Kind::ChatCompletion, owner, fence };
    let recorder = AnswerRecorder::new(active, object, place);
    active.observe(Box::new(recorder));
}
