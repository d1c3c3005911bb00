//! Announces waits on a Kafka topic, and takes answers to hosts that listen on one.
//!
//! `config` reads settings, `request` makes key and headers, `response` reads what became of a
//! record, all without I/O; `client` does the sending.
//!
//! A record's key is the thread's id, so that a thread stays in one partition and in order; its
//! value is the payload; its headers are `dedupe_key`, `type`, `thread_id` and the tags. It counts
//! as delivered when every in-sync replica has acknowledged it, and not before.

mod client;
mod config;
mod request;
mod response;

use answerback_contract::settings::{Problem, Settings};
use answerback_contract::{Field, Kind, Purpose, Target};
use std::sync::Arc;

/// `type = "kafka"`, in `[announcers.NAME]` and in `[[routes]]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct KafkaKind;

impl Kind for KafkaKind {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn fields(&self) -> &'static [Field] {
        config::FIELDS
    }

    fn validate(
        &self,
        purpose: Purpose,
        settings: &mut Settings,
    ) -> Result<Arc<dyn Target>, Vec<Problem>> {
        config::validate(purpose, settings).map(|target| Arc::new(target) as Arc<dyn Target>)
    }
}
