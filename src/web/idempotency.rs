//! `Idempotency-Key`: the same request sent again gets the first answer again (contract, section 3:
//! per tenant, key and route, for 24 hours).
//!
//! The route is the path with its ids and query: the same key at another wait is another request.
//! What was done is kept, and what clashes with it (409). Refusals of the request itself are not: it
//! may be mended and sent under the same key, or the world may be another then. A keyed request runs to its end even when
//! its caller hangs up, so that the answer is there when the caller comes again.

use super::front::{App, Call, Context, act};
use super::problem::Problem;
use super::reply::{IDEMPOTENT_REPLAYED, Reply, X_REQUEST_ID, is_visible_ascii};
use crate::store::KeptReply;
use axum::body::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const LONGEST_KEY: usize = 255;

/// The keys whose requests are under way in this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight(Arc<Mutex<HashSet<String>>>);

/// A key that is under way until this is dropped.
#[derive(Debug)]
struct Held {
    scope: String,
    all: InFlight,
}

impl InFlight {
    fn hold(&self, scope: &str) -> Option<Held> {
        let fresh = self.lock().insert(scope.to_owned());
        fresh.then(|| Held { scope: scope.to_owned(), all: self.clone() })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.lock().remove(&self.scope);
    }
}

/// The key that a request came with.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<&HeaderValue>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let refuse = |what: &str| Problem::bad_input("Idempotency-Key", what);
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(key), None) if is_visible_ascii(key, LONGEST_KEY) => Ok(Some(key)),
        (Some(_), None) => Err(refuse("must be 1 to 255 visible ASCII characters")),
        (Some(_), Some(_)) => Err(refuse("stands twice; send it once")),
    }
}

/// What a kept reply is found by: fixed in length, and without any id in it.
fn scope(call: &Call, target: &str, key: &HeaderValue) -> String {
    let mut hash = Sha256::new();
    for part in [
        call.caller.tenant.as_str().as_bytes(),
        call.route.method.as_str().as_bytes(),
        target.as_bytes(),
        key.as_bytes(),
    ] {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hex::encode(hash.finalize())
}

/// Does what is asked, or gives the answer that it was given before.
pub(crate) async fn once(
    app: &Arc<App>,
    key: &HeaderValue,
    target: &str,
    context: &Context,
    call: Call,
) -> Result<Reply, Problem> {
    let scope = scope(&call, target, key);
    let held = app.in_flight.hold(&scope).ok_or_else(Problem::key_in_flight)?;
    let (app, id) = (Arc::clone(app), context.id.clone());
    let work = async move {
        let _held = held;
        let body_hash: [u8; 32] = Sha256::digest(&call.body).into();
        if let Some(kept) = app.state.store.kept_reply(scope.clone(), app.state.clock.now()).await?
        {
            return replay(kept, body_hash);
        }
        let reply = act(&app, call).await.unwrap_or_else(|problem| problem.into_reply(&id));
        if is_final(reply.status) {
            let kept =
                KeptReply { body_hash, status: reply.status.as_u16(), body: reply.body.to_vec() };
            if let Err(error) = app.state.store.keep_reply(scope, kept, app.state.clock.now()).await
            {
                tracing::warn!(%error, "a reply could not be kept under its Idempotency-Key");
            }
        }
        Ok(reply)
    };
    match tokio::spawn(work).await {
        Ok(result) => result,
        // The runtime is never stopped under a request.
        Err(_) => {
            tracing::error!(request_id = context.id.as_str(), "a handler panicked");
            Err(Problem::internal())
        }
    }
}

/// Whether this is the answer from now on.
fn is_final(status: StatusCode) -> bool {
    status.is_success() || status == StatusCode::CONFLICT
}

fn replay(kept: KeptReply, body_hash: [u8; 32]) -> Result<Reply, Problem> {
    if kept.body_hash != body_hash {
        return Err(Problem::key_body_mismatch());
    }
    let status = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
    let mut reply = if status == StatusCode::NO_CONTENT {
        Reply::no_content()
    } else {
        Reply::json(status, Bytes::from(kept.body))
    };
    reply.headers.push((IDEMPOTENT_REPLAYED, HeaderValue::from_static("true")));
    // A refusal names the request it was given to, in the header as in the body.
    reply.headers.extend(named_request(&reply).map(|id| (X_REQUEST_ID, id)));
    Ok(reply)
}

/// The `requestId` that a refusal has in it.
fn named_request(reply: &Reply) -> Option<HeaderValue> {
    if reply.status.is_success() {
        return None;
    }
    let body: serde_json::Value = serde_json::from_slice(&reply.body).ok()?;
    HeaderValue::from_str(body["error"]["requestId"].as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_held_by_one_request_at_a_time() {
        let all = InFlight::default();
        let held = all.hold("a").unwrap();
        assert!(all.hold("a").is_none());
        assert!(all.hold("b").is_some());
        drop(held);
        assert!(all.hold("a").is_some());
    }

    #[test]
    fn keys_are_visible_ascii_and_not_too_long() {
        let check = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
            key(&headers).map(|k| k.is_some()).map_err(|p| p.detail("field").unwrap().clone())
        };
        assert_eq!(check(b"order-4471"), Ok(true));
        assert_eq!(check(&[b'k'; 255]), Ok(true));
        assert_eq!(check(&[b'k'; 256]), Err("Idempotency-Key".into()));
        assert!(check(b"").is_err() && check(b"a b").is_err() && check("é".as_bytes()).is_err());
        assert_eq!(key(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn only_what_was_done_and_what_clashes_with_it_is_kept() {
        for (status, kept) in [
            (202, true),
            (204, true),
            (400, false),
            (401, false),
            (403, false),
            (404, false),
            (409, true),
            (413, false),
            (415, false),
            (422, false),
            (429, false),
            (500, false),
            (503, false),
        ] {
            assert_eq!(is_final(StatusCode::from_u16(status).unwrap()), kept, "{status}");
        }
    }

    #[test]
    fn another_body_under_the_same_key_is_refused() {
        let kept = KeptReply { body_hash: [1; 32], status: 202, body: b"{}".to_vec() };
        let again = replay(kept.clone(), [1; 32]).unwrap();
        assert_eq!((again.status.as_u16(), &again.body[..]), (202, &b"{}"[..]));
        assert_eq!(replay(kept, [2; 32]).unwrap_err().code, "idempotency-key-body-mismatch");
    }
}
