//! The calls to SNS.

use crate::config::SnsTarget;
use crate::request::{self, MAX_ENTRIES, Shape};
use answerback_aws::SdkConfig;
use answerback_aws::batch::{self, BatchApi, Caps, Prepared, Receipt};
use answerback_aws::failure::{self, Failure};
use answerback_contract::{Announcer, Attempt, ConnectError, Message, Outcome, async_trait};
use aws_sdk_sns::Client;
use aws_sdk_sns::types::PublishBatchRequestEntry;

/// A connected topic.
pub(crate) struct SnsAnnouncer {
    client: Client,
    topic_arn: String,
    shape: Shape,
}

impl SnsAnnouncer {
    pub(crate) fn new(target: &SnsTarget, config: &SdkConfig) -> Self {
        Self {
            client: Client::new(config),
            topic_arn: target.topic_arn.clone(),
            shape: target.shape.clone(),
        }
    }
}

#[async_trait]
impl BatchApi for SnsAnnouncer {
    type Entry = PublishBatchRequestEntry;

    fn caps(&self) -> Caps {
        Caps { entries: MAX_ENTRIES, bytes: self.shape.max_bytes }
    }

    fn is_fifo(&self) -> bool {
        self.shape.fifo
    }

    fn prepare(&self, message: &Message) -> Result<Prepared<Self::Entry>, Outcome> {
        request::entry(&self.shape, message)
    }

    async fn send(&self, mut entries: Vec<Self::Entry>) -> Result<Receipt, Failure> {
        for (place, entry) in entries.iter_mut().enumerate() {
            entry.id = place.to_string();
        }
        let sent = self
            .client
            .publish_batch()
            .topic_arn(&self.topic_arn)
            .set_publish_batch_request_entries(Some(entries))
            .send()
            .await
            .map_err(|error| failure::of(&error))?;
        let accepted = sent.successful().iter();
        let refused = sent.failed().iter();
        Ok(Receipt {
            accepted: accepted.filter_map(|e| batch::place_of(e.id()?)).collect(),
            refused: refused
                .filter_map(|e| {
                    let message = e.message().unwrap_or_default();
                    let failure = failure::of_entry(e.code(), message, e.sender_fault());
                    batch::place_of(e.id()).map(|place| (place, failure))
                })
                .collect(),
        })
    }
}

#[async_trait]
impl Announcer for SnsAnnouncer {
    async fn announce(&self, batch: &[Message], attempt: Attempt) -> Vec<Outcome> {
        batch::announce(self, batch, attempt).await
    }

    async fn probe(&self) -> Result<(), ConnectError> {
        self.client
            .get_topic_attributes()
            .topic_arn(&self.topic_arn)
            .send()
            .await
            .map(drop)
            .map_err(|error| failure::of(&error).probe_error("sns:GetTopicAttributes"))
    }
}
