//! The routes that exist: one table that the router, the checks before every handler and
//! `/openapi.json` are made from.

use super::query::TAG_PREFIX;
use crate::config::Scope;
use http::Method;

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Endpoint {
    Publish,
    ListWaits,
    GetWait,
    GetAnswer,
    DeleteAnswer,
    CancelWait,
    Events,
    Answer,
    ListAnnouncements,
    ListDeliveries,
    RetryAnnouncement,
    RetryDelivery,
    RetryAnnouncer,
    Health,
    Ready,
    Metrics,
    OpenApi,
}

/// Who may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Everybody.
    Open,
    /// A key with one of these scopes.
    Key(&'static [Scope]),
    /// A key that may publish, or a signature.
    KeyOrSignature,
    /// A key that may read, or a caller on this machine.
    ReadOrLocal,
}

/// What is sent along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Takes {
    /// Nothing is looked at.
    Nothing,
    /// Nothing, or an object without members.
    NoFields,
    /// A message; the name of its schema.
    Message(&'static str),
}

/// One route.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) endpoint: Endpoint,
    pub(crate) method: Method,
    /// The template.
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    pub(crate) query: &'static [&'static str],
    pub(crate) takes: Takes,
    pub(crate) summary: &'static str,
    /// Status and schema of what is answered when all is well; an empty name for no body.
    pub(crate) answers: &'static [(u16, &'static str)],
    /// Statuses of refusals beside those that every such route has.
    pub(crate) refusals: &'static [u16],
}

impl Route {
    /// Whether it changes anything: then it takes an `Idempotency-Key` and is refused while the
    /// daemon stops.
    pub(crate) fn mutates(&self) -> bool {
        self.method != Method::GET
    }
}

const ONE: &[&str] = &["question_id", "thread_id", "generation"];
const PUBLISH: Access = Access::Key(&[Scope::Publish]);
const READ: Access = Access::Key(&[Scope::Read]);
const ADMIN: Access = Access::Key(&[Scope::Admin]);

/// All routes.
pub(crate) static ROUTES: [Route; 17] = [
    Route {
        endpoint: Endpoint::Publish,
        method: Method::POST,
        path: "/v1/waits",
        access: Access::KeyOrSignature,
        query: &[],
        takes: Takes::Message("Envelope"),
        summary: "Ask a question",
        answers: &[(202, "Accepted"), (200, "Accepted")],
        refusals: &[],
    },
    Route {
        endpoint: Endpoint::ListWaits,
        method: Method::GET,
        path: "/v1/waits",
        access: READ,
        query: &["state", "thread_id", "run_id", TAG_PREFIX, "announcer", "limit", "cursor"],
        takes: Takes::Nothing,
        summary: "List waits, newest first",
        answers: &[(200, "WaitList")],
        refusals: &[],
    },
    Route {
        endpoint: Endpoint::GetWait,
        method: Method::GET,
        path: "/v1/waits/{question_id}",
        access: READ,
        query: ONE,
        takes: Takes::Nothing,
        summary: "Look at one wait",
        answers: &[(200, "Wait")],
        refusals: &[404, 409],
    },
    Route {
        endpoint: Endpoint::GetAnswer,
        method: Method::GET,
        path: "/v1/waits/{question_id}/answer",
        access: Access::Key(&[Scope::Publish, Scope::Read]),
        query: &["question_id", "thread_id", "generation", "wait"],
        takes: Takes::Nothing,
        summary: "Come for the answer; wait up to 60 s for it",
        answers: &[(200, "Answer"), (204, "")],
        refusals: &[404, 409, 410],
    },
    Route {
        endpoint: Endpoint::DeleteAnswer,
        method: Method::DELETE,
        path: "/v1/waits/{question_id}/answer",
        access: PUBLISH,
        query: ONE,
        takes: Takes::Nothing,
        summary: "Say that the host has the answer",
        answers: &[(204, "")],
        refusals: &[404],
    },
    Route {
        endpoint: Endpoint::CancelWait,
        method: Method::POST,
        path: "/v1/waits/{question_id}/cancel",
        access: PUBLISH,
        query: ONE,
        takes: Takes::NoFields,
        summary: "Withdraw a question",
        answers: &[(200, "Status")],
        refusals: &[404],
    },
    Route {
        endpoint: Endpoint::Events,
        method: Method::GET,
        path: "/v1/events",
        access: READ,
        query: &["thread_id"],
        takes: Takes::Nothing,
        summary: "Follow what happens to waits, in the order of commits",
        answers: &[(200, "Events")],
        refusals: &[],
    },
    Route {
        endpoint: Endpoint::Answer,
        method: Method::POST,
        path: "/v1/answers",
        access: Access::Key(&[Scope::Answer]),
        query: &[],
        takes: Takes::Message("Answer"),
        summary: "Answer a question",
        answers: &[(200, "Status")],
        refusals: &[404],
    },
    Route {
        endpoint: Endpoint::ListAnnouncements,
        method: Method::GET,
        path: "/v1/announcements",
        access: READ,
        query: &["state", "announcer", "limit", "cursor"],
        takes: Takes::Nothing,
        summary: "List announcements, newest first",
        answers: &[(200, "AnnouncementList")],
        refusals: &[],
    },
    Route {
        endpoint: Endpoint::ListDeliveries,
        method: Method::GET,
        path: "/v1/deliveries",
        access: READ,
        query: &["state", "route", "limit", "cursor"],
        takes: Takes::Nothing,
        summary: "List deliveries of answers, newest first",
        answers: &[(200, "DeliveryList")],
        refusals: &[],
    },
    Route {
        endpoint: Endpoint::RetryAnnouncement,
        method: Method::POST,
        path: "/v1/announcements/{id}/retry",
        access: ADMIN,
        query: &[],
        takes: Takes::NoFields,
        summary: "Send a dead announcement again",
        answers: &[(202, "Retried")],
        refusals: &[404],
    },
    Route {
        endpoint: Endpoint::RetryDelivery,
        method: Method::POST,
        path: "/v1/deliveries/{id}/retry",
        access: ADMIN,
        query: &[],
        takes: Takes::NoFields,
        summary: "Send a dead delivery again",
        answers: &[(202, "Retried")],
        refusals: &[404],
    },
    Route {
        endpoint: Endpoint::RetryAnnouncer,
        method: Method::POST,
        path: "/v1/announcers/{name}/retry",
        access: ADMIN,
        query: &[],
        takes: Takes::NoFields,
        summary: "Wake an announcer and send all its dead announcements again",
        answers: &[(202, "Retried")],
        refusals: &[404],
    },
    Route {
        endpoint: Endpoint::Health,
        method: Method::GET,
        path: "/healthz",
        access: Access::Open,
        query: &[],
        takes: Takes::Nothing,
        summary: "Whether the process lives",
        answers: &[(200, "Status")],
        refusals: &[],
    },
    Route {
        endpoint: Endpoint::Ready,
        method: Method::GET,
        path: "/readyz",
        access: Access::Open,
        query: &[],
        takes: Takes::Nothing,
        summary: "Whether it can take work: the store writes, and it is not stopping",
        answers: &[(200, "Status")],
        refusals: &[],
    },
    Route {
        endpoint: Endpoint::Metrics,
        method: Method::GET,
        path: "/metrics",
        access: Access::ReadOrLocal,
        query: &[],
        takes: Takes::Nothing,
        summary: "Metrics in Prometheus' text format",
        answers: &[(200, "Metrics")],
        refusals: &[],
    },
    Route {
        endpoint: Endpoint::OpenApi,
        method: Method::GET,
        path: "/openapi.json",
        access: Access::Open,
        query: &[],
        takes: Takes::Nothing,
        summary: "This description",
        answers: &[(200, "OpenApi")],
        refusals: &[],
    },
];
