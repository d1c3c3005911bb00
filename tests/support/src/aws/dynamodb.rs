//! DynamoDB over JSON 1.0.

use super::World;
use super::expression::{Substitutes, holds, updated};
use super::faults::Refusal;
use super::item;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

type Item = Map<String, Value>;

#[derive(Default)]
pub(super) struct Table(BTreeMap<(String, String), Item>);

impl Table {
    pub(super) fn items(&self) -> Vec<Value> {
        self.0.values().cloned().map(Value::Object).collect()
    }
}

pub(super) fn act(world: &mut World, operation: &str, body: &[u8]) -> Result<String, Refusal> {
    let request: Value = serde_json::from_slice(body)
        .map_err(|e| Refusal::sender("SerializationException", e.to_string()))?;
    if operation == "TransactWriteItems" {
        return transact(world, &request);
    }
    let table = find(world, &request)?;
    match operation {
        "PutItem" | "UpdateItem" | "DeleteItem" => {
            let (key, after) = planned(table, operation, &request)?;
            apply(table, key, after);
            Ok("{}".to_owned())
        }
        "GetItem" => {
            let key = item::key(object(&request, "Key")?)?;
            Ok(table.0.get(&key).map_or(json!({}), |found| json!({"Item": found})).to_string())
        }
        "DescribeTable" => {
            let keys = [("pk", "HASH"), ("sk", "RANGE")];
            let schema: Vec<Value> =
                keys.iter().map(|(n, k)| json!({"AttributeName": n, "KeyType": k})).collect();
            let defined: Vec<Value> = keys
                .iter()
                .map(|(n, _)| json!({"AttributeName": n, "AttributeType": "S"}))
                .collect();
            let table = json!({
                "TableName": request["TableName"], "TableStatus": "ACTIVE",
                "KeySchema": schema, "AttributeDefinitions": defined,
            });
            Ok(json!({"Table": table}).to_string())
        }
        other => Err(Refusal::sender(
            "UnknownOperationException",
            format!("the stub does not do {other}"),
        )),
    }
}

fn find<'w>(world: &'w mut World, request: &Value) -> Result<&'w mut Table, Refusal> {
    let name = request["TableName"].as_str().unwrap_or_default();
    // A table may be named by its ARN.
    let name = name.rsplit('/').next().unwrap_or(name);
    world
        .tables
        .get_mut(name)
        .ok_or_else(|| Refusal::sender("ResourceNotFoundException", "Requested resource not found"))
}

fn object<'r>(request: &'r Value, field: &str) -> Result<&'r Item, Refusal> {
    let missing = || Refusal::sender("ValidationException", format!("{field} must be given"));
    request[field].as_object().ok_or_else(missing)
}

type Planned = ((String, String), Option<Item>);

/// What a write would leave under which key; nothing is changed yet.
fn planned(table: &Table, operation: &str, request: &Value) -> Result<Planned, Refusal> {
    let of = if operation == "PutItem" { "Item" } else { "Key" };
    let given = object(request, of)?;
    let key = item::key(given)?;
    let before = table.0.get(&key);
    let none = Item::new();
    let substitutes = Substitutes::of(request);
    let met = match request["ConditionExpression"].as_str() {
        Some(condition) => holds(condition, before.unwrap_or(&none), &substitutes)?,
        None => true,
    };
    let after = match (operation, request["UpdateExpression"].as_str()) {
        ("PutItem", _) => Some(given.clone()),
        ("DeleteItem", _) => None,
        (_, Some(update)) => Some(updated(update, before.unwrap_or(given), &substitutes)?),
        (_, None) => Some(before.unwrap_or(given).clone()),
    };
    substitutes.all_used()?;
    if let Some(after) = &after {
        item::check(after)?;
    }
    if met {
        return Ok((key, after));
    }
    let wanted = request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD";
    let old = before.filter(|_| wanted).cloned().map(Value::Object);
    Err(Refusal::sender("ConditionalCheckFailedException", "The conditional request failed")
        .with_item(old))
}

fn apply(table: &mut Table, key: (String, String), after: Option<Item>) {
    match after {
        Some(item) => table.0.insert(key, item),
        None => table.0.remove(&key),
    };
}

/// All or none; up to 100 writes, no two of one item.
fn transact(world: &mut World, request: &Value) -> Result<String, Refusal> {
    let writes = request["TransactItems"].as_array().cloned().unwrap_or_default();
    if writes.is_empty() || writes.len() > 100 {
        return Err(Refusal::sender("ValidationException", "a transaction has 1 to 100 writes"));
    }
    let mut all: Vec<(Value, Planned)> = Vec::new();
    for write in &writes {
        let known = [("Put", "PutItem"), ("Update", "UpdateItem"), ("Delete", "DeleteItem")];
        let (kind, operation) =
            known.into_iter().find(|(kind, _)| write.get(kind).is_some()).ok_or_else(|| {
                Refusal::sender("ValidationException", "the stub knows Put, Update and Delete")
            })?;
        let table = find(world, &write[kind])?;
        let one = planned(table, operation, &write[kind]).map_err(|refusal| {
            Refusal::sender("TransactionCanceledException", format!("Transaction cancelled, please refer cancellation reasons for specific reasons [{}]", refusal.code))
        })?;
        if all.iter().any(|(request, (key, _))| {
            request["TableName"] == write[kind]["TableName"] && *key == one.0
        }) {
            return Err(Refusal::sender(
                "ValidationException",
                "Transaction request cannot include multiple operations on one item",
            ));
        }
        all.push((write[kind].clone(), one));
    }
    for (request, (key, after)) in all {
        apply(find(world, &request)?, key, after);
    }
    Ok("{}".to_owned())
}
