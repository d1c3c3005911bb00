//! DynamoDB: whatever writes an item names its sort key, and every write succeeds.

use super::Answer;
use crate::envelope::numbers_of_sort_keys;
use crate::ledger::Destination;
use crate::wire::{Request, reply};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::sync::Arc;

pub(super) struct DynamoDb(pub(super) Arc<Destination>);

const TABLE: &str = r#"{"Table":{"TableStatus":"ACTIVE","KeySchema":[{"AttributeName":"pk","KeyType":"HASH"},{"AttributeName":"sk","KeyType":"RANGE"}]}}"#;

#[derive(Deserialize)]
struct Statements {
    #[serde(rename = "Statements")]
    statements: Vec<IgnoredAny>,
}

impl Answer for DynamoDb {
    fn answer(&mut self, request: &Request<'_>, at: u32, out: &mut Vec<u8>) {
        let target = request.header("x-amz-target").unwrap_or_default();
        let body = match target.strip_prefix(b"DynamoDB_20120810.").unwrap_or_default() {
            b"PutItem" | b"UpdateItem" | b"TransactWriteItems" | b"ExecuteStatement" => {
                self.items(request.body, at);
                "{}".to_owned()
            }
            b"BatchWriteItem" => {
                self.items(request.body, at);
                r#"{"UnprocessedItems":{}}"#.to_owned()
            }
            b"BatchExecuteStatement" => {
                self.items(request.body, at);
                let count = serde_json::from_slice::<Statements>(request.body)
                    .map_or(0, |batch| batch.statements.len());
                format!(r#"{{"Responses":[{}]}}"#, vec!["{}"; count].join(","))
            }
            b"DescribeTable" => TABLE.to_owned(),
            _ => {
                let body = br#"{"__type":"com.amazon.coral.service#UnknownOperationException"}"#;
                return reply(out, "400 Bad Request", "application/x-amz-json-1.0", body);
            }
        };
        super::reply_json(out, body.as_bytes());
    }
}

impl DynamoDb {
    fn items(&self, body: &[u8], at: u32) {
        let mut any = false;
        for number in numbers_of_sort_keys(body) {
            self.0.arrived(number, at);
            any = true;
        }
        if !any {
            self.0.arrived(None, at);
        }
    }
}
