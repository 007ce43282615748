//! `GET /v1/usage`: what a key's requests have used, by day; for admins, what all keys have.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use http::{Uri, header};
use serde_json::{Value, json};
use time::{Date, Month};

use crate::app::App;
use crate::json_response::json_response;
use crate::usage_ledger::day_of;
use loquent_serving::budget::{BudgetPeriod, BudgetStatus, DAY_S, begin_s, date_of};
use loquent_serving::clock::{rfc3339, unix_time_s};
use loquent_serving::error::ApiError;
use loquent_serving::identity::{Identity, Owner};
use loquent_serving::query::{decoded_text, wrong};
use loquent_serving::usage::UsageCounts;
use loquent_store::ledger::{MAX_USAGE_ROWS, USAGE_DAYS, UsageQuery, UsageRow};

/// Value of `key` for the usage of all keys.
const ALL_KEYS: &str = "*";

/// The columns of the CSV form.
const COLUMNS: &str =
    "date,key,requests,prompt_tokens,cached_tokens,completion_tokens,total_tokens\n";

/// Returns the route, for requests whose key has been verified.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/usage", get(read))
}

/// Form of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UsageFormat {
    Json,
    Csv,
}

/// The parameters of a request.
#[derive(Debug, PartialEq, Eq)]
struct UsageRequest {
    first: Date,
    last: Date,
    format: UsageFormat,
    /// The name of a key, or [`ALL_KEYS`]; `None` for the client's own.
    key: Option<String>,
}

impl UsageRequest {
    /// Parses the query of `uri`; without dates, the current month up to `now_s`.
    ///
    /// # Errors
    /// 400 for a malformed value, or more days than are kept.
    fn parse(uri: &Uri, now_s: u64) -> Result<Self, ApiError> {
        let date = |name: &str, usual: u64| match decoded_text(uri, name) {
            None => Ok(date_of(usual)),
            Some(text) => {
                parse_date(&text).ok_or_else(|| wrong(name, "must be a date as 2027-01-31", &text))
            }
        };
        let last = date("end_date", now_s)?;
        // So that a past `end_date` alone means its month.
        let first = date("start_date", BudgetPeriod::Month.start_s(begin_s(last)))?;
        let most = i64::from(USAGE_DAYS);
        if !(0..most).contains(&(last - first).whole_days()) {
            let must = format!("must lie at most {most} days before 'end_date', and not after it");
            return Err(wrong("start_date", &must, &first.to_string()));
        }
        let format = match decoded_text(uri, "format").as_deref() {
            None | Some("json") => UsageFormat::Json,
            Some("csv") => UsageFormat::Csv,
            Some(other) => return Err(wrong("format", "must be 'json' or 'csv'", other)),
        };
        Ok(Self { first, last, format, key: decoded_text(uri, "key") })
    }

    /// Returns the rows that the client may read.
    ///
    /// # Errors
    /// 403 for other keys than the client's own, except for admins.
    fn query(&self, identity: &Identity) -> Result<UsageQuery, ApiError> {
        let own = identity.key.as_ref().and_then(|key| key.name.as_deref());
        let owner = match self.key.as_deref() {
            None => Some(identity.owner()),
            Some(name) if own == Some(name) => Some(identity.owner()),
            Some(_) if !identity.may_watch() => {
                return Err(ApiError::needs_admin(
                    "The usage of other keys is for keys with 'admin = true'.",
                ));
            }
            Some(ALL_KEYS) => None,
            // Also of a key that is no longer in the file.
            Some(name) => Some(Owner::of_name(name)),
        };
        let day = |date| day_of(begin_s(date));
        Ok(UsageQuery { days: day(self.first)..=day(self.last), owner })
    }
}

/// Parses a date in the form `2027-01-31`.
fn parse_date(text: &str) -> Option<Date> {
    let mut parts = text.split('-');
    let mut number = |digits: usize| {
        let part = parts.next().filter(|part| part.len() == digits)?;
        part.parse::<u16>().ok()
    };
    let (year, month, day) = (number(4)?, number(2)?, number(2)?);
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let is_whole = parts.next().is_none() && year >= 1970;
    let date = Date::from_calendar_date(year.into(), month, u8::try_from(day).ok()?).ok();
    date.filter(|_| is_whole)
}

async fn read(
    State(app): State<Arc<App>>,
    Extension(identity): Extension<Identity>,
    uri: Uri,
) -> Result<Response, ApiError> {
    if identity.key.is_none() {
        return Err(ApiError::usage_needs_keys());
    }
    let now_s = unix_time_s();
    let request = UsageRequest::parse(&uri, now_s)?;
    let rows = app.store.usage(request.query(&identity)?).await?;
    // The store has stopped reading there.
    if rows.len() > MAX_USAGE_ROWS {
        let must = format!("asks for more than {MAX_USAGE_ROWS} rows: choose fewer days, or a key");
        return Err(wrong("start_date", &must, &request.first.to_string()));
    }
    Ok(match request.format {
        UsageFormat::Csv => {
            ([(header::CONTENT_TYPE, "text/csv; charset=utf-8")], csv(&rows)).into_response()
        }
        UsageFormat::Json => {
            let budgets = identity.key.iter().flat_map(|key| key.budget_status(now_s));
            json_response(&report(&request, &rows, budgets))
        }
    })
}

fn date(row: &UsageRow) -> Date {
    date_of(u64::from(row.day) * DAY_S)
}

fn report(
    request: &UsageRequest,
    rows: &[UsageRow],
    budgets: impl Iterator<Item = BudgetStatus>,
) -> Value {
    let day = |row: &UsageRow| {
        let mut day = counts_json(&row.counts);
        day["object"] = "usage.day".into();
        day["date"] = date(row).to_string().into();
        day["key"] = row.name.as_deref().into();
        day
    };
    let total = rows.iter().fold(UsageCounts::default(), |sum, row| sum.plus(row.counts));
    json!({
        "object": "list",
        "start_date": request.first.to_string(),
        "end_date": request.last.to_string(),
        "data": rows.iter().map(day).collect::<Vec<_>>(),
        "total": counts_json(&total),
        "budgets": budgets.map(budget_json).collect::<Vec<_>>(),
    })
}

fn counts_json(counts: &UsageCounts) -> Value {
    json!({
        "requests": counts.requests,
        "prompt_tokens": counts.prompt_tokens,
        "cached_tokens": counts.cached_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.tokens(),
    })
}

fn budget_json(budget: BudgetStatus) -> Value {
    json!({
        "period": budget.period.name(),
        "limit": budget.limit,
        "spent": budget.spent,
        "remaining": budget.limit.saturating_sub(budget.spent),
        "resets_at": rfc3339(budget.resets_s),
    })
}

fn csv(rows: &[UsageRow]) -> String {
    let mut text = COLUMNS.to_owned();
    for row in rows {
        let UsageCounts { requests, prompt_tokens, cached_tokens, completion_tokens } = row.counts;
        let (date, name) = (date(row), quoted_name(row.name.as_deref().unwrap_or_default()));
        let total = row.counts.tokens();
        let _ = writeln!(
            text,
            "{date},{name},{requests},{prompt_tokens},{cached_tokens},{completion_tokens},{total}"
        );
    }
    text
}

/// Returns `name` as a field of CSV (RFC 4180), which no spreadsheet takes for a formula.
fn quoted_name(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._ ".contains(&byte);
    // Spreadsheets take =, +, - and @ at the beginning for a formula.
    match name.bytes().all(|byte| is_plain(byte) || b"@-:|/".contains(&byte))
        && name.bytes().next().is_none_or(is_plain)
    {
        true => name.to_owned(),
        false => format!("\"'{}\"", name.replace('"', "\"\"")),
    }
}

#[cfg(test)]
mod tests {
    //! Dates and names as they come from clients.
    use super::*;

    /// 2026-11-28T12:00:00Z.
    const NOW: u64 = 1_795_867_200;

    fn parsed(query: &str) -> Result<(String, String, UsageFormat), u16> {
        let uri = format!("/v1/usage?{query}").parse().unwrap();
        let request = UsageRequest::parse(&uri, NOW).map_err(|error| error.status())?;
        Ok((request.first.to_string(), request.last.to_string(), request.format))
    }

    #[test]
    fn a_month_is_usual_and_dates_are_checked() {
        let whole = |first: &str, last: &str, format| Ok((first.into(), last.into(), format));
        assert_eq!(parsed(""), whole("2026-11-01", "2026-11-28", UsageFormat::Json));
        let other = parsed("end_date=2026-02-10&format=csv");
        assert_eq!(other, whole("2026-02-01", "2026-02-10", UsageFormat::Csv));
        let one = parsed("start_date=2026-02-10&end_date=2026-02-10");
        assert_eq!(one, whole("2026-02-10", "2026-02-10", UsageFormat::Json));
        for query in [
            "start_date=2026-13-01",
            "start_date=2026-02-30",
            "start_date=2026-2-1",
            "start_date=2026-02-01-1",
            "start_date=2026-02-01T00:00:00Z",
            "start_date=1969-12-31",
            "start_date=2026-12-01",
            "start_date=2020-01-01",
            "start_date=+026-01-01",
            "start_date=",
            "format=xml",
        ] {
            assert_eq!(parsed(query), Err(400), "{query}");
        }
    }

    #[test]
    fn a_name_is_no_formula() {
        let rows: Vec<_> = ["alice", "=1+1", "a\"b", "@x", ""]
            .iter()
            .map(|name| UsageRow {
                day: 20_785,
                owner: Owner::NOBODY,
                name: Some((*name).to_owned()),
                counts: UsageCounts { requests: 1, prompt_tokens: 2, ..UsageCounts::default() },
            })
            .collect();
        let lines = csv(&rows);
        let names: Vec<_> =
            lines.lines().skip(1).map(|line| line.split(',').nth(1).unwrap()).collect();
        assert_eq!(names, ["alice", "\"'=1+1\"", "\"'a\"\"b\"", "\"'@x\"", ""]);
        assert!(lines.ends_with("2026-11-28,,1,2,0,0,2\n"), "{lines}");
    }
}
