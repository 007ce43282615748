//! The queries of lists of stored completions.

use loquent_serving::api::stored_chat::MAX_PAIRS;
use loquent_serving::error::{ApiError, quoted};
use loquent_store::object::ListPage;

/// Default and maximum number of objects per page.
const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 100;

/// Filter of a list of stored completions.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Includes only completions of this model.
    pub model: Option<String>,
    /// Includes only completions whose metadata has all these pairs.
    pub metadata: Vec<(String, String)>,
}

/// The parsed query of a list.
#[derive(Debug)]
pub struct ListQuery {
    /// The requested page.
    pub page: ListPage,
    /// The filter.
    pub filter: ListFilter,
    /// Names of ignored query parameters.
    pub ignored: Vec<String>,
}

/// Parses the query of a list.
///
/// # Errors
/// 400 with the name of the invalid parameter.
pub fn parse_list(query: Option<&str>) -> Result<ListQuery, ApiError> {
    let mut page = ListPage { after: None, limit: DEFAULT_LIMIT, newest_first: false };
    let (mut filter, mut ignored) = (ListFilter::default(), Vec::new());
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match &*name {
            "after" => page.after = Some(value.into_owned()),
            "limit" => page.limit = parse_limit(&value)?,
            "order" => page.newest_first = parse_order(&value)?,
            "model" => filter.model = Some(value.into_owned()),
            other => match metadata_key(other) {
                Some(key) => filter.metadata.push((key.to_owned(), value.into_owned())),
                None => ignored.push(other.to_owned()),
            },
        }
    }
    if filter.metadata.len() > MAX_PAIRS {
        let message = format!("'metadata' has more than {MAX_PAIRS} pairs.");
        return Err(ApiError::invalid_param("metadata", message));
    }
    Ok(ListQuery { page, filter, ignored })
}

/// Returns the metadata key in the query parameter `name`.
fn metadata_key(name: &str) -> Option<&str> {
    name.strip_prefix("metadata[")?.strip_suffix(']')
}

fn parse_limit(text: &str) -> Result<usize, ApiError> {
    let limit = text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    limit.ok_or_else(|| {
        let message = format!("'limit' must be between 1 and {MAX_LIMIT}, not '{}'.", quoted(text));
        ApiError::invalid_param("limit", message)
    })
}

fn parse_order(text: &str) -> Result<bool, ApiError> {
    match text {
        "asc" => Ok(false),
        "desc" => Ok(true),
        other => {
            let message = format!("'order' must be 'asc' or 'desc', not '{}'.", quoted(other));
            Err(ApiError::invalid_param("order", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_and_bounded() {
        let query =
            "limit=3&order=desc&after=a%20b&model=m&metadata%5Bk+1%5D=v%26&metadata[x]=y&z=1";
        let ListQuery { page, filter, ignored } = parse_list(Some(query)).unwrap();
        assert_eq!((page.after.as_deref(), page.limit, page.newest_first), (Some("a b"), 3, true));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(filter.metadata, [pair("k 1", "v&"), pair("x", "y")]);
        assert_eq!((filter.model.as_deref(), ignored), (Some("m"), vec!["z".to_owned()]));
        assert_eq!(parse_list(None).unwrap().filter, ListFilter::default());
        let many = "metadata[a]=b&".repeat(17);
        for wrong in ["limit=0", "limit=101", "limit=x", "order=up", &many] {
            assert!(parse_list(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
