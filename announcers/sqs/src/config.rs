//! The keys of an SQS destination.

use crate::client::SqsAnnouncer;
use crate::request::{self, Shape};
use answerback_aws::Access;
use answerback_contract::settings::{Problem, Settings};
use answerback_contract::{
    Announcer, ConnectError, Connecting, Field, Kind, Limits, Message, Purpose, Target, async_trait,
};
use std::sync::Arc;

const FIELDS: &[Field] = &[
    Field {
        key: "queue_url",
        required: true,
        help: "The queue's URL; one that ends with .fifo is a FIFO queue. IAM: sqs:SendMessage, \
               for the check sqs:GetQueueAttributes",
    },
    answerback_aws::REGION,
    answerback_aws::ENDPOINT_URL,
    answerback_aws::ROLE_ARN,
];

/// The kind `sqs`.
#[derive(Clone, Copy, Debug)]
pub struct SqsKind;

impl Kind for SqsKind {
    fn name(&self) -> &'static str {
        "sqs"
    }

    fn fields(&self) -> &'static [Field] {
        FIELDS
    }

    fn validate(
        &self,
        purpose: Purpose,
        settings: &mut Settings,
    ) -> Result<Arc<dyn Target>, Vec<Problem>> {
        match SqsTarget::read(purpose, settings) {
            Some(target) if !settings.has_problems() => Ok(Arc::new(target)),
            _ => Err(settings.take_problems()),
        }
    }
}

/// A queue that is not connected yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SqsTarget {
    pub(crate) queue_url: String,
    pub(crate) shape: Shape,
    pub(crate) access: Access,
}

impl SqsTarget {
    fn read(purpose: Purpose, settings: &mut Settings) -> Option<Self> {
        let wanted = "the queue's URL, such as \
                      https://sqs.eu-west-1.amazonaws.com/111122223333/waits.fifo";
        let access = Access::read(settings);
        let place = settings.place_of("queue_url");
        let queue_url = settings.required_string("queue_url", wanted);
        if queue_url.is_empty() {
            return None;
        }
        if !is_queue_url(&queue_url) {
            settings.problem("queue_url", place, format!("must be {wanted}"));
            return None;
        }
        let shape = Shape { fifo: queue_url.ends_with(".fifo"), purpose };
        let access = access.with_queue_url(&queue_url);
        Some(Self { queue_url, shape, access })
    }
}

/// Scheme, host and at least a queue's name, without a user part.
fn is_queue_url(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    rest.and_then(|rest| rest.split_once('/')).is_some_and(|(host, path)| {
        let name = path.rsplit('/').next().unwrap_or_default();
        !host.is_empty()
            && !host.contains('@')
            && (1..=80).contains(&name.len())
            && url.bytes().all(|b| b.is_ascii_graphic())
    })
}

#[async_trait]
impl Target for SqsTarget {
    fn limits(&self) -> Limits {
        Limits {
            batch_messages: request::MAX_ENTRIES,
            batch_bytes: request::MAX_BYTES,
            message_bytes: request::MAX_BYTES,
        }
    }

    fn bytes_of(&self, message: &Message) -> usize {
        request::bytes_of(self.shape, message)
    }

    fn describe(&self) -> String {
        self.queue_url.clone()
    }

    async fn connect(&self, connecting: &Connecting) -> Result<Arc<dyn Announcer>, ConnectError> {
        Ok(Arc::new(SqsAnnouncer::new(self, &self.access.load(connecting).await?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_contract::settings::Setting;
    use answerback_contract::settings::testing::{MapSecrets, settings, text};

    fn read(pairs: Vec<(&str, Setting)>) -> Result<SqsTarget, String> {
        let mut settings = settings(pairs, MapSecrets::default());
        let target = SqsTarget::read(Purpose::Announce, &mut settings);
        match settings.finish() {
            Ok(()) => Ok(target.unwrap()),
            Err(problems) => Err(problems.iter().map(|p| format!("{p}\n")).collect()),
        }
    }

    #[test]
    fn a_fifo_queue_is_known_by_its_name() {
        let url = "https://sqs.eu-west-1.amazonaws.com/111122223333/finance.fifo";
        let target = read(vec![("queue_url", text(url))]).unwrap();
        assert!(target.shape.fifo);
        assert_eq!(target.access.region.as_deref(), Some("eu-west-1"));
        let url = "http://127.0.0.1:4566/000000000000/answers";
        assert!(!read(vec![("queue_url", text(url))]).unwrap().shape.fifo);
    }

    #[test]
    fn what_is_no_queue_url_is_refused() {
        assert!(read(vec![]).unwrap_err().contains("announcers.test.queue_url: is missing"));
        for bad in [
            "finance",
            "https://sqs.eu-west-1.amazonaws.com",
            "https://sqs.eu-west-1.amazonaws.com/1/",
            "arn:aws:sqs:eu-west-1:111122223333:finance",
            "https://me:secret@host/1/q",
            "https://host/1/q q",
        ] {
            let problem = read(vec![("queue_url", text(bad))]).unwrap_err();
            assert!(
                problem.starts_with("test.toml:1: announcers.test.queue_url: must be"),
                "{bad}"
            );
            assert!(!problem.contains("secret"));
        }
    }
}
