//! Query strings: only known keys, each once, decoded as forms are.

use super::problem::Problem;
use answerback_contract::duration;
use percent_encoding::percent_decode_str;
use std::time::Duration;

/// The longest that a long poll lasts (contract, section 3).
pub(crate) const LONGEST_POLL: Duration = Duration::from_secs(60);
/// How many items a list has at most, and without being asked.
const MOST_ITEMS: usize = 500;
const USUAL_ITEMS: usize = 100;
/// What tag filters begin with.
pub(crate) const TAG_PREFIX: &str = "tag.";

/// The decoded pairs of a query string.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Takes the keys in `known` (`tag.` stands for all that begin with it). All but `state` may
    /// stand once only: which one was meant?
    pub(crate) fn parse(raw: Option<&str>, known: &[&str]) -> Result<Self, Problem> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for part in raw.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let key = decode(key).ok_or_else(|| {
                Problem::bad_input("query", "has a key that is no UTF-8 when it is decoded")
            })?;
            if !is_known(&key, known) {
                return Err(Problem::bad_input(&key, unknown(known)));
            }
            let value = decode(value)
                .ok_or_else(|| Problem::bad_input(&key, "is no UTF-8 when it is decoded"))?;
            if key != "state" && pairs.iter().any(|(k, _)| *k == key) {
                return Err(Problem::bad_input(&key, "stands twice; send it once"));
            }
            pairs.push((key, value));
        }
        Ok(Self(pairs))
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The values of `state`, which may stand several times or be parted by commas.
    pub(crate) fn states<T>(
        &self,
        read: fn(&str) -> Option<T>,
        all: &str,
    ) -> Result<Vec<T>, Problem> {
        self.0
            .iter()
            .filter(|(k, _)| k == "state")
            .flat_map(|(_, v)| v.split(','))
            .map(|name| {
                read(name)
                    .ok_or_else(|| Problem::bad_input("state", format!("must be one of {all}")))
            })
            .collect()
    }

    /// The tag filters: name and value.
    pub(crate) fn tags(&self) -> Vec<(String, String)> {
        self.0
            .iter()
            .filter_map(|(k, v)| Some((k.strip_prefix(TAG_PREFIX)?.to_owned(), v.clone())))
            .collect()
    }

    /// `limit`: 1 to 500, 100 when absent.
    pub(crate) fn limit(&self) -> Result<usize, Problem> {
        let Some(text) = self.get("limit") else { return Ok(USUAL_ITEMS) };
        number(text)
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| (1..=MOST_ITEMS).contains(n))
            .ok_or_else(|| {
                Problem::bad_input(
                    "limit",
                    format!("must be a whole number from 1 to {MOST_ITEMS}"),
                )
            })
    }

    /// `cursor`: a `next_cursor` that was given out before.
    pub(crate) fn cursor(&self) -> Result<Option<i64>, Problem> {
        let Some(text) = self.get("cursor") else { return Ok(None) };
        number(text).map(Some).ok_or_else(|| {
            Problem::bad_input("cursor", "must be the next_cursor of an earlier page")
        })
    }

    /// `wait`: how long to poll.
    pub(crate) fn wait(&self) -> Result<Duration, Problem> {
        let Some(text) = self.get("wait") else { return Ok(Duration::ZERO) };
        if matches!(text, "0" | "0s" | "PT0S") {
            return Ok(Duration::ZERO);
        }
        let wait = duration::parse_setting(text)
            .map_err(|bad| Problem::bad_input("wait", bad.to_string()))?;
        if wait > LONGEST_POLL {
            return Err(Problem::bad_input("wait", "is longer than 60s, the most that is waited"));
        }
        Ok(wait)
    }
}

/// The decimal digits of a number that is not negative.
pub(crate) fn number(text: &str) -> Option<i64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn is_known(key: &str, known: &[&str]) -> bool {
    match key.strip_prefix(TAG_PREFIX) {
        Some(tag) => !tag.is_empty() && known.contains(&TAG_PREFIX),
        None => known.contains(&key),
    }
}

fn unknown(known: &[&str]) -> String {
    if known.is_empty() {
        return "is no query key here; this path takes none".to_owned();
    }
    let names: Vec<String> = known
        .iter()
        .map(|k| if *k == TAG_PREFIX { "tag.<name>".to_owned() } else { (*k).to_owned() })
        .collect();
    format!("is no query key here; there are {}", names.join(", "))
}

/// As `application/x-www-form-urlencoded` has it: `+` is a blank, `%2B` a plus.
fn decode(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_contract::WaitState;

    fn refused(raw: &str, known: &[&str]) -> String {
        Query::parse(Some(raw), known).unwrap_err().message
    }

    #[test]
    fn values_are_decoded_once() {
        let query =
            Query::parse(Some("thread_id=a%2Bb+c%252F%C3%A9&&tag.x=%26"), &["thread_id", "tag."])
                .unwrap();
        assert_eq!(query.get("thread_id"), Some("a+b c%2Fé"));
        assert_eq!(query.tags(), [("x".to_owned(), "&".to_owned())]);
    }

    #[test]
    fn unknown_double_and_undecodable_keys_are_refused_by_name() {
        assert_eq!(
            refused("thraed_id=1", &["thread_id", "tag."]),
            "`thraed_id` is no query key here; there are thread_id, tag.<name>"
        );
        assert_eq!(refused("x", &[]), "`x` is no query key here; this path takes none");
        assert_eq!(
            refused("tag.=1", &["tag."]),
            "`tag.` is no query key here; there are tag.<name>"
        );
        assert_eq!(refused("a=1&a=1", &["a"]), "`a` stands twice; send it once");
        assert_eq!(refused("a=%ff", &["a"]), "`a` is no UTF-8 when it is decoded");
        let problem = Query::parse(Some("y=1"), &[]).unwrap_err();
        assert_eq!(problem.detail("field").unwrap(), "y");
    }

    #[test]
    fn states_may_be_several() {
        let query = Query::parse(Some("state=open,pending&state=timed-out"), &["state"]).unwrap();
        let states = query.states(WaitState::from_name, "").unwrap();
        assert_eq!(states, [WaitState::Open, WaitState::Pending, WaitState::TimedOut]);
        let query = Query::parse(Some("state=opne"), &["state"]).unwrap();
        assert!(query.states(WaitState::from_name, "open").is_err());
        let query = Query::parse(Some("state="), &["state"]).unwrap();
        assert!(query.states(WaitState::from_name, "open").is_err());
    }

    #[test]
    fn limits_and_cursors_are_bounded() {
        let limit = |text: &str| Query::parse(Some(text), &["limit"]).unwrap().limit().ok();
        assert_eq!(limit(""), Some(100));
        assert_eq!(limit("limit=1"), Some(1));
        assert_eq!(limit("limit=500"), Some(500));
        for bad in
            ["limit=0", "limit=501", "limit=-1", "limit=%2B1", "limit=ten", "limit=", "limit=1.0"]
        {
            assert_eq!(limit(bad), None, "{bad}");
        }
        let cursor = |text: &str| Query::parse(Some(text), &["cursor"]).unwrap().cursor().ok();
        assert_eq!(cursor("cursor=17"), Some(Some(17)));
        assert_eq!(cursor(""), Some(None));
        assert_eq!(cursor("cursor=x"), None);
        assert_eq!(cursor("cursor=99999999999999999999"), None);
    }

    #[test]
    fn a_poll_lasts_sixty_seconds_at_most() {
        let wait = |text: &str| {
            Query::parse(Some(text), &["wait"]).unwrap().wait().ok().map(|d| d.as_millis())
        };
        assert_eq!(wait(""), Some(0));
        assert_eq!(wait("wait=0"), Some(0));
        assert_eq!(wait("wait=30s"), Some(30_000));
        assert_eq!(wait("wait=PT1M"), Some(60_000));
        assert_eq!(wait("wait=1500ms"), Some(1_500));
        for bad in ["wait=61s", "wait=P1D", "wait=30", "wait=-1s", "wait=", "wait=soon"] {
            assert_eq!(wait(bad), None, "{bad}");
        }
    }
}
