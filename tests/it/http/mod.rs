//! The API by its own rules (contract, section 3), on the real daemon: who may, what a stop and a
//! crash leave of it, what it counts, and that nothing secret is written down.

mod access;
mod counting;
mod events;
mod lasting;
mod polling;
mod secrets;

use answerback_testkit::daemon::Setup;
use answerback_testkit::{Api, Reply};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

const OPS: &str = "the-operators-key-in-http-tests";
const JSON: (&str, &str) = ("content-type", "application/json");

fn bare() -> Setup {
    Setup::new(env!("CARGO_BIN_EXE_answerback"))
}

/// With a key that may do everything.
fn keyed() -> Setup {
    bare()
        .config(
            "[auth]\nkeys = [{ name = \"ops\", key_env = \"OPS_KEY\", scopes = [\"admin\"] }]\n",
        )
        .env("OPS_KEY", OPS)
        .key(OPS)
}

fn envelope(thread: &str, question: &str) -> Value {
    json!({"type": "wait.created", "thread_id": thread, "question_id": question, "question": 1})
}

fn answer(thread: &str, question: &str, answer: Value) -> Value {
    json!({"thread_id": thread, "question_id": question, "answer": answer})
}

/// A `POST` under an `Idempotency-Key`.
async fn keyed_post(api: &Api, path: &str, key: &str, body: &Value) -> Reply {
    let headers = [JSON, ("idempotency-key", key)];
    api.send(Method::POST, path, &headers, Bytes::from(body.to_string())).await
}
