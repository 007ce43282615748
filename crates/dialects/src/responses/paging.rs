//! Paging of item lists.

use serde::Serialize;
use serde_json::Value;

use loquent_serving::error::ApiError;
use loquent_serving::query::{Query, wrong};

/// Maximum and default number of items per page.
const MAX_LIMIT: usize = 100;
const DEFAULT_LIMIT: usize = 20;

/// One page of a list.
#[derive(Serialize)]
struct ItemPage<'a> {
    object: &'static str,
    data: &'a [&'a Value],
    first_id: Option<&'a Value>,
    last_id: Option<&'a Value>,
    has_more: bool,
}

/// Returns the page of `items` that `query` asks for, as JSON.
///
/// # Errors
/// 400 for an invalid `limit` or `order`, or if `after` names no item of the list.
pub fn page(items: &[Value], query: Query<'_>) -> Result<String, ApiError> {
    let limit = match query.number("limit")? {
        None => DEFAULT_LIMIT,
        Some(limit) if (1..=MAX_LIMIT as u64).contains(&limit) => limit as usize,
        Some(limit) => {
            let must = format!("must be between 1 and {MAX_LIMIT}");
            return Err(wrong("limit", &must, &limit.to_string()));
        }
    };
    let mut ordered: Vec<&Value> = items.iter().collect();
    match query.text("order") {
        None | Some("desc") => ordered.reverse(),
        Some("asc") => {}
        Some(other) => return Err(wrong("order", "must be asc or desc", other)),
    }
    let from = match query.text("after") {
        None => 0,
        Some(id) => {
            let at = ordered.iter().position(|item| item["id"] == id);
            at.ok_or_else(|| wrong("after", "must be an item of the list", id))? + 1
        }
    };
    let data = &ordered[from..ordered.len().min(from + limit)];
    let [first_id, last_id] = [data.first(), data.last()].map(|item| item.map(|item| &item["id"]));
    let has_more = from + data.len() < ordered.len();
    let page = ItemPage { object: "list", data, first_id, last_id, has_more };
    Ok(serde_json::to_string(&page).expect("a tree of values is JSON"))
}

#[cfg(test)]
mod tests {
    use http::Uri;
    use serde_json::json;

    use super::*;

    fn ids(query: &str) -> Result<(Vec<u64>, bool), ApiError> {
        let items: Vec<Value> =
            (0..50).map(|at| json!({"id": format!("i{at}"), "at": at})).collect();
        let uri: Uri = format!("/x?{query}").parse().unwrap();
        let page: Value = serde_json::from_str(&page(&items, Query::of(&uri))?).unwrap();
        let ids = page["data"].as_array().unwrap().iter().map(|item| item["at"].as_u64().unwrap());
        Ok((ids.collect(), page["has_more"] == true))
    }

    #[test]
    fn pages_go_from_the_newest_or_the_oldest_and_join() {
        assert_eq!(ids("").unwrap(), ((30..50).rev().collect(), true));
        assert_eq!(ids("order=asc&limit=3").unwrap(), (vec![0, 1, 2], true));
        assert_eq!(ids("order=asc&limit=3&after=i46").unwrap(), (vec![47, 48, 49], false));
        assert_eq!(ids("after=i0").unwrap(), (vec![], false));
        for wrong in ["limit=0", "limit=101", "limit=x", "order=up", "after=i50"] {
            assert!(ids(wrong).is_err(), "{wrong}");
        }
    }
}
