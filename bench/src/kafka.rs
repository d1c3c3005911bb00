//! The one receiver that is no stub: a broker, with a topic of its own for each run, read back from
//! its beginning once the run is over, so that no consumer takes part in what is measured.

use crate::envelope::{Template, number_of_key};
use crate::ledger::{Destination, Ledger};
use anyhow::{Context, Result, bail, ensure};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::{Offset, TopicPartitionList};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const PARTITIONS: i32 = 3;

/// What a broker may take for one answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A broker to announce to.
pub(crate) struct Broker {
    /// `host:port`.
    pub(crate) address: String,
    /// Present when this process has started it.
    started: Option<Started>,
}

struct Started {
    scripts: PathBuf,
    directory: PathBuf,
}

impl Broker {
    /// One that runs already.
    pub(crate) fn at(address: String) -> Self {
        Self { address, started: None }
    }

    /// Starts one by `scripts/kafka-up` of the repository around the current directory.
    pub(crate) fn start(directory: &Path) -> Result<Self> {
        let here = std::env::current_dir()?;
        let scripts = here
            .ancestors()
            .map(|above| above.join("scripts"))
            .find(|scripts| scripts.join("kafka-up").is_file())
            .context(
                "no scripts/kafka-up here; run in the repository, or name a broker by --kafka",
            )?;
        let directory = directory.join("kafka");
        // The controller takes the next port.
        let port = (0..50)
            .filter_map(|_| crate::daemon::free_address().ok())
            .map(|address| address.port())
            .find(|port| {
                port.checked_add(1)
                    .is_some_and(|next| std::net::TcpListener::bind(("127.0.0.1", next)).is_ok())
            })
            .context("no two free ports side by side")?;
        let started = Started { scripts, directory };
        let up = Command::new(started.scripts.join("kafka-up"))
            .arg(&started.directory)
            .arg(port.to_string())
            .stdin(Stdio::null())
            .status()?;
        ensure!(up.success(), "scripts/kafka-up failed");
        Ok(Self { address: format!("127.0.0.1:{port}"), started: Some(started) })
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(started) = &self.started {
            // What is left over lies in a temporary directory.
            let _ = Command::new(started.scripts.join("kafka-down"))
                .arg(&started.directory)
                .arg("--wipe")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .status();
        }
    }
}

/// The topic of one run.
pub(crate) struct Topic {
    brokers: String,
    /// Its name.
    pub(crate) name: String,
    consumer: BaseConsumer,
}

fn configured(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("group.id", "answerback-bench")
        .set("enable.auto.commit", "false")
        .set("allow.auto.create.topics", "false")
        .set("log_level", "3");
    config
}

impl Topic {
    /// Makes it. The broker stamps what it appends: that is when an announcement was received.
    pub(crate) async fn create(brokers: &str, name: String) -> Result<Self> {
        let config = configured(brokers);
        let admin: AdminClient<DefaultClientContext> = config.create()?;
        let topic = NewTopic::new(&name, PARTITIONS, TopicReplication::Fixed(1))
            .set("message.timestamp.type", "LogAppendTime");
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        for made in admin.create_topics([&topic], &options).await? {
            made.map_err(|(name, code)| anyhow::anyhow!("topic {name}: {code}"))?;
        }
        let consumer = config.create()?;
        Ok(Self { brokers: brokers.to_owned(), name, consumer })
    }

    /// How many messages it holds.
    pub(crate) fn count(&self) -> Result<u64> {
        let mut count = 0;
        for partition in 0..PARTITIONS {
            let (low, high) = self.consumer.fetch_watermarks(&self.name, partition, PATIENCE)?;
            count += u64::try_from(high - low).unwrap_or_default();
        }
        Ok(count)
    }

    /// Reads it all: dedupe key, key and value of each message, and when the broker had it.
    /// `epoch` is the wall clock, in milliseconds, at the ledger's zero.
    pub(crate) fn read(
        &self,
        ledger: &Ledger,
        destination: &Destination,
        epoch: i64,
    ) -> Result<()> {
        let mut left = self.count()?;
        let mut all = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            all.add_partition_offset(&self.name, partition, Offset::Beginning)?;
        }
        self.consumer.assign(&all)?;
        let mut published = Template::envelope();
        while left > 0 {
            let message = match self.consumer.poll(PATIENCE) {
                Some(message) => message?,
                None => bail!("{left} messages of topic {} cannot be read", self.name),
            };
            left -= 1;
            let number = message
                .headers()
                .and_then(|headers| headers.iter().find(|h| h.key == "dedupe_key"))
                .and_then(|header| number_of_key(header.value?));
            let at = message.timestamp().to_millis().unwrap_or(epoch).saturating_sub(epoch);
            let at = u32::try_from(at.saturating_mul(1000)).unwrap_or_default();
            destination.arrived(number, at.min(ledger.clock.micros()));
            if let Some(number) = number {
                let thread = format!("order-{number:010}");
                let intact = message.payload() == Some(published.of(number))
                    && message.key() == Some(thread.as_bytes());
                if !intact {
                    destination.altered();
                }
            }
        }
        self.consumer.unassign()?;
        Ok(())
    }

    /// Deletes it.
    pub(crate) async fn delete(self) -> Result<()> {
        let admin: AdminClient<DefaultClientContext> = configured(&self.brokers).create()?;
        admin.delete_topics(&[&self.name], &AdminOptions::new()).await?;
        Ok(())
    }
}
