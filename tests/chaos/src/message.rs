//! Reads what arrives, without going through the code that wrote it.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// The members of a JSON object in order, each value as its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members(Vec<(String, String)>);

impl Members {
    /// Of a text; `None` when it is no object.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// A member's text.
    #[must_use]
    pub fn raw(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A member that is a string.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.raw(name)?).ok()
    }

    /// A member that is a whole number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u32> {
        self.raw(name)?.parse().ok()
    }

    /// All but one member.
    #[must_use]
    pub fn without(&self, name: &str) -> Vec<(&str, &str)> {
        let others = self.0.iter().filter(|(key, _)| key != name);
        others.map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    /// Which generation a message is of: by itself, or by its `reply_with`; the first names none.
    #[must_use]
    pub fn generation(&self) -> u32 {
        let named = || Self::read(self.raw("reply_with")?)?.number("generation");
        self.number("generation").or_else(named).unwrap_or(1)
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut all = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    let value: Box<RawValue> = map.next_value()?;
                    all.push((key, value.get().to_owned()));
                }
                Ok(Members(all))
            }
        }
        deserializer.deserialize_map(All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_text_and_their_order() {
        let text = r#"{"b" : 1.50, "a":{"twice":1,"twice":2}, "t":"\u00e9","reply_with":{"generation": 3}}"#;
        let members = Members::read(text).unwrap();
        assert_eq!(members.raw("b"), Some("1.50"));
        assert_eq!(members.raw("a"), Some(r#"{"twice":1,"twice":2}"#));
        assert_eq!(members.text("t").as_deref(), Some("é"));
        assert_eq!(members.generation(), 3);
        let rest: Vec<_> = members.without("reply_with").iter().map(|m| m.0).collect();
        assert_eq!(rest, ["b", "a", "t"]);
        assert!(Members::read("[]").is_none());
    }
}
