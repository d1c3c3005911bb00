//! `/openapi.json`: the paths out of the table of routes, the schemas written by hand.

use super::query::TAG_PREFIX;
use super::routes::{Access, Endpoint, ROUTES, Route, Takes};
use serde_json::{Map, Value, json};

/// The schemas, as `components.schemas`.
const SCHEMAS: &str = include_str!("openapi.schemas.json");

/// The whole description as JSON text.
pub(crate) fn document() -> String {
    let mut paths = Map::new();
    for route in &ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Value::Object(path) = path {
            path.insert(route.method.as_str().to_ascii_lowercase(), operation(route));
        }
    }
    let schemas: Value = serde_json::from_str(SCHEMAS).unwrap_or(Value::Null);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "answerback",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Takes in the questions that agents ask, announces them, and brings one answer back.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "signature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-Agent-Wait-Signature",
                    "description": "sha256= and the hex HMAC-SHA256 of the raw body",
                },
            },
            "schemas": schemas,
        },
    })
    .to_string()
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "parameters": parameters(route),
        "responses": responses(route),
        "security": security(route.access),
    });
    if let Access::Key(scopes) = route.access {
        let names: Vec<&str> = scopes.iter().map(|s| s.name()).collect();
        operation["description"] = format!("Scope: {}.", names.join(" or ")).into();
    }
    if let Takes::Message(schema) = route.takes {
        operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": reference(schema)}}});
    }
    operation
}

fn operation_id(route: &Route) -> String {
    let name = format!("{:?}", route.endpoint);
    name.chars().take(1).map(|c| c.to_ascii_lowercase()).chain(name.chars().skip(1)).collect()
}

fn parameters(route: &Route) -> Vec<Value> {
    let mut parameters = Vec::new();
    for part in route.path.split('/') {
        if let Some(name) = part.strip_prefix('{').and_then(|p| p.strip_suffix('}')) {
            parameters.push(json!({
                "name": name, "in": "path", "required": true, "schema": {"type": "string"},
            }));
        }
    }
    for name in route.query {
        parameters.push(match *name {
            // Any number of parameters `tag.<name>`.
            TAG_PREFIX => json!({
                "name": "tag", "in": "query", "description": "tag.<name>=<value>: waits with that tag",
                "schema": {"type": "object", "additionalProperties": {"type": "string"}},
            }),
            "limit" => json!({
                "name": "limit", "in": "query",
                "schema": {"type": "integer", "minimum": 1, "maximum": 500, "default": 100},
            }),
            "generation" => json!({
                "name": "generation", "in": "query", "description": "the newest, when absent",
                "schema": {"type": "integer", "minimum": 1},
            }),
            "wait" => json!({
                "name": "wait", "in": "query", "description": "how long to wait for it: up to 60s",
                "schema": {"type": "string", "examples": ["30s", "PT30S"]},
            }),
            name => json!({"name": name, "in": "query", "schema": {"type": "string"}}),
        });
    }
    if route.endpoint == Endpoint::Events {
        parameters.push(json!({
            "name": "Last-Event-ID", "in": "header",
            "description": "goes on after the event of that id; 0 starts with the oldest that is kept; from now on, when absent",
            "schema": {"type": "string", "pattern": "^[0-9]+$"},
        }));
    }
    if route.mutates() {
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        }));
    }
    parameters
}

fn responses(route: &Route) -> Value {
    let mut responses = Map::new();
    for (status, schema) in route.answers {
        let mut response = json!({"description": describe(*status)});
        match *schema {
            "" => {}
            "Metrics" => {
                response["content"] = json!({"text/plain": {"schema": {"type": "string"}}})
            }
            "Events" => {
                response["content"] = json!({"text/event-stream": {"schema": {
                    "type": "string",
                    "description": "server-sent events: id (for Last-Event-ID), event (wait.created, wait.answered, wait.timed-out, wait.cancelled), data (what announcers are told of it)",
                }}})
            }
            "OpenApi" => {
                response["content"] = json!({"application/json": {"schema": {"type": "object"}}})
            }
            schema => {
                response["content"] = json!({"application/json": {"schema": reference(schema)}});
            }
        }
        responses.insert(status.to_string(), response);
    }
    let mut refusals = route.refusals.to_vec();
    refusals.push(400);
    if route.access != Access::Open {
        refusals.extend([401, 403, 503]);
    }
    if route.path == "/readyz" {
        refusals.push(503);
    }
    if route.mutates() {
        refusals.push(409);
    }
    if route.takes != Takes::Nothing {
        refusals.extend([413, 415]);
    }
    refusals.sort_unstable();
    refusals.dedup();
    for status in refusals {
        responses.insert(
            status.to_string(),
            json!({
                "description": describe(status),
                "content": {"application/json": {"schema": reference("Error")}},
            }),
        );
    }
    Value::Object(responses)
}

fn describe(status: u16) -> &'static str {
    let code = http::StatusCode::from_u16(status).ok();
    code.and_then(|c| c.canonical_reason()).unwrap_or("")
}

fn security(access: Access) -> Value {
    match access {
        Access::Open => json!([]),
        Access::Key(_) => json!([{"key": []}]),
        Access::KeyOrSignature => json!([{"key": []}, {"signature": []}]),
        Access::ReadOrLocal => json!([{"key": []}, {}]),
    }
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(to)) = members.get("$ref") {
                    found.insert(to.clone());
                }
                members.values().for_each(|v| references(v, found));
            }
            Value::Array(items) => items.iter().for_each(|v| references(v, found)),
            _ => {}
        }
    }

    #[test]
    fn every_schema_that_is_named_exists_and_every_one_that_exists_is_named() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let mut named = BTreeSet::new();
        references(&document, &mut named);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let there: BTreeSet<String> =
            schemas.keys().map(|k| format!("#/components/schemas/{k}")).collect();
        assert_eq!(named, there);
    }

    #[test]
    fn operations_have_ids_of_their_own() {
        let ids: BTreeSet<String> = ROUTES.iter().map(operation_id).collect();
        assert_eq!(ids.len(), ROUTES.len());
        assert!(ids.contains("getWait"));
    }
}
