//! What a handler gives back, and the id that every response carries.

use crate::clock;
use answerback_contract::Time;
use axum::body::{Body, Bytes};
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

/// The header that carries a request's id both ways.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Marks a reply that was kept under an `Idempotency-Key`.
pub(crate) const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// A request's id: the caller's when it is 1 to 128 visible ASCII characters, else a ULID.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    /// Of a request.
    pub(crate) fn of(headers: &HeaderMap, now: Time) -> Self {
        headers.get(X_REQUEST_ID).and_then(Self::kept).unwrap_or_else(|| Self::fresh(now))
    }

    /// The caller's own, where it may be kept.
    pub(crate) fn kept(value: &HeaderValue) -> Option<Self> {
        // Copied: a part of the request's head would keep all of it.
        let copy = || HeaderValue::from_bytes(value.as_bytes()).ok().map(Self);
        if is_visible_ascii(value, 128) { copy() } else { None }
    }

    fn fresh(now: Time) -> Self {
        let text = Bytes::from(clock::fresh_ulid(now));
        Self(HeaderValue::from_maybe_shared(text).unwrap_or(HeaderValue::from_static("none")))
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    pub(crate) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

/// Whether a header's value has 1 to `most` characters, all of them visible ASCII.
pub(crate) fn is_visible_ascii(value: &HeaderValue, most: usize) -> bool {
    let bytes = value.as_bytes();
    (1..=most).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

/// A response before it is HTTP: small enough to be kept and compared.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) content_type: Option<HeaderValue>,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            content_type: Some(HeaderValue::from_static("application/json")),
            headers: Vec::new(),
            body: body.into(),
        }
    }

    pub(crate) fn ok(body: impl Into<Bytes>) -> Self {
        Self::json(StatusCode::OK, body)
    }

    pub(crate) fn no_content() -> Self {
        Self {
            status: StatusCode::NO_CONTENT,
            content_type: None,
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    pub(crate) fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if let Some(kind) = self.content_type {
            headers.insert(header::CONTENT_TYPE, kind);
        }
        for (name, value) in self.headers {
            headers.insert(name, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_id_is_kept_only_when_it_is_visible_ascii() {
        let kept = |text: &[u8]| {
            HeaderValue::from_bytes(text).ok().as_ref().and_then(RequestId::kept).is_some()
        };
        assert!(kept(b"order-4471/17"));
        assert!(kept(&[b'x'; 128]));
        assert!(!kept(&[b'x'; 129]));
        assert!(!kept(b""));
        assert!(!kept(b"two words"));
        assert!(!kept("é".as_bytes()));
    }

    #[test]
    fn without_one_a_ulid_is_made() {
        let id = RequestId::of(&HeaderMap::new(), Time::from_millis(1_800_000_000_000));
        assert_eq!(id.as_str().len(), 26);
    }
}
