//! What every request goes through before and after its handler.

use super::auth::{Asker, Caller};
use super::body::{self, Budget, Share};
use super::idempotency::{self, InFlight};
use super::problem::Problem;
use super::query::Query;
use super::reply::{Reply, RequestId, X_REQUEST_ID};
use super::routes::{Access, Endpoint, ROUTES, Route, Takes};
use super::{ApiState, events, guard, health, openapi, outbox, waits};
use crate::config::Scope;
use crate::metrics::SourceMetrics;
use answerback_contract::{TenantId, Time};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderValue, Method, Uri, Version, header};
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tower::Service as _;

/// The bytes of all request bodies held at a time.
const BODY_BYTES: usize = 64 << 20;

/// What all requests share.
pub(crate) struct App {
    pub(crate) state: ApiState,
    pub(crate) budget: Budget,
    pub(crate) in_flight: InFlight,
    pub(crate) streams: events::Streams,
    pub(crate) readiness: health::Readiness,
    pub(crate) openapi: Bytes,
    pub(crate) counted: SourceMetrics,
}

/// What is known of a request before it is routed.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) id: RequestId,
    peer: IpAddr,
    started: Time,
}

/// A request that may be done.
pub(crate) struct Call {
    pub(crate) route: &'static Route,
    pub(crate) caller: Caller,
    /// The path's parameter, decoded; empty where it has none.
    pub(crate) id: String,
    pub(crate) query: Query,
    pub(crate) body: Bytes,
    /// Held for as long as the body is.
    _share: Option<Share>,
}

/// The API as one function. Cheap to clone.
#[derive(Clone)]
pub struct Front {
    app: Arc<App>,
    router: Router,
}

impl Front {
    /// Serves `state`.
    #[must_use]
    pub fn new(state: ApiState) -> Self {
        let app = Arc::new(App {
            state,
            budget: Budget::new(BODY_BYTES),
            in_flight: InFlight::default(),
            streams: events::Streams::default(),
            readiness: health::Readiness::default(),
            openapi: Bytes::from(openapi::document()),
            counted: SourceMetrics::of("http"),
        });
        let mut router = Router::new();
        for route in &ROUTES {
            let app = Arc::clone(&app);
            let filter = match route.method {
                Method::GET => MethodFilter::GET,
                Method::DELETE => MethodFilter::DELETE,
                _ => MethodFilter::POST,
            };
            let handler = move |request: Request| dispatch(Arc::clone(&app), route, request);
            router = router.route(route.path, on(filter, handler));
        }
        let missing = Arc::clone(&app);
        let wrong = Arc::clone(&app);
        let router = router
            .fallback(move |request| refuse(Arc::clone(&missing), request, Problem::no_route()))
            .method_not_allowed_fallback(move |request| {
                refuse(Arc::clone(&wrong), request, Problem::method_not_allowed())
            });
        Self { app, router }
    }

    /// Whether there are no keys, so that only callers on this machine are served.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.app.state.auth.is_open()
    }

    /// Answers one request of `peer`.
    pub async fn handle(&self, peer: SocketAddr, mut request: Request) -> Response {
        let state = &self.app.state;
        let started = state.clock.now();
        let id = RequestId::of(request.headers(), started);
        let context = Context { id: id.clone(), peer: peer.ip(), started };
        let version = request.version();
        let let_in = guard::host(version, request.headers());
        let let_in = if state.auth.is_open() {
            let_in.and_then(|()| guard::local(peer.ip(), request.uri(), request.headers()))
        } else {
            let_in
        };
        request.extensions_mut().insert(context);
        let mut response = match let_in {
            Err(problem) => refuse(Arc::clone(&self.app), request, problem).await,
            // Always ready; `oneshot` would keep router and request in the future of a long poll.
            Ok(()) => match self.router.clone().call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        };
        let headers = response.headers_mut();
        // A refusal that is given again has the id that stands in it.
        headers.entry(X_REQUEST_ID).or_insert_with(|| id.header());
        if version <= Version::HTTP_11 && state.drain.is_cancelled() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Answers a request that has no route, or may not come in.
async fn refuse(app: Arc<App>, request: Request, problem: Problem) -> Response {
    let (mut parts, body) = request.into_parts();
    let context = Context::take(&app, &mut parts);
    waste(&parts, body).await;
    log(&app, &context, "-", problem.status.as_u16());
    problem.into_reply(&context.id).into_response()
}

/// Answers a request that has a route.
async fn dispatch(app: Arc<App>, route: &'static Route, request: Request) -> Response {
    let (mut parts, mut body) = request.into_parts();
    let context = Context::take(&app, &mut parts);
    let work = run(&app, route, &context, &mut parts, &mut body);
    let result = AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
        // What it panicked with may hold anything, a question too.
        tracing::error!(request_id = context.id.as_str(), route = route.path, "a handler panicked");
        Err(Problem::internal())
    });
    let response = match result {
        Ok(response) => response,
        Err(problem) => {
            waste(&parts, body).await;
            problem.into_reply(&context.id).into_response()
        }
    };
    log(&app, &context, route.path, response.status().as_u16());
    response
}

async fn run(
    app: &Arc<App>,
    route: &'static Route,
    context: &Context,
    parts: &mut Parts,
    body: &mut Body,
) -> Result<Response, Problem> {
    let auth = &app.state.auth;
    let asker = match route.access {
        Access::Open => Asker::Known(nobody()),
        Access::Key(scopes) => Asker::Known(auth.by_key(&parts.headers, scopes)?),
        Access::KeyOrSignature => auth.asker(&parts.headers)?,
        Access::ReadOrLocal => {
            if guard::local(context.peer, &parts.uri, &parts.headers).is_ok() {
                Asker::Known(nobody())
            } else {
                Asker::Known(auth.by_key(&parts.headers, &[Scope::Read])?)
            }
        }
    };
    if route.mutates() && app.state.drain.is_cancelled() {
        return Err(Problem::shutting_down());
    }
    let query = Query::parse(parts.uri.query(), route.query)?;
    let id = path_id(route, parts).await?;
    let (bytes, share) = match route.takes {
        Takes::Nothing => (Bytes::new(), None),
        Takes::NoFields => {
            let (bytes, share) = body::read(&parts.headers, body, &app.budget).boxed().await?;
            // Clients put their usual type on requests without a body too.
            if !bytes.is_empty() {
                body::check_headers(&parts.headers)?;
            }
            (bytes, Some(share))
        }
        Takes::Message(_) => {
            body::check_headers(&parts.headers)?;
            let (bytes, share) = body::read(&parts.headers, body, &app.budget).boxed().await?;
            (bytes, Some(share))
        }
    };
    let caller = match asker {
        Asker::Known(caller) => caller,
        Asker::Signed(mac, by_key) => Asker::both(auth.signer(&mac, &bytes)?, by_key)?,
    };
    if route.takes == Takes::NoFields && !has_no_fields(&bytes) {
        return Err(Problem::bad_input("", "this path takes no body, or an empty object"));
    }
    let call = Call { route, caller, id, query, body: bytes, _share: share };
    if route.endpoint == Endpoint::Events {
        return events::stream(app, &call, &parts.headers).boxed().await;
    }
    if route.endpoint == Endpoint::GetAnswer {
        let_go(parts);
    }
    let key = if route.mutates() { idempotency::key(&parts.headers)? } else { None };
    let reply = match key {
        None => act(app, call).await,
        Some(key) => {
            let target = parts.uri.path_and_query().map_or("", |t| t.as_str());
            idempotency::once(app, key, target, context, call).boxed().await
        }
    };
    reply.map(Reply::into_response)
}

/// Lets a request's head go before what may be a long wait: it lies in the connection's read buffer,
/// which is kept beside a second one for as long as anything of it is.
fn let_go(parts: &mut Parts) {
    let expects = parts.headers.contains_key(header::EXPECT);
    parts.headers = HeaderMap::new();
    parts.uri = Uri::default();
    parts.extensions = Extensions::new();
    if expects {
        // Whether the caller still waits to be asked for a body.
        parts.headers.insert(header::EXPECT, HeaderValue::from_static("100-continue"));
    }
}

/// Runs the handler. Each has a box of its own: else every request would take the room of the largest
/// one, and long polls have to be many.
pub(crate) fn act(app: &App, call: Call) -> BoxFuture<'_, Result<Reply, Problem>> {
    match call.route.endpoint {
        Endpoint::Publish => waits::publish(app, call).boxed(),
        Endpoint::ListWaits => waits::list(app, call).boxed(),
        Endpoint::GetWait => waits::get(app, call).boxed(),
        Endpoint::GetAnswer => waits::get_answer(app, call).boxed(),
        Endpoint::DeleteAnswer => waits::delete_answer(app, call).boxed(),
        Endpoint::CancelWait => waits::cancel(app, call).boxed(),
        // A stream is no reply: it was begun before this.
        Endpoint::Events => ready(Err(Problem::internal())).boxed(),
        Endpoint::Answer => waits::answer(app, call).boxed(),
        Endpoint::ListAnnouncements => outbox::list(app, call, true).boxed(),
        Endpoint::ListDeliveries => outbox::list(app, call, false).boxed(),
        Endpoint::RetryAnnouncement => outbox::retry_announcement(app, call).boxed(),
        Endpoint::RetryDelivery => outbox::retry_delivery(app, call).boxed(),
        Endpoint::RetryAnnouncer => outbox::retry_announcer(app, call).boxed(),
        Endpoint::Health => ready(Ok(health::alive())).boxed(),
        Endpoint::Ready => health::ready(app).boxed(),
        Endpoint::Metrics => health::metrics(app).boxed(),
        Endpoint::OpenApi => ready(Ok(Reply::ok(app.openapi.clone()))).boxed(),
    }
}

impl Context {
    fn take(app: &App, parts: &mut Parts) -> Self {
        parts.extensions.remove::<Self>().unwrap_or_else(|| {
            let started = app.state.clock.now();
            let id = RequestId::of(&parts.headers, started);
            Self { id, peer: IpAddr::from([0, 0, 0, 0]), started }
        })
    }
}

fn nobody() -> Caller {
    Caller { tenant: TenantId::default_tenant(), key: None }
}

/// The path's one parameter, percent-decoded once.
async fn path_id(route: &Route, parts: &mut Parts) -> Result<String, Problem> {
    if !route.path.contains('{') {
        return Ok(String::new());
    }
    let params = RawPathParams::from_request_parts(parts, &()).await.map_err(|_| {
        Problem::bad_input("path", "has an id that is no UTF-8 when it is percent-decoded")
    })?;
    Ok(params.iter().next().map(|(_, id)| id.to_owned()).unwrap_or_default())
}

fn has_no_fields(body: &[u8]) -> bool {
    let text = body.trim_ascii();
    text.is_empty()
        || text
            .strip_prefix(b"{")
            .and_then(|rest| rest.strip_suffix(b"}"))
            .is_some_and(|inside| inside.trim_ascii().is_empty())
}

/// Lets a caller finish sending what nobody reads, unless it still waits to be asked for it.
async fn waste(parts: &Parts, body: Body) {
    if !parts.headers.contains_key(header::EXPECT) {
        body::waste(body).await;
    }
}

/// One line a request: never the path, which has ids, nor anything that was sent.
fn log(app: &App, context: &Context, route: &'static str, status: u16) {
    if tracing::enabled!(tracing::Level::DEBUG) {
        let ms = context.started.until(app.state.clock.now()).as_millis();
        let id = context.id.as_str();
        tracing::debug!(route, status, ms, request_id = id, "request");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_object_is_as_good_as_no_body() {
        for good in ["", " \n", "{}", " { \n } "] {
            assert!(has_no_fields(good.as_bytes()), "{good}");
        }
        for bad in ["[]", "{\"a\":1}", "null", "{", "}{"] {
            assert!(!has_no_fields(bad.as_bytes()), "{bad}");
        }
    }
}
