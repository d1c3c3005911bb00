//! Sends answers to the places that envelopes name, through the built-in senders.

use crate::answers::ReplySender;
use crate::config::ReplyToConfig;
use answerback_contract::{Attempt, Message, Outcome};
use answerback_core::reply_to::ReplyTo;
use async_trait::async_trait;

/// Every way that an envelope may name and this program was built with.
pub struct Replies {
    #[cfg(feature = "webhook")]
    http: answerback_webhook::ReplySender,
    #[cfg(feature = "sqs")]
    sqs: sqs::Queues,
}

impl Replies {
    /// Senders as `[reply_to]` says.
    ///
    /// # Errors
    /// What of it cannot be used.
    pub fn new(config: &ReplyToConfig) -> Result<Self, String> {
        #[cfg(feature = "webhook")]
        let http = {
            let blocks: Vec<String> =
                config.allow_private.iter().map(ToString::to_string).collect();
            let guard =
                answerback_webhook::AddressGuard::allowing(&blocks).map_err(|e| e.to_string())?;
            let timeout = config.sending.timeout;
            answerback_webhook::ReplySender::new(config.secret.as_ref(), guard, timeout)
                .map_err(|e| e.to_string())?
        };
        Ok(Self {
            #[cfg(feature = "webhook")]
            http,
            #[cfg(feature = "sqs")]
            sqs: sqs::Queues::new(config.sending.timeout),
        })
    }
}

#[async_trait]
impl ReplySender for Replies {
    async fn send(&self, place: &ReplyTo, message: &Message, attempt: Attempt) -> Outcome {
        match place {
            #[cfg(feature = "webhook")]
            ReplyTo::Http(url) => self.http.send(url.as_str(), message, attempt).await,
            #[cfg(feature = "sqs")]
            ReplyTo::Sqs(url) => self.sqs.send(url, message, attempt).await,
            _ => Outcome::refused(
                "this program was built without a sender for this kind of reply_to",
            ),
        }
    }
}

#[cfg(feature = "sqs")]
mod sqs {
    use answerback_contract::settings::{Place, SecretStore, Setting, Settings, Value};
    use answerback_contract::{Announcer, Attempt, Connecting, Kind, Message, Outcome, Purpose};
    use std::collections::{BTreeMap, HashMap};
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::Mutex;
    use url::Url;

    /// Queues that are kept connected; beyond, all are dropped and connected again as needed.
    const MAX_QUEUES: usize = 256;

    /// The queues that envelopes named, connected as needed.
    pub(super) struct Queues {
        timeout: Duration,
        open: Mutex<HashMap<Url, Arc<dyn Announcer>>>,
    }

    /// A queue's settings name no secrets.
    struct NoSecrets;

    impl SecretStore for NoSecrets {
        fn variable(&self, _name: &str) -> Option<String> {
            None
        }

        fn file(&self, _path: &str) -> Result<String, std::io::Error> {
            Err(std::io::ErrorKind::NotFound.into())
        }
    }

    impl Queues {
        pub(super) fn new(timeout: Duration) -> Self {
            Self { timeout, open: Mutex::new(HashMap::new()) }
        }

        pub(super) async fn send(
            &self,
            queue: &Url,
            message: &Message,
            attempt: Attempt,
        ) -> Outcome {
            let announcer = match self.connected(queue).await {
                Ok(announcer) => announcer,
                Err(why) => return Outcome::refused(why),
            };
            let outcomes = announcer.announce(std::slice::from_ref(message), attempt).await;
            outcomes
                .into_iter()
                .next()
                .unwrap_or_else(|| Outcome::retry("the queue gave no outcome"))
        }

        async fn connected(&self, queue: &Url) -> Result<Arc<dyn Announcer>, String> {
            let mut open = self.open.lock().await;
            if let Some(announcer) = open.get(queue) {
                return Ok(Arc::clone(announcer));
            }
            let mut settings = settings_of(queue);
            let target = answerback_sqs::SqsKind.validate(Purpose::Answer, &mut settings).map_err(
                |problems| problems.iter().map(|p| p.what.clone()).collect::<Vec<_>>().join("; "),
            )?;
            let connecting =
                Connecting { name: "reply_to".to_owned(), attempt_timeout: self.timeout };
            let announcer = target.connect(&connecting).await.map_err(|e| e.to_string())?;
            if open.len() >= MAX_QUEUES {
                open.clear();
            }
            open.insert(queue.clone(), Arc::clone(&announcer));
            Ok(announcer)
        }
    }

    /// The region stands in AWS's own host names, `sqs.<region>.amazonaws.com`; any other host is
    /// an endpoint of its own, such as an emulator.
    fn settings_of(queue: &Url) -> Settings {
        let host = queue.host_str().unwrap_or_default();
        let mut table = vec![("queue_url", queue.to_string())];
        let labels: Vec<&str> = host.split('.').collect();
        match labels.as_slice() {
            ["sqs", region, "amazonaws", "com"] | ["sqs", region, "amazonaws", "com", "cn"] => {
                table.push(("region", (*region).to_owned()));
            }
            _ => {
                table.push(("endpoint_url", queue.origin().ascii_serialization()));
                table.push(("region", "us-east-1".to_owned()));
            }
        }
        let setting = |text| Setting { value: Value::String(text), place: Place::BuiltIn };
        let table: BTreeMap<String, Setting> =
            table.into_iter().map(|(key, text)| (key.to_owned(), setting(text))).collect();
        Settings::new("reply_to", Place::BuiltIn, table, Arc::new(NoSecrets))
    }
}
