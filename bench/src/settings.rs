//! The configuration that a run gives the daemon: what is measured, and otherwise the defaults.

use crate::postgres::Store;
use std::fmt::Write;
use std::net::SocketAddr;

/// One announcer of a run.
#[derive(Clone, Debug)]
pub(crate) enum Announcer {
    /// Queue `waits` at a stub.
    Sqs(SocketAddr),
    /// Topic `waits` at a stub.
    Sns(SocketAddr),
    /// Table `waits` at a stub.
    DynamoDb(SocketAddr),
    /// A stub.
    Webhook(SocketAddr),
    /// A topic of a real broker.
    Kafka {
        /// `host:port`
        brokers: String,
        /// The run's own topic.
        topic: String,
    },
    /// Lines in the daemon's log.
    Log,
}

/// The text of `answerback.toml`.
pub(crate) fn configuration(listen: SocketAddr, store: &Store, announcers: &[Announcer]) -> String {
    let store = match store {
        Store::File => "url = \"sqlite:answerback.db\"".to_owned(),
        Store::Database(_) => format!("url_env = \"{STORE}\""),
    };
    let mut text = format!("[server]\nlisten = \"{listen}\"\n\n[store]\n{store}\n");
    for announcer in announcers {
        // Writing to a String cannot fail.
        let _ = match announcer {
            Announcer::Sqs(at) => write!(
                text,
                "\n[announcers.sqs]\ntype = \"sqs\"\nqueue_url = \"http://{at}/000000000000/waits\"\nendpoint_url = \"http://{at}\"\nregion = \"us-east-1\"\n"
            ),
            Announcer::Sns(at) => write!(
                text,
                "\n[announcers.sns]\ntype = \"sns\"\ntopic_arn = \"arn:aws:sns:us-east-1:000000000000:waits\"\nendpoint_url = \"http://{at}\"\nregion = \"us-east-1\"\n"
            ),
            Announcer::DynamoDb(at) => write!(
                text,
                "\n[announcers.dynamodb]\ntype = \"dynamodb\"\ntable = \"waits\"\nendpoint_url = \"http://{at}\"\nregion = \"us-east-1\"\n"
            ),
            Announcer::Webhook(at) => write!(
                text,
                "\n[announcers.webhook]\ntype = \"webhook\"\nurl = \"http://{at}/waits\"\nallow_private = [\"127.0.0.0/8\"]\nsecret_env = \"ANSWERBACK_BENCH_SECRET\"\n"
            ),
            Announcer::Kafka { brokers, topic } => write!(
                text,
                "\n[announcers.kafka]\ntype = \"kafka\"\nbrokers = \"{brokers}\"\ntopic = \"{topic}\"\n"
            ),
            Announcer::Log => write!(text, "\n[announcers.log]\ntype = \"log\"\n"),
        };
    }
    text
}

/// Where the daemon finds the URL of its database.
pub(crate) const STORE: &str = "ANSWERBACK_BENCH_STORE";

/// What the daemon's environment holds besides: no account of this machine is ever asked for.
pub(crate) const ENVIRONMENT: &[(&str, &str)] = &[
    ("ANSWERBACK_BENCH_SECRET", "a secret of the benchmark"),
    ("AWS_ACCESS_KEY_ID", "bench"),
    ("AWS_SECRET_ACCESS_KEY", "bench"),
    ("AWS_EC2_METADATA_DISABLED", "true"),
    ("AWS_CONFIG_FILE", "/dev/null"),
    ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
    ("NO_COLOR", "1"),
];
