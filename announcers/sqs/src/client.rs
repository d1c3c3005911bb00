//! The calls to SQS.

use crate::config::SqsTarget;
use crate::request::{self, MAX_BYTES, MAX_ENTRIES, Shape};
use answerback_aws::SdkConfig;
use answerback_aws::batch::{self, BatchApi, Caps, Prepared, Receipt};
use answerback_aws::failure::{self, Failure};
use answerback_contract::{Announcer, Attempt, ConnectError, Message, Outcome, async_trait};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{QueueAttributeName, SendMessageBatchRequestEntry};

/// A connected queue.
pub(crate) struct SqsAnnouncer {
    client: Client,
    queue_url: String,
    shape: Shape,
}

impl SqsAnnouncer {
    pub(crate) fn new(target: &SqsTarget, config: &SdkConfig) -> Self {
        Self {
            client: Client::new(config),
            queue_url: target.queue_url.clone(),
            shape: target.shape,
        }
    }
}

#[async_trait]
impl BatchApi for SqsAnnouncer {
    type Entry = SendMessageBatchRequestEntry;

    fn caps(&self) -> Caps {
        Caps { entries: MAX_ENTRIES, bytes: MAX_BYTES }
    }

    fn is_fifo(&self) -> bool {
        self.shape.fifo
    }

    fn prepare(&self, message: &Message) -> Result<Prepared<Self::Entry>, Outcome> {
        request::entry(self.shape, message)
    }

    async fn send(&self, mut entries: Vec<Self::Entry>) -> Result<Receipt, Failure> {
        for (place, entry) in entries.iter_mut().enumerate() {
            entry.id = place.to_string();
        }
        let sent = self
            .client
            .send_message_batch()
            .queue_url(&self.queue_url)
            .set_entries(Some(entries))
            .send()
            .await
            .map_err(|error| failure::of(&error))?;
        Ok(Receipt {
            accepted: sent.successful.iter().filter_map(|e| batch::place_of(&e.id)).collect(),
            refused: sent
                .failed
                .iter()
                .filter_map(|e| {
                    let message = e.message.as_deref().unwrap_or_default();
                    let failure = failure::of_entry(&e.code, message, e.sender_fault);
                    batch::place_of(&e.id).map(|place| (place, failure))
                })
                .collect(),
        })
    }
}

#[async_trait]
impl Announcer for SqsAnnouncer {
    async fn announce(&self, batch: &[Message], attempt: Attempt) -> Vec<Outcome> {
        batch::announce(self, batch, attempt).await
    }

    async fn probe(&self) -> Result<(), ConnectError> {
        self.client
            .get_queue_attributes()
            .queue_url(&self.queue_url)
            .attribute_names(QueueAttributeName::QueueArn)
            .send()
            .await
            .map(drop)
            .map_err(|error| failure::of(&error).probe_error("sqs:GetQueueAttributes"))
    }
}
