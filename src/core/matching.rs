//! Which waits an announcer or a route is for (`match` in the configuration).

use crate::envelope::Envelope;
use answerback_contract::json::{self, Json};

/// All conditions must hold; within one, any of its values will do. Empty matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// Tags and the values that will do.
    pub tags: Vec<(String, Vec<TagValue>)>,
    /// `source.function`; empty for any.
    pub source_functions: Vec<String>,
    /// What `thread_id` starts with; empty for any.
    pub thread_prefixes: Vec<String>,
    /// Actions of which one is allowed; empty for any.
    pub actions: Vec<String>,
}

/// A value that a tag is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagValue {
    /// A string, compared as it is.
    Text(String),
    /// A number, compared by value.
    Number(String),
    /// A boolean.
    Bool(bool),
}

impl TagValue {
    fn is(&self, tag: &Json<'_>) -> bool {
        match (self, tag) {
            // Of an array one member will do, as with SNS filter policies.
            (_, Json::Array(items)) => items.iter().any(|item| self.is(item)),
            (Self::Text(text), Json::String(tag)) => text == tag,
            (Self::Number(number), Json::Number(_)) => json::same_value(&Json::Number(number), tag),
            (Self::Bool(wanted), Json::Bool(tag)) => wanted == tag,
            _ => false,
        }
    }
}

impl Matcher {
    /// Whether the envelope fits.
    #[must_use]
    pub fn matches(&self, envelope: &Envelope) -> bool {
        let any = |wanted: &[String], test: &dyn Fn(&str) -> bool| {
            wanted.is_empty() || wanted.iter().any(|w| test(w))
        };
        any(&self.thread_prefixes, &|p| envelope.thread_id().as_str().starts_with(p))
            && (self.source_functions.is_empty()
                || envelope.source_function().is_some_and(|f| self.source_functions.contains(&f)))
            && (self.actions.is_empty()
                || envelope
                    .allowed_actions()
                    .is_some_and(|allowed| self.actions.iter().any(|a| allowed.contains(a))))
            && self.tags_match(envelope)
    }

    fn tags_match(&self, envelope: &Envelope) -> bool {
        if self.tags.is_empty() {
            return true;
        }
        let tags = envelope.tags();
        self.tags.iter().all(|(name, wanted)| {
            let tag = tags.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value);
            tag.is_some_and(|tag| wanted.iter().any(|w| w.is(tag)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_contract::Bytes;

    fn envelope(tags: &str) -> Envelope {
        let text = format!(
            r#"{{"type":"wait.created","thread_id":"order-1","question_id":"q","question":1,
                "allowed_actions":["approve","reject"],"source":{{"function":"refund"}},"tags":{tags}}}"#
        );
        Envelope::parse(Bytes::from(text)).unwrap()
    }

    fn tag(name: &str, values: &[TagValue]) -> Matcher {
        Matcher { tags: vec![(name.to_owned(), values.to_vec())], ..Matcher::default() }
    }

    #[test]
    fn any_value_of_a_tag_will_do_and_every_tag_must() {
        let finance = TagValue::Text("finance".to_owned());
        let group = tag("group", &[TagValue::Text("treasury".to_owned()), finance.clone()]);
        assert!(group.matches(&envelope(r#"{"group":"finance"}"#)));
        assert!(group.matches(&envelope(r#"{"group":["x","finance"]}"#)));
        assert!(!group.matches(&envelope(r#"{"group":"Finance"}"#)));
        assert!(!group.matches(&envelope("{}")));
        assert!(!group.matches(&envelope("null")));
        let both = Matcher {
            tags: vec![
                ("group".into(), vec![finance]),
                ("n".into(), vec![TagValue::Number("1".into())]),
            ],
            ..Matcher::default()
        };
        assert!(both.matches(&envelope(r#"{"group":"finance","n":1.0}"#)));
        assert!(!both.matches(&envelope(r#"{"group":"finance","n":"1"}"#)));
        assert!(tag("b", &[TagValue::Bool(true)]).matches(&envelope(r#"{"b":true}"#)));
    }

    #[test]
    fn function_prefix_and_actions() {
        let e = envelope("{}");
        let with = |f: &dyn Fn(&mut Matcher)| {
            let mut m = Matcher::default();
            f(&mut m);
            m.matches(&e)
        };
        assert!(with(&|_| ()));
        assert!(with(&|m| m.source_functions = vec!["x".into(), "refund".into()]));
        assert!(!with(&|m| m.source_functions = vec!["refun".into()]));
        assert!(with(&|m| m.thread_prefixes = vec!["order-".into()]));
        assert!(!with(&|m| m.thread_prefixes = vec!["rder".into()]));
        assert!(with(&|m| m.actions = vec!["approve".into()]));
        assert!(!with(&|m| m.actions = vec!["resume".into()]));
        assert!(!with(&|m| {
            m.actions = vec!["approve".into()];
            m.thread_prefixes = vec!["x".into()];
        }));
    }
}
