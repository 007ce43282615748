//! Assembles the conversation of a response: the previous items, from the store, and its own.

use std::collections::HashMap;

use serde_json::Value;

use crate::app::App;
use loquent_dialects::responses::input::{check_count, name_items, response_of_item};
use loquent_dialects::responses::request::ResponseRequest;
use loquent_responses::lookup::FoundResponse;
use loquent_responses::stored::StoredResponse;
use loquent_serving::api::json::{MAX_VALUES, ValueSize};
use loquent_serving::error::{ApiError, quoted};
use loquent_serving::identity::Owner;
use loquent_serving::memory::{MemoryCharge, SMALL_BYTES};

/// Maximum number of responses whose items a request may refer to.
const MAX_REFERENCED: usize = 16;

/// Returns the items of the whole conversation: those before `request`, and its own, which get ids.
///
/// # Errors
/// 400 if the previous response or a referenced item does not exist or is still being generated, or
/// if the referenced items are larger than a request may be.
pub async fn conversation(
    app: &App,
    owner: Owner,
    request: &mut ResponseRequest,
) -> Result<Vec<Value>, ApiError> {
    let charge = request.fields.take_charge();
    let mut resolver = Resolver::new(app, owner, charge);
    if let Some(id) = &request.previous {
        let found = resolver.load_ended(id, "previous_response_id").await?;
        let found = found.ok_or_else(|| ApiError::no_previous_response(id))?;
        let items = items_of(app, found).await?;
        items.into_iter().for_each(|item| resolver.push(item));
    }
    let mut own = std::mem::take(&mut request.input);
    name_items(&mut own, request.template.id());
    for (index, item) in own.into_iter().enumerate() {
        let item = match item["type"] == "item_reference" {
            false => item,
            true => resolver.copy(index, item["id"].as_str().unwrap_or_default()).await?,
        };
        resolver.push(item);
    }
    check_count(resolver.items.len())?;
    request.fields.put_charge(resolver.charge);
    Ok(resolver.items)
}

fn still_generated(param: &str) -> ApiError {
    let message = format!("'{param}': that response is still being generated.");
    ApiError::invalid_param(param, message)
}

/// Assembles a conversation.
struct Resolver<'a> {
    app: &'a App,
    owner: Owner,
    charge: MemoryCharge,
    items: Vec<Value>,
    /// Index at which each item's id first occurs.
    places: HashMap<String, usize>,
    /// Items that may be referenced, by response and id.
    loaded: HashMap<String, HashMap<String, Value>>,
    /// Total size of the copies: a short reference may name a long item, any number of times.
    copied: ValueSize,
}

impl<'a> Resolver<'a> {
    fn new(app: &'a App, owner: Owner, charge: MemoryCharge) -> Self {
        let (items, places, loaded) = (Vec::new(), HashMap::new(), HashMap::new());
        Self { app, owner, charge, items, places, loaded, copied: ValueSize::default() }
    }

    fn push(&mut self, item: Value) {
        if let Some(id) = item["id"].as_str() {
            self.places.entry(id.to_owned()).or_insert(self.items.len());
        }
        self.items.push(item);
    }

    /// Loads the response `id`, which `param` of the request names.
    async fn load_ended(
        &mut self,
        id: &str,
        param: &str,
    ) -> Result<Option<StoredResponse>, ApiError> {
        let live = match self.app.response_lookup().find(self.owner, id, &mut self.charge).await? {
            // Another replica's.
            Some(FoundResponse::Stored(response)) if !response.log.is_ended() => {
                return Err(still_generated(param));
            }
            Some(FoundResponse::Stored(response)) => return Ok(Some(response)),
            Some(FoundResponse::Live(live)) => live,
            None => return Ok(None),
        };
        // The store may have a checkpoint of it yet, which is not the whole answer.
        let Some(ended) = live.ended() else { return Err(still_generated(param)) };
        self.app.bodies.memory().take(&mut self.charge, ended.charged_bytes()).await?;
        Ok(Some(ended.copy()))
    }

    /// Returns a copy of the item `id`, from this conversation or a stored response, for the
    /// reference at `index`.
    async fn copy(&mut self, index: usize, id: &str) -> Result<Value, ApiError> {
        let param = format!("input[{index}].id");
        let unknown = || {
            let message = format!("'{param}': there is no stored item '{}'.", quoted(id));
            ApiError::invalid_param(param.as_str(), message)
        };
        if self.known(id).is_none() {
            // The id begins with its response's digits, so that no index of items is kept.
            let response = response_of_item(id).ok_or_else(unknown)?;
            self.load_items(response, &param).await?;
        }
        let size = ValueSize::of(self.known(id).ok_or_else(unknown)?);
        self.charge_copy(size).await?;
        self.known(id).cloned().ok_or_else(unknown)
    }

    fn known(&self, id: &str) -> Option<&Value> {
        match self.places.get(id) {
            Some(place) => self.items.get(*place),
            None => self.loaded.get(&response_of_item(id)?)?.get(id),
        }
    }

    /// Loads the items of `response`, if it exists.
    async fn load_items(&mut self, response: String, param: &str) -> Result<(), ApiError> {
        if self.loaded.contains_key(&response) {
            return Ok(());
        }
        if self.loaded.len() == MAX_REFERENCED {
            let message =
                format!("'input' refers to items of more than {MAX_REFERENCED} responses.");
            return Err(ApiError::invalid_param("input", message));
        }
        let mut by_id = HashMap::new();
        if let Some(found) = self.load_ended(&response, param).await? {
            for item in items_of(self.app, found).await? {
                let id = item["id"].as_str().unwrap_or_default().to_owned();
                by_id.entry(id).or_insert(item);
            }
        }
        self.loaded.insert(response, by_id);
        Ok(())
    }

    /// Charges a copy of `size` before it is made. All copies together may be no larger than a
    /// request's body.
    async fn charge_copy(&mut self, size: ValueSize) -> Result<(), ApiError> {
        self.copied.values += size.values;
        self.copied.text_bytes += size.text_bytes;
        let most = self.app.config.max_request_bytes;
        if self.copied.text_bytes > most || self.copied.values > MAX_VALUES {
            let message = format!(
                "'input': the items that it refers to have more than {most} bytes, or \
                 {MAX_VALUES} values, together."
            );
            return Err(ApiError::invalid_param("input", message));
        }
        self.app.bodies.memory().take(&mut self.charge, size.charged_bytes()).await
    }
}

/// Returns a response's conversation with its output.
async fn items_of(app: &App, response: StoredResponse) -> Result<Vec<Value>, ApiError> {
    let is_large = response.log.bytes().len() > SMALL_BYTES;
    let read = move || {
        let mut object = response.object();
        let mut items = response.input;
        if let Value::Array(output) = object["output"].take() {
            items.extend(output);
        }
        Ok(items)
    };
    app.bodies.workers().run_if(is_large, read).await
}
