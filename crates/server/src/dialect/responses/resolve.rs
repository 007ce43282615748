//! The conversation of a response: what came before it, from the store, and its own items.

use std::collections::HashMap;

use serde_json::Value;

use super::input::{check_count, name_items, response_of_item};
use super::request::ResponseRequest;
use super::stored::StoredResponse;
use crate::api::json::{VALUE_BYTES, count_values};
use crate::app::App;
use crate::error::{ApiError, quoted};
use crate::memory::{MemoryCharge, SMALL_BYTES};
use crate::store::{Kind, Owner};

/// Most responses whose items a request may refer to.
const MAX_REFERENCED: usize = 16;

/// The response `id` of `owner` as the store has it, charged to `charge`.
///
/// # Errors
/// When the store cannot be read, or there is no memory for the response.
pub async fn load(
    app: &App,
    owner: Owner,
    id: &str,
    charge: &mut MemoryCharge,
) -> Result<Option<StoredResponse>, ApiError> {
    let Some(object) = app.store.get(Kind::Response, owner, id).await? else { return Ok(None) };
    let bytes = object.json;
    // Before parsing: a tree of values takes many times the bytes of its text.
    let parsed_bytes = count_values(&bytes) * VALUE_BYTES + 2 * bytes.len();
    app.bodies.memory().take(charge, parsed_bytes).await?;
    let unreadable = || ApiError::internal("The stored response cannot be read.");
    let decode = move || StoredResponse::decode(&bytes).ok_or_else(unreadable);
    let response = match parsed_bytes > SMALL_BYTES {
        true => app.bodies.workers().run(decode).await?,
        false => decode()?,
    };
    Ok(Some(response.end_if_lost()))
}

/// The items of the whole conversation: those before `request`, and its own, which get ids.
///
/// # Errors
/// 400 if the previous response, or an item that is referred to, is not there, or is still being
/// generated.
pub async fn conversation(
    app: &App,
    owner: Owner,
    request: &mut ResponseRequest,
) -> Result<Vec<Value>, ApiError> {
    let mut charge = request.fields.take_charge();
    let mut items = Vec::new();
    if let Some(id) = &request.previous {
        // The store may have a checkpoint of it, which is not the whole answer.
        if app.responses.find(owner, id).is_some() {
            let message = "'previous_response_id': that response is still being generated.";
            return Err(ApiError::invalid_param("previous_response_id", message));
        }
        let found = load(app, owner, id, &mut charge).await?;
        items = items_of(found.ok_or_else(|| ApiError::no_previous_response(id))?);
    }
    let mut own = std::mem::take(&mut request.input);
    name_items(&mut own, request.template.id());
    let mut referenced = HashMap::new();
    for (index, item) in own.into_iter().enumerate() {
        items.push(match item["type"] == "item_reference" {
            false => item,
            true => {
                let id = item["id"].as_str().unwrap_or_default();
                match items.iter().find(|item| item["id"] == id).cloned() {
                    Some(known) => known,
                    None => find(app, owner, (index, id), &mut referenced, &mut charge).await?,
                }
            }
        });
    }
    check_count(items.len())?;
    request.fields.put_charge(charge);
    Ok(items)
}

/// The item `id`, wherever it is stored.
async fn find(
    app: &App,
    owner: Owner,
    (index, id): (usize, &str),
    referenced: &mut HashMap<String, Vec<Value>>,
    charge: &mut MemoryCharge,
) -> Result<Value, ApiError> {
    let param = format!("input[{index}].id");
    let unknown = || {
        let message = format!("'{param}': there is no stored item '{}'.", quoted(id));
        ApiError::invalid_param(param.as_str(), message)
    };
    // The id begins with its response's digits, so that no index of items is kept.
    let response = response_of_item(id).ok_or_else(unknown)?;
    if !referenced.contains_key(&response) {
        if referenced.len() == MAX_REFERENCED {
            let message =
                format!("'input' refers to items of more than {MAX_REFERENCED} responses.");
            return Err(ApiError::invalid_param("input", message));
        }
        let found = load(app, owner, &response, charge).await?.ok_or_else(unknown)?;
        referenced.insert(response.clone(), items_of(found));
    }
    let items = referenced.get(&response).ok_or_else(unknown)?;
    items.iter().find(|item| item["id"] == id).cloned().ok_or_else(unknown)
}

/// A response's conversation with its output.
fn items_of(response: StoredResponse) -> Vec<Value> {
    let mut object = response.object();
    let mut items = response.input;
    if let Value::Array(output) = object["output"].take() {
        items.extend(output);
    }
    items
}
