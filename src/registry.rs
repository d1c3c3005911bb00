//! The only list of announcers and of what carries answers to hosts.
//!
//! No other file of the daemon names an announcer crate. A program that compiles in kinds of its
//! own adds them to the built-in ones: see [`Registry::add`] and `examples/custom_announcer.rs`.

mod replies;

pub use replies::Replies;

use answerback_contract::{Kind, Purpose};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The kinds of destinations that the configuration can name by `type`.
#[derive(Clone, Default)]
pub struct Registry {
    announcers: BTreeMap<&'static str, Arc<dyn Kind>>,
    routes: BTreeMap<&'static str, Arc<dyn Kind>>,
}

/// Kinds that exist, but not in this program.
const ABSENT: [(Purpose, &str, &str); 10] = [
    (Purpose::Announce, "eventbridge", LATER),
    (Purpose::Answer, "lambda", LATER),
    (Purpose::Announce, "sqs", "was left out of this program; build it with the feature sqs"),
    (Purpose::Announce, "sns", "was left out of this program; build it with the feature sns"),
    (
        Purpose::Announce,
        "dynamodb",
        "was left out of this program; build it with the feature dynamodb",
    ),
    (
        Purpose::Announce,
        "webhook",
        "was left out of this program; build it with the feature webhook",
    ),
    (Purpose::Announce, "kafka", "was left out of this program; build it with the feature kafka"),
    (Purpose::Answer, "http", "was left out of this program; build it with the feature webhook"),
    (Purpose::Answer, "sqs", "was left out of this program; build it with the feature sqs"),
    (Purpose::Answer, "kafka", "was left out of this program; build it with the feature kafka"),
];

const LATER: &str = "is not supported by this version";

impl Registry {
    /// No kind at all.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Every kind that was compiled in.
    #[must_use]
    pub fn with_built_in() -> Self {
        let mut registry = Self::empty();
        registry.add(&[Purpose::Announce], Arc::new(answerback_log::LogKind));
        #[cfg(feature = "webhook")]
        registry.add(&[Purpose::Announce], Arc::new(answerback_webhook::WebhookKind));
        #[cfg(feature = "webhook")]
        registry.add(&[Purpose::Answer], Arc::new(answerback_webhook::HttpKind));
        #[cfg(feature = "sqs")]
        registry.add(&[Purpose::Announce, Purpose::Answer], Arc::new(answerback_sqs::SqsKind));
        #[cfg(feature = "sns")]
        registry.add(&[Purpose::Announce], Arc::new(answerback_sns::SnsKind));
        #[cfg(feature = "dynamodb")]
        registry.add(&[Purpose::Announce], Arc::new(answerback_dynamodb::DynamoDbKind));
        #[cfg(feature = "kafka")]
        registry.add(&[Purpose::Announce, Purpose::Answer], Arc::new(answerback_kafka::KafkaKind));
        registry
    }

    /// Adds a kind for announcers, for routes or for both. One of the same name is replaced.
    pub fn add(&mut self, purposes: &[Purpose], kind: Arc<dyn Kind>) {
        for purpose in purposes {
            let kinds = match purpose {
                Purpose::Announce => &mut self.announcers,
                Purpose::Answer => &mut self.routes,
            };
            kinds.insert(kind.name(), Arc::clone(&kind));
        }
    }

    /// The kind of that name.
    ///
    /// # Errors
    /// Why there is none, and which there are.
    pub fn find(&self, purpose: Purpose, name: &str) -> Result<&Arc<dyn Kind>, String> {
        self.kinds(purpose).get(name).ok_or_else(|| {
            let why = ABSENT
                .iter()
                .find(|(p, n, _)| *p == purpose && *n == name)
                .map_or("is no type", |(_, _, why)| *why);
            format!("{name:?} {why}; there are {}", self.names(purpose))
        })
    }

    /// The names of all kinds, for messages.
    #[must_use]
    pub fn names(&self, purpose: Purpose) -> String {
        let mut names: Vec<_> = self.kinds(purpose).keys().copied().collect();
        if purpose == Purpose::Answer {
            names.push("pull");
        }
        names.join(", ")
    }

    /// All kinds for a purpose, by name.
    pub fn all(&self, purpose: Purpose) -> impl Iterator<Item = &Arc<dyn Kind>> {
        self.kinds(purpose).values()
    }

    fn kinds(&self, purpose: Purpose) -> &BTreeMap<&'static str, Arc<dyn Kind>> {
        match purpose {
            Purpose::Announce => &self.announcers,
            Purpose::Answer => &self.routes,
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("announcers", &self.announcers.keys())
            .field("routes", &self.routes.keys())
            .finish()
    }
}
