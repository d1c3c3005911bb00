//! Identities. Each is its own type, so that one can never stand in for another.

use crate::Event;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

/// The most bytes an id may have (contract, section 2).
pub const MAX_ID_BYTES: usize = 2_048;

/// Why a text is no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadId {
    /// No characters at all.
    #[error("is empty; send 1 to {MAX_ID_BYTES} bytes")]
    Empty,
    /// More than [`MAX_ID_BYTES`].
    #[error("has {0} bytes; at most {MAX_ID_BYTES} are taken")]
    TooLong(usize),
    /// A control character (Unicode category Cc).
    #[error("has the control character U+{0:04X}; ids have none")]
    Control(u32),
}

fn check(text: &str) -> Result<(), BadId> {
    if text.is_empty() {
        return Err(BadId::Empty);
    }
    if text.len() > MAX_ID_BYTES {
        return Err(BadId::TooLong(text.len()));
    }
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(BadId::Control(u32::from(c))),
        None => Ok(()),
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes 1 to [`MAX_ID_BYTES`] bytes without control characters.
            ///
            /// # Errors
            /// [`BadId`] says what is wrong with the text.
            pub fn new(text: &str) -> Result<Self, BadId> {
                check(text)?;
                Ok(Self(text.into()))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($name), &self.0)
            }
        }
    };
}

text_id! {
    /// The agent's conversation (`thread_id`).
    ThreadId
}
text_id! {
    /// The question within a thread (`question_id`).
    QuestionId
}
text_id! {
    /// One publish of a question (`event_id`): fresh each time the asker publishes.
    EventId
}
text_id! {
    /// Whose data it is. `default` unless configured.
    TenantId
}

impl TenantId {
    /// The tenant of everything that names none.
    #[must_use]
    pub fn default_tenant() -> Self {
        Self("default".into())
    }
}

/// What a receiver deduplicates on, `wait.created:<question_id>` in the plain case.
///
/// One key belongs to one wait of a tenant, also after the wait is forgotten. Not bounded by
/// [`MAX_ID_BYTES`]: a prefix and a counter come on top of the question id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DedupeKey(Arc<str>);

impl DedupeKey {
    /// The key of an event of a wait: `<event>:<rest>`, and `:r<repeat>` where the same event is
    /// sent again.
    #[must_use]
    pub fn of(event: Event, rest: &DedupeRest, repeat: u32) -> Self {
        match repeat {
            0 => Self(format!("{}:{}", event.name(), rest.as_str()).into()),
            n => Self(format!("{}:{}:r{n}", event.name(), rest.as_str()).into()),
        }
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What all keys of a wait end with: its question id, or that and a counter where the plain one
/// was already given to another wait.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DedupeRest(Arc<str>);

impl DedupeRest {
    /// The `n`th choice for a question, from 1: the id itself, then `<id>:2`, `<id>:3`, …
    #[must_use]
    pub fn choice(question_id: &QuestionId, n: u32) -> Self {
        match n {
            0 | 1 => Self(question_id.0.clone()),
            n => Self(format!("{question_id}:{n}").into()),
        }
    }

    /// One that was derived before and kept.
    #[must_use]
    pub fn kept(text: &str) -> Self {
        Self(text.into())
    }

    /// The rest as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DedupeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Counts the different questions asked under one thread and question id, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Generation(NonZeroU32);

impl Generation {
    /// The generation that agent-wait knows.
    pub const FIRST: Self = Self(NonZeroU32::MIN);

    /// Takes a number from 1 up.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0.get()
    }

    /// The one after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Whether this is the first.
    #[must_use]
    pub fn is_first(self) -> bool {
        self == Self::FIRST
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_to_2048_bytes_without_controls() {
        assert_eq!(ThreadId::new(""), Err(BadId::Empty));
        assert_eq!(ThreadId::new("a\nb"), Err(BadId::Control(10)));
        assert_eq!(ThreadId::new("a\u{85}b"), Err(BadId::Control(0x85)));
        assert!(ThreadId::new(&"x".repeat(2_048)).is_ok());
        assert_eq!(ThreadId::new(&"x".repeat(2_049)), Err(BadId::TooLong(2_049)));
        assert!(ThreadId::new("Zoë ☃ 100%/..").is_ok());
    }

    #[test]
    fn a_key_is_the_event_the_rest_and_a_repeat() {
        let question = QuestionId::new("q").unwrap();
        let key =
            |n, repeat| DedupeKey::of(Event::Created, &DedupeRest::choice(&question, n), repeat);
        assert_eq!(key(1, 0).as_str(), "wait.created:q");
        assert_eq!(key(2, 0).as_str(), "wait.created:q:2");
        assert_eq!(key(2, 3).as_str(), "wait.created:q:2:r3");
    }
}
