//! Request bodies: bounded each, bounded together, and only JSON.

use super::problem::Problem;
use answerback_core::MAX_MESSAGE_BYTES;
use axum::body::{Body, Bytes};
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// How long a body may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(30);
/// What is read of a body that nobody wants, so that the caller can finish sending and read the
/// reply instead of finding the connection reset.
const WASTE_BYTES: usize = 4 << 20;
/// How long that may take.
const WASTE_TIME: Duration = Duration::from_secs(2);

/// Counts the bytes of all bodies that are held, so that many callers together cannot fill the
/// memory.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    held: Arc<AtomicUsize>,
    most: usize,
    arrival: Duration,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Self {
        Self { held: Arc::new(AtomicUsize::new(0)), most, arrival: ARRIVAL }
    }
}

/// Bytes of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    bytes: usize,
}

impl Share {
    fn of(budget: &Budget) -> Self {
        Self { budget: budget.clone(), bytes: 0 }
    }

    fn grow(&mut self, by: usize) -> Result<(), Problem> {
        let before = self.budget.held.fetch_add(by, Ordering::Relaxed);
        self.bytes += by;
        if before + by > self.budget.most { Err(Problem::overloaded()) } else { Ok(()) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Refuses what is no JSON by its headers. A body without a `Content-Type` is judged when it is
/// there ([`read`]).
pub(crate) fn check_headers(headers: &HeaderMap) -> Result<(), Problem> {
    if headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(|e| !e.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        return Err(Problem::unsupported_media_type("send the body without Content-Encoding"));
    }
    match headers.get(header::CONTENT_TYPE) {
        Some(kind) if !is_json(kind.as_bytes()) => {
            Err(Problem::unsupported_media_type("send the body as Content-Type: application/json"))
        }
        _ => Ok(()),
    }
}

/// Whether a media type is JSON in UTF-8, whatever else its parameters say.
fn is_json(kind: &[u8]) -> bool {
    let Ok(kind) = std::str::from_utf8(kind) else { return false };
    let mut parts = kind.split(';').map(str::trim);
    parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"))
        && parts.all(|parameter| match parameter.split_once('=') {
            Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
                matches!(
                    value.trim().trim_matches('"').to_ascii_lowercase().as_str(),
                    "utf-8" | "utf8" | "us-ascii"
                )
            }
            _ => true,
        })
}

/// Reads a body of at most [`MAX_MESSAGE_BYTES`], and no more than that into memory.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: &mut Body,
    budget: &Budget,
) -> Result<(Bytes, Share), Problem> {
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > MAX_MESSAGE_BYTES as u64) {
        return Err(Problem::too_large(MAX_MESSAGE_BYTES));
    }
    let mut share = Share::of(budget);
    let bytes = timeout(budget.arrival, collect(body, &mut share))
        .await
        .map_err(|_| Problem::too_slow())??;
    if !bytes.is_empty() && !headers.contains_key(header::CONTENT_TYPE) {
        return Err(Problem::unsupported_media_type(
            "send the body as Content-Type: application/json",
        ));
    }
    Ok((bytes, share))
}

async fn collect(body: &mut Body, share: &mut Share) -> Result<Bytes, Problem> {
    // Small bodies come as one piece, which is then not copied.
    let mut first = Bytes::new();
    let mut all: Vec<u8> = Vec::new();
    while let Some(piece) = next(body).await? {
        share.grow(piece.len())?;
        if share.bytes > MAX_MESSAGE_BYTES {
            return Err(Problem::too_large(MAX_MESSAGE_BYTES));
        }
        if all.is_empty() && first.is_empty() {
            first = piece;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            all.extend_from_slice(&piece);
        }
    }
    Ok(if all.is_empty() { first } else { Bytes::from(all) })
}

/// The next piece that is data.
async fn next(body: &mut Body) -> Result<Option<Bytes>, Problem> {
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|_| Problem::bad_input("", "the body broke off before it was complete"))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Reads and drops the rest of a body, within bounds.
pub(crate) async fn waste(mut body: Body) {
    let mut left = WASTE_BYTES;
    let _ = timeout(WASTE_TIME, async {
        while let Ok(Some(piece)) = next(&mut body).await {
            left = left.saturating_sub(piece.len());
            if left == 0 {
                break;
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use http::HeaderValue;
    use std::convert::Infallible;

    fn headers(pairs: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (n.clone(), HeaderValue::from_static(v))).collect()
    }

    fn chunked(pieces: &[&'static [u8]]) -> Body {
        let pieces: Vec<Result<Bytes, Infallible>> =
            pieces.iter().map(|p| Ok(Bytes::from_static(p))).collect();
        Body::from_stream(stream::iter(pieces))
    }

    #[test]
    fn only_json_in_utf_8_is_taken() {
        let ok =
            |kind: &'static str| check_headers(&headers(&[(header::CONTENT_TYPE, kind)])).is_ok();
        assert!(ok("application/json"));
        assert!(ok("Application/JSON; charset=UTF-8"));
        assert!(ok("application/json;charset=\"utf-8\"; profile=x"));
        assert!(!ok("text/plain"));
        assert!(!ok("application/jsonx"));
        assert!(!ok("application/json; charset=latin1"));
        assert!(!ok("application/x-www-form-urlencoded"));
        assert!(check_headers(&HeaderMap::new()).is_ok());
        assert!(check_headers(&headers(&[(header::CONTENT_ENCODING, "gzip")])).is_err());
    }

    #[tokio::test]
    async fn pieces_are_put_together_and_given_back_to_the_budget() {
        let budget = Budget::new(100);
        let json = headers(&[(header::CONTENT_TYPE, "application/json")]);
        let mut body = chunked(&[b"{", b"", b"\"a\":", b"1}"]);
        let (bytes, share) = read(&json, &mut body, &budget).await.unwrap();
        assert_eq!(bytes, "{\"a\":1}");
        assert_eq!(budget.held.load(Ordering::Relaxed), 7);
        drop(share);
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);
        let problem = read(&HeaderMap::new(), &mut chunked(&[b"1"]), &budget).await.unwrap_err();
        assert_eq!(problem.status, 415);
        let (none, _) = read(&HeaderMap::new(), &mut Body::empty(), &budget).await.unwrap();
        assert!(none.is_empty());
    }

    #[tokio::test]
    async fn a_mebibyte_is_taken_and_one_more_byte_is_not() {
        let budget = Budget::new(usize::MAX);
        let json = headers(&[(header::CONTENT_TYPE, "application/json")]);
        let full: &'static [u8] = vec![b' '; MAX_MESSAGE_BYTES].leak();
        assert!(read(&json, &mut chunked(&[full]), &budget).await.is_ok());
        let problem = read(&json, &mut chunked(&[full, b"x"]), &budget).await.unwrap_err();
        assert_eq!(problem.code, "request-too-large");
        let announced = headers(&[(header::CONTENT_LENGTH, "1048577")]);
        assert_eq!(read(&announced, &mut Body::empty(), &budget).await.unwrap_err().status, 413);
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn when_memory_is_taken_the_caller_is_sent_away_for_a_while() {
        let budget = Budget::new(4);
        let json = headers(&[(header::CONTENT_TYPE, "application/json")]);
        let held = read(&json, &mut chunked(&[b"123"]), &budget).await.unwrap();
        let problem = read(&json, &mut chunked(&[b"12"]), &budget).await.unwrap_err();
        assert_eq!((problem.status.as_u16(), problem.retry_after), (503, Some(1)));
        drop(held);
        assert!(read(&json, &mut chunked(&[b"12"]), &budget).await.is_ok());
    }

    #[tokio::test]
    async fn a_body_that_never_ends_is_given_up() {
        let budget = Budget { arrival: Duration::from_millis(1), ..Budget::new(100) };
        let json = headers(&[(header::CONTENT_TYPE, "application/json")]);
        let mut body = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let problem = read(&json, &mut body, &budget).await.unwrap_err();
        assert_eq!(problem.code, "request-timeout");
    }
}
