//! Reading the fields of a message, with errors that name them.

use crate::MAX_MESSAGE_BYTES;
use answerback_contract::json::{self, Json, JsonError, Member};
use answerback_contract::{BadId, BadTime, Time};
use std::fmt;

/// Why a message is not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The field; empty when the whole text is no JSON object.
    pub field: String,
    /// What is wrong with it and what would be right.
    pub what: String,
}

impl Refusal {
    /// At a field.
    #[must_use]
    pub fn new(field: &str, what: impl Into<String>) -> Self {
        Self { field: field.to_owned(), what: what.into() }
    }

    /// At a key that the sender chose: cut, so that no reply and no log line grows with it.
    fn at_key(key: &str, what: &str) -> Self {
        const SHOWN: usize = 60;
        let mut field: String = key.chars().take(SHOWN).flat_map(char::escape_debug).collect();
        if key.chars().nth(SHOWN).is_some() {
            field.push('…');
        }
        Self { field, what: what.to_owned() }
    }
}

/// Checks the size of a message before anything looks into it.
pub(crate) fn check_size(kind: &str, bytes: &[u8]) -> Result<(), Refusal> {
    if bytes.len() <= MAX_MESSAGE_BYTES {
        return Ok(());
    }
    let what =
        format!("the {kind} has {} bytes; at most {MAX_MESSAGE_BYTES} are taken", bytes.len());
    Err(Refusal::new("", what))
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.what)
        } else {
            write!(f, "`{}` {}", self.field, self.what)
        }
    }
}

impl std::error::Error for Refusal {}

impl From<JsonError> for Refusal {
    fn from(error: JsonError) -> Self {
        Self { field: String::new(), what: format!("the body is not taken: {error}") }
    }
}

/// The members of a message. A key that stands twice is refused: which one was meant?
pub(crate) struct Fields<'a>(Vec<Member<'a>>);

impl<'a> Fields<'a> {
    pub(crate) fn read(text: &'a str) -> Result<Self, Refusal> {
        let members = json::members(text)?;
        let mut keys: Vec<&str> = members.iter().map(|m| &*m.key).collect();
        keys.sort_unstable();
        match keys.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Refusal::at_key(pair[0], "stands twice; send it once")),
            None => Ok(Self(members)),
        }
    }

    /// The raw text of a field.
    pub(crate) fn raw(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find(|m| m.key == key).map(|m| m.raw)
    }

    /// The raw text of a field that is there and not null.
    pub(crate) fn given(&self, key: &str) -> Option<&'a str> {
        self.raw(key).filter(|raw| *raw != "null")
    }

    pub(crate) fn required(&self, key: &str) -> Result<&'a str, Refusal> {
        self.raw(key).ok_or_else(|| Refusal::new(key, "is missing"))
    }

    pub(crate) fn value(&self, key: &str) -> Result<Option<Json<'a>>, Refusal> {
        self.given(key).map(json::parse).transpose().map_err(Refusal::from)
    }

    /// A required id: a string, or an integer taken as its digits.
    pub(crate) fn id<T>(
        &self,
        key: &str,
        make: fn(&str) -> Result<T, BadId>,
    ) -> Result<T, Refusal> {
        let raw = self.required(key)?;
        let value = json::parse(raw)?;
        let text = id_text(&value).ok_or_else(|| {
            let what = match &value {
                Json::Number(_) => {
                    "is a number with a fraction or an exponent; send a string or an integer"
                        .to_owned()
                }
                other => format!("is {}, but must be a string or an integer", other.type_name()),
            };
            Refusal::new(key, what)
        })?;
        make(text).map_err(|bad| Refusal::new(key, bad.to_string()))
    }

    /// An RFC 3339 time; `None` when absent, null, or past the year 9999.
    pub(crate) fn time(&self, key: &str) -> Result<Option<Time>, Refusal> {
        match self.value(key)? {
            None => Ok(None),
            Some(Json::String(text)) => {
                Time::parse(&text).map_err(|bad: BadTime| Refusal::new(key, bad.to_string()))
            }
            Some(other) => Err(Refusal::new(
                key,
                format!("is {}, but must be an RFC 3339 time or null", other.type_name()),
            )),
        }
    }
}

/// The text of an id as a string or an integer has it.
pub(crate) fn id_text<'v>(value: &'v Json<'_>) -> Option<&'v str> {
    match value {
        Json::String(text) => Some(text),
        Json::Number(number) if number.bytes().all(|b| b.is_ascii_digit() || b == b'-') => {
            Some(number)
        }
        _ => None,
    }
}
