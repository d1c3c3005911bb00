//! The calls to DynamoDB.

use crate::config::DynamoDbTarget;
use crate::request::{self, Closing, OPEN, PK, SK, STATUS, Wish};
use crate::value::{Care, Item};
use answerback_aws::SdkConfig;
use answerback_aws::failure::{self, Class, Failure};
use answerback_contract::{Announcer, Attempt, ConnectError, Message, Outcome, async_trait};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, KeyType, ReturnValuesOnConditionCheckFailure, ScalarAttributeType,
    TableDescription, TableStatus,
};
use futures::future::join_all;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Rounds of looking at a row that others change at the same time. One is enough unless the first
/// announcement arrives between looking and writing.
const ROUNDS: usize = 3;

/// A connected table.
pub(crate) struct DynamoDbAnnouncer {
    client: Client,
    table: String,
    ttl: Option<Duration>,
}

/// What came of a conditional write.
enum Written {
    Done,
    /// The condition did not hold; there is a row.
    Refused,
    /// The condition did not hold; there is no row.
    NoRow,
}

impl DynamoDbAnnouncer {
    pub(crate) fn new(target: &DynamoDbTarget, config: &SdkConfig) -> Self {
        Self { client: Client::new(config), table: target.table.clone(), ttl: target.ttl }
    }

    async fn write(&self, message: &Message) -> Result<Outcome, Failure> {
        match request::wish(message.event) {
            Wish::Nothing => Ok(Outcome::Delivered),
            // A row that is there has the same state or a later one.
            Wish::Open => match self.put(message, None).await? {
                Ok(_) => Ok(Outcome::Delivered),
                Err(outcome) => Ok(outcome),
            },
            Wish::Close => self.close(message).await,
        }
    }

    async fn close(&self, message: &Message) -> Result<Outcome, Failure> {
        for _ in 0..ROUNDS {
            let closing = request::closing(message, self.ttl);
            let updated = match self.update(message, &closing, false).await {
                // The end's few attributes were the ones too many.
                Err(failure) if failure.class == Class::TooLong => {
                    self.update(message, &closing, true).await
                }
                other => other,
            }?;
            match updated {
                // A row that is not open is closed, and stays as it is.
                Written::Done | Written::Refused => return Ok(Outcome::Delivered),
                Written::NoRow => {}
            }
            match self.put(message, Some(&closing)).await? {
                Ok(Written::Done) => return Ok(Outcome::Delivered),
                Ok(_) => {}
                Err(outcome) => return Ok(outcome),
            }
        }
        Ok(Outcome::retry("the row is being changed by others at the same time"))
    }

    /// Writes a whole row where none is. The inner error is the outcome of a message that makes no
    /// row.
    async fn put(
        &self,
        message: &Message,
        closing: Option<&Closing>,
    ) -> Result<Result<Written, Outcome>, Failure> {
        let usual = || request::item(message, closing, Care::Usual);
        let refused = match usual() {
            Ok(item) => match self.put_item(item).await {
                Err(failure) if failure.blames_the_message() => failure,
                other => return other.map(Ok),
            },
            Err(outcome) => return Ok(Err(outcome)),
        };
        let other = match refused.class {
            // The service weighs a little otherwise than its page says.
            Class::TooLong => usual().map(request::without_large),
            _ => request::item(message, closing, Care::More),
        };
        match (other, usual()) {
            (Ok(other), Ok(usual)) if other != usual => self.put_item(other).await.map(Ok),
            _ => Err(refused),
        }
    }

    async fn put_item(&self, item: Item) -> Result<Written, Failure> {
        let put = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(item))
            .condition_expression("attribute_not_exists(#pk)")
            .expression_attribute_names("#pk", PK)
            .send()
            .await;
        match put {
            Ok(_) => Ok(Written::Done),
            Err(SdkError::ServiceError(error))
                if matches!(error.err(), PutItemError::ConditionalCheckFailedException(_)) =>
            {
                Ok(Written::Refused)
            }
            Err(error) => Err(failure::of(&error)),
        }
    }

    /// Writes an end on an open row.
    async fn update(
        &self,
        message: &Message,
        closing: &Closing,
        drop_large: bool,
    ) -> Result<Written, Failure> {
        let (pk, sk) = request::key(message);
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let mut update = self
            .client
            .update_item()
            .table_name(&self.table)
            .key(PK, pk)
            .key(SK, sk)
            .update_expression(request::close_expression(closing, drop_large))
            .condition_expression("#s = :open")
            .expression_attribute_names("#s", STATUS)
            .expression_attribute_values(":s", text(closing.status))
            .expression_attribute_values(":open", text(OPEN))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        for (n, (name, value)) in closing.rest.iter().enumerate() {
            update = update
                .expression_attribute_names(format!("#{n}"), *name)
                .expression_attribute_values(format!(":{n}"), value.clone());
        }
        if drop_large {
            for (placeholder, name) in request::large_names() {
                update = update.expression_attribute_names(placeholder, name);
            }
            update = update.expression_attribute_values(":o", AttributeValue::Bool(true));
        }
        match update.send().await {
            Ok(_) => Ok(Written::Done),
            Err(SdkError::ServiceError(error)) => match error.err() {
                UpdateItemError::ConditionalCheckFailedException(refused) => {
                    let there = refused.item().is_some_and(|row| !row.is_empty());
                    Ok(if there { Written::Refused } else { Written::NoRow })
                }
                _ => Err(failure::of(&SdkError::ServiceError(error))),
            },
            Err(error) => Err(failure::of(&error)),
        }
    }
}

#[async_trait]
impl Announcer for DynamoDbAnnouncer {
    async fn announce(&self, batch: &[Message], attempt: Attempt) -> Vec<Outcome> {
        let deadline = Instant::now() + attempt.timeout;
        join_all(batch.iter().map(async |message| {
            match timeout_at(deadline, self.write(message)).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(failure)) => failure.outcome(),
                Err(_) => Outcome::retry("no answer within the attempt's time"),
            }
        }))
        .await
    }

    async fn probe(&self) -> Result<(), ConnectError> {
        let described = self
            .client
            .describe_table()
            .table_name(&self.table)
            .send()
            .await
            .map_err(|error| failure::of(&error).probe_error("dynamodb:DescribeTable"))?;
        match described.table().and_then(unfit) {
            Some(what) => Err(ConnectError { what: what.to_owned(), source: None }),
            None => Ok(()),
        }
    }
}

/// Why a table cannot be written to, if so.
fn unfit(table: &TableDescription) -> Option<&'static str> {
    let is_key = |name: &str, kind: &KeyType| {
        table.key_schema().iter().any(|key| key.attribute_name() == name && key.key_type() == kind)
            && table.attribute_definitions().iter().any(|attribute| {
                attribute.attribute_name() == name
                    && *attribute.attribute_type() == ScalarAttributeType::S
            })
    };
    if !is_key(PK, &KeyType::Hash) || !is_key(SK, &KeyType::Range) {
        return Some(
            "the table has other keys; create it with the partition key pk and the sort key sk, \
             both strings",
        );
    }
    match table.table_status() {
        Some(TableStatus::Creating) => Some("the table is still being created; wait for it"),
        Some(TableStatus::Deleting) => Some("the table is being deleted; create it anew"),
        Some(TableStatus::InaccessibleEncryptionCredentials) => {
            Some("the table's encryption key cannot be used; grant its use, or enable the key")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_dynamodb::types::{AttributeDefinition, KeySchemaElement};

    fn table(
        keys: [(&str, KeyType, ScalarAttributeType); 2],
        status: TableStatus,
    ) -> TableDescription {
        let mut table = TableDescription::builder().table_status(status);
        for (name, key, kind) in keys {
            table = table
                .key_schema(
                    KeySchemaElement::builder().attribute_name(name).key_type(key).build().unwrap(),
                )
                .attribute_definitions(
                    AttributeDefinition::builder()
                        .attribute_name(name)
                        .attribute_type(kind)
                        .build()
                        .unwrap(),
                );
        }
        table.build()
    }

    #[test]
    fn a_table_needs_its_two_keys_as_strings() {
        let right = || {
            [
                ("pk", KeyType::Hash, ScalarAttributeType::S),
                ("sk", KeyType::Range, ScalarAttributeType::S),
            ]
        };
        assert_eq!(unfit(&table(right(), TableStatus::Active)), None);
        assert!(unfit(&table(right(), TableStatus::Creating)).unwrap().contains("created"));
        let mut number = right();
        number[1].2 = ScalarAttributeType::N;
        assert!(unfit(&table(number, TableStatus::Active)).unwrap().contains("other keys"));
        let mut swapped = right();
        swapped[0].1 = KeyType::Range;
        swapped[1].1 = KeyType::Hash;
        assert!(unfit(&table(swapped, TableStatus::Active)).is_some());
    }
}
