//! The keys of a DynamoDB table.

use crate::client::DynamoDbAnnouncer;
use answerback_aws::Access;
use answerback_contract::settings::{Place, Problem, Settings};
use answerback_contract::{
    Announcer, ConnectError, Connecting, Field, Kind, Limits, Purpose, Target, async_trait,
};
use std::sync::Arc;
use std::time::Duration;

const FIELDS: &[Field] = &[
    Field {
        key: "table",
        required: true,
        help: "The table's name or ARN; its keys are pk and sk, both strings. IAM: \
               dynamodb:PutItem, dynamodb:UpdateItem, for the check dynamodb:DescribeTable",
    },
    Field {
        key: "ttl",
        required: false,
        help: "How long a row stays after its wait is over: sets the attribute ttl, on which the \
               table's Time to Live must be switched on. Default: for ever",
    },
    answerback_aws::REGION,
    answerback_aws::ENDPOINT_URL,
    answerback_aws::ROLE_ARN,
];

/// Rows written at the same time by one call.
const BATCH: usize = 32;

/// Larger than any envelope: a row that would be too large is written without its question.
const ANY_SIZE: usize = 16 * 1_048_576;

/// The kind `dynamodb`.
#[derive(Clone, Copy, Debug)]
pub struct DynamoDbKind;

impl Kind for DynamoDbKind {
    fn name(&self) -> &'static str {
        "dynamodb"
    }

    fn fields(&self) -> &'static [Field] {
        FIELDS
    }

    fn validate(
        &self,
        purpose: Purpose,
        settings: &mut Settings,
    ) -> Result<Arc<dyn Target>, Vec<Problem>> {
        match DynamoDbTarget::read(purpose, settings) {
            Some(target) if !settings.has_problems() => Ok(Arc::new(target)),
            _ => Err(settings.take_problems()),
        }
    }
}

/// A table that is not connected yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DynamoDbTarget {
    pub(crate) table: String,
    pub(crate) ttl: Option<Duration>,
    access: Access,
}

impl DynamoDbTarget {
    fn read(purpose: Purpose, settings: &mut Settings) -> Option<Self> {
        let wanted = "a table's name (3 to 255 of A-Z, a-z, 0-9, _, - and .) or its ARN";
        if purpose == Purpose::Answer {
            let what = "dynamodb takes no answers; use http, sqs, lambda, kafka or pull";
            settings.problem("type", Place::BuiltIn, what);
        }
        let access = Access::read(settings);
        let ttl = settings.duration("ttl");
        let place = settings.place_of("table");
        let table = settings.required_string("table", wanted);
        if table.is_empty() {
            return None;
        }
        if !is_table(&table) {
            settings.problem("table", place, format!("must be {wanted}"));
            return None;
        }
        let access = access.with_arn(&table);
        Some(Self { table, ttl, access })
    }
}

fn is_table(table: &str) -> bool {
    let name = match table.strip_prefix("arn:") {
        Some(arn) => match arn.split_once(":table/") {
            Some((head, name)) if head.contains(":dynamodb:") || head.contains("dynamodb:") => name,
            _ => return false,
        },
        None => table,
    };
    (3..=255).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

#[async_trait]
impl Target for DynamoDbTarget {
    fn limits(&self) -> Limits {
        Limits { batch_messages: BATCH, batch_bytes: ANY_SIZE, message_bytes: ANY_SIZE }
    }

    fn describe(&self) -> String {
        format!("table {}", self.table)
    }

    fn follows_state(&self) -> bool {
        true
    }

    async fn connect(&self, connecting: &Connecting) -> Result<Arc<dyn Announcer>, ConnectError> {
        Ok(Arc::new(DynamoDbAnnouncer::new(self, &self.access.load(connecting).await?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_contract::settings::Setting;
    use answerback_contract::settings::testing::{MapSecrets, settings, text};

    fn read(purpose: Purpose, pairs: Vec<(&str, Setting)>) -> Result<DynamoDbTarget, String> {
        let mut settings = settings(pairs, MapSecrets::default());
        let target = DynamoDbTarget::read(purpose, &mut settings);
        match settings.finish() {
            Ok(()) => Ok(target.unwrap()),
            Err(problems) => Err(problems.iter().map(|p| format!("{p}\n")).collect()),
        }
    }

    #[test]
    fn a_table_is_read_by_name_or_arn() {
        let target = read(
            Purpose::Announce,
            vec![("table", text("waits")), ("ttl", text("90d")), ("region", text("eu-west-1"))],
        )
        .unwrap();
        assert_eq!(target.ttl, Some(Duration::from_secs(90 * 86_400)));
        assert!(target.follows_state());
        let arn = "arn:aws:dynamodb:eu-west-1:111122223333:table/waits";
        let target = read(Purpose::Announce, vec![("table", text(arn))]).unwrap();
        assert_eq!(target.access.region.as_deref(), Some("eu-west-1"));
        assert_eq!(target.ttl, None);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        for bad in ["ab", "my table", "arn:aws:sns:eu-west-1:1:waits", "arn:aws:s3:::table/waits"] {
            let problem = read(Purpose::Announce, vec![("table", text(bad))]).unwrap_err();
            assert!(problem.starts_with("test.toml:1: announcers.test.table: must be"), "{bad}");
        }
        assert!(read(Purpose::Announce, vec![]).unwrap_err().contains("table: is missing"));
        let answers = read(Purpose::Answer, vec![("table", text("waits"))]).unwrap_err();
        assert!(answers.contains("takes no answers"));
    }
}
