//! The keys of an SNS topic.

use crate::client::SnsAnnouncer;
use crate::request::{self, Shape};
use answerback_aws::{Access, region_of_arn};
use answerback_contract::settings::{Place, Problem, Settings};
use answerback_contract::{
    Announcer, ConnectError, Connecting, Field, Kind, Limits, Message, Purpose, Target, async_trait,
};
use std::sync::Arc;

const FIELDS: &[Field] = &[
    Field {
        key: "topic_arn",
        required: true,
        help: "The topic's ARN; one that ends with .fifo is a FIFO topic. IAM: sns:Publish, for \
               the check sns:GetTopicAttributes",
    },
    Field {
        key: "attribute_priority",
        required: false,
        help: "Names of tags that become attributes first where a question has more than eight. \
               Default: the order of the tags",
    },
    Field {
        key: "max_message_size",
        required: false,
        help: "The topic's MaximumMessageSize in bytes, 1024 to 1048576. Default: 262144",
    },
    answerback_aws::REGION,
    answerback_aws::ENDPOINT_URL,
    answerback_aws::ROLE_ARN,
];

/// The kind `sns`.
#[derive(Clone, Copy, Debug)]
pub struct SnsKind;

impl Kind for SnsKind {
    fn name(&self) -> &'static str {
        "sns"
    }

    fn fields(&self) -> &'static [Field] {
        FIELDS
    }

    fn validate(
        &self,
        purpose: Purpose,
        settings: &mut Settings,
    ) -> Result<Arc<dyn Target>, Vec<Problem>> {
        match SnsTarget::read(purpose, settings) {
            Some(target) if !settings.has_problems() => Ok(Arc::new(target)),
            _ => Err(settings.take_problems()),
        }
    }
}

/// A topic that is not connected yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SnsTarget {
    pub(crate) topic_arn: String,
    pub(crate) shape: Shape,
    access: Access,
}

impl SnsTarget {
    fn read(purpose: Purpose, settings: &mut Settings) -> Option<Self> {
        let wanted = "the topic's ARN, such as arn:aws:sns:eu-west-1:111122223333:waits";
        if purpose == Purpose::Answer {
            let what = "sns takes no answers; use http, sqs, lambda, kafka or pull";
            settings.problem("type", Place::BuiltIn, what);
        }
        let access = Access::read(settings);
        let attribute_priority = settings.strings("attribute_priority").unwrap_or_default();
        let most = i64::try_from(request::MOST_MAX_BYTES).unwrap_or(i64::MAX);
        let max_bytes = settings
            .integer("max_message_size", 1_024, most)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .unwrap_or(request::DEFAULT_MAX_BYTES);
        let place = settings.place_of("topic_arn");
        let topic_arn = settings.required_string("topic_arn", wanted);
        if topic_arn.is_empty() {
            return None;
        }
        if !is_topic_arn(&topic_arn) {
            settings.problem("topic_arn", place, format!("must be {wanted}"));
            return None;
        }
        let shape = Shape { fifo: topic_arn.ends_with(".fifo"), attribute_priority, max_bytes };
        let access = access.with_arn(&topic_arn);
        Some(Self { topic_arn, shape, access })
    }
}

fn is_topic_arn(arn: &str) -> bool {
    let parts: Vec<&str> = arn.split(':').collect();
    parts.len() == 6
        && parts[0] == "arn"
        && parts[2] == "sns"
        && region_of_arn(arn).is_some()
        && parts[4].bytes().all(|b| b.is_ascii_digit())
        && (1..=256).contains(&parts[5].len())
        && parts[5].bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

#[async_trait]
impl Target for SnsTarget {
    fn limits(&self) -> Limits {
        Limits {
            batch_messages: request::MAX_ENTRIES,
            batch_bytes: self.shape.max_bytes,
            message_bytes: self.shape.max_bytes,
        }
    }

    fn bytes_of(&self, message: &Message) -> usize {
        request::bytes_of(&self.shape, message)
    }

    fn describe(&self) -> String {
        self.topic_arn.clone()
    }

    async fn connect(&self, connecting: &Connecting) -> Result<Arc<dyn Announcer>, ConnectError> {
        Ok(Arc::new(SnsAnnouncer::new(self, &self.access.load(connecting).await?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_contract::settings::testing::{MapSecrets, setting, settings, text};
    use answerback_contract::settings::{Setting, Value};

    fn read(purpose: Purpose, pairs: Vec<(&str, Setting)>) -> Result<SnsTarget, String> {
        let mut settings = settings(pairs, MapSecrets::default());
        let target = SnsTarget::read(purpose, &mut settings);
        match settings.finish() {
            Ok(()) => Ok(target.unwrap()),
            Err(problems) => Err(problems.iter().map(|p| format!("{p}\n")).collect()),
        }
    }

    #[test]
    fn a_topic_is_read_with_its_region() {
        let arn = "arn:aws:sns:eu-west-1:111122223333:waits.fifo";
        let priority = setting(Value::Array(vec![text("approver_group"), text("region")]));
        let target = read(
            Purpose::Announce,
            vec![("topic_arn", text(arn)), ("attribute_priority", priority)],
        )
        .unwrap();
        assert!(target.shape.fifo);
        assert_eq!(target.shape.attribute_priority, ["approver_group", "region"]);
        assert_eq!(target.shape.max_bytes, 262_144);
        assert_eq!(target.access.region.as_deref(), Some("eu-west-1"));
    }

    #[test]
    fn what_is_no_topic_is_refused() {
        for bad in [
            "waits",
            "arn:aws:sqs:eu-west-1:111122223333:waits",
            "arn:aws:sns:eu-west-1:111122223333:waits:0b1c",
            "arn:aws:sns::111122223333:waits",
        ] {
            let problem = read(Purpose::Announce, vec![("topic_arn", text(bad))]).unwrap_err();
            assert!(
                problem.starts_with("test.toml:1: announcers.test.topic_arn: must be"),
                "{bad}"
            );
        }
        assert!(read(Purpose::Announce, vec![]).unwrap_err().contains("topic_arn: is missing"));
    }

    #[test]
    fn a_topic_takes_no_answers() {
        let arn = "arn:aws:sns:eu-west-1:111122223333:waits";
        let problem = read(Purpose::Answer, vec![("topic_arn", text(arn))]).unwrap_err();
        assert!(problem.contains("sns takes no answers"));
    }
}
