//! Lists that come in pages.

use super::client::{Api, Ask};
use super::exit::Failure;
use super::output;
use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::collections::HashMap;

/// The most items the daemon gives at once (contract, section 3).
const PAGE: usize = 500;

/// How much of a list is wanted.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Amount {
    /// At most so many, newest first
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,

    /// All there are
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

/// Prints a list, page by page: JSON lines as they came, or tables by `row`.
///
/// # Errors
/// The daemon is not there, or refuses; nobody reads the output.
pub(crate) async fn print<T: DeserializeOwned>(
    api: &Api,
    ask: Ask,
    plural: &str,
    amount: &Amount,
    json: bool,
    header: &[&str],
    row: impl Fn(T) -> Vec<String>,
) -> Result<(), Failure> {
    let mut left =
        if amount.all { usize::MAX } else { usize::try_from(amount.limit).unwrap_or(PAGE) };
    let mut cursor: Option<String> = None;
    let mut printed = 0_usize;
    loop {
        let ask = ask.clone().with("limit", Some(left.min(PAGE))).with("cursor", cursor.as_deref());
        let (items, next) = page(&api.ask(ask).await?, plural)?;
        left = left.saturating_sub(items.len());
        let first = printed == 0;
        printed += items.len();
        if json {
            for item in &items {
                output::json_line(item.get().as_bytes())?;
            }
        } else if !items.is_empty() {
            let mut rows = Vec::with_capacity(items.len());
            for item in &items {
                let item = serde_json::from_str(item.get()).with_context(unexpected)?;
                rows.push(row(item));
            }
            output::line(&output::table(first.then_some(header), &rows))?;
        }
        cursor = next;
        if cursor.is_none() || left == 0 {
            break;
        }
    }
    if json {
        return Ok(());
    }
    if printed == 0 {
        output::complain(&format!("no {plural}"));
    } else if cursor.is_some() {
        output::complain(&format!(
            "{printed} {plural}; there are more: add --all or a larger --limit"
        ));
    }
    Ok(())
}

/// The items of one page, each as it came, and where the next page starts.
fn page(body: &[u8], plural: &str) -> Result<(Vec<Box<RawValue>>, Option<String>), Failure> {
    let read = || -> anyhow::Result<_> {
        let mut members: HashMap<String, Box<RawValue>> = serde_json::from_slice(body)?;
        let items = members.remove(plural).context("the list is missing")?;
        let next = match members.remove("next_cursor") {
            Some(next) => serde_json::from_str(next.get())?,
            None => None,
        };
        Ok((serde_json::from_str(items.get())?, next))
    };
    Ok(read().with_context(unexpected)?)
}

/// The daemon's reply is not of the form that this version knows.
pub(crate) fn unexpected() -> &'static str {
    "the daemon's reply has another form than expected; is it of another version?"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_stay_as_they_came() {
        let body = br#"{"waits":[{"n":1.10, "big":123456789012345678901},{}],"next_cursor":"c"}"#;
        let (items, next) = page(body, "waits").unwrap();
        assert_eq!(items[0].get(), r#"{"n":1.10, "big":123456789012345678901}"#);
        assert_eq!((items.len(), next.as_deref()), (2, Some("c")));
        assert_eq!(page(br#"{"waits":[],"next_cursor":null}"#, "waits").unwrap().1, None);
        assert!(page(br#"{"items":[]}"#, "waits").is_err());
    }
}
