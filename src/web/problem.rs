//! Refusals as the API words them (contract, section 3, "Errors").

use super::reply::{Reply, RequestId};
use crate::store::StoreError;
use answerback_contract::WaitState;
use answerback_core::Refusal;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};

/// The seconds a caller is asked to stay away when the store cannot work.
const STORE_RETRY_SECONDS: u32 = 2;
/// The seconds a caller is asked to stay away from a daemon that stops: about a restart.
const STOP_RETRY_SECONDS: u32 = 5;
/// The seconds a caller is asked to stay away when there is no room for its stream of events.
const STREAM_RETRY_SECONDS: u32 = 10;

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    details: Vec<(&'static str, Value)>,
    pub(crate) retry_after: Option<u32>,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), details: Vec::new(), retry_after: None }
    }

    fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.details.push((key, value.into()));
        self
    }

    fn after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// 400, naming the field, header or query key.
    pub(crate) fn bad_input(field: &str, what: impl Into<String>) -> Self {
        let refusal = Refusal::new(field, what);
        Self::from(refusal)
    }

    pub(crate) fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", message)
    }

    /// 403 for a key that may do other things.
    pub(crate) fn lacks_scope(scope: &'static str) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            format!(
                "this key lacks the scope {scope:?}; add it in [auth] keys, or use another key"
            ),
        )
        .with("scope", scope)
    }

    /// 403 for whoever may not come in at all.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(crate) fn no_route() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not-found",
            "there is nothing at this path; see /openapi.json",
        )
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", message)
    }

    pub(crate) fn wait_not_found() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "wait-not-found",
            "there is no wait with this thread_id, question_id and generation",
        )
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "this path does not take this method; the header Allow lists those it takes",
        )
    }

    pub(crate) fn ambiguous_wait(threads: Vec<String>) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "ambiguous-wait",
            "several threads have a question of this id; name one with ?thread_id=",
        )
        .with("thread_ids", threads)
    }

    /// 409: a wait that is over takes nothing more.
    pub(crate) fn wait_closed(state: WaitState, generation: u32) -> Self {
        Self::new(StatusCode::CONFLICT, "wait-closed", format!("the wait is over: it is {state}"))
            .with("state", state.name())
            .with("generation", generation)
    }

    /// 410: there is no answer to come for, and there will be none.
    pub(crate) fn no_answer_left(state: WaitState, generation: u32, why: &str) -> Self {
        Self::new(StatusCode::GONE, "wait-closed", why)
            .with("state", state.name())
            .with("generation", generation)
    }

    /// 410: the answer came, but may no longer be used.
    pub(crate) fn answer_gone(valid_until: String) -> Self {
        Self::new(
            StatusCode::GONE,
            "answer-expired",
            "the answer was valid until a time that is past; it is not handed out any more",
        )
        .with("valid_until", valid_until)
    }

    pub(crate) fn answer_expired() -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "answer-expired",
            "the answer's valid_until is past; nothing was taken",
        )
        .with("field", "valid_until")
    }

    pub(crate) fn action_not_allowed() -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "action-not-allowed",
            "the answer's action is not among the question's allowed_actions; nothing was taken",
        )
        .with("field", "answer")
    }

    pub(crate) fn not_retryable(message: impl Into<String>, state: &'static str) -> Self {
        Self::new(StatusCode::CONFLICT, "not-retryable", message).with("state", state)
    }

    pub(crate) fn key_body_mismatch() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "idempotency-key-body-mismatch",
            "this Idempotency-Key came with another body before; use a fresh key for another request",
        )
    }

    pub(crate) fn key_in_flight() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "idempotency-key-in-flight",
            "a request with this Idempotency-Key is under way; ask again when it is done",
        )
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "request-too-large",
            format!("the body has more than {limit} bytes"),
        )
        .with("limit", limit)
    }

    pub(crate) fn unsupported_media_type(what: &str) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", what)
    }

    pub(crate) fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "request-timeout", "the body did not arrive in time")
    }

    /// 500: our own fault. What it is stands in the log, not in the reply.
    pub(crate) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "something went wrong in answerback; its log names this request's id",
        )
    }

    /// 503: more is under way than there is memory or patience for.
    pub(crate) fn overloaded() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store-unavailable",
            "too many requests are under way; nothing was taken, try again",
        )
        .after(1)
    }

    /// 503: as many follow the events as there may.
    pub(crate) fn too_many_streams() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store-unavailable",
            "as many streams of events are open here as may be; end one that nobody needs, try \
             again, or come to another replica",
        )
        .after(STREAM_RETRY_SECONDS)
    }

    pub(crate) fn store_unavailable() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store-unavailable",
            "the store cannot work now; nothing was taken, try again",
        )
        .after(STORE_RETRY_SECONDS)
    }

    pub(crate) fn shutting_down() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "shutting-down",
            "answerback is stopping; nothing was taken, try again",
        )
        .after(STOP_RETRY_SECONDS)
    }

    /// One of the details.
    #[cfg(test)]
    pub(crate) fn detail(&self, key: &str) -> Option<&Value> {
        self.details.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    /// The error form's text.
    pub(crate) fn body(&self, request_id: &RequestId) -> String {
        let details: Map<String, Value> =
            self.details.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        let mut error = json!({
            "code": self.code,
            "message": self.message,
            "details": details,
            "requestId": request_id.as_str(),
        });
        if let (Some(seconds), Value::Object(error)) = (self.retry_after, &mut error) {
            error.insert("retryAfterSeconds".to_owned(), seconds.into());
        }
        json!({ "error": error }).to_string()
    }

    /// As a reply that can be kept under an `Idempotency-Key`.
    pub(crate) fn into_reply(self, request_id: &RequestId) -> Reply {
        let mut reply = Reply::json(self.status, self.body(request_id));
        if let Some(seconds) = self.retry_after {
            reply.headers.push((header::RETRY_AFTER, HeaderValue::from(seconds)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            reply.headers.push((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        }
        reply
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let problem = Self::new(StatusCode::BAD_REQUEST, "bad-input", refusal.to_string());
        if refusal.field.is_empty() { problem } else { problem.with("field", refusal.field) }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => {
                tracing::warn!(%error, "a request was refused");
                Self::store_unavailable()
            }
            StoreError::Corrupt(_) => {
                tracing::error!(%error, "a request failed");
                Self::internal()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> RequestId {
        RequestId::kept(&HeaderValue::from_static("r-1")).unwrap()
    }

    #[test]
    fn the_form_has_code_message_details_and_request_id() {
        let problem = Problem::from(Refusal::new("tags", "is a string, but must be an object"));
        let body: Value = serde_json::from_str(&problem.body(&id())).unwrap();
        assert_eq!(
            body,
            json!({"error": {
                "code": "bad-input",
                "message": "`tags` is a string, but must be an object",
                "details": {"field": "tags"},
                "requestId": "r-1",
            }})
        );
    }

    #[test]
    fn unavailable_says_when_to_come_back_twice() {
        let reply = Problem::shutting_down().into_reply(&id());
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(reply.headers.contains(&(header::RETRY_AFTER, HeaderValue::from_static("5"))));
        let body: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(body["error"]["retryAfterSeconds"], 5);
        assert_eq!(body["error"]["details"], json!({}));
    }

    #[test]
    fn every_refusal_is_explained_to_operators() {
        let all = [
            Problem::bad_input("x", "y"),
            Problem::answer_expired(),
            Problem::action_not_allowed(),
            Problem::unauthenticated("x"),
            Problem::forbidden("x"),
            Problem::not_found("x"),
            Problem::wait_not_found(),
            Problem::method_not_allowed(),
            Problem::too_slow(),
            Problem::ambiguous_wait(Vec::new()),
            Problem::not_retryable("x", "queued"),
            Problem::key_body_mismatch(),
            Problem::key_in_flight(),
            Problem::answer_gone(String::new()),
            Problem::too_large(1),
            Problem::unsupported_media_type("x"),
            Problem::internal(),
            Problem::store_unavailable(),
            Problem::too_many_streams(),
            Problem::shutting_down(),
        ];
        let page = include_str!("../../docs/http.md");
        for problem in all {
            let row = format!("| {} | `{}` |", problem.status.as_u16(), problem.code);
            assert!(page.contains(&row), "docs/http.md lacks {row}");
        }
        assert!(page.contains("| 409, 410 | `wait-closed` |"));
    }

    #[test]
    fn a_store_error_keeps_its_text_out_of_the_reply() {
        let problem = Problem::from(StoreError::Corrupt("row 17 of secret".to_owned()));
        assert_eq!(problem.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!problem.body(&id()).contains("secret"));
        let problem = Problem::from(StoreError::Unavailable("disk full".to_owned()));
        assert_eq!((problem.status.as_u16(), problem.code), (503, "store-unavailable"));
        assert!(problem.retry_after.is_some());
    }
}
